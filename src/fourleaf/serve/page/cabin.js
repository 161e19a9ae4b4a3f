// The cabin: say something, and the drawn car does what the committed calls say. Nothing provisional moves it.

import { Trouble, model } from "./client.js";
import { Car } from "./car.js";
import { applied, parked } from "./carstate.js";
import { announce, button, copy, el } from "./dom.js";
import { Lane } from "./lane.js";

const EXAMPLES = [
  "open my window halfway",
  "it's like an oven in here, bring it down by three degrees",
  "heat my seat, level three, and warm the steering wheel",
  "blue ambient light, forty percent",
  "take me to Central Station, no tolls, and stop at a bakery",
  "play Norah Jones, volume fifteen",
  "unlock the doors and open the trunk",
  "fog lights, wipers fast, clear the windscreen",
  "tell Becca that the keys are in my locker",
  "snow mode, and how far can I still go?",
];
const LOG_KEPT = 200;

// Tile -> what it shows of a state; a second line where there is one.
const TILES = [
  [
    "media",
    "Media",
    (s) =>
      s.media.query
        ? [s.media.query, s.media.last ? `${s.media.state} · ${s.media.last}` : s.media.state]
        : ["nothing", s.media.last ?? ""],
  ],
  ["volume", "Volume", (s) => [`${s.volume} / 30`]],
  [
    "route",
    "Route",
    (s) =>
      s.route
        ? [
            s.route.destination ?? "on the way",
            [...s.route.stops.map((stop) => `via ${stop}`), s.route.avoid === "nothing" ? "" : `no ${s.route.avoid}`]
              .filter(Boolean)
              .join(", "),
          ]
        : ["no guidance"],
  ],
  ["nearby", "Nearby", (s) => [s.nearby?.replace("_", " ") ?? "–"]],
  [
    "phone",
    "Phone",
    (s) =>
      s.phone ? [s.phone.kind === "call" ? `calling ${s.phone.name}` : `to ${s.phone.name}`, s.phone.text] : ["–"],
  ],
  ["fan", "Fan", (s) => [s.fan ? `${s.fan} / 7` : "off"]],
  ["ac", "Air conditioning", (s) => [s.ac ? "on" : "off"]],
  ["lights", "Lights", (s) => [s.lights]],
  ["wipers", "Wipers", (s) => [s.wipers]],
  ["drive", "Drive mode", (s) => [s.drive]],
  ["cruise", "Cruise", (s) => [s.cruise ? `${s.cruise} km/h` : "off"]],
  ["asked", "You asked", (s) => (s.asked ? [s.asked.value, s.asked.item.replace("_", " ")] : ["–"])],
];

export class Cabin {
  constructor(app) {
    this.app = app;
    this.car = new Car();
    this.state = parked();
    this.lane = new Lane("The answer on its canvas");
    this.tiles = Object.fromEntries(TILES.map(([name, label]) => [name, this._tile(label)]));
    this.log = el("ol", { class: "log", reversed: true, "aria-label": "Calls, the latest first" });
    this.calls = [];
    this._build();
    this._show([]);
  }

  _tile(label) {
    const value = el("dd", {});
    const more = el("dd", { class: "more" });
    return { node: el("div", { class: "tile" }, el("dt", {}, label), value, more), value, more };
  }

  _build() {
    this.box = el("textarea", {
      rows: 1,
      "aria-label": "What to say to the car",
      placeholder: "Say something to the car …",
    });
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.say(this.box.value);
      }
    });
    this.go = button("Say it", () => this.say(this.box.value), { class: "main" });
    const chips = EXAMPLES.map((text) => button(text, () => this.say(text), { class: "chip" }));
    const copied = button("Copy as JSON", () => copy(JSON.stringify(this.calls, null, 1)), { class: "bare" });
    const reset = button("Park the car again", () => this.reset(), { class: "bare" });
    this.node = el(
      "div",
      { class: "view cabin-view" },
      el("div", { class: "cabin-left" }, el("div", { class: "card car-card" }, this.car.node)),
      el(
        "div",
        { class: "cabin-right" },
        el("h2", {}, "Talk to the car"),
        el(
          "div",
          { class: "card ask" },
          el("div", { class: "ask-line" }, this.box, this.go),
          el("div", { class: "chips", role: "group", "aria-label": "Examples" }, chips),
        ),
        el(
          "dl",
          { class: "tiles" },
          TILES.map(([name]) => this.tiles[name].node),
        ),
        this.lane.node,
        el(
          "div",
          { class: "card" },
          el("div", { class: "row" }, el("h3", {}, "Calls"), el("span", { class: "push" }), copied, reset),
          this.log,
        ),
      ),
    );
    if (model.capabilities.tools !== "fixed")
      this.node.prepend(
        el(
          "p",
          { class: "lead" },
          "This model was not made for the car: it may answer in words, and the car stays as it is.",
        ),
      );
  }

  async say(text) {
    const said = text.trim();
    if (!said || this.isBusy) return;
    this.box.value = said;
    this.isBusy = this.go.disabled = true;
    try {
      const body = { messages: [{ role: "user", content: said }], ...this.app.settings.fields() };
      const reel = await this.lane.run(body, undefined, (name, data) => this.app.heard(name, data));
      if (!reel.calls.length) announce(reel.content || "The answer was empty.");
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      this.app.trouble(error);
    } finally {
      this.isBusy = this.go.disabled = false;
      this.box.select();
    }
  }

  /** Does what a committed call says. */
  take(call) {
    const { state, changed, words } = applied(this.state, call);
    this.state = state;
    this.calls.push({ name: call.name, arguments: parsed(call.arguments) });
    const json = JSON.stringify(this.calls.at(-1));
    this.log.prepend(el("li", {}, el("span", {}, words), el("code", {}, json)));
    while (this.log.children.length > LOG_KEPT) this.log.lastChild.remove();
    this._show(changed);
    announce(words);
  }

  reset() {
    this.state = parked();
    this.calls = [];
    this.log.replaceChildren();
    this._show([]);
  }

  _show(changed) {
    this.car.show(this.state);
    this.car.flash(changed);
    for (const [name, , read] of TILES) {
      const { node, value, more } = this.tiles[name];
      const [first, second] = read(this.state);
      value.textContent = first;
      more.textContent = second ?? "";
      if (!changed.includes(name)) continue;
      node.classList.remove("fresh");
      node.getBoundingClientRect();
      node.classList.add("fresh");
    }
  }

  shown() {
    if (innerWidth > 900) this.box.focus();
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
