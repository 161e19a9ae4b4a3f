"""How probable a text is to a model: the causal log-probability of each of its tokens given those before it.

Evaluation harnesses score multiple-choice answers with it. It is one forward of causal rows, without a cache; canvases
play no part.
"""

from __future__ import annotations

import torch

from fourleaf.engine.request import TokenLogprob
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

# Rows whose logits exist at a time: at a vocabulary of 150,000 all rows of a long prompt would take gigabytes.
CHUNK_ROWS = 128


@torch.inference_mode()
def score(model: Transformer, ids: list[int], num_top: int, mask_id: int | None) -> list[TokenLogprob | None]:
    """Log-probabilities of `ids`: None for the first, which nothing precedes, and one more behind the last.

    num_top: how many of the most probable tokens come along. The one more is for whatever follows: its `logprob` is
    that of the most probable token. mask_id: never a token of a text, so it takes no probability.
    -> len(ids) + 1 entries.
    """
    assert ids
    device = model.lm_head.weight.device
    tokens = torch.tensor(ids, dtype=torch.long, device=device)
    hidden, _ = model(Work(tokens, Segments([len(ids)], device), [0]))
    found: list[TokenLogprob | None] = [None]
    for begin in range(0, len(ids), CHUNK_ROWS):
        logits = model.head(hidden[begin : begin + CHUNK_ROWS])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if mask_id is not None:
            logits[:, mask_id] = -torch.inf
        logprobs = logits.log_softmax(-1)
        best, best_ids = logprobs.topk(max(1, num_top))
        follows = tokens[begin + 1 : begin + 1 + len(logprobs)]
        own = logprobs[: len(follows)].gather(1, follows[:, None])[:, 0].tolist()
        own += best[len(follows) :, 0].tolist()
        for row, logprob in enumerate(own):
            top = zip(best_ids[row, :num_top].tolist(), best[row, :num_top].tolist(), strict=True)
            found.append(TokenLogprob(logprob, 0, tuple(top)))
    return found
