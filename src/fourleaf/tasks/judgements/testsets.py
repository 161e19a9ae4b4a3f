"""The public test set and what stands beside it, all from one seed.

    coupled      500 groups, 2,420 questions: what is scored
    control      100 groups without coupling, on which answering together must not help
    twin         each coupled group with one rule or fact turned over: same surface, other answers
    copy         each coupled group with questions, options and sentences in another order: same answers
    unknowable   one fact short: what some questions ask cannot be known
    ninth        100 coupled groups of a family that training never sees

Another seed gives a set that nobody has seen. `data/testsets.json` holds the public seed and the SHA-256 of each part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

from fourleaf.tasks.judgements.difficulty import CONTROL_SIZES, NUM_UNKNOWABLE, SIZES
from fourleaf.tasks.judgements.generator import FAMILIES, HELD_OUT, control, draw
from fourleaf.tasks.judgements.group import CHOICE, Fact, Group, Statement, columns, holding, solved
from fourleaf.tasks.judgements.terms import said
from fourleaf.tasks.judgements.wording import TEST

DATA = Path(__file__).parent / "data"
PARTS = ("coupled", "control", "twin", "copy", "unknowable", "ninth")
PUBLIC_SEED = 20261130


def _plan(sizes: dict[int, int], families: Sequence[str], random: Random) -> Iterator[tuple[str, int]]:
    """(family, size) of each group: families in turn, so that each has its share of every size."""
    every = [size for size, count in sizes.items() for _ in range(count)]
    plan = [(families[turn % len(families)], size) for turn, size in enumerate(every)]
    random.shuffle(plan)
    return iter(plan)


@cache
def _coupled(seed: int) -> tuple[Group, ...]:
    random = Random(f"judgements test {seed}")
    seen: set[str] = set()
    groups: list[Group] = []
    for index, (family, size) in enumerate(_plan(SIZES, list(FAMILIES), random)):
        while (group := draw(family, size, random, TEST, name=f"coupled-{index:03}")).state in seen:
            pass
        seen.add(group.state)
        groups.append(group)
    return tuple(groups)


def _control(seed: int) -> list[Group]:
    random = Random(f"judgements control {seed}")
    plan = enumerate(_plan(CONTROL_SIZES, list(FAMILIES), random))
    return [control(family, size, random, TEST, name=f"control-{i:03}") for i, (family, size) in plan]


def twin(group: Group, random: Random) -> Group | None:
    """The group with one rule turned over or one fact changed, where that leaves exactly one other answer."""
    grid = columns(group.variables)
    edits: list[tuple[tuple[Fact, ...], tuple[Statement, ...]]] = []
    for i, rule in enumerate(group.rules):
        if rule.twin is not None:
            edits.append((group.facts, (*group.rules[:i], rule.twin, *group.rules[i + 1 :])))
    random.shuffle(edits)
    others = []
    for i, fact in enumerate(group.facts):
        variable = next(v for v in group.variables if v.name == fact.variable)
        for value in range(len(variable.values)):
            if variable.says and value != fact.value:
                others.append(((*group.facts[:i], said(variable, value), *group.facts[i + 1 :]), group.rules))
    random.shuffle(others)
    for facts, rules in [*edits, *others]:
        fits = holding(grid, [*facts, *rules])
        if fits.sum() == 1:
            name, tags = group.name.replace("coupled", "twin"), frozenset({"twin"})
            changed = solved(replace(group, name=name, facts=facts, rules=rules, tags=tags))
            if changed.answers != group.answers:
                return changed
    return None


def shuffled_copy(group: Group, random: Random) -> Group:
    """The same in another order: facts, rules, questions, and the options of choices."""
    variables = [
        replace(v, order=tuple(random.sample(v.order, len(v.order)))) if v.kind == CHOICE else v
        for v in group.variables
    ]
    random.shuffle(variables)
    name = group.name.replace("coupled", "copy")
    facts = tuple(random.sample(group.facts, len(group.facts)))
    rules = tuple(random.sample(group.rules, len(group.rules)))
    return solved(
        replace(group, name=name, variables=tuple(variables), facts=facts, rules=rules, tags=frozenset({"copy"}))
    )


def listed_backwards(group: Group) -> Group:
    """The same with the options of its choices from last to first, and nothing else."""
    variables = tuple(replace(v, order=v.order[::-1]) if v.kind == CHOICE else v for v in group.variables)
    return solved(replace(group, variables=variables))


def unknowable(group: Group, random: Random) -> Group | None:
    """The group without one of its facts, where that leaves something open."""
    for i in random.sample(range(len(group.facts)), len(group.facts)):
        facts = (*group.facts[:i], *group.facts[i + 1 :])
        if holding(columns(group.variables), [*facts, *group.rules]).sum() > 1:
            name, tags = group.name.replace("coupled", "unknowable"), frozenset({"unknowable"})
            return solved(replace(group, name=name, facts=facts, tags=tags))
    return None


def build(part: str, seed: int = PUBLIC_SEED) -> list[Group]:
    """A part of the test set of a seed."""
    assert part in PARTS, part
    if part == "coupled":
        return list(_coupled(seed))
    if part == "control":
        return _control(seed)
    random = Random(f"judgements {part} {seed}")
    if part == "ninth":
        plan = enumerate(_plan(CONTROL_SIZES, list(HELD_OUT), random))
        return [draw(family, size, random, TEST, name=f"ninth-{i:03}") for i, (family, size) in plan]
    if part == "copy":
        return [shuffled_copy(group, random) for group in _coupled(seed)]
    if part == "twin":
        return [made for group in _coupled(seed) if (made := twin(group, random)) is not None]
    found: list[Group] = []
    for group in random.sample(_coupled(seed), len(_coupled(seed))):
        made = unknowable(group, random)
        if made is not None and len(found) < NUM_UNKNOWABLE:
            found.append(made)
    return found


def canonical(groups: list[Group]) -> str:
    """One JSON line a group: what the hash is taken of."""
    return "".join(json.dumps(group.document(), ensure_ascii=False) + "\n" for group in groups)


def digest(part: str, seed: int = PUBLIC_SEED) -> str:
    """The SHA-256 of a part's canonical JSONL."""
    return hashlib.sha256(canonical(build(part, seed)).encode()).hexdigest()


def recorded() -> dict[str, str]:
    """The public parts' hashes, as they are in the repository."""
    return json.loads((DATA / "testsets.json").read_text(encoding="utf-8"))["sha256"]
