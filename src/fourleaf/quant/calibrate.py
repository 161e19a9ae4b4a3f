"""Levels chosen so that a layer's *outputs* change least, on rows that the layer really sees.

GPTQ (Frantar et al. 2023, arXiv 2210.17323, algorithm 1), which is Optimal Brain Surgeon with a fixed order of columns.
For one matrix W [O, I] and calibration rows X [R, I], the squared error of the outputs, |X (W - Q)^T|^2, has the
Hessian H = X^T X for every row of W alike. With U the upper Cholesky factor of (H + damping)^-1, columns j are rounded
in turn, and what rounding one of them did to the outputs is made good by those not yet rounded:

    q_j = nearest level of w_j        e = (w_j - q_j) / U_jj        w_k <- w_k - e U_jk     for all k after j

Three choices of ours:
  grid      steps and zero points come from the weights as they were, each group's the best of a few (`trial`). The
            files of both methods are read alike.
  order     columns in falling order of H_jj, the most active first, while all others can still make up for them; ties
            in their own order. Steps are fixed beforehand, so the order leaves no trace in the file.
  damping   1% of the mean of H's diagonal is added to it. A column that no row ever used then neither gives nor takes,
            and where no row came at all (an expert that was never chosen) the result is round-to-nearest.

Layers are calibrated from first to last, each on rows that have passed through the quantised ones before it. Rows of
both paths count alike: what `Work`s the caller makes decides how many are clean and how many lie in canvases.

Shapes: R flat rows, I inputs, O outputs, D hidden, E experts, F expert width, S experts a row uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourleaf.model.layers import Replacement
from fourleaf.model.moe import Experts, by_expert
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Work
from fourleaf.quant.int4 import SYMMETRIC_ZERO, Int4Config, Packed, nearest, pack, quantise
from fourleaf.quant.linear import install, is_quantised
from fourleaf.quant.trial import grid_by_trial

DAMPING = 0.01
# Columns after which what they owe the rest is settled in one product; the result does not depend on it.
_BLOCK = 64


def calibrate(
    model: Transformer,
    works: Iterable[Work],
    config: Int4Config,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Packed]:
    """Packed weights by parameter name, for every parameter that `config` packs; `model` runs from them afterwards.

    works: forwards without a state, as training makes them. `progress` is told (layers done, layers in all).
    Each layer runs twice on every work: once to see its inputs, once more, quantised, for the next layer's. In memory:
    the rows of all works [R, D], and for one layer a matrix [I, I] in fp64 for each linear and each expert.
    """
    found: dict[str, Packed] = {}
    works = list(works)
    model.requires_grad_(False)
    with torch.enable_grad():  # nothing wants a gradient; this is the path that calls linears as modules
        rows = [model.begin(work) for work in works]
        for index, layer in enumerate(model.model.layers):
            watched = _watch(model, f"model.layers.{index}", config.plain_layers)
            for work, (x, angles) in zip(works, rows, strict=True):
                layer(x, work, angles, None)
            packed = {name: part for owner, seen in watched.items() for name, part in seen.solve(owner, config)}
            install(model, packed)
            rows = [(layer(x, work, angles, None)[0], angles) for work, (x, angles) in zip(works, rows, strict=True)]
            found |= packed
            if progress is not None:
                progress(index + 1, len(model.model.layers))
    return found


def solve(weight: Tensor, hessian: Tensor, config: Int4Config) -> Packed:
    """GPTQ of one matrix. weight: [O, I]; hessian: X^T X, [I, I], of the rows X that it will multiply."""
    activity = hessian.diagonal().double()
    if not bool(activity.any()):
        return quantise(weight, config)
    width, wide = weight.shape[1], torch.promote_types(weight.dtype, torch.float32)
    order = activity.argsort(descending=True, stable=True)
    damped = hessian.double() + torch.eye(width, dtype=torch.float64) * (DAMPING * activity.mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped[order][:, order]))
    upper = torch.linalg.cholesky(inverse, upper=True).to(wide)
    scales, zeros = grid_by_trial(weight.to(wide), activity, config)
    group = order // config.group_size
    step = scales.to(wide)[:, group]
    zero = torch.full_like(step, SYMMETRIC_ZERO) if zeros is None else zeros.to(wide)[:, group]
    levels = torch.empty(weight.shape, dtype=torch.uint8)
    levels[:, order] = _in_turn(weight.to(wide)[:, order], upper, step, zero)
    return Packed(pack(levels), scales, zeros, width, config.group_size)


def _in_turn(weight: Tensor, upper: Tensor, step: Tensor, zero: Tensor) -> Tensor:
    """Levels [O, I] of columns that are rounded from left to right. weight, step, zero: [O, I]; upper: [I, I]."""
    width = weight.shape[1]
    weight, levels = weight.clone(), torch.empty(weight.shape, dtype=torch.uint8)
    for begin in range(0, width, _BLOCK):
        end = min(begin + _BLOCK, width)
        errors = weight.new_empty(weight.shape[0], end - begin)
        for j in range(begin, end):
            levels[:, j] = nearest(weight[:, j], step[:, j], zero[:, j])
            became = (levels[:, j] - zero[:, j]) * step[:, j]
            errors[:, j - begin] = error = (weight[:, j] - became) / upper[j, j]
            weight[:, j + 1 : end].addr_(error, upper[j, j + 1 : end], alpha=-1)
        weight[:, end:].addmm_(errors, upper[begin:end, end:], alpha=-1)
    return levels


def _watch(model: Transformer, layer: str, plain_layers: int) -> dict[str, _SeenLinear | _SeenExperts]:
    """Puts a recorder in the place of each module of a layer that will be quantised, by its name."""
    found: dict[str, _SeenLinear | _SeenExperts] = {}
    for name, module in list(model.get_submodule(layer).named_modules(prefix=layer)):
        if isinstance(module, Experts):
            found[name] = _SeenExperts(module)
        elif isinstance(module, nn.Linear) and is_quantised(f"{name}.weight", plain_layers):
            found[name] = _SeenLinear(module)
    for name, seen in found.items():
        model.replace(name, seen)
    return found


class _SeenLinear(Replacement):
    """A linear that keeps the Hessian of the rows that it was given."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear, self.bias = linear, linear.bias
        self.hessian = torch.zeros(linear.in_features, linear.in_features, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        _add(self.hessian, x)
        return self.linear(x)

    @property
    def num_weights(self) -> int:
        return 0

    def solve(self, owner: str, config: Int4Config) -> Iterable[tuple[str, Packed]]:
        yield f"{owner}.weight", solve(self.linear.weight, self.hessian, config)


class _SeenExperts(Replacement):
    """A layer's experts, each with the Hessians of the rows that were sent to it."""

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        self.experts = experts
        num, hidden, width = experts.down_proj.shape
        self.into = torch.zeros(num, hidden, hidden, dtype=torch.float64)
        self.between = torch.zeros(num, width, width, dtype=torch.float64)

    def forward(self, x: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
        def run(expert: int, rows: Tensor) -> Tensor:
            _add(self.into[expert], rows)
            gate, up = F.linear(rows, self.experts.gate_up_proj[expert]).chunk(2, -1)
            inner = F.silu(gate) * up
            _add(self.between[expert], inner)
            return F.linear(inner, self.experts.down_proj[expert])

        return by_expert(run, len(self.into), x, chosen, weight)

    @property
    def num_weights(self) -> int:
        return 0

    def solve(self, owner: str, config: Int4Config) -> Iterable[tuple[str, Packed]]:
        for last, hessians in (("gate_up_proj", self.into), ("down_proj", self.between)):
            weights = getattr(self.experts, last)
            yield f"{owner}.{last}", _stack([solve(w, h, config) for w, h in zip(weights, hessians, strict=True)])


def _add(hessian: Tensor, x: Tensor) -> None:
    """hessian += x^T x, in place. x: [R, I]."""
    wide = x.double()
    hessian.addmm_(wide.t(), wide)


def _stack(parts: list[Packed]) -> Packed:
    values, scales = (torch.stack([getattr(p, field) for p in parts]) for field in ("values", "scales"))
    zeros = None if parts[0].zeros is None else torch.stack([p.zeros for p in parts if p.zeros is not None])
    return Packed(values, scales, zeros, parts[0].width, parts[0].group_size)
