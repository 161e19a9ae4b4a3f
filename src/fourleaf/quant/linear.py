"""Linears and experts that run from packed weights.

What computes a product is chosen once for each matrix, from `backends.BACKENDS`; `plain`, dequantise and multiply, is
always there and is what the others are held against.

Shapes: R flat rows, I inputs, O outputs, D hidden, E experts, F expert width, S experts a row uses (top-k).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourleaf.model.layers import Replacement
from fourleaf.model.moe import by_expert
from fourleaf.model.transformer import Transformer
from fourleaf.quant.backends import Product, plain, unpacked
from fourleaf.quant.int4 import Packed

# What runs a matrix; None where it is unpacked into an ordinary parameter.
Choose = Callable[[Packed], Product | None]

# Of each layer, what is quantised: linears by their last names, and stacks of experts. Router, norms, gates, the four
# Clover tensors, embeddings and head stay as they are.
LINEARS = (
    *("q_proj", "k_proj", "v_proj", "o_proj"),
    *("in_proj_qkv", "in_proj_z", "out_proj"),
    *("gate_proj", "up_proj", "down_proj"),
)
STACKS = ("gate_up_proj", "down_proj")


def is_quantised(name: str, plain_layers: int = 0) -> bool:
    """Whether the parameter of this checkpoint name is one that INT4 packs, where the linears of the first
    `plain_layers` layers are left as they are."""
    *path, last = name.split(".")
    if path[:2] != ["model", "layers"]:
        return False
    if path[-1] == "experts":
        return last in STACKS
    return last == "weight" and path[-1] in LINEARS and int(path[2]) >= plain_layers


class QuantLinear(Replacement):
    """x W^T + bias for a packed W [O, I]."""

    def __init__(self, packed: Packed, bias: nn.Parameter | None = None, product: Product | None = None) -> None:
        super().__init__()
        self.packed = packed
        self.bias = bias
        self.product = product or plain(packed)

    def forward(self, x: Tensor) -> Tensor:
        """[R, I] -> [R, O]."""
        out = self.product(x)
        return out if self.bias is None else out + self.bias

    @property
    def num_weights(self) -> int:
        return self.packed.num_weights


class QuantExperts(Replacement):
    """`moe.Experts` from packed stacks: of each forward, only the experts that it touches are dequantised."""

    def __init__(self, gate_up: Packed, down: Packed) -> None:
        """gate_up: [E, 2F, D]; down: [E, D, F]."""
        super().__init__()
        self.gate_up, self.down = gate_up, down
        self.num_touched = 0  # experts that have run so far, counted once a forward

    def forward(self, x: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
        """x: [R, D]; chosen, weight: [R, S] -> [R, D]."""

        def run(expert: int, rows: Tensor) -> Tensor:
            self.num_touched += 1
            gate, up = F.linear(rows, unpacked(self.gate_up[expert], rows.dtype)).chunk(2, -1)
            return F.linear(F.silu(gate) * up, unpacked(self.down[expert], rows.dtype))

        return by_expert(run, self.down.values.shape[0], x, chosen, weight)

    @property
    def num_weights(self) -> int:
        return self.gate_up.num_weights + self.down.num_weights


@torch.no_grad()
def install(model: Transformer, packed: dict[str, Packed], choose: Choose = plain) -> None:
    """Lets `model` run from packed weights. packed: by parameter name, each one of `is_quantised`.

    A linear for which `choose` gives no product stays an ordinary one, in its own dtype, with what the packed weights
    mean; experts always stay packed.
    """
    stacks: dict[str, dict[str, Packed]] = {}
    for name, matrix in packed.items():
        owner, _, last = name.rpartition(".")
        if last == "weight":
            linear, product = model.get_submodule(owner), choose(matrix)
            if product is None:
                assert isinstance(linear, nn.Linear)
                linear.weight = nn.Parameter(unpacked(matrix, linear.weight.dtype), requires_grad=False)
                continue
            bias = linear.bias
            assert bias is None or isinstance(bias, nn.Parameter)
            model.replace(owner, QuantLinear(matrix, bias, product))
        else:
            stacks.setdefault(owner, {})[last] = matrix
    for owner, pair in stacks.items():
        model.replace(owner, QuantExperts(pair["gate_up_proj"], pair["down_proj"]))
