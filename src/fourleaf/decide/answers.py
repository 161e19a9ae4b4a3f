"""Answers in the wire's form, and what is derived from probabilities: confidence, scores, the tuple's rules.

Confidence is TypeSafe's: of a choice (p_max - 1/n) / (1 - 1/n); of a score max(0, 1 - E|level - mode| / D) with D the
mean distance of a level from the middle. Both are 0 where nothing is known and 1 where all is. Other servers put other
things there (one minus the normalised entropy, the top probability, the margin of the top two); thresholds do not carry
over. A noul has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourleaf.decide.questions import CHOICE, NOUL, DecisionRequest, Question
from fourleaf.decide.rules import Rule

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """One question's answer. p: [options], by which the answer was found. first: the same at a joint canvas's first
    pass. chosen: the option answered, the likeliest unless rules forbade it. mass: the share of all tokens that lay on
    the labels."""

    question: Question
    p: Floats
    chosen: int
    mass: float
    first: Floats | None = None

    @property
    def value(self) -> bool | int | str:
        """What was chosen: true or false, a level, or an option's name."""
        if self.question.type == NOUL:
            return bool(self.chosen)
        return self.question.options[self.chosen].name if self.question.type == CHOICE else self.chosen


@dataclass(frozen=True)
class Decision:
    """All answers to a request, and what they took.

    order: what each pass of a joint canvas revealed, by id. tuple_p: of a joint answer, the product of each answer's
    probability at the pass that revealed it. broken: indices of the rules that the answers break; None without rules.
    """

    answers: tuple[Answer, ...]
    input_tokens: int
    output_tokens: int
    forwards: int
    rows: int
    passes: int
    order: tuple[tuple[str, ...], ...] = ()
    tuple_p: float | None = None
    broken: tuple[int, ...] | None = None

    @property
    def values(self) -> dict[str, bool | int | str]:
        """What was chosen, by id."""
        return {answer.question.id: answer.value for answer in self.answers}


def choice_confidence(p: Floats) -> float:
    """p: [n], sums to 1."""
    size = len(p)
    return 1.0 if size == 1 else max(0.0, float((p.max() - 1 / size) / (1 - 1 / size)))


def score_confidence(p: Floats) -> float:
    """p: [n] of levels 0 to n - 1."""
    size = len(p)
    if size == 1:
        return 1.0
    levels = np.arange(size)
    spread = np.abs(levels - (size - 1) / 2).mean()
    return max(0.0, float(1 - (p * np.abs(levels - p.argmax())).sum() / spread))


def broken_rules(answers: Mapping[str, int], rules: Sequence[Rule]) -> tuple[int, ...] | None:
    """Which rules these answers (option by id) break; None where there are no rules."""
    return tuple(i for i, rule in enumerate(rules) if not rule.is_obeyed(answers)) if rules else None


def wire_answer(answer: Answer, *, extended: bool) -> dict[str, Any]:
    """One answer as `/v1/systemone` gives it; ours are the fields that begin with x_."""
    question, p = answer.question, answer.p
    made: dict[str, Any]
    if question.type == NOUL:
        made = {"type": NOUL, "noul": float(p[1])}
    elif question.type == CHOICE:
        made = {
            "type": CHOICE,
            "choice": question.options[answer.chosen].name,
            "probabilities": {o.name: float(v) for o, v in zip(question.options, p, strict=True)},
            "confidence": choice_confidence(p),
        }
    else:
        made = {
            "type": question.type,
            "score": float((np.arange(len(p)) * p).sum()),
            "legend": {str(i): level for i, level in enumerate(question.legend)},
            "probabilities": {str(i): float(v) for i, v in enumerate(p)},
            "confidence": score_confidence(p),
        }
    made["x_option_mass"] = answer.mass
    if extended:
        made["x_answer"] = answer.value
        if answer.first is not None:
            made["x_first"] = [float(v) for v in answer.first]
    return made


def wire_response(decision: Decision, request: DecisionRequest, model: str) -> dict[str, Any]:
    """The whole response body."""
    extended = request.joint or bool(request.rules)
    body: dict[str, Any] = {
        "model": model,
        "answers": {a.question.id: wire_answer(a, extended=extended) for a in decision.answers},
        "usage": {"input_tokens": decision.input_tokens, "output_tokens": decision.output_tokens},
        "x_forwards": decision.forwards,
    }
    if request.joint:
        body["x_joint"] = {
            "p": decision.tuple_p,
            "passes": decision.passes,
            "order": [list(names) for names in decision.order],
        }
    if decision.broken is not None:
        body["x_rules"] = {"obeyed": not decision.broken, "broken": list(decision.broken)}
    return body


def answer_lines(decision: Decision) -> list[str]:
    """A decision for people: one line a question, surest option first, then what holds for all."""
    lines = []
    for answer in decision.answers:
        ranked = np.argsort(-answer.p, kind="stable")
        shown = [f"{answer.question.options[i].text} {100 * answer.p[i]:.1f}%" for i in ranked[:4]]
        more = f", {len(ranked) - 4} more" if len(ranked) > 4 else ""
        lines.append(f"{answer.question.id}: {answer.question.options[answer.chosen].text}  ({', '.join(shown)}{more})")
    if decision.tuple_p is not None:
        order = ", then ".join(" and ".join(names) for names in decision.order)
        lines.append(f"together {100 * decision.tuple_p:.1f}%, revealed: {order}")
    if decision.broken:
        lines.append(f"rules broken: {', '.join(str(i + 1) for i in decision.broken)}")
    return lines
