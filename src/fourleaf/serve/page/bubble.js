// One message of a chat: its text as Markdown, its calls, its canvas while it is written and for going back.

import { CanvasView } from "./canvas.js";
import { answer } from "./client.js";
import { button, copy, el, figure } from "./dom.js";
import { callLine } from "./lane.js";
import { codeBlock, markdown, pageIn } from "./markdown.js";
import { Player } from "./player.js";
import { Playback, Reel } from "./reel.js";

export class Bubble {
  /** acts: edit, retry, run, each of them what a button does. */
  constructor(message, acts) {
    this.message = message;
    this.acts = acts;
    this.body = el("div", { class: "said" });
    this.note = el("span", { class: "note" });
    this.tools = el("div", { class: "row bubble-tools" });
    this.canvasPlace = el("div", { class: "bubble-canvas", hidden: true });
    const who = message.role === "user" ? "You" : "Model";
    this.node = el(
      "article",
      { class: `bubble ${message.role}`, "aria-label": who },
      this.body,
      this.canvasPlace,
      this.tools,
    );
    this.finish();
  }

  /** Asks, and draws the answer as it is committed. Returns its reel; raises Trouble. */
  async write(body, signal, heard) {
    const reel = new Reel(body.mode);
    const canvas = new CanvasView("Canvas");
    let isStale = false;
    let isOpen = true;
    if (body.mode !== "ar") {
      this.canvasPlace.replaceChildren(canvas.node);
      this.canvasPlace.hidden = false;
    }
    const draw = () => {
      if (!isOpen) return;
      if (isStale) {
        canvas.show(reel.scene);
        canvas.follow();
        this._take(reel);
        this._say();
        heard("drawn", null);
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
          heard(name, data);
        },
        signal,
      );
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      reel.reason = "stopped";
    } finally {
      isOpen = false;
      this._take(reel);
      this.canvasPlace.hidden = true;
      this.reel = reel;
    }
    return reel;
  }

  _take(reel) {
    const { message } = this;
    Object.assign(message, { content: reel.content, reasoning: reel.reasoning, calls: reel.calls });
    message.how = reel.usage?.fourleaf;
  }

  finish() {
    this._say();
    const { message, acts } = this;
    const parts = [];
    if (message.role === "user")
      parts.push(
        button("Edit", acts.edit, { class: "bare" }),
        button("Copy", () => copy(message.content), { class: "bare" }),
      );
    else if (message.state !== "writing") {
      parts.push(
        button("Copy", () => copy(this._plain()), { class: "bare" }),
        button("Try again", acts.retry, { class: "bare" }),
      );
      if (this.reel?.moments.length) parts.push(button("Canvas", () => this._replay(), { class: "bare" }));
      this.note.textContent = note(message);
      parts.push(this.note);
    }
    this.tools.replaceChildren(...parts);
  }

  _say() {
    const { message } = this;
    const parts = [];
    if (message.reasoning)
      parts.push(el("details", {}, el("summary", {}, "Thoughts"), el("p", { class: "lead" }, message.reasoning)));
    if (message.role === "user") parts.push(el("p", { class: "plain" }, message.content));
    else if (message.content && pageIn(message.content) === message.content)
      parts.push(codeBlock(message.content, "html", this.acts.run));
    else if (message.content) parts.push(...this._formatted());
    if (message.calls?.length) parts.push(...message.calls.map(callLine));
    if (message.state === "writing" && !parts.length) parts.push(el("p", { class: "lead" }, "…"));
    if (message.fault) parts.push(el("p", { class: "fault", role: "alert" }, message.fault));
    if (message.state === "stopped") parts.push(el("p", { class: "lead" }, "Stopped."));
    if (message.state === "length") parts.push(el("p", { class: "lead" }, "Cut at the limit of tokens."));
    this.body.replaceChildren(...parts);
  }

  _formatted() {
    try {
      const value = JSON.parse(this.message.content);
      if (value && typeof value === "object") return [codeBlock(JSON.stringify(value, null, 2), "json", null)];
    } catch {
      // no JSON: text
    }
    return markdown(this.message.content, this.acts.run);
  }

  _plain() {
    const calls = this.message.calls ?? [];
    return [this.message.content, ...calls.map((call) => `${call.name}(${call.arguments})`)].filter(Boolean).join("\n");
  }

  _replay() {
    if (!this.canvasPlace.hidden) {
      this.canvasPlace.hidden = true;
      return;
    }
    const canvas = new CanvasView("Canvas");
    const playback = new Playback(this.reel);
    const player = new Player((lane, count) => canvas.show(playback.sceneAt(count)));
    this.canvasPlace.replaceChildren(canvas.node, player.node);
    this.canvasPlace.hidden = false;
    player.load([playback]);
  }
}

function note({ how }) {
  if (!how) return "";
  const tpf = how.forwards ? `${figure(how.tpf, 2)} tokens a forward` : "no forward after the prompt's own";
  return `${how.mode} · ${tpf} · ${figure(how.tokens_per_second)} tokens/s`;
}
