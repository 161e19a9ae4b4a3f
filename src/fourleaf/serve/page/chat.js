// Chat: a conversation with what a request can say about it, kept in this browser.

import { Trouble, model } from "./client.js";
import { announce, button, download, el } from "./dom.js";
import { History, blank } from "./history.js";
import { pageIn } from "./markdown.js";
import { Bubble } from "./bubble.js";
import { Preview } from "./preview.js";

export class Chat {
  constructor(app) {
    this.app = app;
    this.history = new History();
    this.chat = blank();
    this.preview = new Preview();
    this._build();
    this._draw();
  }

  _build() {
    this.thread = el("div", {
      class: "thread",
      role: "log",
      "aria-label": "Conversation",
      "aria-live": "off",
      tabIndex: 0,
    });
    this.box = el("textarea", { rows: 2, "aria-label": "Message", placeholder: "Write a message …" });
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    this.go = button("Send", () => this.send(), { class: "main", "data-act": "send" });
    this.stop = button("Stop", () => this.abort?.abort(), { hidden: true, "data-act": "stop" });
    this.system = el("textarea", { rows: 2, oninput: () => (this.chat.system = this.system.value) });
    this.schema = el("textarea", { rows: 4, class: "mono", placeholder: '{"type": "object", …}', spellcheck: "false" });
    this.schemaFault = el("p", { class: "fault", hidden: true });
    const remembers = model.capabilities.tools !== "fixed"; // a model of single commands takes each one alone
    this.remember = el("input", { type: "checkbox", checked: remembers });
    this.list = el("ul", { class: "chats" });
    const side = el(
      "aside",
      { class: "chat-side" },
      el(
        "div",
        { class: "row" },
        button("New chat", () => this.open(blank())),
        button("Export", () => this._export(), { class: "bare" }),
      ),
      el(
        "details",
        { open: innerWidth > 900 },
        el("summary", {}, "Earlier chats"),
        this.list,
        button("Forget all", () => this._forget(), { class: "bare" }),
      ),
    );
    const how = el(
      "details",
      { class: "how" },
      el("summary", {}, "How it answers"),
      this.app.settings.form(),
      el("label", { class: "field" }, this.remember, "send the whole conversation, not the last message alone"),
      el("label", { class: "field tall" }, "System prompt", this.system),
      model.capabilities.constraints.includes("json_schema") &&
        el("label", { class: "field tall" }, "JSON schema that the answer must match (none: free text)", this.schema),
      this.schemaFault,
    );
    const main = el(
      "section",
      { class: "card chat-main", "aria-label": "Chat" },
      this.thread,
      el("div", { class: "composer" }, el("div", { class: "ask-line" }, this.box, this.go, this.stop), how),
    );
    this.node = el("div", { class: "view chat-view" }, side, main, this.preview.node);
  }

  shown() {
    if (innerWidth > 700) this.box.focus();
  }

  open(chat) {
    this.abort?.abort();
    this.chat = structuredClone(chat);
    this.system.value = this.chat.system;
    this.preview.close();
    this._draw();
    this.shown();
  }

  _draw() {
    this.thread.replaceChildren(...this.chat.messages.map((message, index) => this._bubble(message, index).node));
    if (!this.chat.messages.length)
      this.thread.append(
        el(
          "p",
          { class: "empty lead" },
          `Nothing said yet. Messages go to ${model.id} on this server and stay in this browser.`,
        ),
      );
    this._drawList();
    this.thread.scrollTop = this.thread.scrollHeight;
  }

  _drawList() {
    this.list.replaceChildren(
      ...this.history.chats.map((chat) =>
        el(
          "li",
          {},
          button(chat.title || "untitled", () => this.open(chat), {
            class: "bare chat-name",
            "aria-current": chat.id === this.chat.id ? "true" : null,
          }),
          button("×", () => this._remove(chat), { class: "bare", "aria-label": `Forget “${chat.title}”` }),
        ),
      ),
    );
  }

  _bubble(message, index) {
    return new Bubble(message, {
      edit: () => this._edit(index),
      retry: () => this._retry(index),
      run: (html) => this.preview.run(html),
    });
  }

  async send() {
    const said = this.box.value.trim();
    if (!said || this.abort) return;
    const format = this._format();
    if (format === null) return;
    this.box.value = "";
    this.chat.title ||= said.slice(0, 60);
    this.chat.messages.push({ role: "user", content: said });
    await this._answer(format);
  }

  async _answer(format) {
    const message = { role: "assistant", content: "", calls: [], reasoning: "", state: "writing" };
    const body = { messages: this._messages(), ...this.app.settings.fields(), ...format };
    this.chat.messages.push(message);
    this._draw();
    const bubble = this._bubble(message, this.chat.messages.length - 1);
    this.thread.lastChild.replaceWith(bubble.node);
    const { chat } = this;
    const abort = (this.abort = new AbortController());
    this._busy(true);
    try {
      const reel = await bubble.write(body, abort.signal, (name, data) => {
        this.app.heard(name, data);
        this._follow();
      });
      message.state = reel.reason;
      announce(message.content || `${message.calls.length} calls.`);
      const page = pageIn(message.content);
      if (page && reel.reason !== "stopped") this.preview.run(page);
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      message.state = "failed";
      message.fault = error.message;
      if (error.kind === "key" || error.kind === "gone") this.app.trouble(error);
    } finally {
      this.abort = null;
      this._busy(false);
      if (chat === this.chat) {
        bubble.finish();
        this._follow();
      }
      this.history.save(structuredClone(chat));
      this._drawList();
    }
  }

  _follow() {
    this.thread.scrollTop = this.thread.scrollHeight;
  }

  _busy(isBusy) {
    this.go.disabled = isBusy;
    this.stop.hidden = !isBusy;
  }

  /** The request's messages: what was said, calls with a result for each, so that any template takes them. */
  _messages() {
    const said = this.chat.messages.filter((message) => message.role === "user" || message.state !== "failed");
    const kept = this.remember.checked ? said : said.slice(-1);
    const made = this.chat.system.trim() ? [{ role: "system", content: this.chat.system.trim() }] : [];
    for (const message of kept) {
      if (message.role === "user") made.push({ role: "user", content: message.content });
      else if (message.calls.length) {
        const calls = message.calls.map((call) => ({
          id: call.id,
          type: "function",
          function: { name: call.name, arguments: call.arguments },
        }));
        made.push({ role: "assistant", content: message.content, tool_calls: calls });
        for (const call of calls) made.push({ role: "tool", tool_call_id: call.id, content: "done" });
      } else if (message.content) made.push({ role: "assistant", content: message.content });
    }
    return made;
  }

  /** The request's response_format; null where the schema's box holds no JSON. */
  _format() {
    const text = this.schema.value.trim();
    this.schemaFault.hidden = true;
    if (!text) return {};
    try {
      return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(text) } } };
    } catch (error) {
      this.schemaFault.textContent = `The schema is no JSON: ${error.message}`;
      this.schemaFault.hidden = false;
      return null;
    }
  }

  _edit(index) {
    if (this.abort) return;
    this.box.value = this.chat.messages[index].content;
    this.chat.messages.length = index;
    this._draw();
    this.box.focus();
  }

  async _retry(index) {
    const format = this._format();
    if (this.abort || format === null) return;
    this.chat.messages.length = index;
    await this._answer(format);
  }

  _remove(chat) {
    this.history.remove(chat.id);
    if (chat.id === this.chat.id) this.open(blank());
    else this._draw();
  }

  _forget() {
    this.history.clear();
    this.open(blank());
  }

  _export() {
    download("fourleaf-chat.json", JSON.stringify({ model: model.id, ...this.chat }, null, 1));
  }
}
