"""Rows that are verified leave the state as it was, and move it on by exactly as many of them as are accepted."""

import pytest
import torch
from torch import Tensor

from fourleaf.kernels.delta import delta_rule, delta_state
from fourleaf.model.state import KeyValues, Recurrent, State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

BEFORE = (40, 7, 0, 33, 12)
ROWS = (1, 9, 32, 8, 5)
NUM_HELD = 2
CUTS = pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3, 4)], ids=str)


def draw(count: int, seed: int) -> Tensor:
    return torch.randint(0, 61, (count,), generator=torch.Generator().manual_seed(seed))


def prepare(model: Transformer) -> State:
    state = State.empty(model.config, len(BEFORE), model.lm_head.weight.dtype)
    texts = [draw(rows, 10 + b) for b, rows in enumerate(BEFORE)]
    model(Work(torch.cat(texts), Segments([len(text) for text in texts]), [0] * len(texts)), state)
    return state


def assert_equal_states(found: State, wanted: State, atol: float) -> None:
    assert found.lengths == wanted.lengths
    for ours, theirs in zip(found.layers, wanted.layers, strict=True):
        if isinstance(ours, KeyValues) and isinstance(theirs, KeyValues):
            for b, length in enumerate(found.lengths):
                for mine, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
                    torch.testing.assert_close(mine[b, :, :length], other[b, :, :length], rtol=0, atol=atol)
        else:
            assert isinstance(ours, Recurrent)
            assert isinstance(theirs, Recurrent)
            assert not ours.held
            torch.testing.assert_close(ours.matrix, theirs.matrix, rtol=0, atol=atol)
            torch.testing.assert_close(ours.tail, theirs.tail, rtol=0, atol=atol)


@CUTS
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("accepted", [(8, 5), (3, 1), (1, 4), (0, 0)], ids=str)
@torch.no_grad()
def test_advance_is_running_the_accepted_rows(accepted, dtype, atol, cuts, make_model):
    model = make_model(dtype=dtype)
    texts = [draw(rows, 50 + b) for b, rows in enumerate(ROWS)]
    found, wanted = prepare(model), prepare(model)
    work = Work(torch.cat(texts), Segments(ROWS), list(found.lengths), cuts=cuts, num_held=NUM_HELD)
    logits = model.head(model(work, found)[0])
    plain = Work(torch.cat(texts), Segments(ROWS), list(wanted.lengths))
    torch.testing.assert_close(logits, model.head(model(plain, prepare(model))[0]), rtol=0, atol=atol)
    standing = len(ROWS) - NUM_HELD
    assert found.lengths[standing:] == list(BEFORE[standing:])
    found.advance([*[0] * standing, *accepted])
    kept = [*texts[:standing], *(text[:rows] for text, rows in zip(texts[standing:], accepted, strict=True))]
    lengths = [len(text) for text in kept]
    model(Work(torch.cat(kept), Segments(lengths), list(wanted.lengths)), wanted)
    assert_equal_states(found, wanted, atol)


@CUTS
@torch.no_grad()
def test_cuts_change_nothing(cuts, make_model):
    model = make_model()
    found, wanted = prepare(model), prepare(model)
    rows, canvases = (0, 20, 1, 1, 0), (32, 0, 0, 7, 31)
    texts = [draw(count, 60 + b) for b, count in enumerate(rows)]
    blocks = {b: draw(count, 70 + b) for b, count in enumerate(canvases) if count}

    def work(state: State, cuts: tuple[int, ...]) -> Work:
        starts = list(state.lengths)
        reads = [starts[b] + rows[b] for b in blocks]
        lengths = [len(block) for block in blocks.values()]
        tokens = torch.cat([*texts, *blocks.values()])
        return Work(tokens, Segments(rows), starts, Segments(lengths), list(blocks), reads, cuts=cuts)

    ours, theirs = work(found, cuts), work(wanted, ())
    assert sum(run.segments.num_rows for run in ours.runs) == sum(rows)
    torch.testing.assert_close(model(ours, found)[0], model(theirs, wanted)[0], rtol=0, atol=1e-9)
    assert_equal_states(found, wanted, 1e-9)


def test_a_long_chunk_does_not_pad_single_rows():
    work = Work(torch.zeros(259, dtype=torch.long), Segments([1, 1, 1, 256]), [5, 6, 7, 0], cuts=(3,))
    assert [run.segments.num * run.segments.max_len for run in work.runs] == [3, 256]


@pytest.mark.parametrize("rows", [9, 48])
def test_delta_state_is_the_state_of_the_rule(rows):
    random = torch.Generator().manual_seed(1)
    k, q = (torch.nn.functional.normalize(torch.randn(2, rows, 3, 8, generator=random).double(), dim=-1) for _ in "kq")
    v = torch.randn(2, rows, 3, 5, generator=random).double()
    g, beta = -torch.rand(2, rows, 3, generator=random).double(), torch.rand(2, rows, 3, generator=random).double()
    state = torch.randn(2, 3, 8, 5, generator=random).double()
    wanted = delta_rule(q, k, v, g, beta, state)[1]
    torch.testing.assert_close(delta_state(k, v, g, beta, state), wanted, rtol=0, atol=1e-12)
