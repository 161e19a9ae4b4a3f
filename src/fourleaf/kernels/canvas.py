"""The parts of a GDN layer that a canvas needs: convolution with right taps, and the block softmax with a history slot.

Shapes: B sequences or canvases, T rows, D channels, N canvas rows, H value heads, K key dim, V value dim.
`reference` holds the plain twins.
"""

from __future__ import annotations

import torch
from torch import Tensor


def causal_conv(extended: Tensor, weight: Tensor) -> Tensor:
    """Depthwise causal taps: out_t = sum_j w_j x_(t-W+1+j). extended: [B, W-1+T, D], weight: [D, W]. -> [B, T, D]."""
    taps = weight.shape[1]
    num_rows = extended.shape[1] - taps + 1
    out = extended[:, :num_rows] * weight[:, 0]
    for j in range(1, taps):
        out = out + extended[:, j : j + num_rows] * weight[:, j]
    return out


def right_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Right taps: out_t = sum_(d=1..) r_d x_(t+d), zero past the last row. x: [B, N, D] with zeros in padded rows,
    weight: [D, W-1], tap d at index d-1. -> [B, N, D]."""
    reach = weight.shape[1]
    padded = torch.nn.functional.pad(x, (0, 0, 0, reach))
    num_rows = x.shape[1]
    out = padded[:, 1 : 1 + num_rows] * weight[:, 0]
    for d in range(2, reach + 1):
        out = out + padded[:, d : d + num_rows] * weight[:, d - 1]
    return out


def block_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    read: Tensor,
    logit_scale: Tensor,
    history_logit: Tensor,
    valid: Tensor | None,
) -> Tensor:
    """Every row attends to the history slot and to all rows of its block (design, section 3).

    q, k: [C, H, N, K], normalised, unscaled. v: [C, H, N, V]. read: [C, H, N, V], what each row reads from the state.
    logit_scale: [H]. history_logit: [C, H]. valid: [C, N] bool, or None where every row is valid. -> [C, H, N, V].
    """
    inside = (q @ k.transpose(-1, -2)) * logit_scale[:, None, None]
    if valid is not None:
        inside = inside.masked_fill(~valid[:, None, None, :], float("-inf"))
    slot = history_logit[:, :, None, None].expand(-1, -1, q.shape[2], 1)
    wide = torch.promote_types(inside.dtype, torch.float32)
    share = torch.softmax(torch.cat((slot, inside), -1).to(wide), -1).to(v.dtype)
    return torch.addcmul(share[..., 1:] @ v, share[..., :1], read)
