"""Forward and backward of one batch: the objective (design, section 6) and what a step sums up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fourleaf.diffusion.objective import cross_entropy_sum, masked_cross_entropy_sum
from fourleaf.model.moe import balance_loss
from fourleaf.model.transformer import Transformer
from fourleaf.train.data import Batch


@dataclass(frozen=True)
class Counts:
    """What a step divides by: targets and batches in all of its batches, whoever runs them."""

    num_next: int
    num_masked: int
    num_batches: int = 1

    @staticmethod
    def of(batches: list[Batch]) -> Counts:
        """The counts of a step over `batches`."""
        return Counts(sum(b.num_next for b in batches), sum(b.num_masked for b in batches), len(batches))


def losses(model: Transformer, batch: Batch, counts: Counts, mask_id: int) -> dict[str, Tensor]:
    """The terms of the objective, unweighted: this batch's sums over rows, divided by the step's counts."""
    hidden, routers = model(batch.work)
    following = cross_entropy_sum(model.head(hidden[batch.next_rows]), batch.next_target, batch.next_weight)
    terms = {"next": following / counts.num_next}
    if batch.num_masked:
        logits = model.head(hidden[batch.masked_rows])
        masked = masked_cross_entropy_sum(logits, batch.masked_target, batch.masked_weight, mask_id)
        terms["masked"] = masked / counts.num_masked
    if routers:
        terms["balance"] = balance_loss(routers, model.config.num_experts_per_tok) / counts.num_batches
    return terms


def objective(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """What a step descends: the weighted sum of `losses`."""
    return sum((weights[name] * term for name, term in terms.items()), torch.zeros(()))


def accumulate(
    model: Transformer, batch: Batch, counts: Counts, mask_id: int, weights: Mapping[str, float]
) -> dict[str, float]:
    """Adds one batch's share of a step's gradient to the parameters'. -> the terms' values."""
    terms = losses(model, batch, counts, mask_id)
    objective(terms, weights).backward()
    return {name: term.item() for name, term in terms.items()}
