// Starts the page: connects, builds the views, says what is wrong in words.

import { Cabin } from "./cabin.js";
import { Chat } from "./chat.js";
import { Trouble, connect, getJSON, key, model, useModel } from "./client.js";
import { Decide } from "./decide.js";
import { $, button, choice, el } from "./dom.js";
import { Numbers } from "./numbers.js";
import { Settings } from "./settings.js";
import { Watch } from "./watch.js";

const VIEWS = [
  ["watch", "Watch", Watch],
  ["cabin", "Cabin", Cabin],
  ["chat", "Chat", Chat],
  ["decide", "Decide", Decide],
  ["numbers", "Numbers", Numbers],
];
const RETRY = 2000; // ms between looks for a server that is gone

class App {
  constructor() {
    this.views = new Map();
    this.main = $("#main");
    this.tabs = $(".tabs");
    for (const [name, text] of VIEWS) {
      const tab = el(
        "button",
        { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "main", onclick: () => this.open(name) },
        text,
      );
      tab.addEventListener("keydown", (event) => this._walk(event, name));
      this.tabs.append(tab);
    }
    addEventListener("hashchange", () => this.open(location.hash.slice(1)));
  }

  async start() {
    try {
      await connect();
    } catch (error) {
      this.trouble(error);
      return;
    }
    this._calm();
    if (!this.settings) this.settings = new Settings();
    this.open(location.hash.slice(1));
  }

  open(name) {
    if (!this.settings) return; // not connected yet
    const found = VIEWS.find((view) => view[0] === name) ?? VIEWS[0];
    const [id, , View] = found;
    if (!this.views.has(id)) this.views.set(id, new View(this));
    const view = this.views.get(id);
    if (this.shown === view) return;
    this.shown?.left?.();
    this.shown = view;
    if (name) history.replaceState(null, "", `#${id}`);
    this.main.replaceChildren(view.node);
    this.main.setAttribute("role", "tabpanel");
    this.main.setAttribute("aria-labelledby", `tab-${id}`);
    for (const tab of this.tabs.children) {
      const isThis = tab.id === `tab-${id}`;
      tab.setAttribute("aria-selected", String(isThis));
      tab.tabIndex = isThis ? 0 : -1;
    }
    view.shown?.();
  }

  _walk(event, name) {
    const at = VIEWS.findIndex((view) => view[0] === name);
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    const next = VIEWS[(at + way + VIEWS.length) % VIEWS.length][0];
    this.open(next);
    $(`#tab-${next}`).focus();
  }

  /** Every answer's events pass here: the cabin does what committed calls say, whatever the view that asked. */
  heard(name, data) {
    if (name === "tool_call") this.cabin.take(data);
  }

  get cabin() {
    if (!this.views.has("cabin")) this.views.set("cabin", new Cabin(this));
    return this.views.get("cabin");
  }

  /** Says what is wrong; asks for a key, or looks for the server until it is back. */
  trouble(error) {
    const box = $("#trouble");
    const parts = [
      el("span", {}, error instanceof Trouble ? error.message : `Something went wrong in the page: ${error}`),
    ];
    if (error.kind === "key") parts.push(this._keyForm());
    else if (error.kind === "gone" || !this.settings) {
      this._served("gone", "not connected");
      clearTimeout(this.retry);
      this.retry = setTimeout(() => this._look(), RETRY);
    } else parts.push(button("Dismiss", () => (box.hidden = true), { class: "bare" }));
    box.replaceChildren(...parts);
    box.hidden = false;
  }

  async _look() {
    try {
      await getJSON("/health");
      await this.start();
    } catch (error) {
      if (error.kind === "gone" || error.kind === "busy") this.retry = setTimeout(() => this._look(), RETRY);
      else this.trouble(error);
    }
  }

  _keyForm() {
    const input = el("input", { type: "password", "aria-label": "API key", autocomplete: "off", required: true });
    const submit = (event) => {
      event.preventDefault();
      key.set(input.value.trim());
      this.start();
    };
    setTimeout(() => input.focus());
    return el("form", { onsubmit: submit }, input, el("button", { type: "submit" }, "Use key"));
  }

  _calm() {
    $("#trouble").hidden = true;
    this._served("ok", `${model.id} · ${model.capabilities.modes.join(", ")}`);
    if (model.names.length > 1) {
      const names = model.names.map((name) => [name, name]);
      $("#served").replaceChildren(choice("Model", names, model.id, useModel));
    }
  }

  _served(state, text) {
    const node = $("#served");
    node.className = `served ${state}`;
    node.textContent = text;
  }
}

const app = new App();
window.fourleaf = app; // for the console, and for tests
app.start();
