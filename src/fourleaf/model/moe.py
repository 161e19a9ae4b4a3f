"""Mixture of experts with a shared expert (Qwen3.5's `mlp`), and the coreset that limits one block's experts.

Shapes: R flat rows, D hidden, E experts, F expert width, S experts a row uses (top-k), C canvases.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourleaf.model.config import ModelConfig
from fourleaf.model.layers import MLP
from fourleaf.model.work import Work


class Router(nn.Module):
    """Holds the router's weight under Hugging Face's name (`gate.weight`)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """[R, D] -> logits [R, E]."""
        return F.linear(x, self.weight)


class Experts(nn.Module):
    """All experts' weights as two stacked tensors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        num, hidden, width = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(num, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(num, hidden, width))

    def forward(self, x: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
        """x: [R, D]; chosen, weight: [R, S] -> [R, D]."""

        def run(expert: int, rows: Tensor) -> Tensor:
            gate, up = F.linear(rows, self.gate_up_proj[expert]).chunk(2, -1)
            return F.linear(F.silu(gate) * up, self.down_proj[expert])

        return by_expert(run, self.down_proj.shape[0], x, chosen, weight)


def by_expert(
    run: Callable[[int, Tensor], Tensor], num_experts: int, x: Tensor, chosen: Tensor, weight: Tensor
) -> Tensor:
    """Weighted sum of each row's experts. x: [R, D]; chosen, weight: [R, S] -> [R, D].

    Rows are sorted by expert, so `run` (expert, its rows [r, D]) -> [r, D] is called once for each touched expert.
    """
    slots = chosen.flatten()
    order = slots.argsort(stable=True)
    counts = torch.bincount(slots, minlength=num_experts).tolist()
    rows = order // chosen.shape[1]
    parts = [run(expert, part) for expert, part in enumerate(x[rows].split(counts)) if part.shape[0]]
    done = torch.cat(parts) * weight.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, rows, done)


class MixtureOfExperts(nn.Module):
    """Softmax router, top-k, renormalised; plus a sigmoid-gated shared expert."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.gate = Router(config)
        self.experts = Experts(config)
        self.shared_expert = MLP(config.hidden_size, config.shared_expert_intermediate_size)
        self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, x: Tensor, work: Work) -> tuple[Tensor, Tensor]:
        """x: [R, D] -> (out [R, D], router logits [R, E] for the balance loss)."""
        logits = self.gate(x)
        wide = torch.promote_types(x.dtype, torch.float32)
        scores = torch.softmax(logits.to(wide), -1)
        top_k = self.config.num_experts_per_tok
        allowed = scores
        if work.canvas is not None and self.config.coreset_top_p is not None:
            allowed = torch.cat((scores[: work.num_causal], self._in_coreset(scores[work.num_causal :], work)))
        weight, chosen = allowed.topk(top_k, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        shared = torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return self.experts(x, chosen, weight) + shared, logits

    def _in_coreset(self, scores: Tensor, work: Work) -> Tensor:
        """Canvas rows' scores [R, E] with the experts outside their canvas's coreset at minus one."""
        config, canvas = self.config, work.canvas
        assert canvas is not None and config.coreset_top_p is not None
        least = config.coreset_min if config.coreset_min is not None else config.num_experts_per_tok
        keep = coreset(scores, canvas.owner, canvas.num, config.num_experts_per_tok, config.coreset_top_p, least)
        return scores.masked_fill(~keep[canvas.owner], -1.0)


def coreset(scores: Tensor, owner: Tensor, num: int, top_k: int, top_p: float, least: int) -> Tensor:
    """Which experts each canvas may use, [C, E] bool (the rule of dMoE, arXiv 2605.30876).

    scores: [R, E] router probabilities; owner: [R] canvas of each row. Each row votes with its top-k scores; a canvas
    keeps experts in falling order of votes until their share reaches `top_p`, the crossing one included, and never
    fewer than `least`. Only that minimum lets in an expert without a vote, whatever the shares round to.
    """
    best, which = scores.topk(top_k, -1)
    votes = torch.zeros_like(scores).scatter(1, which, best)
    votes = scores.new_zeros(num, scores.shape[1]).index_add(0, owner, votes)
    share, order = (votes / votes.sum(-1, keepdim=True)).sort(dim=-1, descending=True, stable=True)
    before = F.pad(share.cumsum(-1)[:, :-1], (1, 0))
    rank = torch.arange(share.shape[1], device=scores.device)
    keep = ((before < top_p) & (share > 0)) | (rank < least)
    return torch.zeros_like(keep).scatter(1, order, keep)


def balance_loss(router_logits: list[Tensor], top_k: int) -> Tensor:
    """Hugging Face's auxiliary loss (Switch Transformer, eq. 4-6), over all layers' rows: each [R, E] -> scalar."""
    logits = torch.cat(router_logits)
    probability = torch.softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
    chosen = probability.topk(top_k, -1).indices
    num_experts = logits.shape[-1]
    share = torch.bincount(chosen.flatten(), minlength=num_experts).to(probability) / logits.shape[0]
    return num_experts * (share * probability.mean(0)).sum()
