"""How far a draft reaches: rows of the next canvas.

A round of `draft` costs by the rows of its canvas and brings the tokens that stand, and within an answer these come
alike: many in a row through markup, few through a name. So a canvas is as long as the last rounds came to, and a little
longer; the first is a whole block. What is left out changes cost alone: a round that holds as a whole is followed by a
longer one. The factors are the best of a search over recorded rounds (docs/decisions/028-auto-and-drafts.md).
"""

from __future__ import annotations

# What the rounds before weigh beside the last one.
KEPT = 0.3
# Rows beyond what is hoped for.
MORE = 2
# The shortest canvas, as a part of a block.
LEAST = 4


class Reach:
    """Of one answer: a function of its own rounds alone, so that load never changes a draw."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._hoped: float | None = None

    @property
    def rows(self) -> int:
        """Of the next canvas, the row of the last known token among them: at most a block."""
        if self._hoped is None:
            return self._block_size
        return max(self._block_size // LEAST, min(self._block_size, round(self._hoped) + MORE))

    def add(self, tokens: int) -> None:
        """What the round with such a canvas decided. Where all of it held, a longer one might have held twice that."""
        seen = 2.0 * tokens if tokens >= self.rows else float(tokens)
        self._hoped = seen if self._hoped is None else KEPT * self._hoped + (1 - KEPT) * seen
