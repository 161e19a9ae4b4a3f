"""Convolution and block softmax of canvas rows against their plain twins, gradients included."""

import math

import pytest
import torch
from torch import Tensor

from fourleaf.kernels import reference
from fourleaf.kernels.canvas import block_softmax, causal_conv, right_conv

CHANNELS, KERNEL, HEADS, KEY, VALUE, BLOCK = 5, 4, 3, 4, 6, 32


def draw(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_()


def assert_same(ours: Tensor, theirs: Tensor, leaves: dict[str, Tensor], atol: float = 1e-12) -> None:
    """Equal values, and equal gradients of every leaf under random weights."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)
    weight = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(9), dtype=theirs.dtype)
    pairs = (torch.autograd.grad((x * weight).sum(), list(leaves.values())) for x in (ours, theirs))
    for name, mine, plain in zip(leaves, *pairs, strict=True):
        assert plain.abs().max() > 0, name
        torch.testing.assert_close(mine, plain, rtol=0, atol=atol, msg=f"gradient of {name}")


@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_causal_taps(num_rows):
    tail, x, taps = draw(2, KERNEL - 1, CHANNELS), draw(2, num_rows, CHANNELS), draw(CHANNELS, KERNEL)
    wanted = torch.stack([reference.causal_conv(tail[b], x[b], taps) for b in range(2)])
    assert_same(causal_conv(torch.cat((tail, x), 1), taps), wanted, {"tail": tail, "x": x, "taps": taps})


@pytest.mark.parametrize("num_rows", [2, 3, 4, 7])
def test_right_taps_stop_at_the_end_of_the_block(num_rows):
    tail, x = draw(2, KERNEL - 1, CHANNELS), draw(2, num_rows, CHANNELS)
    taps, right = draw(CHANNELS, KERNEL), draw(CHANNELS, KERNEL - 1)
    wanted = torch.stack([reference.canvas_conv(tail[b], x[b], taps, right) for b in range(2)])
    found = causal_conv(torch.cat((tail, x), 1), taps) + right_conv(x, right)
    assert_same(found, wanted, {"tail": tail, "x": x, "taps": taps, "right": right})


def test_right_taps_of_a_canvas_of_one_row_are_silent():
    assert right_conv(draw(1, 1, CHANNELS), draw(CHANNELS, KERNEL - 1)).abs().max() == 0


def softmax_inputs(num_rows: int) -> dict[str, Tensor]:
    return {
        "q": draw(num_rows, HEADS, KEY),
        "k": draw(num_rows, HEADS, KEY, seed=1),
        "v": draw(num_rows, HEADS, VALUE),
        "read": draw(num_rows, HEADS, VALUE, seed=1),
        "logit_scale": draw(HEADS),
        "history_bias": draw(HEADS, seed=1),
        "history_c": draw(HEADS, seed=2),
    }


def fast(parts: dict[str, Tensor], width: int) -> Tensor:
    """`block_softmax` on one canvas, padded to `width` rows of rubbish. -> [N, H, V]."""
    num_rows = parts["q"].shape[0]

    def padded(rows: Tensor) -> Tensor:
        rubbish = 100 * draw(width - num_rows, *rows.shape[1:]).detach()
        return torch.cat((rows, rubbish)).transpose(0, 1)[None]

    history = parts["history_bias"] + parts["history_c"] * math.log(num_rows / BLOCK)
    valid = None if width == num_rows else (torch.arange(width) < num_rows)[None]
    q, k, v, read = padded(parts["q"]), padded(parts["k"]), padded(parts["v"]), padded(parts["read"])
    out = block_softmax(q, k, v, read, parts["logit_scale"], history[None], valid)
    return out[0, :, :num_rows].transpose(0, 1)


@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (1, 5), (7, 7), (7, 12), (32, 32)])
def test_block_softmax(num_rows, width):
    parts = softmax_inputs(num_rows)
    wanted = reference.block_softmax(**parts, full=BLOCK)
    leaves = {name: part for name, part in parts.items() if (name, num_rows) != ("history_c", 32)}
    assert_same(fast(parts, width), wanted, leaves, atol=1e-11)


def test_history_c_of_one_keeps_the_historys_share_when_rows_are_alike():
    """With equal rows and slope 1 the history weighs the same on a canvas of any length: what c calibrates."""
    shares = []
    for num_rows in (1, 8, 32):
        ones = torch.ones(num_rows, HEADS, KEY, dtype=torch.float64)
        seen, slope = torch.zeros(num_rows, HEADS, 1, dtype=torch.float64), torch.ones(HEADS, dtype=torch.float64)
        out = reference.block_softmax(ones, ones, seen, seen + 1, slope, 5 * slope, slope, BLOCK)
        shares.append(float(out[0, 0, 0]))
    assert shares == pytest.approx([shares[0]] * 3)


def test_great_logits_do_not_overflow_in_fp32():
    parts = {name: 1e4 * part.detach().float() for name, part in softmax_inputs(7).items()}
    assert fast(parts, 7).isfinite().all()


@pytest.mark.parametrize(
    "choice", [{}, {"readout_scale": "none"}, {"history_decay": "row"}, {"value_beta": "row"}], ids=str
)
def test_each_named_choice_is_what_its_words_say(choice):
    """One head, one row, one equal share for history and row: the mixer by hand."""
    one = torch.ones(1, 1, dtype=torch.float64)
    q, k = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]] * 2, dtype=torch.float64)[:, None].unbind(0)
    state = torch.arange(4.0, dtype=torch.float64).add(1).view(1, 4, 1)  # q reads 1
    weights = one[0] * 2, one[0] * 2, one[0] * 0  # both logits are 2
    out = reference.canvas_mixer((q, k, 10 * one[None]), (-one, one / 4), state, weights, BLOCK, **choice)
    read = 1.0 if choice.get("readout_scale") == "none" else 0.5
    read *= math.exp(-1) if choice.get("history_decay") == "row" else 1.0
    value = 2.5 if choice.get("value_beta") == "row" else 10.0
    assert float(out) == pytest.approx((read + value) / 2)
