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
const mebi = (bytes) => (bytes === undefined ? null : bytes / 2 ** 20);
// [label, what it says of (all so far, since the last reading, seconds between them), digits, unit, a note below it]
const LEAD = [
  ["Tokens a second", (m, d, s) => (d ? d.completion_tokens_total / s : null), 1, "", () => "in the last two seconds"],
  [
    "Tokens a forward",
    (m) => ratio(m.completion_tokens_total, m.forwards_total),
    2,
    "",
    (m) => of(m, "forwards_total"),
  ],
  ["Drafts that stood", (m) => percent(m.stood_total, m.proposals_total), 1, "%", (m) => of(m, "proposals_total")],
  [
    "Prompt tokens from the cache",
    (m) => percent(m.cached_tokens_total, m.prompt_tokens_total),
    1,
    "%",
    (m) => of(m, "prompt_tokens_total"),
  ],
  ["Memory", (m) => mebi(m.resident_bytes), 0, " MiB", (m) => `${figure(mebi(m.cache_bytes), 1)} of it the caches`],
  ["In line", (m) => m.waiting_requests, 0, "", (m) => `${figure(m.running_requests)} being answered`],
];
const TILES = [
  ["Answers", (m) => m.requests_total, 0],
  ["Turned away", (m) => m.refused_total, 0],
  ["Seconds an answer, mean", (m) => ratio(m.request_seconds_sum, m.request_seconds_count), 2],
  ["Seconds to the first block, mean", (m) => ratio(m.first_block_seconds_sum, m.first_block_seconds_count), 2],
  ["Rows a token", (m) => ratio(m.rows_total, m.completion_tokens_total), 2],
  ["Tokens answered", (m) => m.completion_tokens_total, 0],
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
  "proposals_total",
  "stood_total",
  "resident_bytes",
  "cache_bytes",
]);

const percent = (part, whole) => ratio(100 * part, whole);
const of = (metrics, name) => `of ${figure(metrics[name])} ${name.replace("_total", "").replace("_", " ")}`;

export class Numbers {
  constructor(app) {
    this.app = app;
    this.tiles = [...LEAD, ...TILES].map(([label, read, digits, unit = "", about]) => ({
      label,
      read: (...given) => said(read(...given), digits, unit),
      about,
      value: el("dd", {}, "–"),
      note: about ? el("dd", { class: "more" }) : null,
    }));
    this.curve = svg("polyline", { class: "curve", points: "" });
    this.under = svg("polygon", { class: "under", points: "" });
    this.top = el("span", { class: "mono" });
    this.rest = el("tbody");
    this.speeds = [];
    const [lead, tiles] = [this.tiles.slice(0, LEAD.length), this.tiles.slice(LEAD.length)].map((some) =>
      some.map(({ label, value, note }) => el("div", { class: "tile" }, el("dt", {}, label), value, note)),
    );
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
      el("dl", { class: "tiles spread lead-tiles" }, lead),
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
          this.under,
          this.curve,
        ),
        el(
          "div",
          { class: "row chart-foot" },
          el("span", {}, "three minutes ago"),
          el("span", { class: "push" }, "now"),
        ),
      ),
      el("dl", { class: "tiles spread" }, tiles),
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
    for (const { value, note, read, about } of this.tiles) {
      value.textContent = read(now, change, seconds);
      if (note) note.textContent = about(now);
    }
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
    this.top.textContent = `top of the scale: ${figure(top, 0)}`;
    const x = (i) => 600 - (this.speeds.length - 1 - i) * (600 / (KEPT - 1));
    const points = this.speeds.map((value, i) => `${x(i).toFixed(1)},${(116 - (value / top) * 108).toFixed(1)}`);
    this.curve.setAttribute("points", points.join(" "));
    this.under.setAttribute("points", [`${x(0).toFixed(1)},118`, ...points, "600,118"].join(" "));
  }
}

const said = (value, digits, unit) => {
  const text = figure(value, digits);
  return text === "–" ? text : text + unit;
};
