// The car, drawn from above with its front up; every part that a call can change has a name and is redrawn from a state.

import { svg } from "./dom.js";
import { SEATS, WINDOWS, ZONES } from "./carstate.js";

const COLORS = {
  red: "#ff4d4d",
  orange: "#ff9138",
  yellow: "#ffd84d",
  green: "#4ddb7a",
  blue: "#4d9dff",
  purple: "#a56bff",
  pink: "#ff7ac4",
  white: "#f5f1e6",
};
const PLACES = { driver: [128, 300], passenger: [228, 300], rear_left: [124, 452], rear_right: [232, 452] };
// Side windows: x, y, length, and the way of the slant.
const PANES = {
  driver: [84, 292, 100],
  passenger: [330, 292, 100],
  rear_left: [84, 428, 96],
  rear_right: [330, 428, 96],
};
const ZONE_PLACES = { driver: [158, 388], passenger: [258, 388], rear: [208, 546] };

const BODY =
  "M208 40c66 0 112 18 124 66 9 38 12 84 12 134v262c0 66-5 112-20 134-14 20-60 30-116 30s-102-10-116-30c-15-22-20-68-20-134V240c0-50 3-96 12-134 12-48 58-66 124-66z";
const FRONT_GLASS = "M108 222c26-24 62-34 100-34s74 10 100 34l-16 46c-22-12-52-17-84-17s-62 5-84 17z";
const REAR_GLASS = "M120 570c24 10 56 14 88 14s64-4 88-14l10 36c-24 14-60 20-98 20s-74-6-98-20z";
const CABIN =
  "M112 274c26-14 60-20 96-20s70 6 96 20c6 60 6 220-4 290-24 10-58 15-92 15s-68-5-92-15c-10-70-10-230-4-290z";

const part = (name, ...children) => svg("g", { "data-part": name }, svg("title", {}), ...children);

function seat(name) {
  const [x, y] = PLACES[name];
  return part(
    `seat-${name}`,
    svg("rect", { class: "seat", x, y, width: 60, height: 58, rx: 14 }),
    svg("rect", { class: "seat back", x: x + 2, y: y + 46, width: 56, height: 24, rx: 10 }),
    svg("g", { class: "pips" }),
  );
}

function lamp(x, way) {
  const beam = `M${x} 66L${x - 46 + way * 10} -46h${92}z`;
  return svg(
    "g",
    {},
    svg("path", { class: "beam", d: beam }),
    svg("ellipse", { class: "lamp", cx: x, cy: 68, rx: 20, ry: 10, transform: `rotate(${way * 24} ${x} 68)` }),
  );
}

const wiper = (x, way) => svg("line", { class: "wiper", x1: x, y1: 258, x2: x + way * 62, y2: 218 });
const wave = (x, y) => svg("path", { class: "wave", d: `M${x} ${y}q-7-7 0-14t0-14` });

function zone(name) {
  const [x, y] = ZONE_PLACES[name];
  return part(
    `zone-${name}`,
    svg("rect", { class: "plate", x: x - 31, y: y - 17, width: 62, height: 28, rx: 14 }),
    svg("text", { x, y: y + 3 }),
  );
}

function pane(name) {
  const [x, y, length] = PANES[name];
  return part(
    `window-${name}`,
    svg("rect", { class: "gap", x: x - 5, y, width: 11, height: length, rx: 5 }),
    svg("rect", { class: "glass", x: x - 5, y, width: 11, height: length, rx: 5 }),
    svg("text", { class: "percent", x: x + (x < 208 ? -30 : 31), y: y + length / 2 + 5 }),
  );
}

export class Car {
  constructor() {
    this.node = svg(
      "svg",
      { class: "car", viewBox: "0 -56 416 800", role: "img", "aria-label": "The car from above" },
      part("lights", lamp(134, -1), lamp(282, 1)),
      [
        [66, 196],
        [322, 196],
        [66, 560],
        [322, 560],
      ].map(([x, y]) => svg("rect", { class: "tyre", x, y, width: 28, height: 78, rx: 9 })),
      [["M84 270l-26-8q-8 10 2 18l24 6z"], ["M332 270l26-8q8 10-2 18l-24 6z"]].map(([d]) =>
        svg("path", { class: "body", d }),
      ),
      part(
        "trunk",
        svg("path", { class: "lid", d: "M112 628c28 12 62 16 96 16s68-4 96-16l-8 40c-20 10-52 14-88 14s-68-4-88-14z" }),
      ),
      svg("path", { class: "body", d: BODY }),
      part("ambient", svg("path", { class: "floor", d: CABIN }), svg("path", { class: "glow", d: CABIN })),
      part(
        "defrost-front",
        svg("path", { class: "glass-pane", d: FRONT_GLASS }),
        [150, 190, 226, 266].map((x) => wave(x, 242)),
      ),
      part("wipers", wiper(140, 1), wiper(222, 1)),
      part(
        "defrost-rear",
        svg("path", { class: "glass-pane", d: REAR_GLASS }),
        [164, 208, 252].map((x) => wave(x, 616)),
      ),
      part(
        "wheel",
        svg("circle", { class: "wheel", cx: 158, cy: 282, r: 17 }),
        svg("path", { class: "spokes", d: "M141 282h34M158 282v17" }),
      ),
      SEATS.map(seat),
      part(
        "sunroof",
        svg("rect", { class: "frame", x: 158, y: 404, width: 100, height: 42, rx: 8 }),
        svg("rect", { class: "roof", x: 160, y: 406, width: 96, height: 38, rx: 6 }),
        svg("text", { class: "percent", x: 208, y: 431 }),
      ),
      WINDOWS.map(pane),
      ZONES.map(zone),
      part(
        "doors",
        svg("path", { class: "seam", d: "M78 398h16M322 398h16M78 536h16M322 536h16" }),
        [60, 356].map((x) => lock(x)),
      ),
      part(
        "plug",
        svg("text", { class: "badge", x: 208, y: 108 }),
        svg("text", { class: "badge small", x: 208, y: 136 }),
      ),
    );
    this.parts = Object.fromEntries(
      [...this.node.querySelectorAll("[data-part]")].map((node) => [node.dataset.part, node]),
    );
  }

  show(state) {
    for (const name of WINDOWS) this._window(name, state.windows[name]);
    this._sunroof(state.sunroof);
    for (const name of SEATS) this._seat(name, state.heating[name], state.ventilation[name]);
    for (const name of ZONES) {
      const plate = this.parts[`zone-${name}`];
      plate.querySelector("text").textContent = `${state.celsius[name]}°`;
      plate.style.setProperty("--warm", (state.celsius[name] - 16) / 14);
      this._title(`zone-${name}`, `${name} zone at ${state.celsius[name]} °C`);
    }
    const set = (name, value, title) => {
      this.parts[name].dataset.is = String(value);
      this._title(name, title);
    };
    set("lights", state.lights, `lights ${state.lights}`);
    set("wipers", state.wipers, `wipers ${state.wipers}`);
    set("wheel", state.steering, `steering wheel heating ${state.steering ? "on" : "off"}`);
    set("doors", state.locked, `doors ${state.locked ? "locked" : "unlocked"}`);
    set("trunk", state.trunk, `trunk ${state.trunk ? "open" : "closed"}`);
    for (const side of ["front", "rear"])
      set(`defrost-${side}`, state.defrost[side], `${side} defroster ${state.defrost[side] ? "on" : "off"}`);
    set("ambient", state.ambient.color, `ambient light ${state.ambient.color}, ${state.ambient.brightness}%`);
    this.parts.ambient.style.setProperty("--light", COLORS[state.ambient.color] ?? "#fff");
    this.parts.ambient.style.setProperty("--bright", state.ambient.brightness / 100);
    const [badge, small] = this.parts.plug.querySelectorAll("text");
    badge.textContent = state.drive;
    small.textContent = state.cruise ? `cruise ${state.cruise} km/h` : "";
  }

  /** Marks the parts that a call changed, for a moment. */
  flash(names) {
    for (const name of names) {
      const node = this.parts[{ drive: "plug", cruise: "plug" }[name] ?? name];
      if (!node) continue;
      node.classList.remove("fresh");
      node.getBoundingClientRect(); // lets the animation start again
      node.classList.add("fresh");
    }
  }

  _title(name, text) {
    this.parts[name].querySelector("title").textContent = text;
  }

  _window(name, position) {
    const node = this.parts[`window-${name}`];
    const [, y, length] = PANES[name];
    node.dataset.is = String(position > 0);
    const glass = node.querySelector(".glass");
    glass.setAttribute("height", Math.max(0, length * (1 - position / 100)));
    glass.setAttribute("y", y + (length * position) / 100);
    node.querySelector("text").textContent = position ? `${position}%` : "";
    this._title(`window-${name}`, `${name.replace("_", " ")} window ${position ? `${position}% open` : "closed"}`);
  }

  _sunroof(position) {
    const node = this.parts.sunroof;
    node.dataset.is = String(position > 0);
    const roof = node.querySelector(".roof");
    roof.setAttribute("height", Math.max(0, 38 * (1 - position / 100)));
    roof.setAttribute("y", 406 + (38 * position) / 100);
    node.querySelector("text").textContent = position ? `${position}%` : "";
    this._title("sunroof", `sunroof ${position ? `${position}% open` : "closed"}`);
  }

  _seat(name, heating, ventilation) {
    const node = this.parts[`seat-${name}`];
    node.style.setProperty("--heat", heating / 3);
    node.style.setProperty("--air", ventilation / 3);
    node.dataset.is = heating ? "heated" : ventilation ? "aired" : "";
    const [x, y] = PLACES[name];
    const pips = [];
    for (let i = 0; i < heating; i += 1)
      pips.push(svg("circle", { class: "pip hot", cx: x + 16 + i * 14, cy: y + 16, r: 4.5 }));
    for (let i = 0; i < ventilation; i += 1)
      pips.push(svg("circle", { class: "pip cool", cx: x + 16 + i * 14, cy: y + 32, r: 4.5 }));
    node.querySelector(".pips").replaceChildren(...pips);
    this._title(`seat-${name}`, `${name.replace("_", " ")} seat: heating ${heating}, ventilation ${ventilation}`);
  }
}

function lock(x) {
  return svg(
    "g",
    { class: "lock", transform: `translate(${x - 9} 456)` },
    svg("rect", { x: 1, y: 10, width: 16, height: 13, rx: 3 }),
    svg("path", { class: "shackle", d: "M5 10V6a4 4 0 0 1 8 0v4" }),
  );
}
