"""Full attention: rotary, grouped key-value heads; with Qwen3.5's output gate and QK norm where the config has them.

Shapes: R flat rows, B sequences, T rows, C canvases, N canvas rows, H heads, G key-value heads, A head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourleaf.kernels import serving
from fourleaf.kernels.products import Product
from fourleaf.model.config import ModelConfig
from fourleaf.model.layers import Derived, Fused, RMSNorm, rotate
from fourleaf.model.state import AttentionCache, of_canvases
from fourleaf.model.work import Work


class Attention(nn.Module):
    """Causal rows see what lies before them; canvas rows see their history and all rows of their block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, config.attention_bias
        qkv_bias, gates = bias or config.qkv_bias, int(config.attn_output_gate)
        self.num_heads, self.num_groups, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = nn.Linear(hidden, self.num_heads * self.head_dim * (1 + gates), bias=qkv_bias)
        self.k_proj = nn.Linear(hidden, self.num_groups * self.head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(hidden, self.num_groups * self.head_dim, bias=qkv_bias)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, hidden, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, config) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config) if config.qk_norm else None
        self.runs = [self.num_heads + self.num_groups, *[self.num_heads] * gates, self.num_groups]
        self.fused = Fused(self.q_proj, self.k_proj, self.v_proj)
        self.joined = Derived(self._join)

    def forward(self, x: Tensor, work: Work, angles: tuple[Tensor, ...], cache: AttentionCache | None) -> Tensor:
        """x: [R, D] -> [R, D]. `cache` takes the causal rows' keys and values; None in training: all starts are 0."""
        rows, split = x.shape[0], work.num_causal
        serves = not torch.is_grad_enabled()
        q, k, v, gate = self._heads_at_once(x, angles) if serves else self._heads(x, angles)
        outs: list[Tensor] = []
        past: tuple[Tensor, Tensor] | None = None
        if split:
            own = (q, k, v) if split == rows else (q[:split], k[:split], v[:split])
            if cache is not None:
                cache.extend(own[1], own[2], work)
            for run in work.runs:
                # Behind a cache the rows' own keys and values are read from there, with those before them.
                q_c, *past_c = (run.segments.pad(run.rows(t)).transpose(1, 2) for t in own[: 3 if cache is None else 1])
                past = (past_c[0], past_c[1]) if cache is None else cache.of_run(run)
                out = _attend(q_c, *past, run.mask, is_causal=run.is_fresh)
                outs.append(run.segments.unpad(out.transpose(1, 2)))
        if work.canvas is not None:
            q_n, k_n, v_n = (work.canvas.pad(t[split:]).transpose(1, 2) for t in (q, k, v))
            if cache is not None:
                keys, values = cache.of_canvases(work)
            else:
                assert past is not None, "canvases without causal rows need a committed history"
                keys, values = (of_canvases(t, work) for t in past)
            out = _attend(q_n, torch.cat((keys, k_n), 2), torch.cat((values, v_n), 2), work.canvas_mask)
            outs.append(work.canvas.unpad(out.transpose(1, 2)))
        mixed = outs[0] if len(outs) == 1 else torch.cat(outs)
        if gate is not None:
            mixed = mixed * torch.sigmoid(gate)
        mixed = mixed.reshape(rows, -1)
        return self.joined().out(mixed) if serves else self.o_proj(mixed)

    def _heads(self, x: Tensor, angles: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """[R, D] -> q [R, H, A], k and v [R, G, A], gate [R, H, A] or None."""
        rows, dim = x.shape[0], self.head_dim
        if self.q_proj.bias is None:
            q_gate, k, v = self.fused(x)
        else:
            q_gate, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, *gate = q_gate.view(rows, self.num_heads, -1).split(dim, -1)
        k = k.view(rows, self.num_groups, dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, (angles[0], angles[1])), rotate(k, (angles[0], angles[1]))
        return q, k, v.view(rows, self.num_groups, dim), gate[0] if gate else None

    def _join(self) -> _Joined:
        heads, dim = self.num_heads, self.head_dim

        def order(q_gate: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, *gate = (part.flatten(0, 1) for part in q_gate.detach().unflatten(0, (heads, -1)).split(dim, 1))
            return torch.cat((q, k.detach(), *gate, v.detach()))

        weight = order(self.q_proj.weight, self.k_proj.weight, self.v_proj.weight)
        bias = self.q_proj.bias
        if bias is not None:
            bias = order(bias, self.k_proj.bias, self.v_proj.bias)
        norm = None
        if self.q_norm is not None and self.k_norm is not None:
            (q_gain, eps), (k_gain, _) = self.q_norm.gain(), self.k_norm.gain()
            norm = torch.cat((q_gain.expand(heads, dim), k_gain.expand(self.num_groups, dim))), eps
        return _Joined(Product(weight, bias, by_columns=True), norm, Product(self.o_proj.weight, self.o_proj.bias))

    def _heads_at_once(self, x: Tensor, angles: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """`_heads` in fewer operations, without gradients."""
        joined = self.joined()
        flat = joined.heads(x).view(x.shape[0], -1, self.head_dim)
        qk, *gate, v = flat.split_with_sizes(self.runs, 1)
        if joined.norm is not None:
            qk = serving.rms_norm(qk, *joined.norm)
        turned = serving.rotate(qk, (angles[0], angles[1], angles[2]))
        q, k = turned.split_with_sizes((self.num_heads, self.num_groups), 1)
        return q, k, v, gate[0] if gate else None


class _Joined(NamedTuple):
    """What serving derives from a layer's parameters: one product whose outputs are q, k, gate, v, so that q and k are
    normed and turned as one; the gains of both norms, [H+G, A], and their eps; the output's product."""

    heads: Product
    norm: tuple[Tensor, Tensor] | None
    out: Product


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, is_causal: bool = False) -> Tensor:
    """[B, H, T, A] over [B, G, keys, A]. `is_causal` holds only where queries and keys start together."""
    causal = is_causal and mask is None and q.shape[2] > 1
    grouped = q.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=grouped)
