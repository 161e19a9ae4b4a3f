"""What a request with `logprobs` hears of each token.

Shapes: M rows, Y vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
