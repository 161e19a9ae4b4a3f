"""Steps found by trial: a group's ends may be clipped where that moves the others less.

Of a row of weights, few lie at the ends. A step that is a little too short for them is finer for all others, and what
counts is the sum over a group of (weight - what it becomes)², each weighted by how active its input is (the diagonal of
the Hessian that `calibrate` has): a diagonal form of the error of the layer's outputs. Several shares of the full range
are tried for each group by itself and the best is kept; the full range is among them, so the error never grows.

Shapes: O outputs, I inputs, G groups of a row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fourleaf.quant.int4 import LEVELS, SYMMETRIC_ZERO, Int4Config, grid, num_groups

# Of the full range, 1 first: a share that is no better does not replace one before it.
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)


def grid_by_trial(weight: Tensor, activity: Tensor, config: Int4Config) -> tuple[Tensor, Tensor | None]:
    """`int4.grid` of the best share of each group's range. weight: [O, I], fp32 or fp64; activity: [I], at least 0.
    -> scales [O, G] and zeros, the same or None.

    Raises CheckpointError as `int4.grid` does.
    """
    scales, zeros = grid(weight, config)
    least = _errors(weight, activity, scales, zeros, config)
    for share in SHARES[1:]:
        tried, tried_zeros = grid(weight * share, config)
        errors = _errors(weight, activity, tried, tried_zeros, config)
        better = errors < least
        least = torch.where(better, errors, least)
        scales = torch.where(better, tried, scales)
        if zeros is not None and tried_zeros is not None:
            zeros = torch.where(better, tried_zeros, zeros)
    return scales, zeros


def _errors(weight: Tensor, activity: Tensor, scales: Tensor, zeros: Tensor | None, config: Int4Config) -> Tensor:
    """[O, G]: of each group rounded to nearest on this grid, the weighted square of what its weights move by."""
    short = num_groups(weight.shape[1], config.group_size) * config.group_size - weight.shape[1]
    groups = F.pad(weight, (0, short)).unflatten(1, (-1, config.group_size))
    step = scales.to(weight.dtype).unsqueeze(-1)
    zero = SYMMETRIC_ZERO if zeros is None else zeros.to(weight.dtype).unsqueeze(-1)
    became = ((groups / step).round().add(zero).clamp(0, LEVELS - 1) - zero) * step
    shares = F.pad(activity.to(weight.dtype), (0, short)).unflatten(0, (-1, config.group_size))
    return ((groups - became).square() * shares).sum(-1)
