"""Where a gap may end: how likely the pinned tokens behind it are at each place.

Shapes: N canvas rows, Y vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fourleaf.errors import NumericError

EVEN = math.log(0.5)  # above it, the model would rather say this than anything else
LOOK = 32  # pinned tokens behind a gap that are looked at
TRIALS = 4  # lengths of a gap that `diffuse` fills before it takes the best
_MARKS = 4  # pinned tokens that a blank canvas is searched for


@dataclass(frozen=True)
class Place:
    """A filling that was tried. score: log-probability of the filling and the pinned tokens behind it, under the causal
    logits. end: that of the pinned tokens alone, given the filling."""

    fill: tuple[int, ...]
    score: float
    end: float


def log_probs(before: Tensor, logits: Tensor, tokens: Sequence[int], mask_id: int | None) -> list[float]:
    """Log-probability of each of some tokens, given those before it.

    before: [1, Y], what is said before the first; logits: [len(tokens), Y], behind each. Raises NumericError.
    """
    rows = torch.cat([before, logits[:-1]])
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    if mask_id is not None:
        rows[:, mask_id] = float("-inf")
    ids = torch.tensor(tokens, device=rows.device)[:, None]
    found = torch.log_softmax(rows, -1).gather(1, ids)[:, 0].tolist()
    if any(math.isnan(value) for value in found):
        raise NumericError("the model's logits are not numbers, so no probability can be had of them")
    return found


class Blank:
    """What a canvas without pins says about where they would stand: a gap's length is as good as the mean
    log-probability of the first pinned tokens in the rows behind it, those that the canvas still has."""

    def __init__(self, num_rows: int, pins: Sequence[int]) -> None:
        self._marks = list(pins[:_MARKS])
        self._table = [[0.0] * len(self._marks) for _ in range(num_rows)]

    def read(self, adjusted: Tensor, rows: Sequence[int]) -> None:
        """A pass. adjusted: [len(rows), Y], of the rows that it saw masked; the others keep what they said last."""
        marks = torch.tensor(self._marks, device=adjusted.device)
        found = torch.log_softmax(adjusted, -1)[:, marks].tolist()
        for row, said in zip(rows, found, strict=True):
            self._table[row] = said

    def lengths(self, limit: int) -> list[tuple[int, float]]:
        """(length, how good it is), the best first; a length that leaves the pins no row is left out."""
        table, found = self._table, []
        for length in range(min(limit, len(table) - 1) + 1):
            seen = [table[length + i][i] for i in range(min(len(self._marks), len(table) - length))]
            found.append((length, sum(seen) / len(seen)))
        return sorted(found, key=lambda one: (-one[1], one[0]))


def best(places: Sequence[Place]) -> Place:
    """The one of the highest score; the earliest of several."""
    return max(places, key=lambda place: place.score)
