"""Whether drafting gives the tokens of `ar`, and where it does not, how near the two best tokens were.

Sums in another order differ in their last bits, and two logits may lie closer than that. So "the same tokens" means
equal except behind a position whose two best logits are less than `MARGIN` apart in the reference: one plain causal
forward over the prompt and what both answers have in common, without cache, batch or canvas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import Delta
from fourleaf.engine.score import score
from fourleaf.measure.speed import AR, ARMS, AUTO, DRAFT
from fourleaf.measure.timing import core_of
from fourleaf.measure.workloads import Workload

MARGIN = 1e-3
MOST_TIES = 1e-3  # of the positions compared
BATCH = 32
ARMS_VERIFIED = (DRAFT, AUTO)


@dataclass(frozen=True)
class Difference:
    """Where an answer leaves that of `ar`. margin: of the two best logits there; token: None where an answer ended."""

    prompt: int
    position: int
    margin: float
    ar: int | None
    other: int | None

    @property
    def is_tie(self) -> bool:
        return self.margin < MARGIN


@dataclass
class Equality:
    """One arm against `ar`. positions: compared, up to and including the first difference of each answer."""

    arm: str
    prompts: int = 0
    equal: int = 0
    positions: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def ties(self) -> int:
        return sum(one.is_tie for one in self.differences)

    @property
    def is_lossless(self) -> bool:
        return self.ties == len(self.differences) and self.ties <= MOST_TIES * self.positions

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "ties": self.ties, "is_lossless": self.is_lossless}


def verify(
    engine: Engine,
    work: Workload,
    *,
    arms: Sequence[str] = ARMS_VERIFIED,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Equality]:
    """Answers every prompt greedily by `ar` and by `arms`, `BATCH` at a time."""
    core_of(engine)  # no prompt finds what another left
    params = replace(work.params, temperature=0.0)
    banned = {engine.mask_id, *(token for token, _ in params.logit_bias)}
    found = [Equality(arm) for arm in arms]
    for begin in range(0, len(work.prompts), BATCH):
        prompts = work.prompts[begin : begin + BATCH]
        answers = {arm: engine.generate_many(prompts, replace(params, **ARMS[arm])) for arm in (AR, *arms)}
        for one in found:
            for i, prompt in enumerate(prompts):
                first, second = (_whole(engine, *answers[arm][i]) for arm in (AR, one.arm))
                _compare(engine, one, begin + i, prompt, first, second, banned)
        if progress is not None:
            progress(begin + len(prompts), len(work.prompts), f"{work.name}, verified")
    return found


def _whole(engine: Engine, tokens: list[int], last: Delta) -> list[int]:
    """An answer with its end token, where it has one."""
    return [*tokens, engine.end_id] if last.finish_reason == "stop" else tokens


def _compare(
    engine: Engine,
    found: Equality,
    index: int,
    prompt: list[int],
    first: list[int],
    second: list[int],
    banned: set[int | None],
) -> None:
    found.prompts += 1
    if first == second:
        found.equal += 1
        found.positions += len(first)
        return
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    found.positions += at + 1
    top = score(engine.model, [*prompt, *first[:at]], len(banned) + 2, engine.mask_id)[-1]
    assert top is not None
    best = [logprob for token, logprob in top.top if token not in banned]
    ours, theirs = (answer[at] if at < len(answer) else None for answer in (first, second))
    found.differences.append(Difference(index, at, best[0] - best[1], ours, theirs))


def lines(name: str, found: Sequence[Equality]) -> list[str]:
    """Sentences, and each difference that is no tie."""
    shown = []
    for one in found:
        share = 100 * one.ties / one.positions if one.positions else 0.0
        shown.append(
            f"{name}: {one.arm} gave the tokens of ar on {one.equal} of {one.prompts} prompts; {one.ties} differ at "
            f"two logits less than {MARGIN:g} apart ({share:.3f}% of {one.positions} positions), "
            f"{len(one.differences) - one.ties} elsewhere"
        )
        for each in one.differences:
            if not each.is_tie:
                at = f"prompt {each.prompt}, token {each.position}"
                shown.append(f"  {at}: margin {each.margin:.4f}, ar {each.ar}, {one.arm} {each.other}")
    return shown
