// What a request says about decoding, chosen in a small form; kept between visits.

import { can, model } from "./client.js";
import { choice, el } from "./dom.js";

const MODES = {
  diffuse: "diffuse: blocks at once",
  ar: "ar: one token a forward",
  draft: "draft: proposed, then verified",
  auto: "auto: the cheapest",
};
const STORED = "fourleaf.settings";
const DEFAULTS = {
  mode: "diffuse",
  policy: "threshold",
  threshold: 0.95,
  tokens_per_pass: 4,
  entropy_bound: 0.1,
  edit_threshold: 0.9,
  temperature: 0,
  seed: "",
  max_tokens: 512,
};
// Which numbers a policy reads.
const OF_POLICY = {
  threshold: ["threshold"],
  fixed: ["tokens_per_pass"],
  entropy: ["entropy_bound"],
  edit: ["threshold", "edit_threshold"],
};
const LIMITS = {
  threshold: [0, 1, 0.01],
  edit_threshold: [0, 1, 0.01],
  tokens_per_pass: [1, 32, 1],
  entropy_bound: [0, 1000, 0.05],
  temperature: [0, 2, 0.1],
  max_tokens: [1, 100000, 1],
  seed: [0, 9007199254740991, 1],
};
const WORDS = {
  threshold: "Threshold",
  tokens_per_pass: "Tokens a pass",
  entropy_bound: "Entropy bound",
  edit_threshold: "Edit threshold",
  temperature: "Temperature",
  seed: "Seed",
  max_tokens: "Max tokens",
};

export const modeChoices = () => (model.capabilities?.modes ?? ["ar"]).map((mode) => [mode, MODES[mode] ?? mode]);

function stored() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(STORED) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export class Settings {
  constructor() {
    this.values = stored();
    const modes = model.capabilities?.modes ?? [];
    if (!modes.includes(this.values.mode)) this.values.mode = modes[0] ?? "ar";
  }

  set(name, value) {
    this.values[name] = value;
    localStorage.setItem(STORED, JSON.stringify(this.values));
  }

  /** The fields of a request. mode: in place of the chosen one. */
  fields(mode = this.values.mode) {
    const { values } = this;
    const made = { mode, max_tokens: values.max_tokens };
    if (mode === "diffuse" || mode === "auto") {
      made.policy = values.policy;
      for (const name of OF_POLICY[values.policy]) made[name] = values[name];
    }
    if (values.temperature > 0) made.temperature = values.temperature;
    if (values.seed !== "") made.seed = values.seed;
    return made;
  }

  /** The form. without: names that are chosen elsewhere. */
  form(without = []) {
    const node = el("div", { class: "row settings" });
    const draw = () => {
      const parts = [];
      if (!without.includes("mode"))
        parts.push(choice("Mode", modeChoices(), this.values.mode, (v) => change("mode", v)));
      const policies = model.capabilities?.policies ?? [];
      const isDiffusing = without.includes("mode") || ["diffuse", "auto"].includes(this.values.mode);
      if (policies.length && isDiffusing) {
        if (!policies.includes(this.values.policy)) this.values.policy = policies[0];
        parts.push(
          choice(
            "Policy",
            policies.map((p) => [p, p]),
            this.values.policy,
            (v) => change("policy", v),
          ),
        );
        for (const name of OF_POLICY[this.values.policy]) parts.push(this._number(name));
      }
      for (const name of ["temperature", "seed", "max_tokens"]) if (can(name)) parts.push(this._number(name));
      node.replaceChildren(...parts);
    };
    const change = (name, value) => {
      this.set(name, value);
      draw();
    };
    draw();
    return node;
  }

  _number(name) {
    const [min, max, step] = LIMITS[name];
    const onchange = () => {
      if (input.value === "" && name === "seed") return this.set(name, "");
      const value = Math.min(max, Math.max(min, Number(input.value || DEFAULTS[name])));
      input.value = value;
      this.set(name, step === 1 ? Math.round(value) : value);
    };
    const input = el("input", { type: "number", min: String(min), max: String(max), step: String(step), onchange });
    input.value = this.values[name];
    if (name === "seed") input.placeholder = "any";
    return el("label", { class: "field" }, el("span", {}, WORDS[name]), input);
  }
}
