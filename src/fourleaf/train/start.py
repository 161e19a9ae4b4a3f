"""Where a trunk trained from nothing starts."""

from __future__ import annotations

import torch
from torch import nn

from fourleaf.model.transformer import Transformer

_BACK = ("out_proj", "o_proj", "down_proj")


@torch.no_grad()
def start_weights(model: Transformer) -> None:
    """Spreads that let a small model learn from its first steps (docs/log.md, 2026-11-30).

    A matrix keeps the size of what it reads (spread inputs^-1/2). Those that write back into the residual stream start
    (2 x layers)^-1/2 times smaller, so that the stream is the token itself at first, at size 1; the head starts small,
    so that the first loss is that of guessing. A tied head starts at inputs^-1/2.
    """
    small = (2 * model.config.num_hidden_layers) ** -0.5
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0.0, module.in_features**-0.5)
            if name.endswith(_BACK):
                module.weight.mul_(small)
    if not model.config.tie_word_embeddings:
        model.model.embed_tokens.weight.normal_(0.0, 1.0)
        model.lm_head.weight.mul_(0.2)
