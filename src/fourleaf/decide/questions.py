"""Questions as `/v1/systemone` takes them: noul (yes or no), choice, score. All faults of a request are found."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fourleaf.errors import RequestError

NOUL, CHOICE, SCORE = "noul", "choice", "score"
TYPES = (NOUL, CHOICE, SCORE)
MAX_OPTIONS = 255
MAX_LEVELS = 10
MAX_JOINT = 8
MAX_ROTATIONS = 8
THRESHOLD = 0.95

_TEXT = "Input should be a string, an object or an array"

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: where, what, and FastAPI's word for the kind."""

    loc: Loc
    message: str
    kind: str


class InvalidDecisionError(RequestError):
    """A request with fields that are missing or wrong; `faults` has each of them."""

    def __init__(self, faults: list[Fault]) -> None:
        first = faults[0]
        path = ".".join(map(str, first.loc))
        super().__init__(f"{path}: {first.message}" if path else first.message, param=path or None)
        self.faults = faults


@dataclass(frozen=True)
class Option:
    """What may be answered. `name` is what the answer calls it; `text` is what the model reads."""

    name: str
    text: str


@dataclass(frozen=True)
class Question:
    """One question. options: noul has no and yes, in this order; score its levels, lowest first.

    legend: a score's descriptions as they were given.
    """

    id: str
    type: str
    text: str
    options: tuple[Option, ...]
    legend: tuple[Any, ...] = ()


@dataclass(frozen=True)
class DecisionRequest:
    """What is to be decided.

    state: the text that all questions are about. joint: all on one canvas. passes: most denoise passes of a joint
    answer; None: as many as the checkpoint's calibration found to be worth it, else one a question; 1 reads every slot
    at once. threshold: a pass reveals each slot
    that is surer than this, and always the surest. rotations: option orders that are averaged. rules: `x_rules` as
    given (`rules.parse_rules` reads them). enforce: answer with the likeliest tuple that obeys them.
    """

    model: str
    state: str
    questions: tuple[Question, ...]
    joint: bool = False
    passes: int | None = None
    threshold: float = THRESHOLD
    rotations: int = 1
    rules: tuple[Any, ...] = ()
    enforce: bool = False


def as_text(value: Any) -> str:
    """What the model reads of a text, an object or an array."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse_request(document: Any) -> DecisionRequest:
    """Reads a request. Unknown fields are ignored. Raises InvalidDecisionError with every fault."""
    faults: list[Fault] = []
    if not isinstance(document, Mapping):
        raise InvalidDecisionError([Fault((), "Input should be a valid dictionary", "dict_type")])
    model = _field(document, "model", faults)
    if model is not None and not isinstance(model, str):
        faults.append(Fault(("model",), "Input should be a valid string", "string_type"))
    state = _field(document, "state", faults)
    if "state" in document and not isinstance(state, (str, dict, list)):
        faults.append(Fault(("state",), _TEXT, "string_type"))
    if document.get("assets") is not None:
        faults.append(Fault(("assets",), "This model reads no images: leave assets out", "unsupported"))
    questions = _questions(_field(document, "questions", faults), faults)
    options = _Extensions(document, faults)
    joint, enforce = options.flag("x_joint"), options.flag("x_enforce")
    rules = options.array("x_rules")
    passes = options.whole("x_passes", 1, MAX_JOINT)
    rotations = options.whole("x_rotations", 1, MAX_ROTATIONS)
    threshold = options.fraction("x_threshold")
    if len(questions) > MAX_JOINT and (joint or rules):
        faults.append(
            Fault(
                ("questions",),
                f"x_joint and x_rules take at most {MAX_JOINT} questions, not {len(questions)}: ask several times",
                "too_long",
            )
        )
    if passes is not None and not joint:
        faults.append(Fault(("x_passes",), "x_passes has a meaning with x_joint: true only", "unsupported"))
    if enforce and not rules:
        faults.append(Fault(("x_enforce",), "x_enforce needs x_rules", "missing"))
    if faults:
        raise InvalidDecisionError(faults)
    return DecisionRequest(
        model=str(model),
        state=as_text(state),
        questions=tuple(questions),
        joint=joint,
        passes=passes,
        threshold=THRESHOLD if threshold is None else threshold,
        rotations=rotations or 1,
        rules=rules,
        enforce=enforce,
    )


def _field(document: Mapping[str, Any], name: str, faults: list[Fault]) -> Any:
    if name not in document:
        faults.append(Fault((name,), "Field required", "missing"))
    return document.get(name)


class _Extensions:
    """The fields that are ours, all of them optional; null is as if left out."""

    def __init__(self, document: Mapping[str, Any], faults: list[Fault]) -> None:
        self._document, self._faults = document, faults

    def _fault(self, name: str, message: str, kind: str) -> None:
        self._faults.append(Fault((name,), message, kind))

    def flag(self, name: str) -> bool:
        value = self._document.get(name)
        if value is not None and not isinstance(value, bool):
            self._fault(name, "Input should be true or false", "bool_type")
        return value is True

    def array(self, name: str) -> tuple[Any, ...]:
        value = self._document.get(name)
        if value is not None and not isinstance(value, list):
            self._fault(name, "Input should be an array of rules", "list_type")
        return tuple(value) if isinstance(value, list) else ()

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self._document.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._fault(name, f"Input should be a whole number from {low} to {high}", "int_range")
            return None
        return value

    def fraction(self, name: str) -> float | None:
        value = self._document.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            self._fault(name, "Input should be a number from 0 to 1", "float_range")
            return None
        return float(value)


def _questions(found: Any, faults: list[Fault]) -> list[Question]:
    if found is None:
        return []
    if not isinstance(found, Mapping):
        faults.append(Fault(("questions",), "Input should be a valid dictionary", "dict_type"))
        return []
    if not found:
        faults.append(Fault(("questions",), "Dictionary should have at least 1 item", "too_short"))
    questions = []
    for name, given in found.items():
        if not name:
            faults.append(Fault(("questions", name), "A question's id must not be empty", "string_too_short"))
        question = _question(str(name), given, faults)
        if question is not None:
            questions.append(question)
    return questions


def _question(name: str, given: Any, faults: list[Fault]) -> Question | None:
    loc: Loc = ("questions", name)
    if not isinstance(given, Mapping):
        faults.append(Fault(loc, "Input should be a valid dictionary", "dict_type"))
        return None
    kind = given.get("type")
    if kind not in TYPES:
        what = "Field required" if "type" not in given else f"Input should be {', '.join(TYPES)}, not {kind!r:.60}"
        faults.append(Fault((*loc, "type"), what, "missing" if "type" not in given else "union_tag_invalid"))
        return None
    instructions = given.get("instructions")
    if instructions is not None and not isinstance(instructions, (str, dict, list)):
        faults.append(Fault((*loc, kind, "instructions"), _TEXT, "string_type"))
    text = "" if instructions is None else as_text(instructions)
    read = {NOUL: _noul, CHOICE: _choice, SCORE: _score}[kind]
    return read(name, text, given, (*loc, kind, "criteria"), faults)


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, dict, list))


def _described(name: str, description: Any) -> str:
    return name if description is None or description == "" else f"{name} ({as_text(description)})"


def _noul(name: str, text: str, given: Mapping[str, Any], loc: Loc, faults: list[Fault]) -> Question | None:
    criteria = given.get("criteria")
    if criteria is not None and not isinstance(criteria, Mapping):
        faults.append(Fault(loc, "Input should be an object with true and false, or null", "dict_type"))
        return None
    sides = {side: (criteria or {}).get(side) for side in ("false", "true")}
    for side, value in sides.items():
        if value is not None and not _is_text(value):
            faults.append(Fault((*loc, side), f"{_TEXT}, or null", "string_type"))
            return None
    if not text and not any(sides.values()):
        faults.append(Fault((*loc[:-1], "instructions"), "A noul needs instructions or criteria", "missing"))
    options = (Option("no", _described("no", sides["false"])), Option("yes", _described("yes", sides["true"])))
    return Question(name, NOUL, text, options)


@dataclass(frozen=True)
class _Form:
    """What a question's criteria must look like. kind: FastAPI's word for another type. nullable: of each value."""

    type: type
    kind: str
    message: str
    limits: str
    most: int
    nullable: bool


_CHOICE = _Form(
    type=Mapping,
    kind="dict_type",
    message="Input should be a valid dictionary",
    limits=f"Dictionary should have 1 to {MAX_OPTIONS} options",
    most=MAX_OPTIONS,
    nullable=True,
)
_SCORE = _Form(
    type=list,
    kind="list_type",
    message="Input should be an array of levels, lowest first",
    limits=f"List should have 1 to {MAX_LEVELS} levels",
    most=MAX_LEVELS,
    nullable=False,
)


def _choice(name: str, text: str, given: Mapping[str, Any], loc: Loc, faults: list[Fault]) -> Question | None:
    criteria = _criteria(given, loc, _CHOICE, faults)
    if criteria is None:
        return None
    return Question(name, CHOICE, text, tuple(Option(key, _described(key, value)) for key, value in criteria.items()))


def _score(name: str, text: str, given: Mapping[str, Any], loc: Loc, faults: list[Fault]) -> Question | None:
    criteria = _criteria(given, loc, _SCORE, faults)
    if criteria is None:
        return None
    options = tuple(Option(str(i), as_text(value)) for i, value in enumerate(criteria))
    return Question(name, SCORE, text, options, tuple(criteria))


def _criteria(given: Mapping[str, Any], loc: Loc, form: _Form, faults: list[Fault]) -> Any:
    """The criteria, or None and a fault where they are of another type or number. Wrong values are faults, too."""
    criteria = given.get("criteria")
    if not isinstance(criteria, form.type):
        missing = "criteria" not in given
        faults.append(Fault(loc, "Field required" if missing else form.message, "missing" if missing else form.kind))
        return None
    if not 1 <= len(criteria) <= form.most:
        kind = "too_short" if not criteria else "too_long"
        faults.append(Fault(loc, f"{form.limits}, not {len(criteria)}", kind))
        return None
    items = criteria.items() if isinstance(criteria, Mapping) else enumerate(criteria)
    wrong = [key for key, value in items if not (_is_text(value) or (form.nullable and value is None))]
    what = f"{_TEXT}, or null" if form.nullable else _TEXT
    faults += [Fault((*loc, key), what, "string_type") for key in wrong]
    return criteria


def rotations_of(question: Question, rotations: int) -> list[tuple[int, ...]]:
    """Orders in which options are shown, at most one for each option: the one given alone, or turns of one order.

    Turns are by equal steps, of a choice's options sorted by their texts: however a request lists them, the same sheets
    are read, and the answer is the same to the bit. No and yes, and a score's levels, have an order of their own.
    """
    size = len(question.options)
    turns = min(rotations, size)
    order = list(range(size))
    if turns > 1 and question.type == CHOICE:
        order.sort(key=lambda i: question.options[i].text)
    shifts = [math.floor(i * size / turns) for i in range(turns)]
    return [tuple(order[(i + shift) % size] for i in range(size)) for shift in shifts]
