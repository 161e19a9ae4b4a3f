"""The training losses, as sums: the caller divides by global counts, so that no split of a batch changes the result.

Shapes: R rows, Y vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy_sum(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sum over rows of weight * CE. logits: [R, Y], target: [R], weight: [R] or None (all 1)."""
    losses = F.cross_entropy(logits, target, reduction="none")
    return losses.sum() if weight is None else (losses * weight).sum()


def masked_cross_entropy_sum(logits: Tensor, target: Tensor, weight: Tensor, mask_id: int) -> Tensor:
    """CE of masked canvas rows against the token at their own position. The mask id is never a prediction."""
    banned = logits.index_fill(-1, torch.tensor([mask_id], device=logits.device), float("-inf"))
    return cross_entropy_sum(banned, target, weight)
