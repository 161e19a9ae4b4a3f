"""What computes x W^T from a packed W [O, I]. `plain` multiplies by what `int4.dequantise` says, and is always there.

Each of the others takes any shape, group and scheme, agrees with `plain` within its `error`, and copies the weights
into an order of its own, once, when it is made; decision 007 has what each costs, and why `chosen` chooses as it does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from fourleaf.quant.int4 import SYMMETRIC_ZERO, Packed, num_groups, unpack

# [R, I] -> [R, O], in the rows' dtype
Product = Callable[[Tensor], Tensor]

# Weights of a matrix up to which ordinary weights are at least as fast as any packed ones: half a megabyte in fp32.
MOST_UNPACKED = 1 << 17
_BY_SPEED = ("matmulnbits_int8", "int4pack", "plain")
# The torch kernel wants outputs by the sixteen.
_OUTPUTS = 16


@dataclass(frozen=True)
class Backend:
    """make: a product from a packed matrix. missing: why it cannot run here, None where it can.

    error: how far the outputs of a matrix may lie from those of `plain` on fp32 rows, as a share of their size
    (both as Euclidean norms).
    """

    make: Callable[[Packed], Product]
    missing: Callable[[], str | None]
    error: float


def unpacked(packed: Packed, dtype: torch.dtype) -> Tensor:
    """`int4.dequantise`, bit for bit, in a third of its time: what [O, I] a product by `plain` multiplies by."""
    wide = torch.promote_types(dtype, torch.float32)
    groups = num_groups(packed.width, packed.group_size)
    both = F.pad(packed.values, (0, groups * packed.group_size // 2 - packed.values.shape[-1])).to(torch.int16)
    levels = ((both << 4) | both) & 0x0F0F  # byte hl -> bytes l, h: two levels side by side
    if sys.byteorder == "big":
        levels = (levels << 8) | (levels >> 8)
    scales = packed.scales.to(wide).unsqueeze(-1)
    zeros = SYMMETRIC_ZERO if packed.zeros is None else packed.zeros.to(wide).unsqueeze(-1)
    # level * scale and zero * scale are exact, and so is their difference: the formula of `int4`, rearranged.
    weight = levels.view(torch.uint8).unflatten(-1, (groups, -1)).to(wide).mul_(scales).sub_(zeros * scales)
    return weight.flatten(-2)[..., : packed.width].to(dtype)


def plain(packed: Packed) -> Product:
    """Dequantises the whole matrix for each product, and keeps nothing."""
    return lambda x: F.linear(x, unpacked(packed, x.dtype))


def int4pack(packed: Packed) -> Product:
    """torch's CPU kernel, on rows and scales rounded to bf16."""
    outputs, width, group = packed.num_outputs, packed.width, packed.group_size
    groups = num_groups(width, group)
    short, few = groups * group - width, -outputs % _OUTPUTS
    levels = F.pad(unpack(packed.values, width).to(torch.int32), (0, short, 0, few))
    matrix = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
    scales = packed.scales.float()
    zeros = torch.full_like(scales, SYMMETRIC_ZERO) if packed.zeros is None else packed.zeros.float()
    # The kernel's zero point is a weight: what level 8 stands for.
    steps = torch.stack((scales, (SYMMETRIC_ZERO - zeros) * scales), -1)
    steps = F.pad(steps, (0, 0, 0, 0, 0, few)).transpose(0, 1).contiguous().bfloat16()

    def run(x: Tensor) -> Tensor:
        rows = F.pad(x, (0, short)).bfloat16()
        return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, matrix, group, steps)[:, :outputs].to(x.dtype)

    return run


def matmulnbits(packed: Packed) -> Product:
    """onnxruntime's kernel in fp32."""
    from fourleaf.quant.matmulnbits import product

    return product(packed, int8_rows=False)


def matmulnbits_int8(packed: Packed) -> Product:
    """onnxruntime's kernel on rows that are rounded to 8 bits, group by group."""
    from fourleaf.quant.matmulnbits import product

    return product(packed, int8_rows=True)


def _no_onnxruntime() -> str | None:
    return None if find_spec("onnxruntime") else "needs onnxruntime: pip install 'fourleaf[int4]'"


def _no_int4pack() -> str | None:
    known = hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")
    return None if known else f"torch {torch.__version__} has no _weight_int4pack_mm_for_cpu"


def chosen(packed: Packed) -> Product | None:
    """The fastest product for this matrix that is here; None where unpacking it once, for good, is faster still."""
    if packed.num_weights <= MOST_UNPACKED:
        return None
    return next(b.make(packed) for name in _BY_SPEED if (b := BACKENDS[name]).missing() is None)


BACKENDS = {
    "plain": Backend(plain, lambda: None, 0.0),
    "int4pack": Backend(int4pack, _no_int4pack, 5e-3),
    "matmulnbits": Backend(matmulnbits, _no_onnxruntime, 1e-5),
    "matmulnbits_int8": Backend(matmulnbits_int8, _no_onnxruntime, 1e-2),
}
