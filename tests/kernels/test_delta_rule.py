"""The chunked delta rule against the recurrence itself: outputs, states, states at inner reads, gradients."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fourleaf.kernels import reference
from fourleaf.kernels.delta import delta_rule

BATCH, HEADS, KEY, VALUE = 2, 2, 4, 6


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor


def inputs(num_rows: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Inputs:
    """As a layer gives them: q and k of length one, one head that remembers and one that forgets."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(draw(BATCH, num_rows, HEADS, KEY), dim=-1) for _ in range(2))
    g = -draw(BATCH, num_rows, HEADS).exp() * torch.tensor([0.1, 3.0])
    beta = torch.sigmoid(2 * draw(BATCH, num_rows, HEADS))
    parts = (q, k, draw(BATCH, num_rows, HEADS, VALUE), g, beta, draw(BATCH, HEADS, KEY, VALUE))
    return Inputs(*(part.to(dtype).requires_grad_() for part in parts))


def rows_of(parts: Inputs, first: int, last: int, state: Tensor) -> Inputs:
    """Rows first..last-1, from another state."""
    q, k, v, g, beta = (part[:, first:last] for part in parts[:5])
    return Inputs(q, k, v, g, beta, state)


def by_rows(parts: Inputs, reads: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What `delta_rule` returns, from its plain twin."""
    found = [reference.delta_rule(*Inputs(*(part[b] for part in parts))) for b in range(BATCH)]
    read = [found[b][1][t] for b, t in zip(reads[0].tolist(), reads[1].tolist(), strict=True)]
    return torch.stack([out for out, _ in found]), torch.stack([states[-1] for _, states in found]), torch.stack(read)


def by_chunks(parts: Inputs, reads: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    out, state, read = delta_rule(*parts, reads)
    assert read is not None
    return out, state, read


def gradients(found: tuple[Tensor, Tensor, Tensor], parts: Inputs) -> tuple[Tensor, ...]:
    """Of all inputs, through all three results under fixed random weights."""
    loss = torch.zeros((), dtype=found[0].dtype)
    for result in found:
        random = torch.Generator().manual_seed(3)
        loss = loss + (result * torch.randn(result.shape, dtype=result.dtype, generator=random)).sum()
    return torch.autograd.grad(loss, parts)


@pytest.mark.parametrize("num_rows", [1, 5, 31, 32, 33, 64, 70])
def test_chunks_equal_rows_with_all_gradients(num_rows):
    offsets = sorted({0, 1, num_rows // 2, num_rows - 1, num_rows} | ({31, 32, 33, 63, 64} & set(range(num_rows))))
    seq = torch.tensor([b for _ in offsets for b in range(BATCH)])
    reads = seq, torch.tensor([t for t in offsets for _ in range(BATCH)])
    parts = inputs(num_rows)
    found, wanted = by_chunks(parts, reads), by_rows(parts, reads)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    for name, ours, theirs in zip(Inputs._fields, gradients(found, parts), gradients(wanted, parts), strict=True):
        assert theirs.abs().max() > 0, name
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9, msg=f"gradient of {name}")


@pytest.mark.parametrize("num_rows", [1, 2, 5, 31, 32, 33, 63, 64, 65])
def test_serving_equals_rows(num_rows):
    """Without gradients and inner reads, up to two chunks take a way of their own."""
    parts = inputs(num_rows)
    wanted_out, wanted_state, _ = by_rows(parts, (torch.tensor([0]), torch.tensor([0])))
    with torch.no_grad():
        out, state, read = delta_rule(*parts)
    assert read is None
    torch.testing.assert_close(out, wanted_out, rtol=0, atol=1e-11)
    torch.testing.assert_close(state, wanted_state, rtol=0, atol=1e-11)


def test_serving_heads_that_forget_at_once_give_no_nan():
    parts = inputs(64, torch.float32)
    with torch.no_grad():
        out, state, _ = delta_rule(*parts._replace(g=torch.full_like(parts.g, -60.0)))
    assert out.isfinite().all()
    assert state.isfinite().all()


def test_fp32_stays_within_rounding():
    parts, reads = inputs(70, torch.float32), (torch.tensor([1]), torch.tensor([45]))
    wanted = by_rows(Inputs(*(part.double() for part in parts)), reads)
    for ours, theirs in zip(by_chunks(parts, reads), wanted, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-4)


def test_one_row_equals_the_recurrence():
    parts = inputs(1)
    out, state, read = delta_rule(*parts)
    wanted_out, wanted_state, _ = by_rows(parts, (torch.tensor([0]), torch.tensor([0])))
    assert read is None
    torch.testing.assert_close(out, wanted_out, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, wanted_state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cuts", [(32,), (1, 2, 3), (7, 40), (31, 32, 33), tuple(range(1, 70))], ids=str)
def test_any_split_gives_the_same_outputs_and_state(cuts):
    parts = inputs(70)
    wanted_out, wanted_state, _ = delta_rule(*parts)
    state, outs = parts.state, []
    for first, last in zip((0, *cuts), (*cuts, 70), strict=True):
        out, state, _ = delta_rule(*rows_of(parts, first, last, state))
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), wanted_out, rtol=0, atol=1e-11)
    torch.testing.assert_close(state, wanted_state, rtol=0, atol=1e-11)


def test_rows_without_gates_leave_the_state_as_it_is():
    parts = inputs(40)
    _, wanted, _ = delta_rule(*rows_of(parts, 0, 33, parts.state))
    is_row = (torch.arange(40) < 33)[None, :, None]
    _, found, _ = delta_rule(*parts._replace(g=parts.g * is_row, beta=parts.beta * is_row))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_heads_that_forget_at_once_give_no_nan():
    parts = inputs(64, torch.float32)
    parts = parts._replace(g=torch.full_like(parts.g, -60.0).requires_grad_())
    found = by_chunks(parts, (torch.tensor([0, 1]), torch.tensor([40, 64])))
    assert all(x.isfinite().all() for x in (*found, *gradients(found, parts)))
