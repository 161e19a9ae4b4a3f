"""Gated DeltaNet with Clover's block softmax (Qwen3.5's `linear_attn` plus four tensors).

Shapes: R flat rows, B sequences, T rows, C canvases, N canvas rows, H value heads, K key dim, V value dim, W conv
kernel, D conv channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourleaf.kernels import serving
from fourleaf.kernels.canvas import block_softmax, causal_conv, right_conv
from fourleaf.kernels.delta import delta_rule
from fourleaf.kernels.fuse import fusable
from fourleaf.kernels.products import Product
from fourleaf.model.config import ModelConfig
from fourleaf.model.layers import Derived, Fused, GatedRMSNorm
from fourleaf.model.state import Held, Recurrent, fresh_recurrent
from fourleaf.model.work import Run, Segments, Work

_L2_EPS = 1e-6
START_SCALE = 8.0


class DeltaNet(nn.Module):
    """Causal rows run the gated delta rule and write the state; canvas rows read it through the history slot."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.linear_num_value_heads
        self.conv1d = nn.Conv1d(
            config.conv_dim, config.conv_dim, config.linear_conv_kernel_dim, groups=config.conv_dim, bias=False
        )
        self.dt_bias, self.A_log = (nn.Parameter(tensor) for tensor in _gates_start(heads))
        self.norm = GatedRMSNorm(config.linear_value_head_dim, config.rms_norm_eps)
        self.in_proj_qkv = nn.Linear(hidden, config.conv_dim, bias=False)
        self.in_proj_z = nn.Linear(hidden, config.value_dim, bias=False)
        self.in_proj_b = nn.Linear(hidden, heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, heads, bias=False)
        self.out_proj = nn.Linear(config.value_dim, hidden, bias=False)
        self.fused = Fused(self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
        self.constants = Derived(self._constants)
        if config.is_block_diffusion:
            start = {name: nn.Parameter(tensor) for name, tensor in block_softmax_start(config).items()}
            self.conv_right_weight = start["conv_right_weight"]
            self.bd_softmax_logit_scale = start["bd_softmax_logit_scale"]
            self.bd_softmax_history_bias = start["bd_softmax_history_bias"]
            self.bd_softmax_history_c = start["bd_softmax_history_c"]

    def forward(self, x: Tensor, work: Work, cache: Recurrent | None) -> Tensor:
        """x: [R, D] -> [R, D]. `cache` is replaced by the state behind the causal rows; None in training."""
        rows, split = x.shape[0], work.num_causal
        qkv, z, b, a = self.fused(x)
        past = cache or fresh_recurrent(self.config, work.causal.num, x.dtype, x.device)
        outs = []
        matrix, tail, inside = past.matrix, past.tail, None
        if split:
            own = (qkv, a, b) if split == rows else (qkv[:split], a[:split], b[:split])
            out, matrix, tail, inside = self._causal_runs(*own, past, work)
            outs.append(out)
            if cache is not None:
                cache.matrix, cache.tail = matrix, tail
        if work.canvas is not None:
            assert work.reads is not None
            read = inside or (matrix, tail)
            if inside is None and not work.is_aligned:
                read = matrix.index_select(0, work.reads[0]), tail.index_select(0, work.reads[0])
            out = self._canvas(work.canvas.pad(qkv[split:]), read[1], read[0], a[split:], b[split:], work)
            outs.append(work.canvas.unpad(out))
        mixed = outs[0] if len(outs) == 1 else torch.cat(outs)
        mixed, z = _as(mixed, x.dtype), z.view(rows, -1, self.config.linear_value_head_dim)
        if torch.is_grad_enabled():
            return self.out_proj(self.norm(mixed, z).reshape(rows, -1))
        constants = self.constants()
        return constants.out(serving.gated_rms_norm(mixed, z, *constants.gain).reshape(rows, -1))

    def _gates(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Raw gates [R, H] each -> (log decay, beta)."""
        if torch.is_grad_enabled():
            wide = torch.promote_types(a.dtype, torch.float32)
            return -self.A_log.to(wide).exp() * F.softplus(a.to(wide) + self.dt_bias), torch.sigmoid(b)
        constants = self.constants()
        rate = constants.rate
        return F.softplus(_as(a, rate.dtype) + constants.dt_bias).mul_(rate), torch.sigmoid(b)

    def _constants(self) -> _Constants:
        config = self.config
        taps = self.conv1d.weight.detach().squeeze(1)
        both = torch.cat((taps, self.conv_right_weight.detach()), 1) if config.is_block_diffusion else taps
        repeat = config.linear_num_value_heads // config.linear_num_key_heads
        heads = torch.arange(2 * config.linear_num_key_heads, device=taps.device).repeat_interleave(repeat)
        wide = torch.promote_types(taps.dtype, torch.float32)
        rate = -self.A_log.detach().to(wide).exp()
        return _Constants(
            taps.t().contiguous(),
            both.t().contiguous(),
            self.dt_bias.detach(),
            rate,
            heads,
            taps.new_tensor(_L2_EPS),
            self.norm.gain(),
            Product(self.out_proj.weight),
        )

    def _causal_runs(
        self, qkv: Tensor, a: Tensor, b: Tensor, past: Recurrent, work: Work
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """Causal rows [R, D], gates raw [R, H]. -> out [R, H, V]; matrix and tail of each sequence behind them; matrix
        and tail that each canvas reads, where one of them reads between the rows."""
        decay, beta = self._gates(a, b)
        width = past.tail.shape[1]
        outs, matrices, tails, inside, done = [], [], [], None, 0
        for run in work.runs:
            old, tail = run.sequences(past.matrix), run.sequences(past.tail)
            extended = torch.cat((tail, run.segments.pad(run.rows(qkv))), 1)
            out, matrix, read = self._causal(extended, run.rows(decay), run.rows(beta), old, run, work, past)
            outs.append(run.segments.unpad(out))
            if read is not None:
                assert work.reads is not None
                inside = read, _tails(extended[work.reads[0]], work.reads[1], width)
            if run.first > done:
                matrices.append(past.matrix[done : run.first])
                tails.append(past.tail[done : run.first])
            matrices.append(old if run.is_held else matrix)
            tails.append(tail if run.is_held else _last_rows(extended, run.segments, width))
            done = run.end
        if done < work.causal.num:
            matrices.append(past.matrix[done:])
            tails.append(past.tail[done:])
        return _joined(outs), _joined(matrices), _joined(tails), inside

    def _causal(
        self, extended: Tensor, decay: Tensor, beta: Tensor, matrix: Tensor, run: Run, work: Work, past: Recurrent
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """extended: [B, W-1+T, D]; decay, beta: [R, H]. -> out [B, T, H, V], state, states at inner canvas starts."""
        if torch.is_grad_enabled():
            q, k, v = _causal_heads(extended, self.conv1d.weight.squeeze(1), self.config)
        else:
            q, k, v = _heads_at_once(extended, self.constants().taps, self.constants(), self.config)
        q = q * self.config.linear_key_head_dim**-0.5
        q, k, v = (_as(t, matrix.dtype) for t in (q, k, v))
        decay, beta = run.segments.pad(decay), _as(run.segments.pad(beta), matrix.dtype)
        out, matrix, read = delta_rule(q, k, v, decay, beta, matrix, work.reads if work.reads_inside else None)
        if run.is_held:
            past.held.append(Held(run.first, k, v, decay, beta, extended, matrix))
        return out, matrix, read

    def _canvas(self, x: Tensor, tail: Tensor, state: Tensor, a: Tensor, b: Tensor, work: Work) -> Tensor:
        """x: [C, N, D]; tail: [C, W-1, D]; state: [C, H, K, V]; a, b: raw gates [R, H]. -> [C, N, H, V]."""
        canvas, config = work.canvas, self.config
        assert canvas is not None and config.block_size is not None
        if torch.is_grad_enabled():
            extended = torch.cat((tail, x), 1)
            q, k, v = _canvas_heads(extended, x, self.conv1d.weight.squeeze(1), self.conv_right_weight, config)
        else:
            extended = torch.cat((tail, x, torch.zeros_like(tail)), 1)  # taps past the block's end read zero
            q, k, v = _heads_at_once(extended, self.constants().both_taps, self.constants(), config)
        q, k, v = (_as(t, state.dtype).transpose(1, 2) for t in (q, k, v))  # [C, H, N, .]
        read = q @ state
        if config.bd_readout_scale == "key_dim":
            read = read * config.linear_key_head_dim**-0.5
        if config.bd_history_decay == "row":
            decay, _ = self._gates(a, b)
            read = read * canvas.pad(decay).exp().transpose(1, 2).unsqueeze(-1)
        if config.bd_value_beta == "row":
            v = v * canvas.pad(torch.sigmoid(b)).transpose(1, 2).unsqueeze(-1)
        fill = (work.log_fill - math.log(config.block_size)).to(state.dtype)[:, None]
        history = self.bd_softmax_history_bias + self.bd_softmax_history_c * fill  # [C, H]
        return block_softmax(q, k, v, read, self.bd_softmax_logit_scale, history, canvas.valid).transpose(1, 2)


def _gates_start(heads: int) -> tuple[Tensor, Tensor]:
    """dt_bias and A_log of a fresh trunk, [H] each: time steps of 0.001..0.1, as Mamba's and FLA's; ones would forget
    within a token."""
    step, rate = torch.empty(heads), torch.empty(heads)
    if step.is_meta:  # shapes alone are wanted: arithmetic would make torch load its tables of it, seconds and 70 MB
        return step, rate
    step = step.uniform_(math.log(1e-3), math.log(1e-1)).exp()
    dt_bias = step + torch.log(-torch.expm1(-step))  # softplus(dt_bias) = step
    return dt_bias, rate.uniform_(1, 16).log()


def block_softmax_start(config: ModelConfig) -> dict[str, Tensor]:
    """Clover's four tensors by name, at the documented start (decision 015 has the measurements).

    Right taps zero: a canvas starts from the convolution that the AR trunk already knows. Scale 8: a row weighs the
    rows of its block by how well they match, as the delta rule of the trunk does. Bias the same: the history slot
    weighs as much as one row that matches exactly. Slope 0: however many rows there are, since in the trunk, too, what
    the state gives does not shrink when rows are added to it.
    """
    heads = config.linear_num_value_heads
    return {
        "conv_right_weight": torch.zeros(config.conv_dim, config.linear_conv_kernel_dim - 1),
        "bd_softmax_logit_scale": torch.full((heads,), START_SCALE),
        "bd_softmax_history_bias": torch.full((heads,), START_SCALE),
        "bd_softmax_history_c": torch.zeros(heads),
    }


class _Constants(NamedTuple):
    """What serving derives from a layer's parameters: taps [W, D], left and right taps [2W-1, D], bias of the time step
    [H], -exp(A_log) [H], the key head of each value head for q, then for k [2H], the eps of the L2 norm, gain and eps
    of the norm behind, the output's product."""

    taps: Tensor
    both_taps: Tensor
    dt_bias: Tensor
    rate: Tensor
    heads: Tensor
    eps: Tensor
    gain: tuple[Tensor, Tensor]
    out: Product


@fusable
def _causal_heads(extended: Tensor, taps: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    return _heads(F.silu(causal_conv(extended, taps)), config)


@fusable
def _canvas_heads(
    extended: Tensor, x: Tensor, taps: Tensor, right: Tensor, config: ModelConfig
) -> tuple[Tensor, Tensor, Tensor]:
    return _heads(F.silu(causal_conv(extended, taps) + right_conv(x, right)), config)


def _heads(u: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    """[.., D] -> q, k [.., H, K], L2-normalised and repeated to the value heads; v [.., H, V]."""
    qk, v = u.split((2 * config.key_dim, config.value_dim), -1)
    qk = qk.unflatten(-1, (2 * config.linear_num_key_heads, config.linear_key_head_dim))
    qk = qk * torch.rsqrt(qk.square().sum(-1, keepdim=True) + _L2_EPS)
    qk = qk.repeat_interleave(config.linear_num_value_heads // config.linear_num_key_heads, -2)
    q, k = qk.chunk(2, -2)
    return q, k, v.unflatten(-1, (config.linear_num_value_heads, config.linear_value_head_dim))


def _heads_at_once(
    extended: Tensor, taps: Tensor, constants: _Constants, config: ModelConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolution, SiLU and `_heads` in few operations, without gradients. extended: [B, T+W-1, D] for taps [W, D]."""
    u = F.silu(serving.sliding_taps(extended, taps), inplace=True)
    qk, v = u.split_with_sizes((2 * config.key_dim, config.value_dim), -1)
    shape = u.shape[:2]
    qk = serving.l2_norm(qk.view(*shape, -1, config.linear_key_head_dim), constants.eps)
    qk = qk.index_select(2, constants.heads).view(*shape, 2, -1, config.linear_key_head_dim)
    q, k = qk.unbind(2)
    return q, k, v.view(*shape, -1, config.linear_value_head_dim)


def _last_rows(extended: Tensor, segments: Segments, width: int) -> Tensor:
    """The `width` pre-convolution rows before each run's end. extended: [B, width+T, D] -> [B, width, D]."""
    if not segments.is_dense:
        return _tails(extended, segments.counts, width)
    rows = extended.narrow(1, segments.max_len, width)
    # A state that is a view of a prefill's rows would hold them all until the next forward, in every layer.
    return rows if segments.max_len <= width else rows.clone()


def _tails(extended: Tensor, offset: Tensor, width: int) -> Tensor:
    """The `width` pre-convolution rows before row `offset` of each run. extended: [B, width+T, D] -> [B, width, D]."""
    if extended.shape[1] == width:
        return extended
    if extended.shape[0] == 1:
        first = int(offset[0])
        return extended[:, first : first + width]
    index = offset[:, None] + torch.arange(width, device=offset.device)
    return extended.gather(1, index[..., None].expand(-1, -1, extended.shape[2]))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x.to(dtype)`, free where there is nothing to do."""
    return x if x.dtype is dtype else x.to(dtype)
