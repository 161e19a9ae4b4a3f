// Plays finished answers again: every lane on the same clock, each change at the time at which it came.

import { button, choice, el, isStill } from "./dom.js";
import { Track } from "./track.js";

const SPEEDS = [1, 2, 4, 8, 16, 32, 64];
const LASTS = 9000; // ms that a replay takes by default, where the answer was quicker

/** The slowing that makes a replay long enough to follow. */
export const slowingFor = (ms) => SPEEDS.find((slow) => ms * slow >= LASTS / 2) ?? SPEEDS.at(-1);

export class Player {
  /** show(lane index, count of moments, time): draws a lane. */
  constructor(show) {
    this.show = show;
    this.lanes = [];
    this.time = 0;
    this.slow = 1;
    this.isPlaying = false;
    this.frames = 0; // drawn while playing, for measuring
    this._build();
  }

  _build() {
    this.toggle = button("Play", () => (this.isPlaying ? this.pause() : this.play()), {
      class: "main",
      "data-act": "play",
    });
    const back = button("◂ Step", () => this.step(-1), { "data-act": "back", "aria-label": "One step back" });
    const on = button("Step ▸", () => this.step(1), { "data-act": "on", "aria-label": "One step on" });
    this.range = el("input", {
      type: "range",
      min: "0",
      max: "1000",
      "aria-label": "Position in the answer",
      oninput: () => this._scrubbed(),
    });
    this.clock = el("span", { class: "clock" });
    this.speed = el("span");
    this.track = new Track();
    const words = "A bar is a pass, a round or a step, as high as the tokens that it decided.";
    this.node = el(
      "div",
      { class: "card player", hidden: true, role: "group", "aria-label": "Replay" },
      el("div", { class: "track-range" }, this.track.node, this.range),
      el(
        "div",
        { class: "row" },
        el("div", { class: "row keys" }, this.toggle, back, on),
        this.clock,
        el("span", { class: "track-words" }, words),
        el("span", { class: "push" }, this.speed),
      ),
    );
  }

  load(playbacks) {
    this.lanes = playbacks;
    this.duration = Math.max(...playbacks.map((one) => one.duration), 1);
    this.slow = slowingFor(this.duration);
    const options = SPEEDS.map((slow) => [String(slow), slow === 1 ? "real time" : `slowed ${slow}×`]);
    this.speed.replaceChildren(choice("Speed", options, String(this.slow), (value) => (this.slow = Number(value))));
    this.track.load(playbacks, this.duration);
    this.node.hidden = false;
    this.seek(this.duration);
  }

  unload() {
    this.pause();
    this.lanes = [];
    this.node.hidden = true;
  }

  seek(time) {
    this.time = Math.min(this.duration, Math.max(0, time));
    this.lanes.forEach((lane, index) => this.show(index, lane.countAt(this.time), this.time));
    this.range.value = Math.round((this.time / this.duration) * 1000);
    this.track.seek(this.time / this.duration);
    this.range.setAttribute("aria-valuetext", `${(this.time / 1000).toFixed(2)} seconds`);
    this.clock.textContent = `${(this.time / 1000).toFixed(2)} / ${(this.duration / 1000).toFixed(2)} s`;
  }

  _scrubbed() {
    this.pause();
    this.seek((this.range.valueAsNumber / 1000) * this.duration);
  }

  /** To the next or last moment of any lane. */
  step(way) {
    this.pause();
    const times = this.lanes.flatMap((lane) => lane.moments.map((moment) => moment.ms));
    const next = way > 0 ? times.filter((ms) => ms > this.time) : times.filter((ms) => ms < this.time);
    if (next.length) this.seek(way > 0 ? Math.min(...next) : Math.max(...next));
    else this.seek(way > 0 ? this.duration : 0);
  }

  play() {
    if (!this.lanes.length) return;
    if (isStill()) return this.step(1); // no motion where none is wanted: a press is a step
    if (this.time >= this.duration) this.seek(0);
    this.isPlaying = true;
    this.toggle.textContent = "Pause";
    let last = performance.now();
    const tick = (now) => {
      if (!this.isPlaying) return;
      this.frames += 1;
      this.seek(this.time + (now - last) / this.slow);
      last = now;
      if (this.time >= this.duration) this.pause();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    this.isPlaying = false;
    this.toggle.textContent = "Play";
  }
}
