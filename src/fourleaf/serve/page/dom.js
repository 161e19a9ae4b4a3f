// Elements in one expression. Texts become text nodes: nothing that a model or a person wrote is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.setAttribute("class", value);
    else if (key === "style") for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
    else if (key in node && typeof value !== "string" && node instanceof HTMLElement) node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
export const $ = (selector, root = document) => root.querySelector(selector);

/** A select with its label. options: [value, text] pairs. */
export function choice(label, options, value, onchange) {
  const select = el("select", { onchange: () => onchange(select.value) });
  for (const [key, text] of options) select.append(el("option", { value: key, selected: key === value }, text));
  return el("label", { class: "field" }, el("span", {}, label), select);
}

/** A button that says in words what it does, for eyes and for screen readers. */
export const button = (text, onclick, props = {}) => el("button", { type: "button", onclick, ...props }, text);

/** A number for people: 1,234 or 3.21 or –. */
export function figure(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

let announcer;
/** Says a sentence to screen readers; nothing is seen. */
export function announce(text) {
  announcer ??= $("#announcer");
  announcer.textContent = text;
}

export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
    return true;
  } catch {
    announce("The browser did not allow copying.");
    return false;
  }
}
