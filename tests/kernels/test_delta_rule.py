"""The chunked delta rule against the recurrence itself: outputs, states, states at inner reads, gradients."""

import pytest
import torch
from torch import Tensor

from fourleaf.kernels import reference
from fourleaf.kernels.delta import delta_rule

BATCH, HEADS, KEY, VALUE = 2, 2, 4, 6


def inputs(num_rows: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """q, k, v, g, beta, state, as a layer gives them: q and k of length one, some heads that forget at once."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(draw(BATCH, num_rows, HEADS, KEY), dim=-1) for _ in range(2))
    g = -draw(BATCH, num_rows, HEADS).exp() * torch.tensor([0.1, 3.0])
    beta = torch.sigmoid(2 * draw(BATCH, num_rows, HEADS))
    parts = (q, k, draw(BATCH, num_rows, HEADS, VALUE), g, beta, draw(BATCH, HEADS, KEY, VALUE))
    return [part.to(dtype).requires_grad_() for part in parts]


def by_rows(parts: list[Tensor], reads: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What `delta_rule` returns, from its plain twin."""
    found = [reference.delta_rule(*(part[b] for part in parts)) for b in range(BATCH)]
    read = (
        None
        if reads is None
        else torch.stack([found[b][1][t] for b, t in zip(*map(Tensor.tolist, reads), strict=True)])
    )
    return torch.stack([out for out, _ in found]), torch.stack([states[-1] for _, states in found]), read


@pytest.mark.parametrize("num_rows", [1, 5, 31, 32, 33, 64, 70])
def test_chunks_equal_rows_with_all_gradients(num_rows):
    offsets = sorted({0, 1, num_rows // 2, num_rows - 1, num_rows} | ({31, 32, 33, 63, 64} & set(range(num_rows))))
    seq = torch.tensor([b for _ in offsets for b in range(BATCH)])
    reads = seq, torch.tensor([t for t in offsets for _ in range(BATCH)])
    parts = inputs(num_rows)
    found, wanted = delta_rule(*parts, reads), by_rows(parts, reads)
    weights = [torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3)) for x in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)

    ours, theirs = (
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(out, weights, strict=True)), parts)
        for out in (found, wanted)
    )
    for name, mine, plain in zip(("q", "k", "v", "g", "beta", "state"), ours, theirs, strict=True):
        assert plain.abs().max() > 0, name
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-9, msg=f"gradient of {name}")


def test_fp32_stays_within_rounding():
    parts = inputs(70, torch.float32)
    found = delta_rule(*parts, (torch.tensor([1]), torch.tensor([45])))
    wanted = by_rows([part.double() for part in parts], (torch.tensor([1]), torch.tensor([45])))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-4)


def test_one_row_equals_the_recurrence():
    parts = inputs(1)
    out, state, read = delta_rule(*parts)
    wanted_out, wanted_state, _ = by_rows(parts, None)
    assert read is None
    torch.testing.assert_close(out, wanted_out, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, wanted_state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cuts", [(32,), (1, 2, 3), (7, 40), (31, 32, 33), tuple(range(1, 70))], ids=str)
def test_any_split_gives_the_same_outputs_and_state(cuts):
    parts = inputs(70)
    wanted_out, wanted_state, _ = delta_rule(*parts)
    rows, state, outs = parts[:5], parts[5], []
    for first, last in zip((0, *cuts), (*cuts, 70), strict=True):
        out, state, _ = delta_rule(*(part[:, first:last] for part in rows), state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), wanted_out, rtol=0, atol=1e-11)
    torch.testing.assert_close(state, wanted_state, rtol=0, atol=1e-11)


def test_rows_without_gates_leave_the_state_as_it_is():
    q, k, v, g, beta, state = inputs(40)
    _, wanted, _ = delta_rule(*(part[:, :33] for part in (q, k, v, g, beta)), state)
    is_row = (torch.arange(40) < 33)[None, :, None]
    _, found, _ = delta_rule(q, k, v, g * is_row, beta * is_row, state)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_heads_that_forget_at_once_give_no_nan():
    q, k, v, g, beta, state = inputs(64, torch.float32)
    parts = [q, k, v, (g * 0 - 60).detach().requires_grad_(), beta, state]
    out, last, read = delta_rule(*parts, (torch.tensor([0, 1]), torch.tensor([40, 64])))
    assert read is not None
    gradients = torch.autograd.grad(out.sum() + last.sum() + read.sum(), parts)
    assert all(x.isfinite().all() for x in (out, last, read, *gradients))
