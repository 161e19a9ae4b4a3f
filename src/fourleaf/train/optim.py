"""AdamW over a model, its averages readable by parameter name for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fourleaf.errors import CheckpointError

# Scalars of the block softmax are logits: where they belong lies several units from where they start, while an entry
# of a matrix moves by hundredths.
_LOGITS = "bd_softmax_"
_LOGIT_RATE = 10.0


class Optimizer:
    """Matrices decay, vectors (norms, biases, heads' scalars) do not; the block softmax's scalars move faster."""

    def __init__(self, model: nn.Module, weight_decay: float) -> None:
        named = list(model.named_parameters())
        self._names: dict[Tensor, str] = {p: name for name, p in named}
        matrices = [p for _, p in named if p.ndim >= 2]
        vectors = [p for name, p in named if p.ndim < 2 and _LOGITS not in name]
        logits = [p for name, p in named if _LOGITS in name]
        groups = [
            {"params": matrices, "weight_decay": weight_decay, "factor": 1.0},
            {"params": vectors, "weight_decay": 0.0, "factor": 1.0},
            {"params": logits, "weight_decay": 0.0, "factor": _LOGIT_RATE},
        ]
        self._inner = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98))

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step."""
        for group in self._inner.param_groups:
            group["lr"] = rate * group["factor"]

    def step(self) -> None:
        """Moves the parameters and clears their gradients."""
        self._inner.step()
        self._inner.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """All running averages and step counts by "<parameter>:<key>"."""
        states = self._inner.state.items()
        return {f"{self._names[p]}:{key}": value for p, state in states for key, value in state.items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`; parameters without an entry start anew.

        Raises CheckpointError for an average of a parameter that the model lacks, or of another shape.
        """
        parameters = {name: p for p, name in self._names.items()}
        for full, value in tensors.items():
            name, _, key = full.rpartition(":")
            if name not in parameters:
                raise CheckpointError(f"there is an average {key!r} of {name!r}, which the model lacks")
            expected = parameters[name].shape
            if key != "step" and value.shape != expected:
                raise CheckpointError(f"{full} has shape {tuple(value.shape)}, expected {tuple(expected)}")
            self._inner.state[parameters[name]][key] = value.clone()
