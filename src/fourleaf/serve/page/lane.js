// One answer being written: its canvas, its meters and what it said. Live from the stream, later from a playback.

import { CanvasView } from "./canvas.js";
import { Trouble, answer } from "./client.js";
import { el, figure } from "./dom.js";
import { Playback, Reel } from "./reel.js";

/** `name(key=value, …)` as an element. */
export function callLine(call) {
  let inside = call.arguments;
  try {
    inside = Object.entries(JSON.parse(call.arguments))
      .map(([k, v]) => `${k}=${JSON.stringify(v)}`)
      .join(", ");
  } catch {
    // shown as it came
  }
  return el("code", { class: "call" }, el("b", {}, call.name), `(${inside})`);
}

/** Forwards, by what was seen so far: exact where the answer's usage says it, a count of passes or tokens before. */
function forwardsOf(reel, scene, isOver) {
  const how = reel.usage?.fourleaf;
  if (isOver && how)
    return {
      forwards: how.forwards,
      passes: how.passes,
      tpf: how.forwards ? how.tpf : null,
      tokens: reel.usage.completion_tokens,
    };
  const rounds = scene.blocks.filter((block) => block.kind === "round").length;
  const forwards = reel.mode === "ar" ? scene.tokens : scene.passes + rounds;
  return { forwards, passes: scene.passes, tpf: forwards ? scene.tokens / forwards : null, tokens: scene.tokens };
}

export class Lane {
  constructor(title) {
    this.view = new CanvasView(title);
    this.title = el("h3", {}, title);
    this.head = el("div", { class: "lane-head" }, this.title);
    this.meters = {};
    const meter = (name, label, isLead) => {
      this.meters[name] = el("dd", {}, "–");
      return el("div", { class: isLead ? "lead-meter" : "" }, el("dt", {}, label), this.meters[name]);
    };
    const meters = el(
      "dl",
      { class: "meters" },
      meter("clock", "seconds"),
      meter("tokens", "tokens"),
      meter("forwards", "forwards"),
      meter("passes", "passes"),
      meter("tpf", "tokens/forward", true),
    );
    this.said = el("div", { class: "answer", "aria-live": "off" });
    this.node = el(
      "section",
      { class: "card lane", "aria-label": title },
      this.head,
      meters,
      this.view.node,
      this.said,
    );
    this.playback = null;
    this.reel = null;
  }

  clear() {
    this.reel = this.playback = null;
    this.view.clear();
    this.said.replaceChildren();
    for (const dd of Object.values(this.meters)) dd.textContent = "–";
  }

  /** What an empty canvas shows: a block's positions, or of an AR model the one. */
  invite(mode) {
    if (mode === "ar") this.view.invite(8, "One token a forward, from left to right.");
    else this.view.invite(32, "A block: 32 positions. Press an example to watch it being filled.");
  }

  /** Asks and draws as it comes. heard: called with each event. Returns the reel; raises Trouble. */
  async run(body, signal, heard = () => {}) {
    this.clear();
    const reel = (this.reel = new Reel(body.mode));
    const began = performance.now();
    let isOpen = true;
    let isStale = false;
    const draw = () => {
      if (!isOpen) return;
      this._meter(reel, reel.scene, performance.now() - began, false);
      if (isStale) {
        this.view.show(reel.scene);
        this.view.follow();
        this._say(reel.content, reel.calls);
        isStale = false;
      }
      requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
    try {
      await answer(
        body,
        (name, data, ms) => {
          reel.push(name, data, ms);
          isStale = true;
          heard(name, data, reel);
        },
        signal,
      );
    } catch (error) {
      if (error.name !== "AbortError") {
        this.said.append(el("p", { class: "fault" }, error instanceof Trouble ? error.message : String(error)));
        throw error;
      }
      reel.reason = "stopped";
    } finally {
      isOpen = false;
    }
    this.view.show(reel.scene);
    this.playback = new Playback(reel);
    this.showAt(this.playback.moments.length, reel.ms);
    return reel;
  }

  /** Takes a reel that was recorded before. */
  load(reel) {
    this.clear();
    this.reel = reel;
    this.playback = new Playback(reel);
    this.showAt(this.playback.moments.length, reel.ms);
  }

  /** The lane after so many moments of its playback, at a time in ms. */
  showAt(count, ms) {
    const { playback, reel } = this;
    const scene = playback.sceneAt(count);
    const isOver = count >= playback.moments.length;
    this.view.show(scene);
    if (!isOver) this.view.follow();
    const seen = playback.moments.slice(0, count);
    if (count !== this._saidCount || isOver) {
      const content = isOver ? reel.content : seen.map((moment) => moment.content ?? "").join("");
      this._say(
        content,
        seen.filter((moment) => moment.call).map((moment) => moment.call),
        isOver ? reel.reason : null,
      );
      this._saidCount = count;
    }
    this._meter(reel, scene, Math.min(ms, playback.duration), isOver);
  }

  _say(content, calls, reason = null) {
    const parts = [];
    if (content) parts.push(el("p", {}, content));
    parts.push(...calls.map(callLine));
    if (reason === "length") parts.push(el("p", { class: "lead" }, "Cut at the limit of tokens."));
    if (reason === "stopped") parts.push(el("p", { class: "lead" }, "Stopped."));
    this.said.replaceChildren(...parts);
  }

  _meter(reel, scene, ms, isOver) {
    const found = forwardsOf(reel, scene, isOver);
    this.meters.clock.textContent = (ms / 1000).toFixed(2);
    this.meters.tokens.textContent = figure(found.tokens);
    this.meters.forwards.textContent = figure(found.forwards);
    this.meters.passes.textContent = reel.mode === "ar" ? "–" : figure(found.passes);
    this.meters.tpf.textContent = figure(found.tpf, 2);
  }
}
