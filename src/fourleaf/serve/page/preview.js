// HTML that a model wrote, run in a frame of no origin, without network, from committed text alone.

import { button, el } from "./dom.js";

const LIMIT = 500_000; // characters

export class Preview {
  constructor() {
    this.place = el("div", { class: "preview-place" });
    const close = button("Close", () => this.close(), { class: "bare push" });
    const again = button("Run again", () => this.run(this.html), { class: "bare" });
    this.node = el(
      "aside",
      { class: "card preview", hidden: true, "aria-label": "Preview of the answer's page" },
      el(
        "div",
        { class: "row" },
        el("h3", {}, "Preview"),
        el("span", { class: "lead" }, "no network, no access to this page"),
        close,
        again,
      ),
      this.place,
    );
  }

  run(html) {
    this.html = html.slice(0, LIMIT);
    this.node.hidden = false;
    // Removing the old frame also ends scripts that never stop.
    const frame = el("iframe", {
      sandbox: "allow-scripts",
      src: "page/preview.html",
      title: "Preview of the answer's page",
      referrerpolicy: "no-referrer",
    });
    const ready = (event) => {
      if (event.source !== frame.contentWindow || event.data !== "ready") return;
      removeEventListener("message", ready);
      frame.contentWindow.postMessage(this.html, "*"); // its origin is opaque: there is no other name for it
    };
    addEventListener("message", ready);
    this.place.replaceChildren(frame);
  }

  close() {
    this.place.replaceChildren();
    this.node.hidden = true;
  }
}
