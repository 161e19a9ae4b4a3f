// Decisions: a state and up to eight questions, answered one by one and together on one canvas, side by side.

import { Trouble, getJSON, model, postJSON } from "./client.js";
import { announce, button, el, figure } from "./dom.js";
import { QuestionList } from "./questions.js";

const START = {
  state:
    "The driver has been at the wheel for four hours. It is dark and raining. The battery holds 12%, the next charger " +
    "is 9 km away, and after that there is none for 80 km.",
  questions: {
    stop_now: { type: "noul", instructions: "Should the car suggest a stop at the next charger?" },
    tired: { type: "noul", instructions: "Is the driver likely to be tired?" },
    urgency: { type: "score", instructions: "How urgent is charging?", criteria: ["not at all", "soon", "now"] },
    lights: { type: "choice", instructions: "Which lights are right?", criteria: { off: null, low: null, high: null } },
  },
  x_rules: [{ if: { question: "urgency", is: 2 }, then: { question: "stop_now", is: true } }],
};

const counted = (n, one, more) => `${n} ${n === 1 ? one : more}`;

/** What an answer says, as rules name it. */
export function valueOf(answer) {
  if (answer.x_answer !== undefined) return answer.x_answer;
  if (answer.type === "noul") return answer.noul >= 0.5;
  if (answer.type === "choice") return answer.choice;
  return Number(Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1])[0][0]);
}

/** [name, probability] for each option. */
function optionsOf(answer) {
  if (answer.type === "noul")
    return [
      ["yes", answer.noul, true],
      ["no", 1 - answer.noul, false],
    ];
  const named = (key) => (answer.type === "score" ? (answer.legend?.[key] ?? key) : key);
  return Object.entries(answer.probabilities).map(([key, p]) => [
    String(named(key)),
    p,
    answer.type === "score" ? Number(key) : key,
  ]);
}

export class Decide {
  constructor(app) {
    this.app = app;
    this.seed = Math.floor(Math.random() * 1e6);
    this.truth = null;
    this._build();
    this._load(START);
  }

  _build() {
    this.state = el("textarea", { rows: 5, oninput: () => (this.truth = null) });
    this.questions = new QuestionList(() => (this.truth = null));
    this.rules = el("textarea", { rows: 4, class: "mono", spellcheck: "false" });
    this.go = button("Decide", () => this.run(), { class: "main", "data-act": "decide" });
    this.fault = el("p", { class: "fault", role: "alert", hidden: true });
    this.result = el("div", { class: "decided", "aria-live": "polite" });
    this.doubt = el(
      "p",
      { class: "lead", hidden: true },
      "This model was not calibrated for decisions, and may never have seen any: what it says shows how they work, not ",
      "what is right.",
    );
    this.node = el(
      "div",
      { class: "view" },
      el(
        "div",
        {},
        el("h2", {}, "Decide"),
        el(
          "p",
          { class: "lead" },
          "The same questions twice: ",
          el("strong", {}, "one by one"),
          ", each blind to the others' answers, and ",
          el("strong", {}, "together"),
          " on one canvas, where each answer can agree with the rest.",
        ),
      ),
      el(
        "div",
        { class: "decide-grid" },
        el(
          "section",
          { class: "card decide-ask", "aria-label": "What is asked" },
          el(
            "div",
            { class: "row" },
            this.go,
            button("Draw a puzzle", () => this._puzzle()),
            button("The first example", () => this._load(START), { class: "bare" }),
          ),
          el("label", { class: "field tall" }, "State: what is known", this.state),
          this.questions.node,
          el(
            "details",
            {},
            el("summary", {}, "Rules between the answers"),
            el("label", { class: "field tall" }, "JSON, as x_rules", this.rules),
          ),
          this.fault,
        ),
        el("section", { class: "card", "aria-label": "Answers" }, this.doubt, this.result),
      ),
    );
    this._empty();
  }

  _empty() {
    this.result.replaceChildren(el("p", { class: "lead" }, "Nothing decided yet."));
  }

  _load(group) {
    this.state.value = group.state;
    this.questions.load(group.questions);
    this.rules.value = group.x_rules?.length ? JSON.stringify(group.x_rules, null, 1) : "";
    this.truth = group.answers ?? null;
    this._empty();
  }

  async _puzzle() {
    try {
      this._load(await getJSON(`/page/judgement?seed=${(this.seed += 1)}`));
    } catch (error) {
      this._trouble(error);
    }
  }

  async run() {
    if (this.isBusy) return;
    this.fault.hidden = true;
    const { truth } = this;
    let body;
    try {
      body = { model: model.id, state: this.state.value, questions: this.questions.read() };
      if (this.rules.value.trim()) body.x_rules = JSON.parse(this.rules.value);
    } catch (error) {
      return this._trouble(
        error instanceof SyntaxError ? new Trouble(`The rules are no JSON: ${error.message}`) : error,
      );
    }
    this.isBusy = this.go.disabled = true;
    this.doubt.hidden = model.capabilities.decisions?.calibrated ?? false;
    try {
      const ask = async (more) => {
        const began = performance.now();
        const found = await postJSON("/v1/systemone", { ...body, ...more });
        return { ...found, ms: performance.now() - began };
      };
      const alone = await ask({});
      const together = await ask({ x_joint: true });
      this._show(body, alone, together, truth);
    } catch (error) {
      this._trouble(error);
    } finally {
      this.isBusy = this.go.disabled = false;
    }
  }

  _trouble(error) {
    if (!(error instanceof Trouble)) throw error;
    if (error.kind === "key" || error.kind === "gone") return this.app.trouble(error);
    this.fault.textContent = error.message;
    this.fault.hidden = false;
  }

  _show(body, alone, together, truth) {
    const names = Object.keys(body.questions);
    const order = new Map(together.x_joint.order.flatMap((found, pass) => found.map((name) => [name, pass + 1])));
    const rows = names.map((name) =>
      el(
        "tr",
        {},
        el(
          "th",
          { scope: "row" },
          el("span", { class: "q-id" }, name),
          el("span", { class: "q-text" }, body.questions[name].instructions),
        ),
        el("td", {}, bars(alone.answers[name], truth?.[name])),
        el(
          "td",
          {},
          bars(together.answers[name], truth?.[name]),
          el("span", { class: "note" }, `decided in pass ${order.get(name)}`),
        ),
      ),
    );
    const head = (title, found) =>
      el(
        "th",
        { scope: "col" },
        title,
        el("span", { class: "note" }, ` ${figure(found.ms)} ms, ${counted(found.x_forwards, "forward", "forwards")}`),
      );
    const score = (found) => names.filter((name) => valueOf(found.answers[name]) === truth[name]).length;
    const foot = [];
    if (body.x_rules)
      foot.push(
        el("tr", {}, el("th", { scope: "row" }, "Rules"), el("td", {}, ruling(alone)), el("td", {}, ruling(together))),
      );
    foot.push(
      el(
        "tr",
        {},
        el("th", { scope: "row" }, "All together"),
        el("td", { class: "lead" }, "no joint probability"),
        el(
          "td",
          {},
          `${figure(100 * together.x_joint.p, 1)}% likely, ${counted(together.x_joint.passes, "pass", "passes")}`,
        ),
      ),
    );
    if (truth)
      foot.push(
        el(
          "tr",
          {},
          el("th", { scope: "row" }, "Right"),
          ...[alone, together].map((found) => el("td", {}, `${score(found)} of ${names.length}`)),
        ),
      );
    this.result.replaceChildren(
      el(
        "div",
        { class: "wide" },
        el(
          "table",
          { class: "answers" },
          el(
            "thead",
            {},
            el("tr", {}, el("th", { scope: "col" }, "Question"), head("One by one", alone), head("Together", together)),
          ),
          el("tbody", {}, rows),
          el("tfoot", {}, foot),
        ),
      ),
      el("p", { class: "lead" }, truth ? "✓ marks the one answer that the state and the rules leave." : ""),
    );
    announce("Decided.");
  }
}

function ruling({ x_rules: rules }) {
  if (rules.obeyed) return el("span", { class: "agree" }, "no contradiction");
  return el("span", { class: "contradict" }, `contradiction: breaks rule ${rules.broken.map((i) => i + 1).join(", ")}`);
}

function bars(answer, truth) {
  const chosen = valueOf(answer);
  return el(
    "ul",
    { class: "bars" },
    optionsOf(answer).map(([name, p, value]) =>
      el(
        "li",
        { class: value === chosen ? "chosen" : "" },
        el("span", { class: "bar", style: { "--p": p.toFixed(4) } }),
        el(
          "span",
          { class: "bar-name" },
          name,
          truth !== undefined && truth === value ? el("b", { title: "the right answer" }, " ✓") : null,
        ),
        el("span", { class: "bar-p" }, `${figure(100 * p, 0)}%`),
      ),
    ),
  );
}
