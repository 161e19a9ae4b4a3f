// The race in one picture: a row a lane, a bar for each pass, round or step, as high as the tokens that it decided.

import { el, svg } from "./dom.js";

const TALLEST = 32; // tokens of a bar that fills its row
const WIDTH = 1000; // of the drawing; it is stretched to its place
const HEIGHT = 32;
const DECIDED = ["revealed", "edited"];

/** [ms, tokens] of every pass, round or step of a finished reel. A step is a token, also where a commit brought several. */
export function barsOf(playback) {
  const kinds = playback.reel.scene.blocks.map((block) => block.kind);
  const bars = [];
  let tokens = 0;
  let round = null; // the block of the last commit
  let before = 0; // ms of the last commit
  for (const moment of playback.moments) {
    const kind = kinds[moment.block];
    if (moment.kind === "frame" && kind === "block") {
      bars.push([moment.ms, moment.changes.filter(({ cell }) => DECIDED.includes(cell?.state)).length]);
    } else if (moment.kind === "commit") {
      const more = moment.tokens - tokens;
      if (kind === "round" && moment.block === round)
        bars.at(-1)[1] += more; // a round's tokens may come in pieces
      else if (kind === "round" && more) bars.push([moment.ms, more]);
      round = moment.block;
      if (kind === "steps" || kind === "unseen")
        for (let i = 1; i <= more; i += 1) bars.push([before + ((moment.ms - before) * i) / more, 1]);
      tokens = moment.tokens;
      before = moment.ms;
    }
  }
  return bars;
}

function outline(bars, duration) {
  const wide = Math.min(6, Math.max(1.6, (WIDTH / Math.max(1, bars.length)) * 0.4));
  return bars
    .map(([ms, tokens]) => {
      const high = Math.max(2, (Math.min(tokens, TALLEST) / TALLEST) * HEIGHT);
      const x = Math.min(WIDTH - wide, (ms / duration) * WIDTH);
      return `M${x.toFixed(1)} ${HEIGHT}v-${high.toFixed(1)}h${wide.toFixed(1)}v${high.toFixed(1)}z`;
    })
    .join("");
}

export class Track {
  constructor() {
    this.rows = el("div", { class: "track-rows" });
    this.node = el("div", { class: "track", "aria-hidden": "true" }, this.rows);
  }

  load(playbacks, duration) {
    this.rows.replaceChildren(
      ...playbacks.flatMap((playback) => {
        const path = outline(barsOf(playback), duration);
        const place = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" };
        const share = `${(playback.duration / duration) * 100}%`;
        return [
          el("span", { class: "track-name" }, playback.reel.mode),
          el(
            "div",
            { class: "track-row" },
            el("span", { class: "track-ground", style: { width: share } }),
            svg("svg", { ...place, class: "bars-ahead" }, svg("path", { d: path })),
            svg("svg", { ...place, class: "bars-done" }, svg("path", { d: path })),
          ),
        ];
      }),
    );
  }

  /** share: 0 to 1 of the duration. */
  seek(share) {
    this.node.style.setProperty("--at", share.toFixed(4));
  }
}
