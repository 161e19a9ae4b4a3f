"""Commit and first pass in one call are commit, then pass; and no request sees what shares its forward."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fourleaf.model.state import AttentionCache, KeyValues, Recurrent, State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

CORESETS = pytest.mark.parametrize(
    "options", [{}, {"coreset_top_p": 0.5}, {"moe": False}], ids=["coreset off", "coreset on", "dense"]
)


@dataclass(frozen=True)
class Request:
    """What one sequence brings to a forward: rows committed before, rows to commit, rows of a canvas (0: none)."""

    before: int
    commit: int
    canvas: int


MIXED = (
    Request(40, 32, 32),
    Request(7, 5, 20),
    Request(33, 0, 31),
    Request(12, 32, 0),
    Request(0, 50, 1),
    Request(3, 1, 7),
)
EVEN = (
    Request(20, 9, 32),
    Request(31, 32, 5),
    Request(0, 3, 1),
)  # canvas c continues sequence c: the engine's usual case


def draw(count: int, seed: int) -> Tensor:
    return torch.randint(0, 61, (count,), generator=torch.Generator().manual_seed(seed))


def prepare(model: Transformer, requests: tuple[Request, ...]) -> State:
    """A state with each request's committed text."""
    state = State.empty(model.config, len(requests), model.lm_head.weight.dtype)
    texts = [draw(request.before, 10 + b) for b, request in enumerate(requests)]
    model(Work(torch.cat(texts), Segments([len(text) for text in texts]), [0] * len(texts)), state)
    return state


def one(state: State, seq: int) -> State:
    """Sequence `seq` of a state, alone."""
    layers = []
    for layer in state.layers:
        first, second = (tensor[seq : seq + 1].clone() for tensor in tensors(layer))
        layers.append(KeyValues(first, second) if isinstance(layer, KeyValues) else Recurrent(first, second))
    return State(layers, [state.lengths[seq]])


def fused(model: Transformer, state: State, requests: tuple[Request, ...]) -> dict[tuple[str, int], Tensor]:
    """All commits and canvases in one forward. -> logits by ("commit" or "canvas", request)."""
    commits = [draw(request.commit, 20 + b) for b, request in enumerate(requests)]
    canvases = {b: draw(request.canvas, 30 + b) for b, request in enumerate(requests) if request.canvas}
    starts = list(state.lengths)
    work = Work(
        torch.cat([*commits, *canvases.values()]),
        Segments([len(rows) for rows in commits]),
        starts,
        Segments([len(rows) for rows in canvases.values()]),
        list(canvases),
        [starts[b] + len(commits[b]) for b in canvases],
    )
    hidden, _ = model(work, state)
    rows = model.head(hidden).split([*work.causal.lengths, *(len(rows) for rows in canvases.values())])
    names = [("commit", b) for b in range(len(requests))] + [("canvas", b) for b in canvases]
    return dict(zip(names, rows, strict=True))


def in_turn(model: Transformer, state: State, request: Request, b: int) -> dict[tuple[str, int], Tensor]:
    """One request's commit, then its pass, each a forward of its own."""
    found = {("commit", b): model.head(torch.empty(0, model.config.hidden_size, dtype=model.lm_head.weight.dtype))}
    if request.commit:
        hidden, _ = model(Work(draw(request.commit, 20 + b), Segments([request.commit]), list(state.lengths)), state)
        found["commit", b] = model.head(hidden)
    if request.canvas:
        (start,) = state.lengths
        canvas = draw(request.canvas, 30 + b)
        hidden, _ = model(Work(canvas, Segments([0]), [start], Segments([len(canvas)]), [0], [start]), state)
        found["canvas", b] = model.head(hidden)
    return found


def tensors(layer: AttentionCache | Recurrent) -> tuple[Tensor, Tensor]:
    if isinstance(layer, KeyValues):
        return layer.keys, layer.values
    assert isinstance(layer, Recurrent)
    return layer.matrix, layer.tail


def assert_same_memory(found: State, wanted: State, atol: float) -> None:
    (length,) = wanted.lengths
    assert found.lengths == wanted.lengths
    for ours, theirs in zip(found.layers, wanted.layers, strict=True):
        for mine, other in zip(tensors(ours), tensors(theirs), strict=True):
            if isinstance(ours, KeyValues):  # positions past the length are unwritten
                mine, other = mine[:, :, :length], other[:, :, :length]
            torch.testing.assert_close(mine, other, rtol=0, atol=atol)


@CORESETS
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("requests", [MIXED, EVEN, EVEN[:1]], ids=["mixed", "even", "one"])
@torch.no_grad()
def test_fused_forward_is_commit_then_pass(requests, dtype, atol, options, make_model):
    model = make_model(dtype=dtype, **options)
    state = prepare(model, requests)
    singles = [one(state, b) for b in range(len(requests))]
    found = fused(model, state, requests)
    for b, (request, single) in enumerate(zip(requests, singles, strict=True)):
        for name, wanted in in_turn(model, single, request, b).items():
            torch.testing.assert_close(found[name], wanted, rtol=0, atol=atol)
        assert_same_memory(one(state, b), single, atol)


@CORESETS
@torch.no_grad()
def test_a_request_in_a_batch_is_as_if_alone(options, make_model):
    model = make_model(**options)
    state = prepare(model, MIXED)
    singles = [one(state, b) for b in range(len(MIXED))]
    together = fused(model, state, MIXED)
    for b, (request, single) in enumerate(zip(MIXED, singles, strict=True)):
        if request.canvas:
            tokens = torch.cat((draw(request.commit, 20 + b), draw(request.canvas, 30 + b)))
            (before,) = single.lengths
            reads = [before + request.commit]
            work = Work(tokens, Segments([request.commit]), [before], Segments([request.canvas]), [0], reads)
            wanted = torch.cat((together["commit", b], together["canvas", b]))
            torch.testing.assert_close(model.head(model(work, single)[0]), wanted, rtol=0, atol=1e-9)


@torch.no_grad()
def test_a_pass_leaves_the_state_bit_for_bit(make_model):
    model = make_model()
    requests = (Request(40, 0, 32), Request(9, 0, 7))
    state = prepare(model, requests)
    before = state.clone()
    first = fused(model, state, requests)
    assert state.lengths == before.lengths
    for ours, kept in zip(state.layers, before.layers, strict=True):
        for mine, other in zip(tensors(ours), tensors(kept), strict=True):
            assert torch.equal(mine, other)
    again = fused(model, state, requests)
    assert all(torch.equal(first[name], again[name]) for name in first)


@torch.no_grad()
def test_several_canvases_may_read_one_history(make_model):
    """Two drafts of the same block, and one behind only a part of this forward's commit."""
    model = make_model(coreset_top_p=0.5)
    state = prepare(model, (Request(20, 0, 0),))
    single = state.clone()
    commit, drafts, early = draw(10, 1), [draw(32, 2), draw(12, 3)], draw(32, 4)
    work = Work(
        torch.cat((commit, *drafts, early)), Segments([10]), [20], Segments([32, 12, 32]), [0, 0, 0], [30, 30, 26]
    )
    found = model.head(model(work, state)[0])[10:].split([32, 12, 32])

    def canvas(rows: Tensor, start: int) -> Tensor:
        work = Work(rows, Segments([0]), [start], Segments([len(rows)]), [0], [start])
        return model.head(model(work, single)[0])

    model(Work(commit[:6], Segments([6]), [20]), single)
    torch.testing.assert_close(found[2], canvas(early, 26), rtol=0, atol=1e-9)
    model(Work(commit[6:], Segments([4]), [26]), single)
    for ours, rows in zip(found[:2], drafts, strict=True):
        torch.testing.assert_close(ours, canvas(rows, 30), rtol=0, atol=1e-9)


def test_work_refuses_a_history_that_is_not_there():
    with pytest.raises(AssertionError, match=r"canvas at 12 reads history outside 8\.\.11"):
        Work(draw(5, 0), Segments([3]), [8], Segments([2]), [0], [12])
    with pytest.raises(AssertionError, match="a canvas has rows"):
        Work(draw(3, 0), Segments([3]), [8], Segments([0]), [0], [11])


@torch.no_grad()
def test_a_canvas_longer_than_a_block_is_refused(make_model):
    with pytest.raises(AssertionError):
        make_model()(Work(draw(36, 0), Segments([3]), [0], Segments([33]), [0], [3]))
