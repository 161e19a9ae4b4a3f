"""What a request with `logprobs` hears of each token.

Shapes: M rows, Y vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fourleaf.diffusion.constraint import Choice, Walk
from fourleaf.diffusion.policy import Canvas
from fourleaf.engine.request import TokenLogprob


def token_logprobs(adjusted: Tensor, tokens: list[int], pass_index: int, count: int) -> tuple[TokenLogprob, ...]:
    """Of each row's token its log-probability, and the `count` most probable tokens', in the order of the rows.

    adjusted: [M, Y] of `sampling.adjust`: untempered, so that exp(logprob) is the confidence of `choose`. tokens: [M].
    A token that was ruled out (the mask id, what the grammar forbids) is never an alternative, so there may be fewer.
    """
    table = torch.log_softmax(adjusted, -1)
    own = table.gather(1, torch.tensor(tokens, device=table.device)[:, None])[:, 0].tolist()
    best = table.topk(min(count, table.shape[1]), -1)
    found = []
    for logprob, ids, values in zip(own, best.indices.tolist(), best.values.tolist(), strict=True):
        pairs = zip(ids, values, strict=True)
        top = tuple((token, value) for token, value in pairs if value > float("-inf"))
        found.append(TokenLogprob(logprob, pass_index, top))
    return tuple(found)


class Record:
    """One answer's log-probabilities, by position, from when a token is chosen until it is sent."""

    def __init__(self, count: int | None) -> None:
        """count: of the most probable tokens; None where the request asks for nothing, and nothing is kept."""
        self._count = count
        self._found: dict[int, TokenLogprob] = {}

    @property
    def is_wanted(self) -> bool:
        return self._count is not None

    def add(self, adjusted: Tensor, tokens: list[int], positions: list[int], pass_index: int = 0) -> None:
        """Tokens that were chosen by these logits, one a row. adjusted: [M, Y]."""
        if self._count is not None and tokens:
            found = token_logprobs(adjusted, tokens, pass_index, self._count)
            self._found.update(zip(positions, found, strict=True))

    def walked(
        self,
        canvas: Canvas,
        walk: Walk,
        guesses: Mapping[int, Choice],
        under: Mapping[int, Tensor],
        free: Mapping[int, Tensor],
    ) -> None:
        """A pass under a grammar: rows that were asked, by their logits `under` it, [1, Y]; guesses that stand, as they
        were guessed, which the grammar had no say in; what it forced was certain. guesses: of the pass before. free:
        all rows of the pass, [Y] without the grammar."""
        for row, token in zip(walk.rows, walk.tokens, strict=True):
            if row in under:
                self.add(under[row], [token], [canvas.start + row], canvas.num_passes)
            elif row not in guesses or guesses[row][0] != token:
                self._found[canvas.start + row] = TokenLogprob(0.0, canvas.num_passes)
        for row, (token, _) in walk.guesses.items():
            self.add(free[row][None], [token], [canvas.start + row], canvas.num_passes)

    def take(self, positions: range) -> tuple[TokenLogprob, ...] | None:
        """What is known of tokens that are sent now. What a grammar forced was certain, and no row was asked."""
        if self._count is None:
            return None
        return tuple(self._found.pop(position, TokenLogprob(0.0, 0)) for position in positions)
