// What was seen of one answer, as moments: each has a time and what it changed on the canvas. A pure model, no page.
//
// A cell is {text, state, pass, confidence, was}; states are masked, revealed, pinned, proposed (draft), committed,
// stood, corrected, fallen (draft, after its verification), edited, after (behind the end of the answer).
//
// The server sends at most 30 frames a second. Where passes were faster, commits still say which pass revealed what;
// `compile` puts such passes between the two events that were sent, and marks them as unseen.

const BLOCK = 32;
export const END = "\u220e"; // the end token has no text of its own

const masked = Object.freeze({ text: null, state: "masked" });
const isShown = (cell) => cell && cell.text !== null;

/** Blocks and their cells as they stand after some moments. */
export class Scene {
  constructor() {
    this.blocks = [];
    this.tokens = 0;
    this.passes = 0;
    this.moment = 0;
  }

  apply(moment) {
    for (const change of moment.changes) {
      if (change.open) this.blocks[change.block] = { ...change.open, cells: Array(change.open.rows).fill(masked) };
      else this.blocks[change.block].cells[change.row] = change.cell;
    }
    for (const block of this.blocks) if (moment.block !== undefined) block.isLive = block.id === moment.block;
    if (this.blocks[moment.block] && moment.pass !== undefined) this.blocks[moment.block].pass = moment.pass;
    this.tokens = moment.tokens;
    this.passes = moment.passes;
    this.moment += 1;
  }
}

export class Reel {
  constructor(mode) {
    this.mode = mode;
    this.moments = [];
    this.scene = new Scene();
    this.calls = [];
    this.content = "";
    this.reasoning = "";
    this.usage = null;
    this.reason = null;
    this.ms = 0;
    this.promptTokens = 0;
    this.events = []; // as they came, for export
  }

  get isDone() {
    return this.reason !== null;
  }

  /** Takes one event of the stream. */
  push(name, data, ms) {
    this.events.push({ name, data, ms: Math.round(ms * 10) / 10 });
    this.ms = ms;
    if (name === "start") this.promptTokens = data.prompt_tokens;
    else if (name === "frame") this._frame(data, ms);
    else if (name === "commit") this._commit(data, ms);
    else if (name === "tool_call") this._call(data, ms);
    else if (name === "usage") this.usage = data;
    else if (name === "done") this._done(data, ms);
  }

  _add(ms, kind, changes, more = {}) {
    const { tokens, passes } = this.scene;
    const moment = { ms, kind, changes, tokens, passes, ...more };
    this.moments.push(moment);
    this.scene.apply(moment);
  }

  _open(changes, kind, start, rows) {
    const id = this.scene.blocks.length + changes.filter((change) => change.open).length;
    changes.push({ block: id, open: { id, kind, start, rows } });
    return id;
  }

  get _last() {
    return this.scene.blocks.at(-1);
  }

  _frame(data, ms) {
    const changes = [];
    const isRound = data.position === this.scene.tokens - 1; // of `draft`: row 0 is decided already
    let block = this.scene.blocks.findLast((one) => one.start === data.position && one.kind === "block");
    if (isRound) {
      this._settleRound(changes);
      block = null;
    }
    const shown = data.cells.filter(([, text]) => text !== null).map(([row]) => row + 1);
    const rows = isRound ? Math.max(1, ...shown) : data.rows; // what a round did not propose is not verified
    const id = block ? block.id : this._open(changes, isRound ? "round" : "block", data.position, rows);
    for (const [row, text] of data.cells) {
      const was = block?.cells[row];
      if (was?.state === "committed" || row >= rows) continue; // known better by a commit that came before
      changes.push({ block: id, row, cell: this._seen(isRound, row, text, data.pass, was) });
    }
    const added = block ? Math.max(0, data.pass - (block.pass ?? -1)) : data.pass + 1;
    this._add(ms, "frame", changes, { block: id, pass: data.pass, passes: this.scene.passes + added });
  }

  _seen(isRound, row, text, pass, was) {
    if (text === null) return masked;
    const shown = text === "" ? END : text;
    if (isRound) return { text: shown, state: row === 0 ? "pinned" : "proposed", pass };
    if (isShown(was) && was.text !== shown) return { text: shown, state: "edited", pass, was: was.text };
    return { text: shown, state: "revealed", pass };
  }

  _commit(data, ms) {
    this.content += data.content;
    this.reasoning += data.reasoning;
    const changes = [];
    let block = null;
    data.cells?.forEach((text, i) => {
      const position = data.position + i;
      block = this._blockAt(position, changes);
      const row = position - block.start;
      changes.push({
        block: block.id,
        row,
        cell: this._final(block, row, text, data.confidence?.[i], data.passes?.[i]),
      });
    });
    const more = { tokens: this.scene.tokens + data.tokens, content: data.content };
    this._add(ms, "commit", changes, block ? { block: block.id, ...more } : more);
  }

  /** The block in which a committed position lies; one is opened where no frame has shown it. */
  _blockAt(position, changes) {
    const opened = changes.findLast((change) => change.open)?.open;
    const last = opened ?? this._last;
    if (last && position >= last.start) {
      const room = { block: last.rows, round: last.rows + 1 }[last.kind] ?? BLOCK; // a verified block adds a token
      if (position - last.start < room) return last;
    }
    const kind = this.mode === "ar" ? "steps" : this.mode === "diffuse" ? "block" : "unseen";
    const id = this._open(changes, kind, position, kind === "block" ? BLOCK : 0);
    return changes.find((change) => change.block === id).open;
  }

  _final(block, row, text, confidence, pass) {
    const before = block.cells?.[row] ?? this.scene.blocks[block.id]?.cells[row];
    if (block.kind === "round") {
      const isSame = before?.text === text;
      const was = isShown(before) && !isSame ? before.text : undefined;
      return { text, state: isSame ? "stood" : "corrected", pass, confidence, was };
    }
    const revealed = before?.pass ?? pass;
    return {
      text,
      state: "committed",
      pass: pass ?? revealed,
      confidence,
      was: before?.was,
      isEdited: before?.state === "edited",
    };
  }

  /** Proposals that were not committed have fallen. */
  _settleRound(changes, isOver = false) {
    const last = this._last;
    if (last?.kind !== "round") return;
    last.cells.forEach((cell, row) => {
      if (cell.state !== "proposed") return;
      const stands = isOver && cell.text === END && this.scene.tokens === last.start + row;
      changes.push({ block: last.id, row, cell: { ...cell, state: stands ? "stood" : "fallen" } });
    });
  }

  _call(data, ms) {
    this.calls.push(data);
    this._add(ms, "call", [], { call: data });
  }

  _done(data, ms) {
    this.reason = data.finish_reason;
    const changes = [];
    this._settleRound(changes, true);
    const last = this._last;
    if (last && data.finish_reason !== "length" && last.kind !== "round") {
      const row = this.scene.tokens - last.start;
      if (row < last.rows || last.kind !== "block") {
        const before = last.cells[row];
        changes.push({ block: last.id, row, cell: { text: END, state: "committed", pass: before?.pass ?? last.pass } });
      }
      for (let after = row + 1; after < last.rows; after += 1)
        changes.push({ block: last.id, row: after, cell: { text: null, state: "after" } });
    }
    this._add(ms, "done", changes, { reason: data.finish_reason, block: -1 });
  }

  /** The moments with every pass in its place, for going back and forth. */
  compile() {
    const passes = this._passesByBlock();
    const made = [];
    for (const moment of this.moments) {
      if (moment.kind === "frame" && passes.has(moment.block)) {
        this._emit(made, passes, moment.block, moment.pass, moment);
        continue;
      }
      if (moment.kind === "commit" || moment.kind === "done")
        for (const block of new Set(moment.changes.filter((change) => change.cell).map((change) => change.block)))
          if (passes.has(block)) this._emit(made, passes, block, this._needed(moment, block), null, moment.ms);
      made.push({ ...moment, changes: moment.changes.filter((change) => !change.open || !passes.has(change.block)) });
    }
    this._count(made);
    return made;
  }

  _needed(moment, block) {
    const own = moment.changes.filter((change) => change.block === block && isShown(change.cell));
    // Without logprobs nothing says which pass it was.
    return Math.max(-1, ...own.map((change) => change.cell.pass ?? 0));
  }

  /** Block id -> what each pass of a denoised block revealed, by the commits where they say it. */
  _passesByBlock() {
    const finals = new Map();
    for (const block of this.scene.blocks) if (block.kind === "block") finals.set(block.id, block.cells);
    const found = new Map([...finals.keys()].map((id) => [id, { next: 0, rows: this.scene.blocks[id], byPass: [] }]));
    for (const moment of this.moments)
      for (const { block, row, cell } of moment.changes) {
        const cells = finals.get(block);
        if (!cells || !isShown(cell) || !["revealed", "edited", "committed"].includes(cell.state)) continue;
        const final = cells[row];
        if (cell.state === "committed" && this._wasFramed(block, row)) continue;
        const isFinal = final?.text === cell.text && cell.state !== "edited";
        const pass = (isFinal ? final.pass : cell.pass) ?? 0;
        const shown = { text: cell.text, state: cell.state === "edited" ? "edited" : "revealed", pass, was: cell.was };
        if (isFinal) shown.confidence = final.confidence;
        (found.get(block).byPass[pass] ??= []).push({ block, row, cell: shown });
      }
    return found;
  }

  _wasFramed(block, row) {
    this._framed ??= new Set(
      this.moments
        .filter((one) => one.kind === "frame")
        .flatMap((one) => one.changes.map((c) => `${c.block}:${c.row}`)),
    );
    return this._framed.has(`${block}:${row}`);
  }

  /** Adds the passes of a block up to `pass`: the last at its own moment, those before it evenly before that. */
  _emit(made, passes, block, pass, moment, ms = moment?.ms) {
    const found = passes.get(block);
    const from = found.next;
    if (pass < from) return;
    const begin = made.at(-1)?.ms ?? 0;
    for (let at = from; at <= pass; at += 1) {
      const changes = [...(found.byPass[at] ?? [])];
      if (at === 0) {
        const { id, kind, start, rows } = found.rows;
        changes.unshift({ block: id, open: { id, kind, start, rows } });
      }
      const isSeen = moment !== null && at === pass;
      const share = (at - from + 1) / (pass - from + (moment ? 1 : 2));
      made.push({
        ms: isSeen ? ms : begin + (ms - begin) * share,
        kind: "frame",
        block,
        pass: at,
        changes,
        isUnseen: !isSeen,
      });
    }
    found.next = pass + 1;
  }

  _count(made) {
    let tokens = 0;
    let passes = 0;
    for (const moment of made) {
      if (moment.kind === "frame") passes += 1;
      if (moment.kind === "commit") tokens = moment.tokens;
      Object.assign(moment, { tokens, passes });
    }
  }
}

/** A finished reel's moments, and the scene after any number of them. */
export class Playback {
  constructor(reel) {
    this.reel = reel;
    this.moments = reel.compile();
    this.scene = new Scene();
  }

  get duration() {
    return this.moments.at(-1)?.ms ?? 0;
  }

  /** How many moments lie at or before a time in ms. */
  countAt(ms) {
    let low = 0;
    let high = this.moments.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.moments[middle].ms <= ms) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  sceneAt(count) {
    if (count < this.scene.moment) this.scene = new Scene();
    while (this.scene.moment < count) this.scene.apply(this.moments[this.scene.moment]);
    return this.scene;
  }
}
