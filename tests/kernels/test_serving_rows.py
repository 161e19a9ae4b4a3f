"""Each function of rows as serving runs it, against its plain twin."""

import math

import pytest
import torch
from torch import Tensor

from fourleaf.kernels import reference, serving
from fourleaf.kernels.rotary import Llama3Scaling, frequencies

EPS = 1e-6


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=dtype)


def close(found: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


def test_rms_norm():
    x, weight = draw(3, 2, 8), draw(8)
    wanted = torch.stack([reference.rms_norm(row, 1 + weight, EPS) for row in x.flatten(0, 1)]).view_as(x)
    close(serving.rms_norm(x, 1 + weight, torch.tensor(EPS, dtype=x.dtype)), wanted)


def test_rms_norm_of_half_precision_rows_is_computed_in_fp32():
    x, weight = draw(5, 64).bfloat16(), draw(64).float()
    found = serving.rms_norm(x, 1 + weight, torch.tensor(EPS))
    wanted = torch.stack([reference.rms_norm(row, 1 + weight, EPS) for row in x.float()]).bfloat16()
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted)


def test_a_row_of_zeros_stays_zero():
    eps = torch.tensor(EPS, dtype=torch.float64)
    assert serving.rms_norm(draw(2, 4) * 0, draw(4), eps).abs().max() == 0
    assert serving.l2_norm(draw(2, 4) * 0, eps).abs().max() == 0


def test_gated_rms_norm():
    x, gate, weight = draw(5, 6), draw(5, 6, seed=1), draw(6)
    wanted = torch.stack([reference.gated_rms_norm(r, g, weight, EPS) for r, g in zip(x, gate, strict=True)])
    close(serving.gated_rms_norm(x, gate, weight, torch.tensor(EPS, dtype=x.dtype)), wanted)


def test_l2_norm():
    x = draw(5, 6) * 1e-3  # small enough for eps to count
    wanted = torch.stack([reference.l2_norm(row, EPS) for row in x])
    close(serving.l2_norm(x, torch.tensor(EPS, dtype=x.dtype)), wanted)


@pytest.mark.parametrize("limit", [0, 256], ids=["a pass a tap", "windows"])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_sliding_taps_left_and_right(rows, limit, monkeypatch):
    monkeypatch.setattr(serving, "_MAX_WINDOW_ROWS", limit)
    tail, x, taps, right = draw(2, 3, 5), draw(2, rows, 5), draw(5, 4), draw(5, 3)
    causal = torch.stack([reference.causal_conv(tail[b], x[b], taps) for b in range(2)])
    close(serving.sliding_taps(torch.cat((tail, x), 1), taps.t()), causal)
    both = torch.stack([reference.canvas_conv(tail[b], x[b], taps, right) for b in range(2)])
    padded = torch.cat((tail, x, torch.zeros_like(tail)), 1)
    close(serving.sliding_taps(padded, torch.cat((taps, right), 1).t()), both)


def test_sliding_taps_of_a_view():
    wide = draw(2, 9, 11)
    view = wide[:, 2:7, 3:8]
    close(serving.sliding_taps(view, draw(4, 5)), serving.sliding_taps(view.contiguous(), draw(4, 5)))


@pytest.mark.parametrize("end", [6, 1024, 1025, 70_000])
@pytest.mark.parametrize("turned", [2, 6, 8])
@pytest.mark.parametrize("scaling", [None, Llama3Scaling(8.0, 1.0, 4.0, 500)], ids=["plain", "llama3"])
def test_rotation(scaling, turned, end):
    x, positions = draw(3, 2, 8), torch.tensor([0, 5, end - 1])
    turns = serving.rotary_turns(positions, end, 10_000.0, turned, 8, scaling, x.dtype)
    wanted = torch.stack(
        [
            torch.stack([reference.rotate(head, int(at), 10_000.0, turned, scaling) for head in row])
            for row, at in zip(x, positions, strict=True)
        ]
    )
    close(serving.rotate(x, turns), wanted, atol=1e-15 * end + 1e-12)


def test_llama3_scaling_keeps_fast_pairs_slows_slow_ones_and_joins_them_smoothly():
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 500)
    plain, scaled = (frequencies(10_000.0, 64, how, torch.float64) for how in (None, scaling))
    turns = plain * 500 / (2 * math.pi)
    assert torch.equal(scaled[turns > 4], plain[turns > 4])
    assert torch.equal(scaled[turns < 1], plain[turns < 1] / 8)
    between = (turns >= 1) & (turns <= 4)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_swiglu():
    gate, up = draw(4, 6), draw(4, 6, seed=1)
    close(serving.swiglu(gate, up), reference.silu(gate) * up)


def test_what_serving_keeps_may_be_used_in_training_afterwards():
    """Masks and frequencies made while nothing is recorded must not spoil a later backward pass."""
    from fourleaf.kernels.delta import delta_rule

    def parts(grad: bool) -> list[Tensor]:
        rows = [draw(1, 9, 2, 4), draw(1, 9, 2, 4), draw(1, 9, 2, 6), -draw(1, 9, 2).abs(), draw(1, 9, 2).sigmoid()]
        return [part.requires_grad_(grad) for part in (*rows, draw(1, 2, 4, 6))]

    with torch.inference_mode():
        delta_rule(*parts(False))
    leaves = parts(True)
    delta_rule(*leaves)[0].sum().backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)
