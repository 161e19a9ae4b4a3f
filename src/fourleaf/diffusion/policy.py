"""What one denoise pass reveals: pure functions of (parameters, canvas, what each row would be).

Common to all policies: a pass reveals at least one masked row; where no row is sure enough that is the first masked
one, which alone has all of its left context (docs/decisions/011-first-masked-row.md); an end token is revealed only
when every row left of it is, and nothing is revealed behind it; pinned rows never change.

Shapes: N rows of a canvas, M rows whose logits a pass has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fourleaf.diffusion import philox

# Passes of a block in which `edit` may still replace tokens; two tokens that displace each other would never end.
MAX_EDIT_PASSES = 16


class Purpose(IntEnum):
    """What a random number is for; each purpose has a stream of its own."""

    PROPOSE = 0
    ACCEPT = 1
    RESIDUAL = 2
    TIE = 3


@dataclass(frozen=True)
class Noise:
    """Counter-based randomness: a function of (seed, choice, position, pass, purpose) and of nothing else, so that
    load, batch and arrival never change an answer. Philox (Salmon et al., SC 2011) as numpy has it."""

    seed: int
    choice: int = 0

    def uniform(self, position: int, pass_index: int, purpose: Purpose, size: int) -> NDArray[np.float64]:
        """`size` numbers in [0, 1)."""
        return np.random.Generator(self._bits(position, pass_index, purpose)).random(size)

    def keys(self, positions: list[int], pass_index: int, purpose: Purpose) -> NDArray[np.uint64]:
        """64 random bits for each position, from which `sampling.draw` makes its numbers. -> [M]."""
        return keys_of([(self, positions, pass_index)], purpose)

    def _bits(self, position: int, pass_index: int, purpose: Purpose) -> np.random.Philox:
        return np.random.Philox(key=[self.seed, int(purpose)], counter=[0, position, pass_index, self.choice])


def keys_of(draws: Sequence[tuple[Noise, list[int], int]], purpose: Purpose) -> NDArray[np.uint64]:
    """`Noise.keys` of several requests at once: (noise, positions, pass index) of each. -> all their keys, in order."""
    rows = [(noise, position, pass_index) for noise, positions, pass_index in draws for position in positions]
    if len(rows) <= philox.FEW:
        words = [noise._bits(position, pass_index, purpose).random_raw() for noise, position, pass_index in rows]
        return np.array(words, dtype=np.uint64)
    seeds, positions, passes, choices = np.array(
        [(noise.seed, position, pass_index, noise.choice) for noise, position, pass_index in rows], dtype=np.uint64
    ).T
    begin = np.ones_like(seeds)  # numpy counts up before its first word
    return philox.first_words((seeds, np.full_like(seeds, int(purpose))), (begin, positions, passes, choices))


@dataclass(frozen=True)
class Reveal:
    """What a pass writes into its canvas: rows, rising, and their tokens."""

    rows: list[int]
    tokens: list[int]


@dataclass
class Canvas:
    """A block being denoised. `masked` alone says what is masked: a row's token is never compared with the mask id.

    start: position of row 0. tokens: [N] ids, meaningless where masked. masked: [N] bool. pinned: [N] bool, rows given
    from outside, never masked. num_passes: passes so far. is_quiet: the last of them changed nothing.
    """

    start: int
    tokens: NDArray[np.int64]
    masked: NDArray[np.bool_]
    pinned: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    num_passes: int = 0
    is_quiet: bool = False

    def __post_init__(self) -> None:
        if not len(self.pinned):
            self.pinned = np.zeros(len(self.tokens), dtype=bool)

    @classmethod
    def blank(cls, start: int, num_rows: int, mask_id: int, pins: Mapping[int, int] | None = None) -> Canvas:
        """Everything masked but the pins, row -> token."""
        canvas = cls(start, np.full(num_rows, mask_id, dtype=np.int64), np.ones(num_rows, dtype=bool))
        for row, token in (pins or {}).items():
            canvas.tokens[row], canvas.masked[row], canvas.pinned[row] = token, False, True
        return canvas

    def reveal(self, rows: list[int], tokens: list[int]) -> None:
        """Writes tokens into masked rows."""
        assert self.masked[rows].all(), "a revealed row is final"
        self.tokens[rows] = tokens
        self.masked[rows] = False

    def apply(self, change: Reveal) -> None:
        """Ends a pass: writes what it reveals, and what it replaces under `edit`."""
        assert not self.pinned[change.rows].any(), "a pinned row never changes"
        self.tokens[change.rows] = change.tokens
        self.masked[change.rows] = False
        self.num_passes += 1
        self.is_quiet = not change.rows

    @property
    def num_settled(self) -> int:
        """Rows before the first masked one."""
        return len(self.masked) if not self.masked.any() else int(self.masked.argmax())

    def end_row(self, end_id: int) -> int | None:
        """The first end token before all masked rows: the block needs nothing behind it."""
        found = np.flatnonzero(self.tokens[: self.num_settled] == end_id)
        return int(found[0]) if len(found) else None

    def is_done(self, end_id: int) -> bool:
        """Whether everything up to the first end token is revealed. Under `edit` it may still change: see `is_done`."""
        return not self.masked.any() or self.end_row(end_id) is not None


class PolicyParams(Protocol):
    """What a policy reads of `GenerateParams`."""

    @property
    def policy(self) -> str: ...
    @property
    def threshold(self) -> float: ...
    @property
    def tokens_per_pass(self) -> int: ...
    @property
    def entropy_bound(self) -> float: ...
    @property
    def edit_threshold(self) -> float: ...


def wanted_rows(params: PolicyParams, canvas: Canvas, end_id: int) -> list[int]:
    """Rows whose logits the next pass needs: the masked ones, under `edit` the revealed ones too; none behind the end
    token. Empty where no pass is needed."""
    wanted = canvas.masked | ~canvas.pinned if _may_edit(params, canvas) else canvas.masked
    end = canvas.end_row(end_id)
    return np.flatnonzero(wanted if end is None else wanted[: end + 1]).tolist()


def is_done(params: PolicyParams, canvas: Canvas, end_id: int) -> bool:
    """Whether the block needs no further pass. Under `edit` one pass must have found nothing to change."""
    return canvas.is_quiet or not wanted_rows(params, canvas, end_id)


def num_final(params: PolicyParams, canvas: Canvas, end_id: int) -> int:
    """Leading rows that nothing changes any more, the end token not counted. Under `edit` none before the block is
    done, or before its last pass that may edit."""
    if _may_edit(params, canvas) and not is_done(params, canvas, end_id):
        return 0
    end = canvas.end_row(end_id)
    return canvas.num_settled if end is None else end


def _may_edit(params: PolicyParams, canvas: Canvas) -> bool:
    return params.policy == "edit" and canvas.num_passes < MAX_EDIT_PASSES


def reveal(
    params: PolicyParams,
    canvas: Canvas,
    rows: list[int],
    tokens: list[int],
    confidence: list[float],
    entropy: list[float] | None,
    end_id: int,
) -> Reveal:
    """What a pass reveals, by the policy that `params.policy` names; the canvas is not changed, `Canvas.apply` does so.

    rows: [M] of `wanted_rows`; tokens and confidence: what `sampling.choose` gave for each; entropy: in nats, of the
    same rows, for `entropy` alone.

    threshold  every row whose confidence exceeds `threshold`
    fixed      `tokens_per_pass` rows, the surest first
    entropy    the rows of lowest entropy whose sum stays within `entropy_bound` (Ben-Hamu et al., arXiv 2505.24857,
               bound the sum without its largest term)
    edit       as threshold; and in a block's first MAX_EDIT_PASSES passes a revealed row is replaced where another
               token's confidence exceeds `edit_threshold`
    """
    if params.policy == "edit":
        return _edit(params, canvas, rows, tokens, confidence, end_id)
    if params.policy == "fixed":
        order = [-sure for sure in confidence]
        is_sure = _within(params.tokens_per_pass, [1.0] * len(rows), order, tokens, end_id)
    elif params.policy == "entropy":
        assert entropy is not None, "the policy needs entropies"
        is_sure = _within(params.entropy_bound, entropy, entropy, tokens, end_id)
    else:
        assert params.policy == "threshold", f"no policy is named {params.policy!r}"
        is_sure = [sure > params.threshold for sure in confidence]
    return _settle(rows, tokens, is_sure, end_id)


def _settle(rows: list[int], tokens: list[int], is_sure: list[bool], end_id: int) -> Reveal:
    """The sure rows, or else the first. rows: the masked rows, rising."""
    chosen: list[int] = []
    for i, sure in enumerate(is_sure):
        if sure and (tokens[i] != end_id or len(chosen) == i):
            chosen.append(i)
            if tokens[i] == end_id:
                break
    chosen = chosen or [0]
    return Reveal([rows[i] for i in chosen], [tokens[i] for i in chosen])


def _within(budget: float, costs: list[float], order: list[float], tokens: list[int], end_id: int) -> list[bool]:
    """Which rows are taken, the lowest of `order` first, while their costs stay within the budget.

    Rows behind an answer's end are all surely end tokens: they may not use up what is for the answer, so an end token
    is taken only where all rows left of it are, and the budget would do for these and it.
    """
    taken, left = [False] * len(costs), budget
    for i in sorted(range(len(costs)), key=order.__getitem__):
        if tokens[i] == end_id:
            continue
        if costs[i] > left:
            break
        taken[i], left = True, left - costs[i]
    end = tokens.index(end_id) if end_id in tokens else len(tokens)
    if end < len(tokens) and all(taken[:end]) and sum(costs[: end + 1]) <= budget:
        taken[end] = True
    return taken


def _edit(
    params: PolicyParams, canvas: Canvas, rows: list[int], tokens: list[int], confidence: list[float], end_id: int
) -> Reveal:
    masked = [i for i, row in enumerate(rows) if canvas.masked[row]]
    found: dict[int, int] = {}
    if masked:
        sure = [confidence[i] > params.threshold for i in masked]
        fresh = _settle([rows[i] for i in masked], [tokens[i] for i in masked], sure, end_id)
        found = dict(zip(fresh.rows, fresh.tokens, strict=True))
    open_rows = [rows[i] for i in masked if rows[i] not in found]
    first_open = open_rows[0] if open_rows else len(canvas.tokens)
    for row, token, sure in zip(rows, tokens, confidence, strict=True):
        is_other = not canvas.masked[row] and token != canvas.tokens[row]
        if is_other and sure > params.edit_threshold and (token != end_id or row < first_open):
            found[row] = token
    kept: list[int] = []
    for row in sorted(found):
        kept.append(row)
        if found[row] == end_id:
            break
    return Reveal(kept, [found[row] for row in kept])
