"""How fast each pair of a head's dims turns from one position to the next (RoPE)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's stretch of RoPE to longer texts, under Hugging Face's names (`rope_type` "llama3").

    Pairs that turn round within original_max_position_embeddings / high_freq_factor positions keep their speed; those
    that need more than original_max_position_embeddings / low_freq_factor turn `factor` times slower; in between,
    from one to the other.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


def frequencies(
    theta: float, dims: int, scaling: Llama3Scaling | None, dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """Radians a position of pair i, theta^(-2i/dims), slowed down by `scaling`. -> [dims/2] in `dtype`."""
    steps = torch.arange(0, dims, 2, dtype=dtype, device=device)
    once = 1.0 / theta ** (steps / dims)
    if scaling is None:
        return once
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings / (2 * math.pi / once)  # full turns in the original context
    share = (turns - low) / (high - low)
    between = (1 - share) * once / scaling.factor + share * once
    return torch.where(turns < low, once / scaling.factor, torch.where(turns > high, once, between))
