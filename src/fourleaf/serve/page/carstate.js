// What the 28 calls of the cabin's tools do to a car. Pure: a state and a call give a state, what changed, and words.

export const WINDOWS = ["driver", "passenger", "rear_left", "rear_right"];
export const SEATS = WINDOWS;
export const ZONES = ["driver", "passenger", "rear"];

const each = (names, value) => Object.fromEntries(names.map((name) => [name, value]));
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const words = (name) => String(name).replaceAll("_", " ");

/** A parked car. What query_status reads (range and so on) is this drawing's, not the model's. */
export const parked = () => ({
  windows: each(WINDOWS, 0),
  sunroof: 0,
  celsius: each(ZONES, 21),
  fan: 2,
  ac: false,
  defrost: { front: false, rear: false },
  heating: each(SEATS, 0),
  ventilation: each(SEATS, 0),
  steering: false,
  lights: "auto",
  ambient: { color: "white", brightness: 20 },
  wipers: "off",
  locked: true,
  trunk: false,
  route: null,
  nearby: null,
  media: { query: null, state: "stopped" },
  volume: 10,
  phone: null,
  drive: "comfort",
  cruise: 0,
  asked: null,
});

const READINGS = {
  range: "312 km",
  battery: "74%",
  tire_pressure: "2.5 bar, all four",
  outside_temperature: "6 °C",
  arrival_time: "18:42",
  traffic: "light, no delays",
};
const PLAYS = { pause: "paused", resume: "playing", stop: "stopped", next: "playing", previous: "playing" };

const pick = (name, all) => (name === "all" ? all : [name]);

// Tool -> (state, arguments) -> [what changes, keys to flash, words]
const EFFECTS = {
  set_window: (s, { window, position }) => [
    { windows: { ...s.windows, ...each(pick(window, WINDOWS), position) } },
    pick(window, WINDOWS).map((name) => `window-${name}`),
    `${window === "all" ? "all windows" : `${words(window)} window`} ${position ? `${position}% open` : "closed"}`,
  ],
  set_sunroof: (s, { position }) => [
    { sunroof: position },
    ["sunroof"],
    `sunroof ${position ? `${position}% open` : "closed"}`,
  ],
  set_temperature: (s, { zone, celsius }) => [
    { celsius: { ...s.celsius, ...each(pick(zone, ZONES), celsius) } },
    pick(zone, ZONES).map((name) => `zone-${name}`),
    `${words(zone)} at ${celsius} °C`,
  ],
  adjust_temperature: (s, { zone, delta }) => {
    const zones = pick(zone, ZONES);
    const now = Object.fromEntries(zones.map((name) => [name, clamp(s.celsius[name] + delta, 16, 30)]));
    const by = Math.abs(delta);
    return [
      { celsius: { ...s.celsius, ...now } },
      zones.map((n) => `zone-${n}`),
      `${words(zone)} ${by} °C ${delta < 0 ? "cooler" : "warmer"}`,
    ];
  },
  set_fan: (s, { level }) => [{ fan: level }, ["fan"], level ? `fan at ${level}` : "fan off"],
  set_ac: (s, { on }) => [{ ac: on }, ["ac"], `air conditioning ${on ? "on" : "off"}`],
  set_defrost: (s, { window, on }) => [
    { defrost: { ...s.defrost, [window]: on } },
    [`defrost-${window}`],
    `${window} defroster ${on ? "on" : "off"}`,
  ],
  set_seat_heating: (s, { seat, level }) => [
    { heating: { ...s.heating, [seat]: level } },
    [`seat-${seat}`],
    `${words(seat)} seat heating ${level || "off"}`,
  ],
  set_seat_ventilation: (s, { seat, level }) => [
    { ventilation: { ...s.ventilation, [seat]: level } },
    [`seat-${seat}`],
    `${words(seat)} seat ventilation ${level || "off"}`,
  ],
  set_steering_heating: (s, { on }) => [{ steering: on }, ["wheel"], `steering wheel heating ${on ? "on" : "off"}`],
  set_lights: (s, { mode }) => [{ lights: mode }, ["lights"], `lights ${mode}`],
  set_ambient_light: (s, { color, brightness }) => [
    { ambient: { color, brightness } },
    ["ambient"],
    `ambient light ${color}, ${brightness}%`,
  ],
  set_wipers: (s, { mode }) => [{ wipers: mode }, ["wipers"], `wipers ${mode}`],
  lock_doors: (s, { locked }) => [{ locked }, ["doors"], `doors ${locked ? "locked" : "unlocked"}`],
  set_trunk: (s, { open }) => [{ trunk: open }, ["trunk"], `trunk ${open ? "open" : "closed"}`],
  navigate: (s, { destination, avoid }) => [
    { route: { destination, avoid, stops: [] } },
    ["route"],
    `route to ${destination}${avoid === "nothing" ? "" : `, no ${avoid}`}`,
  ],
  add_stop: (s, { place }) => [
    { route: { destination: null, avoid: "nothing", ...s.route, stops: [...(s.route?.stops ?? []), place] } },
    ["route"],
    `stop at ${place}`,
  ],
  cancel_navigation: () => [{ route: null }, ["route"], "guidance stopped"],
  find_nearby: (s, { category }) => [{ nearby: category }, ["nearby"], `looking for: ${words(category)}`],
  play_media: (s, { query }) => [{ media: { query, state: "playing" } }, ["media"], `playing ${query}`],
  control_media: (s, { action }) => [
    { media: { ...s.media, state: PLAYS[action], last: action } },
    ["media"],
    `media: ${action}`,
  ],
  set_volume: (s, { level }) => [{ volume: level }, ["volume"], `volume ${level}`],
  adjust_volume: (s, { delta }) => {
    const volume = clamp(s.volume + delta, 0, 30);
    return [{ volume }, ["volume"], `volume ${delta < 0 ? "down" : "up"} to ${volume}`];
  },
  call_contact: (s, { name }) => [{ phone: { kind: "call", name } }, ["phone"], `calling ${name}`],
  send_message: (s, { name, text }) => [
    { phone: { kind: "message", name, text } },
    ["phone"],
    `message to ${name}: ${text}`,
  ],
  set_drive_mode: (s, { mode }) => [{ drive: mode }, ["drive"], `${mode} mode`],
  set_cruise: (s, { speed_kmh: speed }) => [
    { cruise: speed },
    ["cruise"],
    speed ? `cruise at ${speed} km/h` : "cruise off",
  ],
  query_status: (s, { item }) => [
    { asked: { item, value: READINGS[item] } },
    ["asked"],
    `${words(item)}: ${READINGS[item]}`,
  ],
};

export const TOOLS = Object.keys(EFFECTS);

/** -> {state, changed, words}; words alone say so where a call is none of the cabin's, or cannot be read. */
export function applied(state, call) {
  const effect = EFFECTS[call.name];
  if (!effect) return { state, changed: [], words: `no such control here: ${call.name}` };
  try {
    const given = typeof call.arguments === "string" ? JSON.parse(call.arguments) : call.arguments;
    const [change, changed, said] = effect(state, given);
    return { state: { ...state, ...change }, changed, words: said };
  } catch {
    return { state, changed: [], words: `${call.name} came with arguments that cannot be read` };
  }
}
