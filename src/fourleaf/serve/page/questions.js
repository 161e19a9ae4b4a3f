// The form for questions: id, kind, wording and options of each; at most eight.

import { Trouble } from "./client.js";
import { button, el } from "./dom.js";

const MOST = 8;
const KINDS = [
  ["noul", "yes or no"],
  ["choice", "choice"],
  ["score", "score"],
];

export class QuestionList {
  /** changed: called when a person edits anything. */
  constructor(changed) {
    this.changed = changed;
    this.rows = [];
    this.list = el("ol", { class: "questions" });
    this.more = button("Add a question", () => this._added(), { class: "bare" });
    this.node = el("div", {}, el("h3", {}, "Questions"), this.list, this.more);
  }

  load(questions) {
    this.rows = [];
    this.list.replaceChildren();
    for (const [id, question] of Object.entries(questions)) this._add(id, question);
  }

  _added() {
    this.changed();
    this._add(`question_${this.rows.length + 1}`, { type: "noul", instructions: "" });
  }

  _add(id, question) {
    const criteria = question.criteria ?? {};
    const row = {
      id: el("input", { "aria-label": "Id of the question", value: id, class: "mono" }),
      kind: el(
        "select",
        { "aria-label": "Kind of answer" },
        KINDS.map(([key, text]) => el("option", { value: key, selected: key === question.type }, text)),
      ),
      text: el("input", { "aria-label": "Question", placeholder: "What is asked?" }),
      options: el("textarea", { rows: 2, "aria-label": "Options, one a line", placeholder: "one option a line" }),
      given: question.type === "noul" ? question.criteria : undefined, // what yes and no mean, where it is said
    };
    row.text.value = question.instructions ?? "";
    row.descriptions = question.type === "choice" ? criteria : {};
    row.options.value = (question.type === "score" ? criteria : Object.keys(criteria)).join?.("\n") ?? "";
    const shape = () => (row.options.hidden = row.kind.value === "noul");
    row.kind.addEventListener("change", shape);
    shape();
    const remove = button("×", () => this._remove(row), { class: "bare", "aria-label": "Remove this question" });
    row.node = el(
      "li",
      { oninput: this.changed },
      el("div", { class: "row" }, row.id, row.kind, remove),
      row.text,
      row.options,
    );
    this.rows.push(row);
    this.list.append(row.node);
    this.more.hidden = this.rows.length >= MOST;
  }

  _remove(row) {
    this.rows = this.rows.filter((one) => one !== row);
    row.node.remove();
    this.more.hidden = false;
    this.changed();
  }

  /** The questions as the API takes them. Raises Trouble where one lacks something. */
  read() {
    const made = {};
    for (const row of this.rows) {
      const id = row.id.value.trim();
      if (!id || id in made) throw new Trouble(id ? `Two questions are called “${id}”.` : "A question has no id.");
      const question = { type: row.kind.value, instructions: row.text.value };
      const options = row.options.value
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
      if (question.type === "choice")
        question.criteria = Object.fromEntries(options.map((name) => [name, row.descriptions[name] ?? null]));
      else if (question.type === "score") question.criteria = options;
      else if (row.given) question.criteria = row.given;
      made[id] = question;
    }
    if (!this.rows.length) throw new Trouble("Ask at least one question.");
    return made;
  }
}
