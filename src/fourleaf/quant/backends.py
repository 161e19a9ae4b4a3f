"""What computes x W^T from a packed W. `plain` is the truth and always there."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from fourleaf.quant.int4 import Packed, dequantise

# [R, I] -> [R, O], in the rows' dtype
Product = Callable[[Tensor], Tensor]


def plain(packed: Packed) -> Product:
    """Dequantises the whole matrix for each product, and keeps nothing."""
    return lambda x: F.linear(x, dequantise(packed, x.dtype))
