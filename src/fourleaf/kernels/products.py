"""Products of rows with a weight that does not change, as serving runs them.

A weight lies in memory as suits the rows: for one row, so that the product reads it in one sweep; for a few, in the
blocks of oneDNN's product, where torch's own spends most of its time on arranging the weight anew (decision 038).

Shapes: R rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

# Weights of a matrix that is held in blocks beside its first form, at most: 16 MiB in fp32.
MOST_BLOCKED = 1 << 22
# Numbers of rows that read the blocks: of a canvas and less, of a commit with the next canvas, of a full forward. The
# library writes a kernel for each number and shape, half a millisecond and half a MiB each, so others are filled up.
FILLED = (4, 8, 12, 16, 24, 32, 64, 512)
_LEAST, _CANVAS, _MOST_ADDED = 2, 32, 1 / 8


@cache
def filled(rows: int) -> int | None:
    """How many rows read the blocks for so many; None where the first form is read: for one, for more than the most,
    and for more than a canvas where too many rows would have to be added."""
    most = next((num for num in FILLED if num >= rows), 0)
    return most if rows >= _LEAST and (rows <= _CANVAS or most - rows <= _MOST_ADDED * most) and most else None


_MAIN_MEMORY = torch.device("cpu")


class Product:
    """rows @ weightᵀ + bias: [R, I] -> [R, O]. weight: [O, I]; bias: [O] or None.

    `by_columns`: one row reads a copy with the inputs in front, in one sweep; otherwise the weight where it is, which
    is as fast where there are no more outputs than inputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, by_columns: bool = False) -> None:
        weight = weight.detach()
        self.weight = weight.t().contiguous() if by_columns else weight.t()
        self.bias = None if bias is None else bias.detach()
        self.blocked = None
        if can_block(weight.numel(), weight.dtype, weight.device):
            self.blocked = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)

    def __call__(self, rows: Tensor) -> Tensor:
        assert rows.ndim == 2, f"rows of shape {tuple(rows.shape)}"
        num = rows.shape[0]
        if self.blocked is not None and (most := filled(num)):
            if most > num:
                rows = F.pad(rows, (0, 0, 0, most - num))
            out = torch.ops.mkldnn._linear_pointwise(rows, self.blocked, self.bias, "none", [], "")
            return out if most == num else out[:num]
        if self.bias is None:
            return torch.mm(rows, self.weight)
        return torch.addmm(self.bias, rows, self.weight)


def can_block(num_weights: int, dtype: torch.dtype, device: torch.device = _MAIN_MEMORY) -> bool:
    """Whether a matrix of so many weights is held in blocks, too: in fp32, on a processor with AVX-512. With AVX2 alone
    both products take as long."""
    gains = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return gains and device.type == "cpu" and dtype == torch.float32 and num_weights <= MOST_BLOCKED


@torch.inference_mode()
def warm(products: Iterable[Product]) -> None:
    """Has the library write its kernels for every number of rows, so that no request waits for them."""
    shapes = {(tuple(p.weight.shape), p.bias is None): p for p in products if p.blocked is not None}
    for (shape, _), product in shapes.items():
        for num in FILLED:
            product(torch.zeros(num, shape[0]))
