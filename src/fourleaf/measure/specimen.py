"""A small engine of random weights, which says nothing sensible, and always the same: for equalities that must hold
whatever the weights are, those of the doctor, the soak and the tests."""

from __future__ import annotations

import torch

from fourleaf.engine.engine import Engine
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"


def specimen(
    tokenizer: Tokenizer, seed: int, *, max_context: int = 320, says_mask: bool = False, checks: bool = False
) -> Engine:
    """fp64, two GDN layers and one of attention, blocks of 8; its answers end now and then.

    says_mask: its likeliest token would be the mask id, which no answer may have. checks: as in `Core`. Random numbers
    of whoever calls go on as if nothing had been drawn.
    """
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=24,
        num_hidden_layers=3,
        full_attention_interval=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=12,
        rope_theta=10_000.0,
        partial_rotary_factor=0.5,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=6,
        intermediate_size=32,
        initializer_range=0.4,
        max_position_embeddings=max_context,
        block_size=8,
        mask_token_id=tokenizer.mask_id,
        bd_edits=True,
    )
    generator = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = Transformer(config).to(torch.float64).eval()
    torch.random.set_rng_state(generator)
    with torch.no_grad():
        head = model.lm_head.weight
        head.mul_(4.0)
        head[tokenizer.end_id] *= 2.0
        if says_mask:
            head[tokenizer.mask_id] = head.abs().sum(0)
    return Engine("random", model, tokenizer, ChatTemplate(TEMPLATE, tokenizer), checks=checks)
