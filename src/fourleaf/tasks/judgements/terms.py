"""Conditions over answers: each knows how to test every assignment at once, and how `x_rules` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourleaf.tasks.judgements.group import Columns, Fact, Holds, Statement, Variable


@dataclass(frozen=True)
class Term:
    """A condition. holds: over all assignments. wire: the same for `x_rules`."""

    holds: Holds
    wire: dict[str, Any]


def equals(variable: Variable, value: int) -> Term:
    """The variable has the value."""
    name = variable.name
    return Term(lambda c: c[name] == value, {"question": name, "is": variable.wire_value(value)})


def at_least(variable: Variable, level: int) -> Term:
    """A score has this level or a higher one."""
    name = variable.name
    return Term(lambda c: c[name] >= level, {"question": name, "at_least": level})


def one_of(variable: Variable, values: Sequence[int]) -> Term:
    """The variable has one of the values."""
    name, allowed = variable.name, list(values)
    wire = {"question": name, "in": [variable.wire_value(value) for value in allowed]}
    return Term(lambda c: np.isin(c[name], allowed), wire)


def negated(term: Term) -> Term:
    """Not so."""
    return Term(lambda c: ~term.holds(c), {"not": term.wire})


def both(*terms: Term) -> Term:
    """All of them."""
    return Term(lambda c: reduce(np.logical_and, (t.holds(c) for t in terms)), {"all": [t.wire for t in terms]})


def either(*terms: Term) -> Term:
    """At least one of them."""
    return Term(lambda c: reduce(np.logical_or, (t.holds(c) for t in terms)), {"any": [t.wire for t in terms]})


def implies(condition: Term, result: Term) -> Term:
    """Where the condition holds, the result does."""
    return Term(lambda c: ~condition.holds(c) | result.holds(c), {"if": condition.wire, "then": result.wire})


def iff(first: Term, second: Term) -> Term:
    """Both or neither."""
    return Term(lambda c: first.holds(c) == second.holds(c), {"iff": [first.wire, second.wire]})


def exactly_one(terms: Sequence[Term]) -> Term:
    """One of them and no other."""
    found = list(terms)
    wire = {"exactly_one": [t.wire for t in found]}
    return Term(lambda c: np.sum([t.holds(c) for t in found], axis=0) == 1, wire)


def different(variables: Sequence[Variable]) -> Term:
    """No two have the same value."""
    names = [v.name for v in variables]

    def holds(c: Columns) -> NDArray[np.bool_]:
        pairs = [c[a] != c[b] for i, a in enumerate(names) for b in names[i + 1 :]]
        return reduce(np.logical_and, pairs)

    return Term(holds, {"different": names})


def before(first: Variable, second: Variable) -> Term:
    """The first has a lower level than the second."""
    a, b = first.name, second.name
    return Term(lambda c: c[a] < c[b], {"ordered": [a, b], "strict": True})


def total(variables: Sequence[Variable], amount: int) -> Term:
    """The levels of scores add up to exactly this."""
    names = [v.name for v in variables]
    wire = {"sum": names, "at_least": amount, "at_most": amount}
    return Term(lambda c: np.sum([c[name].astype(np.int64) for name in names], axis=0) == amount, wire)


_ALWAYS = Term(lambda c: np.ones(len(next(iter(c.values()))), dtype=bool), {"all": []})


def rule(text: str, *terms: Term, twin: Statement | None = None) -> Statement:
    """A sentence that says all the terms."""
    whole = both(*terms) if terms else _ALWAYS
    return Statement(text, whole.holds, tuple(t.wire for t in terms), twin)


def said(variable: Variable, value: int) -> Fact:
    """The fact that states a value."""
    term = equals(variable, value)
    return Fact(variable.says[value], term.holds, (term.wire,), variable=variable.name, value=value)


def denied(variable: Variable, value: int) -> Fact:
    """The fact that rules a value out."""
    term = negated(equals(variable, value))
    return Fact(variable.denies[value], term.holds, (term.wire,), variable=variable.name, value=value)
