// The first view: a question, its answer being written, and the same question one token at a time beside it.

import { Trouble, can, model } from "./client.js";
import { announce, button, choice, download, el, figure, isStill } from "./dom.js";
import { Lane } from "./lane.js";
import { Player } from "./player.js";
import { modeChoices } from "./settings.js";

export const EXAMPLES = [
  "I'm freezing, wipers on fast, and text Sarah that I'm running ten minutes late",
  "windows down, sunroof wide open, sport mode, and play some jazz",
  "Drive to Bergen, avoid ferries, and then call Ingrid",
  "Cruise control ninety, no wait, there is a camera, eighty",
  "what's my range, and find a charger nearby",
];

const TOO_QUICK = 2500; // ms

const cell = (state, text, label, pass) =>
  el("span", {}, el("span", { class: `cell ${state}`, "data-pass": pass }, text), label);

function legend() {
  return el(
    "div",
    { class: "legend", "aria-hidden": "true" },
    cell("masked", "", "masked"),
    cell("revealed", "ab", "revealed, by pass", "2"),
    el("span", {}, "committed: unsure", el("span", { class: "scale" }), "sure"),
    cell("pinned", "ab", "given"),
    cell("proposed", "ab", "proposed"),
    cell("fallen", "ab", "fell"),
    cell("edited", "ab", "replaced"),
    cell("after", "", "behind the end"),
  );
}

export class Watch {
  constructor(app) {
    this.app = app;
    this.lanes = [new Lane("Blocks at once"), new Lane("One token at a time")];
    this.modes = [app.settings.values.mode, "ar"];
    if (this.modes[0] === "ar" && model.capabilities.modes.includes("diffuse")) this.modes[0] = "diffuse";
    this.player = new Player((index, count, ms) => this.lanes[index].showAt(count, ms));
    this.isRacing = model.capabilities.modes.length > 1;
    this.isTogether = false;
    this._build();
  }

  _build() {
    this.box = el("textarea", {
      rows: 1,
      "aria-label": "What to say",
      placeholder: "Say something to the car …",
      maxlength: 20000,
    });
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.run();
      }
    });
    this.go = button("Watch", () => this.run(), { class: "main", "data-act": "watch" });
    this.stop = button("Stop", () => this.abort?.abort(), { hidden: true, "data-act": "stop" });
    const chips = EXAMPLES.map((text) =>
      button(
        text,
        () => {
          this.box.value = text;
          this.run();
        },
        { class: "chip" },
      ),
    );
    const race = el("input", { type: "checkbox", checked: this.isRacing, onchange: () => this._raced(race.checked) });
    const order = choice(
      "They run",
      [
        ["turns", "one after the other"],
        ["together", "at the same time"],
      ],
      "turns",
      (value) => (this.isTogether = value === "together"),
    );
    order.title = "At the same time they share forwards, and the clocks are slower than either alone.";
    this.order = order;
    this.verdict = el("p", { class: "verdict", role: "status" });
    this.save = button("Save events", () => this._save(), { class: "bare", hidden: true });
    this.lanes.forEach((lane, index) => {
      const pick = choice("Mode", modeChoices(), this.modes[index], (mode) => this._mode(index, mode));
      lane.head.append(el("span", { class: "push" }, pick));
      this._mode(index, this.modes[index]);
    });
    this.place = el("div", { class: "player-place" }, this.player.node); // keeps its room, so that nothing jumps
    this.lanesNode = el(
      "div",
      { class: "lanes" },
      this.lanes.map((lane) => lane.node),
    );
    this.node = el(
      "div",
      { class: "view" },
      el(
        "div",
        { class: "intro" },
        el("h2", {}, "Watch a block being written"),
        el(
          "p",
          { class: "lead" },
          "Up to ",
          el("strong", {}, "32 positions are filled at once"),
          ": each pass reveals what the model is sure of. Beside it the same model writes one token a forward.",
        ),
      ),
      el(
        "div",
        { class: "card ask" },
        el("div", { class: "ask-line" }, this.box, this.go, this.stop),
        el("div", { class: "chips", role: "group", "aria-label": "Examples" }, chips),
        el(
          "details",
          {},
          el("summary", {}, "How it decodes"),
          el("div", { class: "row" }, el("label", { class: "field" }, race, "side by side"), order),
          this.app.settings.form(["mode"]),
        ),
      ),
      this.verdict,
      this.place,
      this.lanesNode,
      el("div", { class: "row" }, legend(), el("span", { class: "push" }, this.save)),
    );
    this._raced(this.isRacing);
  }

  _mode(index, mode) {
    this.modes[index] = mode;
    const names = {
      ar: "One token at a time",
      diffuse: "Blocks at once",
      draft: "Proposed, then verified",
      auto: "The cheapest, block by block",
    };
    this.lanes[index].title.textContent = names[mode] ?? mode;
    this.lanes[index].view.label = names[mode] ?? mode;
    if (!this.lanes[index].reel) this.lanes[index].invite(mode);
  }

  _raced(isRacing) {
    this.isRacing = isRacing;
    this.lanes[1].node.hidden = !isRacing;
    this.order.hidden = !isRacing;
  }

  shown() {
    if (innerWidth > 700) this.box.focus();
  }

  async run() {
    const said = this.box.value.trim();
    if (!said || this.abort) return;
    this.abort = new AbortController();
    this._busy(true);
    this.player.unload();
    const lanes = this.isRacing ? this.lanes : this.lanes.slice(0, 1);
    for (const lane of this.lanes) lane.clear();
    this.verdict.textContent = "";
    this.node.classList.add("asked");
    if (innerWidth <= 700) this.verdict.scrollIntoView({ behavior: isStill() ? "auto" : "smooth" });
    const start = (lane, index) =>
      lane.run(this._body(said, index), this.abort.signal, (name, data) => {
        if (index === 0) this.app.heard(name, data);
      });
    try {
      if (this.isTogether) await Promise.all(lanes.map(start));
      else for (const [index, lane] of lanes.entries()) if (!this.abort.signal.aborted) await start(lane, index);
      this._finish(lanes);
    } catch (error) {
      this.abort.abort();
      if (error instanceof Trouble) this.app.trouble(error);
      else throw error;
    } finally {
      this.abort = null;
      this._busy(false);
    }
  }

  _body(said, index) {
    // Without the grammar of the model's tools: what it forces is on no canvas, and the other lane would not be a token a
    // forward.
    const free = can("grammar") ? { grammar: false } : {};
    const fields = this.app.settings.fields(this.modes[index]);
    return { messages: [{ role: "user", content: said }], ...fields, ...free };
  }

  _busy(isBusy) {
    this.go.disabled = isBusy;
    this.stop.hidden = !isBusy;
  }

  _finish(lanes) {
    const done = lanes.filter((lane) => lane.playback);
    if (!done.length) return;
    this.player.load(done.map((lane) => lane.playback));
    this.save.hidden = false;
    const text = this._verdict(lanes);
    this.verdict.replaceChildren(...text);
    announce(`Finished. ${this.verdict.textContent}`);
    if (this.player.duration < TOO_QUICK && !isStill()) this.player.play(); // nobody could have followed that
  }

  /** What the two lanes came to, in a sentence; nothing where one was stopped. */
  _verdict(lanes) {
    const [a, b] = lanes.map((lane) => lane.reel?.usage?.fourleaf);
    const reels = lanes.map((lane) => lane.reel);
    if (!a) return ["Stopped."];
    const one = [el("b", {}, figure(a.tpf, 2)), " tokens a forward in ", a.mode];
    if (!b) return one;
    const ratio = b.seconds / a.seconds;
    const isSame =
      reels[0].content === reels[1].content &&
      JSON.stringify(strip(reels[0].calls)) === JSON.stringify(strip(reels[1].calls));
    const speed = this.isTogether
      ? [" Both shared the machine, so the clocks say little: run them one after the other to compare."]
      : [
          " ",
          a.mode,
          " took ",
          figure(a.seconds, 2),
          " s, ",
          b.mode,
          " ",
          figure(b.seconds, 2),
          " s: ",
          el("b", {}, `${figure(ratio >= 1 ? ratio : 1 / ratio, 2)}×`),
          ratio >= 1 ? " as fast." : " as slow.",
        ];
    return [
      ...one,
      ", ",
      el("b", {}, figure(b.tpf, 2)),
      " in ",
      b.mode,
      ".",
      ...speed,
      isSame ? " The answers are the same." : " The answers differ.",
    ];
  }

  _save() {
    const kept = this.lanes.filter((lane) => lane.reel).map(({ reel }) => ({ mode: reel.mode, events: reel.events }));
    download(
      "fourleaf-events.json",
      JSON.stringify({ model: model.id, prompt: this.box.value, answers: kept }, null, 1),
    );
  }
}

const strip = (calls) => calls.map(({ name, arguments: given }) => [name, given]);
