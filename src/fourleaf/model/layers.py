"""Small parts that every layer shares: norms, rotary positions, the dense MLP, linears that run as one.

Shapes: R flat rows, D hidden, H heads, A head dim, F MLP width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourleaf.kernels import serving
from fourleaf.kernels.fuse import fusable
from fourleaf.kernels.products import Product
from fourleaf.kernels.rotary import frequencies
from fourleaf.model.config import ModelConfig

T = TypeVar("T")


class Derived(Generic[T]):
    """Something that serving computes from parameters once and keeps until `refresh`: the parameters have changed."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._kept: T | None = None

    def __call__(self) -> T:
        if self._kept is None:
            self._kept = self._make()
        return self._kept

    def refresh(self) -> None:
        """Forgets it."""
        self._kept = None


class RMSNorm(nn.Module):
    """x / rms(x) * gain, in at least fp32. The gain is 1 + weight in Qwen3.5's zero-centred norm, the weight itself in
    a plain one."""

    def __init__(self, dim: int, config: ModelConfig) -> None:
        super().__init__()
        self.is_plain = config.norm_weights == "plain"
        self.weight = nn.Parameter(torch.ones(dim) if self.is_plain else torch.zeros(dim))
        self.eps = config.rms_norm_eps
        self.gain = Derived(lambda: gain_and_eps(self.weight if self.is_plain else 1.0 + self.weight, self.eps))

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return (_plain_rms_norm if self.is_plain else _rms_norm)(x, self.weight, self.eps)
        return serving.rms_norm(x, *self.gain())


class GatedRMSNorm(nn.Module):
    """x / rms(x) * weight * SiLU(gate), in at least fp32: the norm behind a GDN layer's read-out."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps
        self.gain = Derived(lambda: gain_and_eps(self.weight, eps))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return _gated_rms_norm(x, gate, self.weight, self.eps)
        return serving.gated_rms_norm(x, gate, *self.gain())


def gain_and_eps(gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """What the norms of `serving` take, in at least fp32."""
    gain = gain.detach().to(torch.promote_types(gain.dtype, torch.float32))
    return gain, gain.new_tensor(eps)


@fusable
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (1.0 + weight)).to(x.dtype)


@fusable
def _plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight).to(x.dtype)


@fusable
def _gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight * F.silu(gate.to(wide.dtype))).to(x.dtype)


@fusable
def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def rotary_angles(positions: Tensor, config: ModelConfig, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """cos and sin of each row's angles, [R, 1, rotary_dim], both halves alike (the rotate-half form of RoPE).

    `dtype`: the rows'; angles are computed in at least fp32.
    """
    wide = torch.promote_types(dtype, torch.float32)
    once = frequencies(config.rope_theta, config.rotary_dim, config.rope_scaling, wide, positions.device)
    angles = positions[:, None].to(wide) * once
    angles = torch.cat((angles, angles), -1).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Turns the first rotary_dim of [R, H, A] by the rows' angles and leaves the rest."""
    cos, sin = (part.to(x.dtype) for part in angles)
    dim = cos.shape[-1]
    turned, rest = x[..., :dim], x[..., dim:]
    first, second = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-second, first), -1) * sin
    return torch.cat((turned, rest), -1)


class Replacement(nn.Module):
    """Takes the place of a linear, or of a layer's experts, and runs the same product in another way: from packed
    weights, or with its inputs recorded. `Transformer.replace` puts it there."""

    @property
    def num_weights(self) -> int:
        """Weights that it stands for and that are not among its parameters."""
        raise NotImplementedError


class MLP(nn.Module):
    """down(SiLU(gate x) * up x)."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, width, bias=False)
        self.up_proj = nn.Linear(hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, hidden_size, bias=False)
        self.fused = Fused(self.gate_proj, self.up_proj)
        self.down = Derived(lambda: Product(self.down_proj.weight))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.fused(x)
        if torch.is_grad_enabled():
            return self.down_proj(_swiglu(gate, up))
        return self.down()(serving.swiglu(gate, up))


class Fused:
    """Linears that read the same rows, run as one matrix product. Their parameters keep their own names and files.

    While gradients are on the weights are concatenated anew each time; otherwise once, until `refresh`. Where one of
    them has been replaced, each runs by itself.
    """

    def __init__(self, *linears: nn.Linear) -> None:
        self.linears: list[nn.Module] = list(linears)
        self.widths = [linear.out_features for linear in linears]
        self.is_whole = True
        self.product = Derived(lambda: Product(self._join(), by_columns=True))

    def refresh(self) -> None:
        """Forgets the joined weight: the parameters have changed."""
        self.product.refresh()

    def replace(self, old: nn.Module, new: Replacement) -> None:
        """Runs `new` where `old` ran; nothing changes where `old` is none of these linears."""
        if old in self.linears:
            self.linears = [new if linear is old else linear for linear in self.linears]
            self.is_whole = False
            self.refresh()

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        if not self.is_whole:
            return tuple(linear(x) for linear in self.linears)
        product = F.linear(x, self._join()) if torch.is_grad_enabled() else self.product()(x)
        return product.split_with_sizes(self.widths, -1)

    def _join(self) -> Tensor:
        return torch.cat([linear.weight for linear in self.linears if isinstance(linear, nn.Linear)])
