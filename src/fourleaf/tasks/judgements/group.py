"""What a group of judgements is, and the proof that its answers are the only ones.

A world gives each variable a value; a variable is what one question asks for. Facts speak of one variable, rules of
several. `solutions` tries every assignment: a group has exactly one that fits its facts and rules, several that fit
its facts alone, and several that fit its rules alone, so that reading and reasoning are both needed.

Shapes: P assignments, all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

NOUL, CHOICE, SCORE = "noul", "choice", "score"

Column = NDArray[np.int8]
Columns = Mapping[str, Column]
Holds = Callable[[Columns], NDArray[np.bool_]]


@dataclass(frozen=True)
class Variable:
    """One question and what it asks for.

    values: names in the world's order (noul: "no", "yes"). truth: index of the right one. ask: the question as it is
    put. says: for each value, the sentence that states it as a fact; empty where facts never do. denies: for each
    value, the sentence that rules it out, or empty. order: the order in which a choice's options are shown. flipped: a
    noul that asks for the opposite, so that its answer is yes where the world says no.
    """

    name: str
    kind: str
    values: tuple[str, ...]
    truth: int
    ask: str
    says: tuple[str, ...] = ()
    denies: tuple[str, ...] = ()
    order: tuple[int, ...] = ()
    flipped: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Names in the order in which they are shown."""
        return tuple(self.values[i] for i in self.order) if self.kind == CHOICE else self.values

    def shown(self, value: int) -> int:
        """Index among the options of a value of the world."""
        if self.kind == CHOICE:
            return self.order.index(value)
        return value ^ 1 if self.flipped else value

    def wire_value(self, value: int) -> bool | int | str:
        """A value as rules over answers name it."""
        if self.kind == NOUL:
            return bool(self.shown(value))
        return self.values[value] if self.kind == CHOICE else value

    def wire(self) -> dict[str, Any]:
        """The question as `/v1/systemone` takes it."""
        if self.kind == NOUL:
            return {"type": NOUL, "instructions": self.ask}
        criteria = dict.fromkeys(self.options) if self.kind == CHOICE else list(self.values)
        return {"type": self.kind, "instructions": self.ask, "criteria": criteria}


@dataclass(frozen=True)
class Statement:
    """A sentence, whether it holds in each assignment, and the same as rules over answers. twin: its opposite."""

    text: str
    holds: Holds = field(compare=False)
    wire: tuple[dict[str, Any], ...] = ()
    twin: Statement | None = None


@dataclass(frozen=True)
class Fact(Statement):
    """A statement about one variable."""

    variable: str = ""
    value: int = 0


@dataclass(frozen=True)
class Group:
    """A state, rules and questions. `variables` are in the order of the questions; tags: what kind of set it is for.

    possible: per variable, every value (of the world) that fits; one each, except in the unknowable slice.
    """

    name: str
    family: str
    variables: tuple[Variable, ...]
    facts: tuple[Fact, ...]
    rules: tuple[Statement, ...]
    tags: frozenset[str] = frozenset()
    possible: tuple[tuple[int, ...], ...] = ()

    @property
    def state(self) -> str:
        """The text that the questions are about."""
        facts = " ".join(fact.text for fact in self.facts)
        rules = " ".join(rule.text for rule in self.rules if rule.text)
        return f"{facts}\nRules: {rules}" if rules else facts

    @property
    def answers(self) -> tuple[int, ...]:
        """Per question, the index of the right option as shown."""
        return tuple(v.shown(v.truth) for v in self.variables)

    @property
    def questions(self) -> dict[str, dict[str, Any]]:
        """As `/v1/systemone` takes them."""
        return {v.name: v.wire() for v in self.variables}

    @property
    def wire_rules(self) -> list[dict[str, Any]]:
        """The rules between answers, as `x_rules` takes them. What the facts say is not among them."""
        return [rule for statement in self.rules for rule in statement.wire]

    def document(self) -> dict[str, Any]:
        """JSON of everything that a server and its scorer need."""
        return {
            "name": self.name,
            "family": self.family,
            "tags": sorted(self.tags),
            "state": self.state,
            "questions": self.questions,
            "x_rules": self.wire_rules,
            "answers": {v.name: v.wire_value(v.truth) for v in self.variables},
            "possible": {
                v.name: [v.wire_value(value) for value in values]
                for v, values in zip(self.variables, self.possible, strict=True)
            },
        }


@lru_cache(maxsize=256)
def _grid(sizes: tuple[int, ...]) -> tuple[Column, ...]:
    return tuple(np.indices(sizes, dtype=np.int8).reshape(len(sizes), -1))


def columns(variables: Sequence[Variable]) -> dict[str, Column]:
    """Every assignment: variable name -> [P] values."""
    names = sorted(v.name for v in variables)  # one grid for every order of the questions
    sizes = {v.name: len(v.values) for v in variables}
    return dict(zip(names, _grid(tuple(sizes[name] for name in names)), strict=True))


def holding(grid: Columns, statements: Sequence[Statement]) -> NDArray[np.bool_]:
    """[P] whether all the statements hold."""
    size = len(next(iter(grid.values())))
    return reduce(np.logical_and, (s.holds(grid) for s in statements), np.ones(size, dtype=bool))


def values_left(grid: Columns, fits: NDArray[np.bool_], variables: Sequence[Variable]) -> tuple[tuple[int, ...], ...]:
    """Per variable, the values that it has in the assignments that fit."""
    return tuple(tuple(np.unique(grid[v.name][fits]).tolist()) for v in variables)


def is_solved(variables: Sequence[Variable], facts: Sequence[Fact], rules: Sequence[Statement]) -> bool:
    """Whether the variables' truths fit and nothing else does."""
    grid = columns(variables)
    fits = np.flatnonzero(holding(grid, [*facts, *rules]))
    return len(fits) == 1 and all(grid[v.name][fits[0]] == v.truth for v in variables)


def is_coupled(variables: Sequence[Variable], facts: Sequence[Fact], rules: Sequence[Statement]) -> bool:
    """Whether the facts leave a question open, and the rules do so without the facts."""
    grid = columns(variables)
    open_by_facts = holding(grid, facts).sum() > 1
    return bool(open_by_facts and holding(grid, rules).sum() > 1)


def solved(group: Group) -> Group:
    """The group with what its facts and rules leave possible, and with the truth where only one thing is."""
    grid = columns(group.variables)
    fits = holding(grid, [*group.facts, *group.rules])
    assert fits.any(), f"{group.name} contradicts itself"
    possible = values_left(grid, fits, group.variables)
    variables = tuple(
        replace(v, truth=left[0]) if len(left) == 1 else v for v, left in zip(group.variables, possible, strict=True)
    )
    return replace(group, variables=variables, possible=possible)
