"""Ways to answer a group of judgements, and what each one answered.

The arms share weights and text: whatever differs between `alone` and `joint` is that the slots of a joint canvas see
each other. Three rivals need no model at all, and one, `+ rules`, needs no more passes: the likeliest tuple that obeys
the stated rules.

Shapes: O options of a question.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourleaf.decide.decider import Decider
from fourleaf.decide.questions import MAX_JOINT, MAX_ROTATIONS, DecisionRequest, parse_request
from fourleaf.decide.rules import best_tuple, parse_rules
from fourleaf.tasks.judgements.group import Group, columns, holding

Floats = NDArray[np.float64]

# Name -> fields of the request.
MODEL_ARMS: dict[str, dict[str, Any]] = {
    "alone": {},
    "alone, 2 orders": {"x_rotations": 2},
    "alone, all orders": {"x_rotations": MAX_ROTATIONS},
    "joint, 1 pass": {"x_joint": True, "x_passes": 1},
    "joint, default": {"x_joint": True},
    "joint, denoised": {"x_joint": True, "x_passes": MAX_JOINT},
}
# Three times the forwards of the others: only where answers are held against those in another order.
ORDER_ARM, ORDER_PARTS = "alone, all orders", ("coupled", "copy")
# Name -> the arm whose probabilities it takes.
RULED_ARMS = {"alone + rules": "alone", "joint, 1 pass + rules": "joint, 1 pass"}
FREE_ARMS = ("majority", "uniform", "oracle")
BASE_ARM = "alone"


@dataclass(frozen=True)
class Judged:
    """One group's answers by one arm. chosen: the option answered to each question, as shown. p: [O] of each."""

    group: Group
    chosen: tuple[int, ...]
    p: tuple[Floats, ...]
    broken: int
    forwards: int = 0
    rows: int = 0
    passes: int = 0
    seconds: float = 0.0

    @property
    def hits(self) -> list[bool]:
        """Whether each question that can be known was answered right."""
        every = zip(self.chosen, self.group.answers, self.group.possible, strict=True)
        return [chosen == answer for chosen, answer, left in every if len(left) == 1]

    @property
    def is_right(self) -> bool:
        """Every question of the group that can be known."""
        return all(self.hits)


def arms_of(part: str) -> list[str]:
    """The model's arms on a part of the set."""
    return [arm for arm in MODEL_ARMS if arm != ORDER_ARM or part in ORDER_PARTS]


def request_of(group: Group, **fields: Any) -> DecisionRequest:
    """The group as a server would be asked."""
    return parse_request({"model": "", "state": group.state, "questions": group.questions, **fields})


def judge(
    decider: Decider, groups: Sequence[Group], arm: str, progress: Callable[[int], None] | None = None
) -> list[Judged]:
    """A model's answers by one of MODEL_ARMS."""
    found = []
    for done, group in enumerate(groups, 1):
        request = request_of(group, **MODEL_ARMS[arm])
        begin = time.perf_counter()
        decision = decider.decide(request)
        seconds = time.perf_counter() - begin
        chosen = tuple(answer.chosen for answer in decision.answers)
        p = tuple(answer.p for answer in decision.answers)
        cost = decision.forwards, decision.rows, decision.passes, seconds
        found.append(Judged(group, chosen, p, _broken(group, chosen), *cost))
        if progress is not None:
            progress(done)
    return found


def ruled(found: Sequence[Judged]) -> list[Judged]:
    """The same probabilities, answered by the likeliest tuple that obeys the rules."""
    made = []
    for judged in found:
        begin = time.perf_counter()
        group, names = judged.group, [v.name for v in judged.group.variables]
        rules = parse_rules(group.wire_rules, request_of(group).questions)
        log_p = {name: np.log(np.maximum(p, 1e-300)) for name, p in zip(names, judged.p, strict=True)}
        best = best_tuple(log_p, rules)
        seconds = judged.seconds + time.perf_counter() - begin
        chosen = tuple(best[name] for name in names)
        cost = judged.forwards, judged.rows, judged.passes, seconds
        made.append(Judged(group, chosen, judged.p, _broken(group, chosen), *cost))
    return made


def free(groups: Sequence[Group], arm: str, seed: int) -> list[Judged]:
    """One of FREE_ARMS: the commonest option of each type and size in this very set, any option, or the proof."""
    if arm == "majority":
        counts = Counter((v.kind, len(v.options), v.shown(v.truth)) for g in groups for v in g.variables)
        return [_constant(group, _commonest(group, counts)) for group in groups]
    if arm == "uniform":
        rng = np.random.default_rng(seed)
        drawn = []
        for group in groups:
            chosen = tuple(int(rng.integers(len(v.options))) for v in group.variables)
            p = tuple(np.full(len(v.options), 1 / len(v.options)) for v in group.variables)
            drawn.append(Judged(group, chosen, p, _broken(group, chosen)))
        return drawn
    assert arm == "oracle", arm
    return [_constant(group, proved(group)) for group in groups]


def proved(group: Group) -> tuple[int, ...]:
    """The first assignment that fits facts and rules, by trying all."""
    grid = columns(group.variables)
    at = int(np.flatnonzero(holding(grid, [*group.facts, *group.rules]))[0])
    return tuple(v.shown(int(grid[v.name][at])) for v in group.variables)


def _commonest(group: Group, counts: Mapping[tuple[str, int, int], int]) -> tuple[int, ...]:
    return tuple(
        max(range(len(v.options)), key=lambda option, v=v: counts.get((v.kind, len(v.options), option), 0))
        for v in group.variables
    )


def _constant(group: Group, chosen: tuple[int, ...]) -> Judged:
    p = tuple(np.eye(len(v.options))[option] for v, option in zip(group.variables, chosen, strict=True))
    return Judged(group, chosen, p, _broken(group, chosen))


def _broken(group: Group, chosen: Sequence[int]) -> int:
    """How many of the group's rules the answers break."""
    rules = parse_rules(group.wire_rules, request_of(group).questions)
    answers = dict(zip((v.name for v in group.variables), chosen, strict=True))
    return sum(not rule.is_obeyed(answers) for rule in rules)
