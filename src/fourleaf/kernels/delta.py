"""The gated delta rule, chunk by chunk: what runs. `reference.delta_rule` is its plain twin.

Shapes: B sequences, T rows, H value heads, K key dim, V value dim, C state reads, L rows of a chunk.

Within a chunk the rule is a triangular system (the UT transform of "Parallelizing Linear Transformers with the Delta
Rule", arXiv 2406.06484, with the decay of "Gated Delta Networks", arXiv 2412.06464):

    (I + tril(beta k k^T * decay, -1)) [new | erased] = beta [v | k exp(G)]        G: running sum of g in the chunk
    written = new - erased S          o = (q exp(G)) S + tril(q k^T * decay) written
    S      <- S exp(G_L) + (k exp(G_L - G))^T written
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32
# Up to this many rows chunks run one after another in serving; more of them are solved side by side.
_FEW = 2 * CHUNK


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, reads: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Runs the rule over T rows from `state`; also gives the state as it was before chosen rows.

    q, k: [B, T, H, K], normalised, q scaled. v: [B, T, H, V]. g, beta: [B, T, H]; rows with g = beta = 0 (padding)
    leave the state as it is. state: [B, H, K, V]. reads: (sequence [C], row offset [C], 0..T).
    Returns (out [B, T, H, V], state after row T [B, H, K, V], states at the reads [C, H, K, V] or None).
    """
    if q.shape[1] == 1 and reads is None:
        out, state = _step(q, k, v, g, beta, state)
        return out, state, None
    if q.shape[1] <= _FEW and reads is None and not torch.is_grad_enabled():
        outs = []
        pieces = (x.tensor_split(-(-q.shape[1] // CHUNK), 1) for x in (q, k, v, g, beta))
        for q_c, k_c, v_c, g_c, beta_c in zip(*pieces, strict=True):
            out, state = _chunk(q_c, k_c, v_c, g_c, beta_c, state)
            outs.append(out)
        return outs[0] if len(outs) == 1 else torch.cat(outs, 1), state, None
    num_rows, length = q.shape[1], min(q.shape[1], CHUNK)
    num_chunks = -(-num_rows // length)
    pad = num_chunks * length - num_rows
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)) for x in (q, k, v))
        g, beta = (F.pad(x, (0, 0, 0, pad)) for x in (g, beta))
    q, k, v = (_chunks(x, length) for x in (q, k, v))
    total = g.unflatten(1, (num_chunks, length)).permute(0, 3, 1, 2).cumsum(-1)  # [B, H, c, L]
    beta = beta.unflatten(1, (num_chunks, length)).permute(0, 3, 1, 2).unsqueeze(-1)

    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(_later(length, q.device), float("-inf")).exp()
    growth = total.unsqueeze(-1).exp()
    k_beta = k * beta
    system = (k_beta @ k.transpose(-1, -2)) * decay  # its diagonal is ignored: unitriangular
    solved = torch.linalg.solve_triangular(
        system, torch.cat((v * beta, k_beta * growth), -1), upper=False, unitriangular=True
    )
    new, erased = solved.split((v.shape[-1], k.shape[-1]), -1)
    inside = (q @ k.transpose(-1, -2)) * decay
    q_read = q * growth
    k_write = k * (total[..., -1:] - total).exp().unsqueeze(-1)
    keep = growth[..., -1:, :]

    outs, states, writes = [], [state], []
    parts = (x.unbind(2) for x in (new, erased, q_read, inside, k_write.transpose(-1, -2), keep))
    for new_c, erased_c, q_c, inside_c, k_c, keep_c in zip(*parts, strict=True):
        written = new_c - erased_c @ state
        outs.append(q_c @ state + inside_c @ written)
        state = state * keep_c + k_c @ written
        states.append(state)
        writes.append(written)
    out = torch.cat(outs, 2).transpose(1, 2)[:, :num_rows]
    read = None if reads is None else _read(reads, states, k, torch.stack(writes, 2), total)
    return out, state, read


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # training uses the same ones
def _later(length: int, device: torch.device) -> Tensor:
    """[L, L] bool, True where a column comes after its row."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def _chunks(x: Tensor, length: int) -> Tensor:
    """[B, T, H, D] -> [B, H, chunks, L, D]."""
    return x.unflatten(1, (-1, length)).permute(0, 3, 1, 2, 4).contiguous()


def _step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One row: the recurrence itself."""
    batch, _, heads, width = v.shape
    # Heads of all sequences side by side, [B*H, 1, D]: batched products of three dimensions start fastest.
    q, k, v = (x.reshape(batch * heads, 1, -1) for x in (q, k, v))
    kept = state.flatten(0, 1) * g.reshape(-1, 1, 1).exp()
    written = torch.baddbmm(v, k, kept, alpha=-1) * beta.reshape(-1, 1, 1)
    state = torch.addcmul(kept, k.transpose(1, 2), written)
    return torch.bmm(q, state).view(batch, 1, heads, width), state.view(batch, heads, -1, width)


def _chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk of any length without gradients, in as few operations as there are. The state is read before the
    system is solved: `new - erased S` at once."""
    batch, rows, heads, width = v.shape
    q, k, v, g, beta = (
        x.transpose(1, 2).reshape(batch * heads, rows, -1) for x in (q, k, v, g.unsqueeze(-1), beta.unsqueeze(-1))
    )
    state = state.flatten(0, 1)
    total = g.cumsum(1)  # [B*H, L, 1]
    decay = (total - total.transpose(1, 2)).masked_fill_(_later(rows, q.device), float("-inf")).exp_()
    growth, k_beta, k_columns = total.exp(), k * beta, k.transpose(1, 2)
    system = torch.bmm(k_beta, k_columns).mul_(decay)
    wanted = torch.baddbmm(v * beta, k_beta.mul_(growth), state, alpha=-1)
    written = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    out = torch.bmm(q * growth, state).baddbmm_(torch.bmm(q, k_columns).mul_(decay), written)
    last = total[:, -1:]
    k_write = (last - total).exp_().mul(k)
    state = torch.baddbmm(state * last.exp(), k_write.transpose(1, 2), written)
    return out.view(batch, heads, rows, width).transpose(1, 2), state.view(batch, heads, -1, width)


def delta_state(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """The state behind T rows, one chunk of any length, and nothing else: `delta_rule` without a question. Shapes as
    there."""
    batch, rows, heads, width = v.shape
    k, v, g, beta = (
        x.transpose(1, 2).reshape(batch * heads, rows, -1) for x in (k, v, g.unsqueeze(-1), beta.unsqueeze(-1))
    )
    state = state.flatten(0, 1)
    total = g.cumsum(1)
    decay = (total - total.transpose(1, 2)).masked_fill_(_later(rows, k.device), float("-inf")).exp_()
    k_beta = k * beta
    system = torch.bmm(k_beta, k.transpose(1, 2)).mul_(decay)
    wanted = torch.baddbmm(v * beta, k_beta.mul_(total.exp()), state, alpha=-1)
    written = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    last = total[:, -1:]
    k_write = (last - total).exp_().mul(k)
    return torch.baddbmm(state * last.exp(), k_write.transpose(1, 2), written).view(batch, heads, -1, width)


def _read(reads: tuple[Tensor, Tensor], states: list[Tensor], k: Tensor, written: Tensor, total: Tensor) -> Tensor:
    """The state before row `offset` of each read: the chunk's first state plus what the chunk's earlier rows wrote."""
    seq, offset = reads
    length = k.shape[-2]
    chunk = torch.div(offset, length, rounding_mode="floor")
    row = offset - chunk * length
    base = torch.stack(states, 1)[seq, chunk]  # [C, H, K, V]
    inner = chunk.clamp(max=k.shape[2] - 1)  # offset T at a chunk's end has row 0: nothing is added
    k, written, total = k[seq, :, inner], written[seq, :, inner], total[seq, :, inner]
    last = total.gather(-1, (row - 1).clamp(min=0)[:, None, None].expand(-1, total.shape[1], 1))  # [C, H, 1]
    before = (torch.arange(length, device=row.device) < row[:, None])[:, None]  # [C, 1, L]
    weight = (last - total).masked_fill(~before, float("-inf")).exp().unsqueeze(-1)
    keep = torch.where(row > 0, 1.0, 0.0).to(last)[:, None, None] * last
    return base * keep.exp().unsqueeze(-1) + (k * weight).transpose(-1, -2) @ written
