"""Rules over the answers of one request: read, checked, and obeyed by trying every tuple of answers.

A rule is a condition. Conditions on one answer:

    {"question": "a", "is": true}        noul: true or false; choice: an option's name; score: a level
    {"question": "a", "in": ["x", "y"]}
    {"question": "a", "at_least": 2}     score; "at_most" too

on several, where a score counts as its level, a choice as its place among the options and a noul as 0 or 1:

    {"equal": ["a", "b"]}                the same answer: options by name, the rest by number
    {"different": ["a", "b", "c"]}       no two the same
    {"ordered": ["a", "b"], "strict": true}     rising; without strict also level
    {"sum": ["a", "b"], "at_least": 1, "at_most": 3}

and of conditions: `not`, `all`, `any`, `exactly_one`, `at_most_one`, `iff` (of two), `if` with `then`. A list in `if`
or `then` means all of it. A rule may carry `text`, a sentence that a joint prompt then shows.

Shapes: P tuples of answers, Q questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourleaf.decide.questions import CHOICE, NOUL, SCORE, Fault, InvalidDecisionError, Loc, Question

MAX_TUPLES = 1_000_000
MAX_CONDITIONS = 256  # in all rules of a request; each is tested on every tuple
MAX_DEPTH = 32

Column = NDArray[np.int16]
Columns = Mapping[str, Column]
Holds = Callable[[Columns], NDArray[np.bool_]]


@dataclass(frozen=True)
class Rule:
    """A condition that tuples obey or break. names: the questions it speaks of."""

    holds: Holds
    names: frozenset[str]
    text: str = ""

    def is_obeyed(self, answers: Mapping[str, int]) -> bool:
        """answers: an option's index for each question."""
        return bool(np.all(self.holds({name: np.array([answers[name]], dtype=np.int16) for name in self.names})))


def parse_rules(given: Sequence[Any], questions: Sequence[Question]) -> tuple[Rule, ...]:
    """Reads `x_rules`. Raises InvalidDecisionError with every fault."""
    reader = _Reader(questions)
    rules = [reader.rule(rule, ("x_rules", i)) for i, rule in enumerate(given)]
    if reader.faults:
        raise InvalidDecisionError(reader.faults)
    return tuple(rules)


def best_tuple(log_p: Mapping[str, NDArray[np.float64]], rules: Sequence[Rule]) -> dict[str, int]:
    """The tuple that obeys all rules and has the highest product of probabilities; of equals the first.

    log_p: [options] of each question. Raises InvalidDecisionError where no tuple obeys, or where the tuples of the
    questions that rules speak of are too many to try.
    """
    chosen = {name: int(np.argmax(values)) for name, values in log_p.items()}
    names = [name for name in log_p if any(name in rule.names for rule in rules)]
    if not names:
        return chosen
    grid = tuples({name: len(log_p[name]) for name in names})
    fits = reduce(np.logical_and, (rule.holds(grid) for rule in rules))
    if not fits.any():
        raise InvalidDecisionError([Fault(("x_rules",), "No answers obey all of these rules", "contradiction")])
    total = np.sum([np.maximum(log_p[name], -1e4)[grid[name]] for name in names], axis=0)
    at = int(np.argmax(np.where(fits, total, -np.inf)))
    return chosen | {name: int(grid[name][at]) for name in names}


def tuples(sizes: Mapping[str, int]) -> dict[str, Column]:
    """Every tuple, one column [P] a question. Raises InvalidDecisionError beyond MAX_TUPLES."""
    number = int(np.prod([float(size) for size in sizes.values()]))
    if number > MAX_TUPLES:
        shape = " x ".join(map(str, sizes.values()))
        message = (
            f"The options of the questions in these rules make {shape} = {number:,} tuples, and at most {MAX_TUPLES:,} "
            "are tried. Offer fewer options, or write rules over fewer questions."
        )
        raise InvalidDecisionError([Fault(("x_rules",), message, "too_many_tuples")])
    return dict(zip(sizes, np.indices(tuple(sizes.values()), dtype=np.int16).reshape(len(sizes), -1), strict=True))


class _Reader:
    """Reads conditions and collects what is wrong with them."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.faults: list[Fault] = []
        self._num_conditions = 0
        self._questions = {question.id: question for question in questions}
        self._kinds: dict[str, Callable[[Mapping[str, Any], Loc], Rule]] = {
            "question": self._single,
            "equal": self._equal,
            "different": self._different,
            "ordered": self._ordered,
            "sum": self._sum,
            "not": lambda given, loc: _joined([self.rule(given["not"], (*loc, "not"))], lambda parts: ~parts[0]),
            "all": lambda given, loc: _joined(self._several(given, loc, "all"), _all),
            "any": lambda given, loc: _joined(self._several(given, loc, "any"), _any),
            "exactly_one": lambda given, loc: _joined(self._several(given, loc, "exactly_one"), _exactly_one),
            "at_most_one": lambda given, loc: _joined(self._several(given, loc, "at_most_one"), _at_most_one),
            "iff": self._iff,
            "if": self._if,
        }

    def rule(self, given: Any, loc: Loc) -> Rule:
        """One condition; where it is wrong, a fault and a rule that always holds."""
        self._num_conditions += 1
        if self._num_conditions > MAX_CONDITIONS or len(loc) > MAX_DEPTH:
            if self._num_conditions == MAX_CONDITIONS + 1 or len(loc) == MAX_DEPTH + 1:
                limits = f"at most {MAX_CONDITIONS} conditions, nested at most {MAX_DEPTH} fields deep"
                self._wrong(loc, f"The rules of a request have {limits}", "too_long")
            return _ALWAYS
        if isinstance(given, list):
            return _joined([self.rule(part, (*loc, i)) for i, part in enumerate(given)], _all)
        if not isinstance(given, Mapping):
            return self._wrong(loc, "A rule is an object", "dict_type")
        found = [kind for kind in self._kinds if kind in given]
        if len(found) != 1:
            return self._wrong(loc, f"A rule has exactly one of {', '.join(self._kinds)}", "rule_kind")
        made = self._kinds[found[0]](given, loc)
        text = given.get("text")
        if text is not None and not isinstance(text, str):
            return self._wrong((*loc, "text"), "Input should be a valid string", "string_type")
        return Rule(made.holds, made.names, text or "")

    def _wrong(self, loc: Loc, message: str, kind: str) -> Rule:
        self.faults.append(Fault(loc, message, kind))
        return _ALWAYS

    def _several(self, given: Mapping[str, Any], loc: Loc, kind: str) -> list[Rule]:
        parts = given[kind]
        if not isinstance(parts, list) or not parts:
            self._wrong((*loc, kind), "Input should be an array of conditions, at least one", "list_type")
            return [_ALWAYS]
        return [self.rule(part, (*loc, kind, i)) for i, part in enumerate(parts)]

    def _named(self, given: Mapping[str, Any], loc: Loc, kind: str) -> list[Question]:
        names = given[kind]
        if not isinstance(names, list) or len(names) < 2:
            self._wrong((*loc, kind), "Input should be an array of at least two question ids", "list_type")
            return []
        unknown = [i for i, name in enumerate(names) if not isinstance(name, str) or name not in self._questions]
        for i in unknown:
            self._wrong((*loc, kind, i), f"There is no question {names[i]!r:.60}", "unknown_question")
        return [] if unknown else [self._questions[name] for name in names]

    def _single(self, given: Mapping[str, Any], loc: Loc) -> Rule:
        name = given["question"]
        if not isinstance(name, str) or name not in self._questions:
            return self._wrong((*loc, "question"), f"There is no question {name!r:.60}", "unknown_question")
        question = self._questions[name]
        tests = [test for test in ("is", "in", "at_least", "at_most") if test in given]
        if not tests or (("is" in tests or "in" in tests) and len(tests) > 1):
            return self._wrong(loc, "A condition has `is`, `in`, or `at_least` and `at_most`", "condition")
        if tests == ["is"]:
            allowed = [self._value(question, given["is"], (*loc, "is"))]
        elif tests == ["in"]:
            values = given["in"] if isinstance(given["in"], list) else []
            if not values:
                return self._wrong((*loc, "in"), "Input should be an array of answers, at least one", "list_type")
            allowed = [self._value(question, value, (*loc, "in", i)) for i, value in enumerate(values)]
        else:
            if question.type != SCORE:
                return self._wrong(
                    loc, f"{name} is a {question.type}; at_least and at_most are for scores", "condition"
                )
            low, high = (self._number(given, test, loc) for test in ("at_least", "at_most"))
            levels = range(len(question.options))
            allowed = [i for i in levels if (low is None or i >= low) and (high is None or i <= high)]
        return Rule(lambda c: np.isin(c[name], allowed), frozenset({name}))

    def _value(self, question: Question, value: Any, loc: Loc) -> int:
        """The index of an answer by its name; -1 and a fault where there is none."""
        if question.type == NOUL and isinstance(value, bool):
            return int(value)
        if question.type == SCORE and isinstance(value, int) and not isinstance(value, bool):
            if 0 <= value < len(question.options):
                return value
        elif question.type == CHOICE and isinstance(value, str):
            for i, option in enumerate(question.options):
                if option.name == value:
                    return i
        self._wrong(loc, f"{value!r:.60} is no answer to {question.id}, a {question.type}", "unknown_answer")
        return -1

    def _number(self, given: Mapping[str, Any], name: str, loc: Loc) -> float | None:
        value = given.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._wrong((*loc, name), "Input should be a number", "float_type")
            return None
        return float(value)

    def _equal(self, given: Mapping[str, Any], loc: Loc) -> Rule:
        return self._compared(given, loc, "equal", lambda a, b: a == b, pairs=pairwise)

    def _different(self, given: Mapping[str, Any], loc: Loc) -> Rule:
        def every(items: Sequence[Any]) -> list[tuple[Any, Any]]:
            return [(a, b) for i, a in enumerate(items) for b in items[i + 1 :]]

        return self._compared(given, loc, "different", lambda a, b: a != b, pairs=every)

    def _compared(self, given: Mapping[str, Any], loc: Loc, kind: str, test: Any, pairs: Any) -> Rule:
        """Answers compared by what they say: options by name, levels and nouls by number."""
        questions = self._named(given, loc, kind)
        if not questions:
            return _ALWAYS
        if len({question.type == CHOICE for question in questions}) > 1:
            return self._wrong((*loc, kind), "A choice is compared with choices only", "condition")
        said = {name: i for i, name in enumerate(dict.fromkeys(o.name for q in questions for o in q.options))}
        codes = [
            np.array([said[o.name] if q.type == CHOICE else i for i, o in enumerate(q.options)]) for q in questions
        ]
        names = [question.id for question in questions]

        def holds(c: Columns) -> NDArray[np.bool_]:
            values = [code[c[name]] for code, name in zip(codes, names, strict=True)]
            return reduce(np.logical_and, [test(a, b) for a, b in pairs(values)])

        return Rule(holds, frozenset(names))

    def _ordered(self, given: Mapping[str, Any], loc: Loc) -> Rule:
        names = [question.id for question in self._named(given, loc, "ordered")]
        strict = given.get("strict", False)
        if not isinstance(strict, bool):
            return self._wrong((*loc, "strict"), "Input should be true or false", "bool_type")
        if not names:
            return _ALWAYS
        test = np.less if strict else np.less_equal
        return Rule(lambda c: reduce(np.logical_and, [test(c[a], c[b]) for a, b in pairwise(names)]), frozenset(names))

    def _sum(self, given: Mapping[str, Any], loc: Loc) -> Rule:
        names = [question.id for question in self._named(given, loc, "sum")]
        low, high = (self._number(given, test, loc) for test in ("at_least", "at_most"))
        if low is None and high is None:
            return self._wrong(loc, "A sum has at_least, at_most or both", "missing")
        least, most = -np.inf if low is None else low, np.inf if high is None else high

        def holds(c: Columns) -> NDArray[np.bool_]:
            total = np.sum([c[name].astype(np.int64) for name in names], axis=0)
            return (total >= least) & (total <= most)

        return Rule(holds, frozenset(names)) if names else _ALWAYS

    def _iff(self, given: Mapping[str, Any], loc: Loc) -> Rule:
        parts = self._several(given, loc, "iff")
        if len(parts) != 2:
            return self._wrong((*loc, "iff"), "Input should be an array of two conditions", "list_type")
        return _joined(parts, lambda values: values[0] == values[1])

    def _if(self, given: Mapping[str, Any], loc: Loc) -> Rule:
        if "then" not in given:
            return self._wrong((*loc, "then"), "Field required", "missing")
        parts = [self.rule(given[side], (*loc, side)) for side in ("if", "then")]
        return _joined(parts, lambda values: ~values[0] | values[1])


Values = list[NDArray[np.bool_]]


def _joined(parts: list[Rule], join: Callable[[Values], NDArray[np.bool_]]) -> Rule:
    names = frozenset().union(*(part.names for part in parts))
    return Rule(lambda c: join([part.holds(c) for part in parts]), names)


def _all(values: Values) -> NDArray[np.bool_]:
    return reduce(np.logical_and, values, np.array(True))


def _any(values: Values) -> NDArray[np.bool_]:
    return reduce(np.logical_or, values)


def _exactly_one(values: Values) -> NDArray[np.bool_]:
    return np.sum(values, axis=0) == 1


def _at_most_one(values: Values) -> NDArray[np.bool_]:
    return np.sum(values, axis=0) <= 1


_ALWAYS = Rule(lambda c: np.array(True), frozenset())
