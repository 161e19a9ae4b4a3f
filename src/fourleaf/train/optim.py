"""Muon for matrices, AdamW for the rest, behind one step.

torch.optim.Muon orthogonalises in bf16, which this project's CPUs only emulate (170 ms for a 512 x 192 matrix against
7 ms here, decision 003), and takes 2-D parameters alone; so the few lines of Muon live here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Keller Jordan's quintic (https://kellerjordan.github.io/posts/muon): singular values end within 0.7..1.2.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised: steps of equal size in every direction of a matrix (or of each of a stack)."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                buffer = state["momentum_buffer"].lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(buffer, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5)


def orthogonalise(x: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz towards U V^T of x = U S V^T. x: [..., M, N] -> the same shape."""
    a, b, c = _NEWTON_SCHULZ
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def uses_muon(name: str, parameter: nn.Parameter) -> bool:
    """Matrices inside layers, if wide enough to have directions; not embeddings, norms, convolutions, routers."""
    if "embed_tokens" in name or "lm_head" in name or "conv" in name or name.endswith("mlp.gate.weight"):
        return False
    return parameter.ndim >= 2 and min(parameter.shape[-2:]) >= 16


class Optimizers:
    """Both optimisers; `learning_rate` sets this step's rates."""

    def __init__(self, model: nn.Module, weight_decay: float = 0.0) -> None:
        named = list(model.named_parameters())
        self.names = {p: name for name, p in named}
        matrices = [p for name, p in named if uses_muon(name, p)]
        rest = [p for name, p in named if not uses_muon(name, p)]
        assert len(matrices) + len(rest) == len(named)
        self.muon = Muon(matrices, lr=0.0, weight_decay=weight_decay)
        self.adamw = torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)

    def learning_rate(self, muon: float, adamw: float) -> None:
        for optimizer, rate in ((self.muon, muon), (self.adamw, adamw)):
            for group in optimizer.param_groups:
                group["lr"] = rate

    def step(self) -> None:
        self.muon.step()
        self.adamw.step()

    def zero_grad(self) -> None:
        self.muon.zero_grad(set_to_none=True)
        self.adamw.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """All running averages by "<parameter>:<key>", for a checkpoint."""
        return {
            f"{self.names[p]}:{key}": value
            for optimizer in (self.muon, self.adamw)
            for p, state in optimizer.state.items()
            for key, value in state.items()
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        by_name = {name: p for p, name in self.names.items()}
        for full, value in tensors.items():
            name, key = full.rsplit(":", 1)
            if name in by_name:  # tensors that a conversion dropped have no place
                p = by_name[name]
                owner = self.muon if uses_muon(name, p) else self.adamw
                owner.state[p][key] = value.clone()
