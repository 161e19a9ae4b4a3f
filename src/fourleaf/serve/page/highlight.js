// Colours for code, good enough for reading: comments, strings, numbers, keywords, tags. Whatever is no match stays text.

import { el } from "./dom.js";

const KEYWORDS = new Set(
  (
    "and as assert async await break case catch class const continue def default del do elif else enum except export extends " +
    "false finally fn for from func function global if impl import in interface is lambda let loop match mod mut new nil None " +
    "nonlocal not null or pass pub raise return Self self static struct super switch this throw trait true True False try type " +
    "typeof use var void where while with yield SELECT FROM WHERE INSERT INTO UPDATE DELETE JOIN ON GROUP BY ORDER LIMIT"
  ).split(" "),
);
const HASH = new Set(["py", "python", "sh", "bash", "yaml", "yml", "toml", "ruby", "r"]);
const TAGGED = new Set(["html", "xml", "svg"]);
const STRING = String.raw`"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|` + "`(?:[^`\\\\]|\\\\.)*`";
const REST = String.raw`|(?<number>\b\d[\d_.]*(?:e[+-]?\d+)?\b)|(?<word>[A-Za-z_]\w*)`;
const MAX = 60_000; // characters; longer code stays plain, so that no text can hold up the page

function pattern(language) {
  if (TAGGED.has(language))
    return new RegExp(`(?<comment><!--[\\s\\S]*?(?:-->|$))|(?<string>${STRING})|(?<tag></?[A-Za-z][\\w-]*|/?>)`, "g");
  const comment = HASH.has(language) ? "#[^\\n]*" : "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)|--[^\\n]*";
  return new RegExp(`(?<comment>${comment})|(?<string>${STRING})${REST}`, "g");
}

/** Code as nodes: text, and spans of class code-KIND. */
export function highlighted(code, language) {
  if (code.length > MAX) return [code];
  const parts = [];
  let at = 0;
  for (const found of code.matchAll(pattern(language))) {
    const kind = Object.entries(found.groups).find(([, text]) => text !== undefined)[0];
    if (kind === "word" && !KEYWORDS.has(found[0])) continue;
    parts.push(code.slice(at, found.index), el("span", { class: `code-${kind}` }, found[0]));
    at = found.index + found[0].length;
  }
  return [...parts, code.slice(at)];
}
