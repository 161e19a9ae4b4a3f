"""The clean path, however it is cut: any split of a prefill, one sequence or several, gives the same state."""

import pytest
import torch
from torch import Tensor

from fourleaf.model.state import KeyValues, Recurrent, State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

LENGTHS = (70, 33, 9)


@pytest.fixture(scope="module")
def texts() -> list[Tensor]:
    random = torch.Generator().manual_seed(5)
    return [torch.randint(0, 61, (n,), generator=random) for n in LENGTHS]


def extend(model: Transformer, state: State, parts: list[Tensor]) -> list[Tensor]:
    """One causal forward of `parts[b]` behind sequence b. -> logits of each."""
    lengths = [len(part) for part in parts]
    hidden, _ = model(Work(torch.cat(parts), Segments(lengths), list(state.lengths)), state)
    return list(model.head(hidden).split(lengths))


def memory(state: State, seq: int) -> list[Tensor]:
    """All that a state holds of one sequence."""
    found = []
    for layer in state.layers:
        if isinstance(layer, KeyValues):
            found += [x[seq, :, : state.lengths[seq]] for x in (layer.keys, layer.values)]
        else:
            assert isinstance(layer, Recurrent)
            found += [layer.matrix[seq], layer.tail[seq]]
    return found


def alone(model: Transformer, text: Tensor) -> tuple[Tensor, list[Tensor]]:
    state = State.empty(model.config, dtype=model.lm_head.weight.dtype)
    (logits,) = extend(model, state, [text])
    return logits, memory(state, 0)


def assert_close(found: list[Tensor], wanted: list[Tensor], atol: float) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize(
    "cuts", [(1,), (2, 3), (32,), (31, 64), (33, 34, 69), (8, 16, 24, 32, 40, 48, 56, 64)], ids=str
)
@torch.no_grad()
def test_any_split_of_a_prefill_gives_the_same_state_and_logits(cuts, dtype, atol, make_model, texts):
    model = make_model(dtype=dtype)
    wanted, wanted_memory = alone(model, texts[0])
    state, logits = State.empty(model.config, dtype=dtype), []
    for first, last in zip((0, *cuts), (*cuts, LENGTHS[0]), strict=True):
        logits += extend(model, state, [texts[0][first:last]])
    assert state.lengths == [LENGTHS[0]]
    assert_close([torch.cat(logits), *memory(state, 0)], [wanted, *wanted_memory], atol)


@torch.no_grad()
def test_sequences_in_one_batch_are_as_if_alone(make_model, texts):
    """Unequal lengths, unequal cuts, a sequence that rests for a forward: no row of another one gets in."""
    model = make_model()
    cuts = [(0, 33, 34, 34, 70), (0, 1, 33, 33, 33), (0, 0, 8, 9, 9)]
    state, logits = State.empty(model.config, 3, torch.float64), [[], [], []]
    for turn in range(4):
        parts = [text[cut[turn] : cut[turn + 1]] for text, cut in zip(texts, cuts, strict=True)]
        for mine, new in zip(logits, extend(model, state, parts), strict=True):
            mine.append(new)
    assert state.lengths == list(LENGTHS)
    for seq, text in enumerate(texts):
        wanted, wanted_memory = alone(model, text)
        assert_close([torch.cat(logits[seq]), *memory(state, seq)], [wanted, *wanted_memory], 1e-9)


@torch.no_grad()
def test_a_state_grows_past_its_first_capacity(make_model):
    model = make_model(moe=False)
    text = torch.randint(0, 61, (300,), generator=torch.Generator().manual_seed(6))
    wanted, wanted_memory = alone(model, text)
    state = State.empty(model.config, dtype=torch.float64)
    logits = extend(model, state, [text[:250]])
    for token in text[250:].split(1):
        logits += extend(model, state, [token])
    assert_close([torch.cat(logits), *memory(state, 0)], [wanted, *wanted_memory], 1e-9)
    assert state.num_bytes > State.empty(model.config, dtype=torch.float64).num_bytes


@torch.no_grad()
def test_a_clone_shares_nothing_with_its_state(make_model, texts):
    model = make_model()
    state = State.empty(model.config, dtype=torch.float64)
    extend(model, state, [texts[0][:20]])
    copy = state.clone()
    kept = [x.clone() for x in memory(copy, 0)]
    extend(model, state, [texts[0][20:40]])
    assert copy.lengths == [20]
    assert_close(memory(copy, 0), kept, 0)
    again = extend(model, copy, [texts[0][20:40]])
    assert_close([*again, *memory(copy, 0)], [alone(model, texts[0][:40])[0][20:], *memory(state, 0)], 1e-9)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-4)], ids=str)
@torch.no_grad()
def test_refresh_takes_up_changed_weights(dtype, atol, make_model, texts):
    model = make_model(dtype=dtype)
    before, _ = alone(model, texts[2])
    for tensor in model.parameters():
        tensor.mul_(1.1)
    model.refresh()
    after, _ = alone(model, texts[2])
    with torch.enable_grad():  # weights are joined anew wherever gradients are on
        wanted, _ = model(Work(texts[2], Segments([len(texts[2])]), [0]))
        logits = model.head(wanted)
    torch.testing.assert_close(after, logits.detach(), rtol=0, atol=atol)
    assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize("lengths", [(64,), (40, 40), (64, 9), (1, 1)], ids=str)
@torch.no_grad()
def test_a_state_keeps_none_of_the_rows_that_made_it(lengths, make_model):
    """A tail that is a view of a prefill's rows holds them all, in every layer, until the next forward."""
    model = make_model(dtype=torch.float32)
    state = State.empty(model.config, len(lengths))
    extend(model, state, [torch.arange(n) % 61 for n in lengths])
    layers = [layer for layer in state.layers if isinstance(layer, Recurrent)]
    assert layers
    for layer in layers:
        for kept in (layer.matrix, layer.tail):
            assert kept.untyped_storage().nbytes() <= 2 * kept.nbytes
