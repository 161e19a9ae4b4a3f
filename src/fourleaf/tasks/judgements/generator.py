"""Groups without end, from a seed: a family's variables and rules, and the fewest facts that leave one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from fourleaf.tasks.judgements.amounts import budgets
from fourleaf.tasks.judgements.difficulty import CONTROL_SHARE, DENIED_SHARE, SIZES, TOLD_SHARE
from fourleaf.tasks.judgements.group import (
    Fact,
    Group,
    Statement,
    Variable,
    columns,
    holding,
    is_coupled,
    is_solved,
    solved,
)
from fourleaf.tasks.judgements.places import assignment, colouring, exactly_one, ordering
from fourleaf.tasks.judgements.switches import chains, contracts, liars, safety
from fourleaf.tasks.judgements.terms import denied, said
from fourleaf.tasks.judgements.wording import TRAINING, Side

Family = Callable[[int, Random, Side], tuple[list[Variable], list[Statement]]]

FAMILIES: dict[str, Family] = {
    "chains": chains,
    "exactly one": exactly_one,
    "ordering": ordering,
    "assignment": assignment,
    "budgets": budgets,
    "contracts": contracts,
    "colouring": colouring,
    "safety": safety,
}
HELD_OUT: dict[str, Family] = {"liars": liars}  # never trained on
MIN_QUESTIONS, MAX_QUESTIONS = min(SIZES), max(SIZES)


def draw(family: str, size: int, random: Random, side: Side, *, name: str = "") -> Group:
    """A coupled group with `size` questions in random order."""
    while True:
        variables, rules = (FAMILIES | HELD_OUT)[family](size, random, side)
        facts = _facts(variables, rules, random)
        if facts is None or not is_coupled(variables, facts, rules):
            continue
        random.shuffle(variables)
        return solved(_named(Group(name, family, tuple(variables), tuple(facts), tuple(rules))))


def control(family: str, size: int, random: Random, side: Side, *, name: str = "") -> Group:
    """The same surface without coupling: a sentence of its own answers every question, and there are no rules."""
    while True:
        variables, _ = FAMILIES[family](size, random, side)
        if all(v.says and v.says[v.truth] for v in variables):
            break
    facts = [said(v, v.truth) for v in variables]
    random.shuffle(facts)
    random.shuffle(variables)
    made = Group(name, family, tuple(variables), tuple(facts), (), frozenset({"control"}))
    return solved(_named(made))


def lookup(family: str, size: int, random: Random, side: Side, *, turned: float = 1.0) -> Group:
    """A control of any size, of one question too: some of a larger group's questions, each with its sentence.

    turned: share that is kept of the questions that ask for the opposite. Where half of all do, yes and no go with
    neither the sentence nor the question alone, and nothing tells a model at which of the two to look.
    """
    while True:
        variables, _ = FAMILIES[family](max(MIN_QUESTIONS, size), random, side)
        told = [v for v in variables if v.says and v.says[v.truth]]
        told = [v for v in told if not v.flipped or random.random() < turned]
        if len(told) >= size:
            break
    chosen = random.sample(told, size)
    facts = tuple(said(v, v.truth) for v in random.sample(chosen, size))
    return solved(_named(Group("", family, tuple(chosen), facts, (), frozenset({"control"}))))


def _named(group: Group) -> Group:
    """Without a name, one by what it says."""
    return group if group.name else replace(group, name=f"{group.family} of {len(group.variables)}")


def _facts(variables: Sequence[Variable], rules: Sequence[Statement], random: Random) -> list[Fact] | None:
    """Facts that leave one answer: as few as will do, and up to half as many as there are questions.

    None where even all of them do not settle it.
    """
    told = [said(v, v.truth) for v in variables if v.says and v.says[v.truth]]
    wrong = [(v, value) for v in variables if v.denies for value in range(len(v.values)) if value != v.truth]
    hints = [denied(v, value) for v, value in random.sample(wrong, len(wrong))]
    pool = [*told, *hints]
    if not is_solved(variables, pool, rules):
        return None
    random.shuffle(pool)
    pool.sort(key=lambda fact: fact.value == _truth(variables, fact) and random.random() >= DENIED_SHARE)
    kept = _fewest(variables, pool, rules)
    spare = [fact for fact in told if all(fact.variable != other.variable for other in kept)]
    wanted = random.randrange(len(kept), max(len(kept), int(len(variables) * TOLD_SHARE)) + 1)
    kept += random.sample(spare, min(len(spare), wanted - len(kept)))
    random.shuffle(kept)
    return kept


def _truth(variables: Sequence[Variable], fact: Fact) -> int:
    return next(v.truth for v in variables if v.name == fact.variable)


def _fewest(variables: Sequence[Variable], pool: list[Fact], rules: Sequence[Statement]) -> list[Fact]:
    """Drops facts in turn as long as one answer is left."""
    grid = columns(variables)
    by_rules = holding(grid, rules)
    holds = {id(fact): fact.holds(grid) for fact in pool}
    kept = list(pool)
    for fact in pool:
        fewer = [other for other in kept if other is not fact]
        fits = by_rules.copy()
        for other in fewer:
            fits &= holds[id(other)]
        if fits.sum() == 1:
            kept = fewer
    return kept


def stream(seed: int, *, max_questions: int = MAX_QUESTIONS) -> Iterator[Group]:
    """Endless training groups. Names and some wordings of the test sets never occur in them."""
    random = Random(f"judgements {seed}")
    sizes = [size for size in SIZES if size <= max(MIN_QUESTIONS, max_questions)]
    weights = [SIZES[size] for size in sizes]
    families = list(FAMILIES)
    while True:
        family, size = random.choice(families), random.choices(sizes, weights)[0]
        make = control if random.random() < CONTROL_SHARE else draw
        yield make(family, size, random, TRAINING)
