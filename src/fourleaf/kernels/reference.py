"""The plain truth: every formula of the model written as a loop. Fast twins are tested against it, gradients included.

One sequence or one canvas at a time, one row and one head at a time; no batch, no cache, no chunks. Everything runs in
the dtype of its inputs and is differentiable. Nothing outside of tests calls it.

Shapes: T clean rows, N canvas rows, H heads (value heads in a GDN layer), G key heads or key-value heads, K key dim,
V value dim, A head dim of attention, W conv kernel, D channels, E experts, F expert width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fourleaf.kernels.rotary import Llama3Scaling


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), the SiLU of every formula below."""
    return x / (1 + torch.exp(-x))


def softmax(logits: Tensor) -> Tensor:
    """[S] -> [S], shifted by the greatest logit so that nothing overflows."""
    powers = torch.exp(logits - logits.max().detach())
    return powers / powers.sum()


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """[D] -> [D]. x / sqrt(mean(x²) + eps) * gain; gain: 1 + weight in Qwen3.5's zero-centred norm."""
    return x / torch.sqrt((x * x).mean() + eps) * gain


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[V] -> [V]. The norm behind a GDN read-out: x / sqrt(mean(x²) + eps) * weight * SiLU(gate)."""
    return x / torch.sqrt((x * x).mean() + eps) * weight * silu(gate)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """[K] -> [K]: x / sqrt(sum(x²) + eps), as FLA and `transformers` normalise q and k."""
    return x / torch.sqrt((x * x).sum() + eps)


def frequency(pair: int, theta: float, dims: int, scaling: Llama3Scaling | None) -> float:
    """Radians a position of dims `pair` and pair + dims/2: theta^(-2 pair / dims), slowed down by Llama 3.1's rule."""
    once = theta ** (-2 * pair / dims)
    if scaling is None:
        return once
    turns = scaling.original_max_position_embeddings * once / (2 * math.pi)
    if turns > scaling.high_freq_factor:
        return once
    if turns < scaling.low_freq_factor:
        return once / scaling.factor
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - share) * once / scaling.factor + share * once


def rotate(x: Tensor, position: int, theta: float, dims: int, scaling: Llama3Scaling | None = None) -> Tensor:
    """RoPE on the first `dims` of x [A]: dims i and i + dims/2 are a point, turned by position * frequency(i)."""
    turned = list(x)
    half = dims // 2
    for i in range(half):
        angle = position * frequency(i, theta, dims, scaling)
        turned[i] = x[i] * math.cos(angle) - x[half + i] * math.sin(angle)
        turned[half + i] = x[half + i] * math.cos(angle) + x[i] * math.sin(angle)
    return torch.stack(turned)


def attend(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """One row over the keys that it may see. q: [H, A]; keys, values: each [G, A], H/G heads share one. -> [H, A]."""
    num_heads, dim = q.shape
    out = []
    for h in range(num_heads):
        group = h // (num_heads // keys[0].shape[0])
        share = softmax(torch.stack([q[h] @ key[group] for key in keys]) / math.sqrt(dim))
        out.append(sum_of([share[s] * value[group] for s, value in enumerate(values)]))
    return torch.stack(out)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Row t sees rows 0..t. q: [T, H, A]; k, v: [T, G, A]. -> [T, H, A]."""
    return torch.stack([attend(q[t], list(k[: t + 1]), list(v[: t + 1])) for t in range(q.shape[0])])


def canvas_attention(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Every canvas row sees the whole history and its whole block. q: [N, H, A]; k, v: [N, G, A]; keys, values:
    [T, G, A], the committed ones. -> [N, H, A]."""
    return torch.stack([attend(row, [*keys, *k], [*values, *v]) for row in q])


def causal_conv(tail: Tensor, x: Tensor, taps: Tensor) -> Tensor:
    """out_t = Σ_{j=0..W-1} w_j x_{t-W+1+j}. tail: [W-1, D], the rows before x: [T, D]; taps: [D, W]. -> [T, D]."""
    width = taps.shape[1]
    rows = [*tail, *x]  # rows[W-1+t] is x_t
    return torch.stack([sum_of([taps[:, j] * rows[t + j] for j in range(width)]) for t in range(x.shape[0])])


def canvas_conv(tail: Tensor, x: Tensor, taps: Tensor, right: Tensor) -> Tensor:
    """out_t = Σ_{j=0..W-1} w_j x_{t-W+1+j} + Σ_{d=1..W-1, t+d<N} r_d x_{t+d}.

    tail: [W-1, D], committed; x: [N, D]; taps: [D, W]; right: [D, W-1], r_d at index d-1. -> [N, D].
    """
    num_rows = x.shape[0]
    out = list(causal_conv(tail, x, taps))
    for t in range(num_rows):
        for d in range(1, right.shape[1] + 1):
            if t + d < num_rows:
                out[t] = out[t] + right[:, d - 1] * x[t + d]
    return torch.stack(out)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The gated delta rule (Gated Delta Networks, arXiv 2412.06464), row by row:

        S <- exp(g_t) S;   S <- S + k_t (β_t (v_t - k_t S));   o_t = q_t S

    q, k: [T, H, K], normalised, q scaled; v: [T, H, V]; g, beta: [T, H]; state: [H, K, V].
    -> (o [T, H, V], T+1 states [H, K, V]: entry t is the state before row t).
    """
    states, outs = [state], []
    for t in range(q.shape[0]):
        heads, reads = [], []
        for h in range(q.shape[1]):
            matrix = torch.exp(g[t, h]) * states[t][h]
            error = v[t, h] - k[t, h] @ matrix
            matrix = matrix + torch.outer(k[t, h], beta[t, h] * error)
            heads.append(matrix)
            reads.append(q[t, h] @ matrix)
        states.append(torch.stack(heads))
        outs.append(torch.stack(reads))
    return torch.stack(outs), states


def split_heads(u: Tensor, num_key_heads: int, num_heads: int, key_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """One row after convolution and SiLU, [2 G K + H V]: queries, keys, values one after another. q and k are
    L2-normalised, and key head h // (H/G) serves value head h. -> q, k [H, K], v [H, V]."""
    width = num_key_heads * key_dim
    queries, keys = u[:width].view(num_key_heads, key_dim), u[width : 2 * width].view(num_key_heads, key_dim)
    owner = [h // (num_heads // num_key_heads) for h in range(num_heads)]
    q = torch.stack([l2_norm(queries[g]) for g in owner])
    k = torch.stack([l2_norm(keys[g]) for g in owner])
    return q, k, u[2 * width :].view(num_heads, -1)


def history_read(q: Tensor, state: Tensor, g: Tensor, readout_scale: str, history_decay: str) -> Tensor:
    """What one head of one canvas row reads from the committed state: (q · K^-1/2) S by default.

    q: [K], normalised, unscaled; state: [K, V]; g: scalar, the row's log decay. `readout_scale` "key_dim" or "none";
    `history_decay` "none", or "row": S is decayed by this row's gate first. -> [V].
    """
    if readout_scale == "key_dim":
        q = q / math.sqrt(q.shape[0])
    if history_decay == "row":
        state = torch.exp(g) * state
    return q @ state


def block_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    read: Tensor,
    logit_scale: Tensor,
    history_bias: Tensor,
    history_c: Tensor,
    full: int,
) -> Tensor:
    """Each canvas row's share of the history slot and of all rows of its block, both directions (design, section 3):

        ℓ_ts = a_h q_t·k_s      ℓ_tH = b_h + c_h ln(N / full)      o_t = p_tH read_t + Σ_s p_ts v_s

    q, k: [N, H, K], normalised, unscaled; v, read: [N, H, V]; logit_scale (a), history_bias (b), history_c (c): [H];
    full: rows of a whole block. -> [N, H, V].
    """
    num_rows, num_heads = q.shape[:2]
    out = []
    for t in range(num_rows):
        heads = []
        for h in range(num_heads):
            slot = history_bias[h] + history_c[h] * math.log(num_rows / full)
            inside = [logit_scale[h] * (q[t, h] @ k[s, h]) for s in range(num_rows)]
            share = softmax(torch.stack([slot, *inside]))
            seen = [share[1 + s] * v[s, h] for s in range(num_rows)]
            heads.append(share[0] * read[t, h] + sum_of(seen))
        out.append(torch.stack(heads))
    return torch.stack(out)


def canvas_mixer(
    qkv: tuple[Tensor, Tensor, Tensor],
    gates: tuple[Tensor, Tensor],
    state: Tensor,
    softmax_weights: tuple[Tensor, Tensor, Tensor],
    full: int,
    *,
    readout_scale: str = "key_dim",
    history_decay: str = "none",
    value_beta: str = "none",
) -> Tensor:
    """A GDN layer's canvas rows: history read, then block softmax, with the choices that the public record leaves open.

    qkv: q, k [N, H, K], normalised, unscaled, v [N, H, V]; gates: log decay g and beta, [N, H] each; state: [H, K, V];
    softmax_weights: logit_scale, history_bias, history_c, [H] each. `value_beta` "row": values enter times their row's
    beta; "none": as they are. -> [N, H, V].
    """
    q, k, v = qkv
    g, beta = gates
    num_rows, num_heads = q.shape[:2]
    read = torch.stack(
        [
            torch.stack(
                [history_read(q[t, h], state[h], g[t, h], readout_scale, history_decay) for h in range(num_heads)]
            )
            for t in range(num_rows)
        ]
    )
    if value_beta == "row":
        v = beta[:, :, None] * v
    return block_softmax(q, k, v, read, *softmax_weights, full)


def coreset(scores: Tensor, top_k: int, top_p: float, least: int) -> set[int]:
    """The experts that one canvas may use (dMoE, arXiv 2605.30876). scores: [N, E], router probabilities.

    Every row votes with its top-k scores; experts are kept in falling order of votes until their share of all votes
    reaches `top_p`, the crossing one included, and at least `least` of them.
    """
    num_experts = scores.shape[1]
    votes = [0.0] * num_experts
    for row in scores.tolist():
        for expert in best(row, range(num_experts), top_k):
            votes[expert] += row[expert]
    kept: set[int] = set()
    share = 0.0
    for expert in best(votes, range(num_experts), num_experts):
        if len(kept) >= least and (share >= top_p or votes[expert] == 0):
            break
        kept.add(expert)
        share += votes[expert] / sum(votes)
    return kept


def best(scores: Sequence[float], among: Sequence[int] | set[int], count: int) -> list[int]:
    """The `count` indices of `among` with the highest scores, falling; the lower index first where they are equal."""
    return sorted(among, key=lambda i: (-scores[i], i))[:count]


def mixture(x: Tensor, logits: Tensor, allowed: set[int], top_k: int, gate_up: Tensor, down: Tensor) -> Tensor:
    """One row's routed experts: softmax over all experts, top-k of the allowed ones, weights renormalised.

    x: [D]; logits: [E], the router's; gate_up: [E, 2F, D]; down: [E, D, F]. -> [D].
    """
    scores = softmax(logits)
    chosen = best(scores.tolist(), allowed, top_k)
    total = sum_of([scores[e] for e in chosen])
    return sum_of([scores[e] / total * expert(x, gate_up[e], down[e]) for e in chosen])


def expert(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One SwiGLU MLP on one row. x: [D]; gate_up: [2F, D], gate rows first; down: [D, F]. -> [D]."""
    gate, up = (gate_up @ x).chunk(2)
    return down @ (silu(gate) * up)


def balance_loss(logits: Tensor, top_k: int) -> Tensor:
    """E Σ_e f_e P_e over rows [R, E]: f_e rows that choose expert e per row, P_e its mean probability (Switch
    Transformer, arXiv 2101.03961, equations 4 to 6, in `transformers`' form)."""
    num_rows, num_experts = logits.shape
    scores = [softmax(row) for row in logits]
    chosen = [best(row.tolist(), range(num_experts), top_k) for row in scores]
    terms = []
    for e in range(num_experts):
        share = sum(e in row for row in chosen) / num_rows
        terms.append(share * sum_of([row[e] for row in scores]) / num_rows)
    return num_experts * sum_of(terms)


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """Adds tensors from left to right."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
