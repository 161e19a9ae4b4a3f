"""What one denoise pass reveals: pure functions of (logits, canvas, parameters, noise).

Shapes: M masked rows of a canvas, Y vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
        bits = np.random.Philox(key=[self.seed, int(purpose)], counter=[0, position, pass_index, self.choice])
        return np.random.Generator(bits).random(size)


@dataclass
class Canvas:
    """A block being denoised. `masked` alone says what is masked: a row's token is never compared with the mask id.

    start: position of row 0. tokens: [N] ids, meaningless where masked. masked: [N] bool. num_passes: passes so far.
    """

    start: int
    tokens: NDArray[np.int64]
    masked: NDArray[np.bool_]
    num_passes: int = 0

    @classmethod
    def blank(cls, start: int, num_rows: int, mask_id: int) -> Canvas:
        """Everything masked."""
        return cls(start, np.full(num_rows, mask_id, dtype=np.int64), np.ones(num_rows, dtype=bool))

    def reveal(self, rows: list[int], tokens: list[int]) -> None:
        """Writes tokens into masked rows."""
        assert self.masked[rows].all(), "a revealed row is final"
        self.tokens[rows] = tokens
        self.masked[rows] = False

    @property
    def num_settled(self) -> int:
        """Rows before the first masked one: nothing will change them any more."""
        return len(self.masked) if not self.masked.any() else int(self.masked.argmax())

    def end_row(self, end_id: int) -> int | None:
        """The first revealed end token. It is revealed only behind settled rows, so the block is done with it."""
        found = np.flatnonzero((self.tokens == end_id) & ~self.masked)
        return int(found[0]) if len(found) else None

    def is_done(self, end_id: int) -> bool:
        return not self.masked.any() or self.end_row(end_id) is not None


def choose(
    logits: Tensor, mask_id: int | None, temperature: float, positions: list[int], pass_index: int, noise: Noise
) -> tuple[list[int], list[float]]:
    """A token for each row, and its confidence: its untempered probability.

    logits: [M, Y] raw; positions: [M]. Temperature 0 takes the most probable token; otherwise a sample by Gumbel
    noise, from the row's own stream. The mask id is never chosen.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if mask_id is not None:
        logits[:, mask_id] = float("-inf")
    probability = torch.softmax(logits, -1)
    if temperature == 0:
        confidence, tokens = probability.max(-1)
        return tokens.tolist(), confidence.tolist()
    draws = [noise.uniform(p, pass_index, Purpose.PROPOSE, logits.shape[1]) for p in positions]
    gumbel = -np.log(-np.log(np.clip(np.stack(draws), 1e-300, 1 - 1e-16)))
    tokens = (logits / temperature + torch.from_numpy(gumbel)).argmax(-1)
    return tokens.tolist(), probability.gather(1, tokens[:, None])[:, 0].tolist()


def greedy(logits: Tensor, mask_id: int | None) -> list[int]:
    """The most probable token of each row, for those who need no confidence. logits: [M, Y] raw."""
    if mask_id is not None:
        logits[:, mask_id] = float("-inf")
    return logits.argmax(-1).tolist()


def threshold(
    rows: list[int], tokens: list[int], confidence: list[float], end_id: int, tau: float
) -> tuple[list[int], list[int]]:
    """Reveals every row whose confidence exceeds `tau`, or else the first masked one. -> (rows, tokens).

    rows: the masked rows, rising; tokens and confidence: what `choose` gave for each. An end token is revealed only
    when every row left of it is. Where none is sure, the first row has all of its left context and the surest may not
    yet know its place: on half-trained weights the first gave more right answers in fewer passes (docs/log.md).
    """
    chosen: list[tuple[int, int]] = []
    for i, (row, token, sure) in enumerate(zip(rows, tokens, confidence, strict=True)):
        if sure > tau and (token != end_id or len(chosen) == i):
            chosen.append((row, token))
            if token == end_id:
                break
    if not chosen:
        chosen = [(rows[0], tokens[0])]
    return [row for row, _ in chosen], [token for _, token in chosen]
