"""Which blocks of a training example get a noisy copy, and which of their positions are masked.

Shapes: C noisy blocks, N rows of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fourleaf.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """One noise ratio per block, uniform in [least, 1], at least one masked position.

    full: share of blocks with every position masked (what decoding starts from). anchored: share masked except row 0
    (what drafting sees). settled: share masked from a random row on (what later passes mostly see, as the sure rows are
    those beside what is known). shifted: share of examples whose first block has a random length 1..block_size, since
    drafting starts blocks anywhere and only short canvases train the block-size calibration. full_slots: share of
    canvases of slots that are masked altogether; of the others, any number of slots is as likely as any other.
    copies: noisy copies of each block, each with a mask and a first length of its own. The clean rows, half of the
    work, serve them all.
    """

    least: float = 0.1
    full: float = 0.15
    anchored: float = 0.1
    settled: float = 0.25
    shifted: float = 0.5
    full_slots: float = 0.5
    copies: int = 1

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise ConfigError(f"copies is {self.copies}; each block needs at least 1 noisy copy")


@dataclass(frozen=True)
class NoisyBlock:
    """start: absolute position. target: [N] true ids, filled with end tokens behind the end. masked: [N] bool.
    is_fill: [N] bool, the positions that teach nothing of the answer: those behind the first end token, and pinned
    ones."""

    start: int
    target: NDArray[np.int64]
    masked: NDArray[np.bool_]
    is_fill: NDArray[np.bool_]

    @property
    def num_targets(self) -> int:
        """Rows of the answer itself, masked or not."""
        return int((~self.is_fill).sum())

    @property
    def row_weight(self) -> float:
        """What a masked row's loss weighs so that the block weighs as its rows do, however few of them are masked.

        The 1/t of the ELBO of masked diffusion (Sahoo et al., arXiv 2406.07524), t as it was drawn: without it blocks
        with most rows masked, where little can be known, drown those that teach to copy and to fit in.
        """
        return self.num_targets / max(1, int((self.masked & ~self.is_fill).sum()))


def block_lengths(answer_len: int, block_size: int, first: int) -> list[int]:
    """Lengths of the blocks that cover an answer: `first`, then whole blocks; the last one reaches past the end."""
    lengths = [first]
    while sum(lengths) < answer_len:
        lengths.append(block_size)
    return lengths


def draw_mask(num_rows: int, config: NoiseConfig, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Masked positions of one block of `num_rows` rows, at least one of them."""
    kind = rng.random()
    masked = np.ones(num_rows, dtype=bool)
    if kind < config.full:
        return masked
    if kind < config.full + config.anchored:
        masked[0] = num_rows == 1
        return masked
    if kind < config.full + config.anchored + config.settled:
        masked[: rng.integers(num_rows)] = False
        return masked
    masked = rng.random(num_rows) < rng.uniform(config.least, 1.0)
    if not masked.any():
        masked[rng.integers(num_rows)] = True
    return masked


def noisy_blocks(
    ids: NDArray[np.int64],
    answer_start: int,
    end_id: int,
    block_size: int,
    config: NoiseConfig,
    rng: np.random.Generator,
) -> list[NoisyBlock]:
    """Noisy copies of every block of the answer `ids[answer_start:]`, whose last id is the end token."""
    answer = ids[answer_start:]
    assert len(answer) and answer[-1] == end_id, "an answer ends with the end token"
    first = int(rng.integers(1, block_size + 1)) if rng.random() < config.shifted else block_size
    blocks, begin = [], 0
    for rows in block_lengths(len(answer), block_size, first):
        target = np.full(rows, end_id, dtype=np.int64)
        part = answer[begin : begin + rows]
        target[: len(part)] = part
        is_fill = np.arange(rows) >= len(part)
        masked = draw_mask(rows, config, rng)
        if not (masked & ~is_fill).any():
            masked[rng.integers(len(part))] = True  # fill alone would teach nothing
        blocks.append(NoisyBlock(answer_start + begin, target, masked, is_fill))
        begin += rows
    return blocks


def slot_block(
    ids: NDArray[np.int64], start: int, slots: NDArray[np.bool_], config: NoiseConfig, rng: np.random.Generator
) -> NoisyBlock:
    """The noisy copy of a canvas whose form is given: only its slots are ever masked, the rest is pinned.

    slots: [N] which rows of the canvas at `start` are to be found, at least one of them.
    """
    target = ids[start : start + len(slots)]
    at = np.flatnonzero(slots)
    number = len(at) if rng.random() < config.full_slots else int(rng.integers(1, len(at) + 1))
    masked = np.zeros(len(slots), dtype=bool)
    masked[rng.permutation(at)[:number]] = True
    return NoisyBlock(start, target, masked, ~slots)
