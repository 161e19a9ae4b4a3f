"""Shapes of the tests' models: small enough to run at once, uneven enough that no two dimensions are taken for another.

Keyword arguments of `ModelConfig`. A model needs one of TWO, FOUR and ODD, and DENSE or EXPERTS.
"""

from typing import Any

Shapes = dict[str, Any]

# Two layers, the smallest that has both kinds.
TWO: Shapes = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.5,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
# Four layers, three of them GDN, as in the big relatives.
FOUR: Shapes = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
# Widths that no group of weights divides.
ODD: Shapes = FOUR | {
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "layer_types": ("linear_attention", "full_attention", "linear_attention"),
    "head_dim": 12,
    "linear_value_head_dim": 10,
}
DENSE: Shapes = {"intermediate_size": 48}
EXPERTS: Shapes = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 24,
}
