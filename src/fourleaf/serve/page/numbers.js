// What the server counts, read from its metrics every two seconds while this view is open.

import { getText } from "./client.js";
import { el, figure, svg } from "./dom.js";

const EVERY = 2000;
const KEPT = 90; // readings in the curve: three minutes

/** Prometheus' text as a map from name to number; histograms give their _sum and _count. */
export function readMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const parts = line.match(/^fourleaf_(\w+)(?:\{[^}]*\})? ([-+.\deE]+|NaN|\+Inf)$/);
    if (parts && !parts[1].endsWith("_bucket")) found[parts[1]] = (found[parts[1]] ?? 0) + Number(parts[2]);
  }
  return found;
}

const ratio = (a, b) => (b ? a / b : null);
// [label, what it says of (all so far, since the last reading, seconds between them), digits, unit]
const TILES = [
  ["Tokens a second, now", (m, d, s) => (d ? ratio(d.completion_tokens_total, s) : null), 1],
  ["Tokens a forward", (m) => ratio(m.completion_tokens_total, m.forwards_total), 2],
  ["Rows a token", (m) => ratio(m.rows_total, m.completion_tokens_total), 2],
  ["Running", (m) => m.running_requests, 0],
  ["Waiting in line", (m) => m.waiting_requests, 0],
  ["Answers", (m) => m.requests_total, 0],
  ["Turned away", (m) => m.refused_total, 0],
  ["Mean seconds an answer", (m) => ratio(m.request_seconds_sum, m.request_seconds_count), 2],
  ["Mean seconds to the first block", (m) => ratio(m.first_block_seconds_sum, m.first_block_seconds_count), 2],
  ["Prompt tokens from the cache", (m) => ratio(100 * m.cached_tokens_total, m.prompt_tokens_total), 1, "%"],
];
const SHOWN = new Set([
  "completion_tokens_total",
  "forwards_total",
  "rows_total",
  "running_requests",
  "waiting_requests",
  "requests_total",
  "refused_total",
  "request_seconds_sum",
  "request_seconds_count",
  "first_block_seconds_sum",
  "first_block_seconds_count",
  "cached_tokens_total",
  "prompt_tokens_total",
]);

export class Numbers {
  constructor(app) {
    this.app = app;
    this.values = TILES.map(() => el("dd", {}, "–"));
    this.curve = svg("polyline", { class: "curve", points: "" });
    this.top = el("span", { class: "mono" });
    this.rest = el("tbody");
    this.speeds = [];
    const tiles = TILES.map(([label], i) => el("div", { class: "tile" }, el("dt", {}, label), this.values[i]));
    this.node = el(
      "div",
      { class: "view" },
      el(
        "div",
        {},
        el("h2", {}, "Numbers"),
        el(
          "p",
          { class: "lead" },
          "All requests to this server since it started, from ",
          el("code", {}, "/metrics"),
          ". Read every two seconds while this view is open.",
        ),
      ),
      el("dl", { class: "tiles" }, tiles),
      el(
        "div",
        { class: "card" },
        el("div", { class: "row" }, el("h3", {}, "Tokens a second"), el("span", { class: "push" }, this.top)),
        svg(
          "svg",
          {
            class: "chart",
            viewBox: "0 0 600 120",
            preserveAspectRatio: "none",
            role: "img",
            "aria-label": "Tokens a second over the last three minutes",
          },
          this.curve,
        ),
      ),
      el(
        "details",
        { class: "card" },
        el("summary", {}, "Everything else that is counted"),
        el("table", {}, this.rest),
      ),
    );
  }

  shown() {
    this.read();
    this.timer = setInterval(() => this.read(), EVERY);
  }

  left() {
    clearInterval(this.timer);
  }

  async read() {
    let now;
    try {
      now = readMetrics(await getText("/metrics"));
    } catch (error) {
      this.app.trouble(error);
      return;
    }
    const at = performance.now();
    const change =
      this.last && Object.fromEntries(Object.keys(now).map((name) => [name, now[name] - (this.last[name] ?? 0)]));
    const seconds = (at - this.at) / 1000;
    TILES.forEach(([, read, digits, unit], i) => {
      const text = figure(read(now, change, seconds), digits);
      this.values[i].textContent = text === "–" ? text : text + (unit ?? "");
    });
    if (change) this._draw(Math.max(0, change.completion_tokens_total / seconds));
    this.rest.replaceChildren(
      ...Object.keys(now)
        .filter((name) => !SHOWN.has(name))
        .map((name) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, name.replaceAll("_", " ")),
            el("td", { class: "mono" }, figure(now[name], Number.isInteger(now[name]) ? 0 : 2)),
          ),
        ),
    );
    this.last = now;
    this.at = at;
  }

  _draw(speed) {
    this.speeds = [...this.speeds, speed].slice(-KEPT);
    const top = Math.max(10, ...this.speeds);
    this.top.textContent = `highest ${figure(top, 0)}`;
    const x = (i) => 600 - (this.speeds.length - 1 - i) * (600 / (KEPT - 1));
    this.curve.setAttribute(
      "points",
      this.speeds.map((value, i) => `${x(i).toFixed(1)},${(116 - (value / top) * 108).toFixed(1)}`).join(" "),
    );
  }
}
