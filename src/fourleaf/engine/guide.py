"""A grammar beside one answer: what `Sequence` asks of `diffusion.constraint`, with the state that lasts from pass to
pass.

Shapes: N rows of a canvas, W rows whose logits a forward gave, Y vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourleaf.diffusion.constraint import Choice, Matcher, Trail, Walk, settled, take_forced, walk
from fourleaf.diffusion.policy import Canvas
from fourleaf.diffusion.sampling import NEVER

# (adjusted logits [1, Y] under the mask, row) -> the row's token and its confidence
ChooseRow = Callable[[Tensor, int], Choice]
# Settles every row: proposals of `draft` are judged by the causal logits.
_ALWAYS = -1.0


class Guide:
    """One answer's place in its grammar, and what the last pass guessed beyond it."""

    def __init__(self, matcher: Matcher, end_id: int) -> None:
        """matcher: at the answer's start."""
        self._matcher, self._end_id = matcher, end_id
        self._guesses: dict[int, Choice] = {}
        self._trail: Trail | None = None

    @property
    def guesses(self) -> Mapping[int, Choice]:
        """Masked rows that the next pass sees a token in."""
        return self._guesses

    def allowed(self) -> Tensor:
        """[Y] bool: what may come next."""
        return torch.from_numpy(self._matcher.allowed())

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        return self._matcher.allows(token)

    def settle(self, tokens: list[int], left: int) -> list[int]:
        """What stands of decided tokens, and behind them what the grammar forces, with `left` tokens to go. Ends with
        the end token where the answer does."""
        stand = settled(self._matcher, tokens, left, self._end_id)
        if stand and stand[-1] == self._end_id:
            return stand
        return [*stand, *self.force(left - len(stand))]

    def force(self, most: int) -> list[int]:
        """What must come next, at most `most` tokens."""
        return take_forced(self._matcher, most)

    def shown(self, canvas: Canvas, mask_id: int) -> NDArray[np.int64]:
        """[N] ids that a pass sees: guesses too."""
        ids = np.where(canvas.masked, mask_id, canvas.tokens)
        for row, (token, _) in self._guesses.items():
            ids[row] = token
        return ids

    def walk(
        self,
        canvas: Canvas,
        adjusted: Tensor,
        free: tuple[list[int], list[float]],
        choose: ChooseRow,
        tau: float,
        left: int,
        *,
        is_quick: bool,
    ) -> Walk:
        """One pass of `diffuse`: settles rows from the first masked one on.

        adjusted: [W, Y] of the masked rows, without the grammar; free: what they would say without it. is_quick: as in
        `diffusion.constraint.walk`.
        """
        rows = np.flatnonzero(canvas.masked).tolist()
        place = {row: i for i, row in enumerate(rows)}
        said = zip(rows, zip(*free, strict=True), strict=True)
        found = walk(
            self._matcher,
            canvas,
            rows[0],
            lambda row, allowed: choose(_under(adjusted[place[row]], allowed), row),
            {row: choice for row, choice in said if row not in self._guesses},
            tau=tau,
            end_id=self._end_id,
            left=left,
            guesses=self._guesses,
            is_quick=is_quick,
        )
        self._guesses = found.guesses
        return found

    def propose(
        self, canvas: Canvas, adjusted: Tensor, free: tuple[list[int], list[float]] | None, choose: ChooseRow
    ) -> Walk:
        """Proposals of `draft` for the rows behind row 0, each legal behind those before it. adjusted: [N-1, Y]. free:
        what the rows would say without the grammar, where the walk may be quick."""
        said = {} if free is None else dict(enumerate(zip(*free, strict=True), 1))
        return walk(
            self._matcher.copy(),
            canvas,
            1,
            lambda row, allowed: choose(_under(adjusted[row - 1], allowed), row),
            said,
            tau=_ALWAYS,
            end_id=self._end_id,
            is_quick=free is not None,
        )

    def follow(self, tokens: list[int]) -> None:
        """Begins the verification of proposals."""
        self._trail = Trail(self._matcher, tokens)

    def allowed_behind(self, row: int) -> Tensor:
        """[Y] bool: what may follow the first `row` of the proposals that are verified, all of which stand."""
        assert self._trail is not None
        return torch.from_numpy(self._trail.allowed(row))

    def allows_behind(self, row: int, token: int) -> bool:
        """Whether this token may follow them."""
        assert self._trail is not None
        return self._trail.allows(row, token)


def _under(adjusted: Tensor, allowed: NDArray[np.bool_]) -> Tensor:
    """[Y] -> [1, Y], what the grammar forbids ruled out."""
    return adjusted.masked_fill(~torch.from_numpy(allowed), NEVER)[None]
