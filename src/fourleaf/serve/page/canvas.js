// Draws a scene of a reel: a card for each block, a cell for each position. It only redraws cells that changed.

import { el, figure } from "./dom.js";

const KINDS = {
  block: (block, n) => `Block ${n}`,
  round: (block, n) => `Round ${n}`,
  steps: (block) => `From token ${block.start + 1}`,
  unseen: (block) => `From token ${block.start + 1}`,
};
const WORDS = {
  masked: "masked",
  revealed: "revealed",
  pinned: "given",
  proposed: "proposed",
  committed: "committed",
  stood: "proposed, and it stood",
  corrected: "by the causal rows",
  fallen: "proposed, and it fell",
  edited: "replaced",
  after: "behind the end",
};

/** Text for eyes: blanks visible, line breaks as marks, tags of calls short. */
export function spelled(text) {
  if (text === null) return "";
  const short = text.replace(/^<(\/?)tool_call>$/, "‹$1call›").replace(/^<(\/?)think>$/, "‹$1think›");
  if (/^ +$/.test(short)) return "\u2423".repeat(short.length);
  return short.replace(/\n/g, "\u21b5").replace(/\t/g, "\u2192");
}

/** 0 (unsure) to 1 (sure) as the colour scale has it: most confidences are near 1, and there it matters. */
export function sureness(confidence) {
  return confidence === undefined ? null : Math.min(1, Math.max(0, -Math.log10(1.0001 - confidence) / 4));
}

export class CanvasView {
  constructor(label) {
    this.node = el("div", { class: "canvas", role: "img" });
    this.label = label;
    this.clear();
  }

  clear() {
    this.cards = [];
    this.node.replaceChildren();
    this.node.setAttribute("aria-label", `${this.label}: nothing yet`);
  }

  /** Before anything was asked: the shape of what will come, and a sentence. */
  invite(rows, words) {
    const cells = Array.from({ length: rows }, () => el("span", { class: "spot" }));
    this.node.replaceChildren(
      el("div", { class: "block idle" }, el("div", { class: "cells" }, cells), el("p", {}, words)),
    );
  }

  /** Shows a scene; cells are compared by identity, since a moment never changes a cell but replaces it. */
  show(scene) {
    if (!this.cards.length) this.node.replaceChildren();
    while (this.cards.length > scene.blocks.length) this.cards.pop().node.remove();
    let shown = 0;
    scene.blocks.forEach((block, index) => {
      const card = (this.cards[index] ??= this._card(block, number(scene.blocks, index)));
      this._fill(card, block);
      shown += 1;
    });
    if (shown !== this.said || scene.tokens !== this.saidTokens) {
      this.said = shown;
      this.saidTokens = scene.tokens;
      this.node.setAttribute("aria-label", `${this.label}: ${scene.tokens} tokens committed in ${shown} blocks`);
    }
  }

  /** Keeps the block at work in sight, inside this view alone. */
  follow() {
    const live = this.cards.findLast((card) => card.node.classList.contains("live"));
    if (live)
      this.node.scrollTop = Math.max(0, live.node.offsetTop - this.node.clientHeight + live.node.offsetHeight + 8);
  }

  _card(block, number) {
    const title = el("span", { class: "block-title" }, KINDS[block.kind](block, number));
    const note = el("span", { class: "block-note" });
    const cells = el("div", { class: "cells" });
    const node = el("div", { class: `block ${block.kind}` }, el("div", { class: "block-head" }, title, note), cells);
    this.node.append(node);
    return { node, note, cells, shown: [], nodes: [] };
  }

  _fill(card, block) {
    let isChanged = block.pass !== card.pass || block.isLive !== card.isLive;
    block.cells.forEach((cell, row) => {
      if (card.shown[row] === cell) return;
      isChanged = true;
      card.shown[row] = cell;
      const node = (card.nodes[row] ??= card.cells.appendChild(el("span")));
      draw(node, cell, block.kind === "block");
    });
    while (card.nodes.length > block.cells.length) {
      card.nodes.pop().remove();
      card.shown.pop();
    }
    if (!isChanged) return;
    // What the last pass revealed stands out until the next one.
    block.cells.forEach(({ state, pass }, row) =>
      card.nodes[row].classList.toggle("fresh", Boolean(block.isLive) && state === "revealed" && pass === block.pass),
    );
    card.pass = block.pass;
    card.isLive = block.isLive;
    card.node.classList.toggle("live", Boolean(block.isLive));
    card.note.textContent = note(block);
  }
}

/** Which of its kind a block is, counted from 1. */
const number = (blocks, index) => blocks.slice(0, index + 1).filter((one) => one.kind === blocks[index].kind).length;

function draw(node, cell, hasPasses) {
  const text = spelled(cell.text);
  const size = text.length > 8 ? " longer" : text.length > 5 ? " long" : "";
  node.className = `cell ${cell.state}${size}${cell.isEdited ? " was-edited" : ""}`;
  const pieces = text.length > 8 ? text.split(/(?<=_)/).flatMap((part) => [part, el("wbr")]) : [text]; // names break at _
  node.replaceChildren(...pieces);
  const hasPass =
    hasPasses &&
    cell.pass !== undefined &&
    cell.text !== null &&
    ["revealed", "committed", "edited"].includes(cell.state);
  if (hasPass) node.dataset.pass = cell.pass + 1;
  else delete node.dataset.pass;
  const sure = sureness(cell.confidence);
  if (sure === null) node.style.removeProperty("--sure");
  else node.style.setProperty("--sure", sure.toFixed(3));
  const parts = [WORDS[cell.state]];
  if (hasPass) parts.push(`pass ${cell.pass + 1}`);
  if (cell.confidence !== undefined) parts.push(`${figure(cell.confidence * 100, 1)}% sure`);
  if (cell.was) parts.push(`instead of “${cell.was}”`);
  node.title = cell.text === null ? parts[0] : `“${cell.text}”: ${parts.join(", ")}`;
}

function note(block) {
  const open = block.cells.filter((cell) => cell.state === "masked").length;
  if (block.kind === "round") {
    const proposed = block.cells.filter((cell) => ["proposed", "stood", "fallen"].includes(cell.state)).length;
    const stood = block.cells.filter((cell) => cell.state === "stood").length;
    const lost = block.cells.filter((cell) => cell.was).length;
    const isOpen = block.cells.some((cell) => cell.state === "proposed");
    return isOpen ? `${proposed} proposed` : `${stood} of ${proposed + lost} stood`;
  }
  if (block.kind !== "block") return "";
  const pass = block.pass === undefined ? "" : `pass ${block.pass + 1}`;
  return open && block.isLive
    ? `${pass} \u00b7 ${open} masked`
    : pass && `${block.pass + 1} ${block.pass ? "passes" : "pass"}`;
}
