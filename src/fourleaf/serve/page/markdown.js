// Markdown as elements. HTML in it stays text; links go to http(s) alone and pictures are links, so nothing is fetched.

import { button, copy, el } from "./dom.js";
import { highlighted } from "./highlight.js";

const INLINE = new RegExp(
  [
    "(`+)(?<code>[^`]|[^`][\\s\\S]*?[^`])\\1(?!`)",
    "\\*\\*(?<bold>[^*\\s](?:[^*]*[^*\\s])?)\\*\\*",
    "(?<![\\w*])[*_](?<italic>[^*_\\s](?:[^*_]*[^*_\\s])?)[*_](?![\\w*])",
    "!?\\[(?<label>[^\\]\\n]*)\\]\\((?<target>[^)\\s]+)\\)",
    "(?<bare>https?:\\/\\/[^\\s<>\"')]+)",
  ].join("|"),
  "g",
);

function link(target, label) {
  if (!/^https?:\/\//i.test(target)) return `${label} (${target})`;
  return el("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, label);
}

/** A line's text as nodes. */
export function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    const { code, bold, italic, label, target, bare } = found.groups;
    parts.push(text.slice(at, found.index));
    if (code !== undefined) parts.push(el("code", {}, code.trim()));
    else if (bold !== undefined) parts.push(el("strong", {}, inline(bold)));
    else if (italic !== undefined) parts.push(el("em", {}, inline(italic)));
    else if (target !== undefined) parts.push(link(target, label || target));
    else parts.push(link(bare, bare));
    at = found.index + found[0].length;
  }
  return [...parts, text.slice(at)];
}

const RULES = [
  ["fence", /^\s{0,3}(```+|~~~+)\s*([\w+#-]*)/],
  ["heading", /^(#{1,6})\s+(.*)/],
  ["rule", /^\s{0,3}([-*_])(\s*\1){2,}\s*$/],
  ["quote", /^\s{0,3}>\s?/],
  ["item", /^(\s*)([-*+]|\d{1,9}[.)])\s+/],
  ["table", /^\s*\|.*\|\s*$/],
];
const kindOf = (line) => RULES.find(([, rule]) => rule.test(line))?.[0] ?? (line.trim() ? "text" : "blank");

/** A text as block elements. onHTML(code): called where a reader wants to run a block of HTML. */
export function markdown(text, onHTML = null) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const made = [];
  let at = 0;
  const take = (kind) => {
    const from = at;
    while (at < lines.length && kindOf(lines[at]) === kind) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const kind = kindOf(lines[at]);
    if (kind === "blank") at += 1;
    else if (kind === "fence") made.push(fence());
    else if (kind === "heading") {
      const [, marks, title] = lines[at++].match(RULES[1][1]);
      made.push(el(`h${Math.min(6, marks.length + 2)}`, {}, inline(title)));
    } else if (kind === "rule") {
      at += 1;
      made.push(el("hr"));
    } else if (kind === "quote")
      made.push(
        el(
          "blockquote",
          {},
          markdown(
            take("quote")
              .map((l) => l.replace(RULES[3][1], ""))
              .join("\n"),
            onHTML,
          ),
        ),
      );
    else if (kind === "item") made.push(list(items()));
    else if (kind === "table") made.push(table(take("table")));
    else
      made.push(
        el(
          "p",
          {},
          take("text").flatMap((line, i) => (i ? [el("br"), ...inline(line)] : inline(line))),
        ),
      );
  }
  return made;

  function fence() {
    const [, marks, language] = lines[at].match(RULES[0][1]);
    const from = (at += 1);
    while (at < lines.length && !lines[at].trim().startsWith(marks)) at += 1;
    return codeBlock(lines.slice(from, at++).join("\n"), language.toLowerCase(), onHTML);
  }

  function items() {
    const found = [];
    while (
      at < lines.length &&
      (kindOf(lines[at]) === "item" || (kindOf(lines[at]) === "text" && /^\s+\S/.test(lines[at])))
    ) {
      const marker = lines[at].match(RULES[4][1]);
      if (marker)
        found.push({
          depth: marker[1].length,
          isNumbered: /\d/.test(marker[2]),
          text: lines[at].slice(marker[0].length),
        });
      else found.at(-1).text += `\n${lines[at].trim()}`;
      at += 1;
    }
    return found;
  }
}

function list(items) {
  const node = el(items[0].isNumbered ? "ol" : "ul");
  for (let i = 0; i < items.length;) {
    const inner = [];
    let next = i + 1;
    while (next < items.length && items[next].depth > items[i].depth) inner.push(items[next++]);
    node.append(el("li", {}, inline(items[i].text), inner.length ? list(inner) : null));
    i = next;
  }
  return node;
}

function table(rows) {
  const cells = rows.map((row) =>
    row
      .trim()
      .slice(1, -1)
      .split("|")
      .map((cell) => cell.trim()),
  );
  const isHeaded = cells[1]?.every((cell) => /^:?-+:?$/.test(cell));
  const head = isHeaded
    ? el(
        "thead",
        {},
        el(
          "tr",
          {},
          cells[0].map((cell) => el("th", {}, inline(cell))),
        ),
      )
    : null;
  const body = (isHeaded ? cells.slice(2) : cells).map((row) =>
    el(
      "tr",
      {},
      row.map((cell) => el("td", {}, inline(cell))),
    ),
  );
  return el("div", { class: "wide" }, el("table", {}, head, el("tbody", {}, body)));
}

/** Code with its language, a button to copy it, and for HTML one to run it. */
export function codeBlock(code, language, onHTML) {
  const bar = el(
    "div",
    { class: "code-bar" },
    el("span", {}, language || "text"),
    button("Copy", () => copy(code), { class: "bare push" }),
  );
  if (onHTML && isHTML(code, language))
    bar.append(button("Run", () => onHTML(code), { class: "bare", "data-act": "run-html" }));
  return el("div", { class: "code" }, bar, el("pre", { tabIndex: 0 }, el("code", {}, highlighted(code, language))));
}

const isHTML = (code, language) => language === "html" || (!language && /^\s*<!doctype html|^\s*<html/i.test(code));

/** The last whole page of HTML in an answer, fenced or bare; null where there is none. */
export function pageIn(text) {
  if (/^\s*(<!doctype html|<html)/i.test(text)) return text;
  const found = [...text.matchAll(/^```+html\s*\n([\s\S]*?)(?:^```|$(?![\s\S]))/gim)];
  return found.at(-1)?.[1] ?? null;
}
