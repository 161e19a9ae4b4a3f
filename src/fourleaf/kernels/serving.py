"""Functions of rows as serving runs them: without gradients, on few rows, so in as few operations as possible.

On one row an operation costs about as much as starting it, which is why these differ from the forms that training
compiles into one pass. The formulas are those of `reference`. Everything is computed in at least fp32 where a norm is
taken, in the rows' dtype elsewhere.

Shapes: R rows, D channels, H heads, A head dim, B sequences or canvases, T their rows, W taps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourleaf.kernels.rotary import Llama3Scaling, frequencies

# Above this many rows a window's W-fold copy of them costs more than W passes over them.
_MAX_WINDOW_ROWS = 256
# Positions whose angles are kept, at least and at most.
LEAST_KEPT, MOST_KEPT = 1024, 65_536


def _inverse_rms(wide: Tensor, eps: Tensor) -> Tensor:
    """1 / sqrt(mean(x²) + eps) of [..., D], as [..., 1]. eps: a scalar tensor."""
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return torch.addcmul(eps, norm, norm, value=1 / wide.shape[-1]).rsqrt_()


def rms_norm(x: Tensor, gain: Tensor, eps: Tensor) -> Tensor:
    """x / rms(x) * gain over the last dimension. gain: 1 + weight in Qwen3.5's zero-centred norm."""
    if x.dtype is gain.dtype:
        return (x * gain).mul_(_inverse_rms(x, eps))
    return rms_norm(x.to(gain.dtype), gain, eps).to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, gain: Tensor, eps: Tensor) -> Tensor:
    """x / rms(x) * gain * SiLU(gate), the norm behind a GDN read-out."""
    if x.dtype is gain.dtype:
        return (x * gain).mul_(_inverse_rms(x, eps)).mul_(F.silu(gate))
    return gated_rms_norm(x.to(gain.dtype), gate.to(gain.dtype), gain, eps).to(x.dtype)


def l2_norm(x: Tensor, eps: Tensor) -> Tensor:
    """x / sqrt(sum(x²) + eps) over the last dimension."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.addcmul(eps, norm, norm).rsqrt_()


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU(gate) * up."""
    return F.silu(gate).mul_(up)


def sliding_taps(x: Tensor, taps: Tensor) -> Tensor:
    """Depthwise taps: out_t = sum_j taps_j x_(t+j). x: [B, T+W-1, D], taps: [W, D]. -> [B, T, D]."""
    width = taps.shape[0]
    batch, rows, channels = x.shape[0], x.shape[1] - width + 1, x.shape[2]
    if rows == 1:
        return (x * taps).sum(1, keepdim=True)
    if batch * rows <= _MAX_WINDOW_ROWS:
        step = x.stride(1)
        windows = x.as_strided(
            (batch, rows, width, channels), (x.stride(0), step, step, x.stride(2)), x.storage_offset()
        )
        return (windows * taps).sum(2)
    out = x[:, :rows] * taps[0]
    for j in range(1, width):
        out.addcmul_(x[:, j : j + rows], taps[j])
    return out


def _turns(
    positions: Tensor, theta: float, turned: int, head_dim: int, scaling: Llama3Scaling | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    wide, half = torch.promote_types(dtype, torch.float32), turned // 2
    once = frequencies(theta, turned, scaling, wide, positions.device)
    angles = positions.to(wide)[:, None] * torch.cat((once, once, once.new_zeros(head_dim - turned)))
    sin = angles.sin()
    sin[:, :half].neg_()
    partner = torch.arange(head_dim, device=positions.device)
    partner[:turned] = (partner[:turned] + half) % turned
    return angles.cos().to(dtype).unsqueeze(1), sin.to(dtype).unsqueeze(1), partner


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _turns_below(num: int, device: torch.device, *how: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _turns(torch.arange(num, device=device), *how)


def rotary_turns(
    positions: Tensor,
    end: int,
    theta: float,
    turned: int,
    head_dim: int,
    scaling: Llama3Scaling | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `rotate` takes: cos and signed sin of each row's angles, [R, 1, A], and each dim's partner, [A].

    Dims past the first `turned` keep angle 0. Angles are computed in at least fp32 and given in `dtype`; those of all
    positions up to a power of two above `end`, which none of `positions` reaches, are kept and looked up.
    """
    how = theta, turned, head_dim, scaling, dtype
    if end > MOST_KEPT:
        return _turns(positions, *how)
    num = max(LEAST_KEPT, 1 << (end - 1).bit_length())
    cos, sin, partner = _turns_below(num, positions.device, *how)
    return cos.index_select(0, positions), sin.index_select(0, positions), partner


def rotate(x: Tensor, turns: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """RoPE in its rotate-half form on [R, H, A]."""
    cos, sin, partner = turns
    return (x * cos).addcmul_(x.index_select(-1, partner), sin)
