"""What a request brings to a forward, and what decoding must know of its vocabulary.

Shapes: N canvas rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fourleaf.engine.pages import PAGE_SIZE


@dataclass(frozen=True)
class Vocabulary:
    """Ids that decoding must know. mask: never a token of an answer; None for an AR model of another project."""

    end: int
    mask: int | None
    size: int


@dataclass(frozen=True)
class Need:
    """What one request brings to a forward.

    causal: known tokens to run behind the cached ones. canvas: [N] ids, the mask id where masked, or None. wanted: rows
    (causal ones first) whose logits come back; none for a piece of a prefill. is_held: the causal rows are verified.
    """

    causal: list[int]
    canvas: NDArray[np.int64] | None
    wanted: list[int]
    is_held: bool = False

    @property
    def num_rows(self) -> int:
        return len(self.causal) + (0 if self.canvas is None else len(self.canvas))


def end_of_causal(begin: int, target: int, splits: Iterable[int], most: int) -> int:
    """Where a forward's causal rows from `begin` end, on their way to `target` and at most `most` of them: prefills
    pause at `splits` and otherwise at ends of pages, so that hot and cold ones run the same pieces."""
    end = min([target, *(split for split in splits if split > begin)])
    if end - begin > most:
        end = (begin + most) // PAGE_SIZE * PAGE_SIZE
        assert end > begin, f"{most} rows are no page"
    return end
