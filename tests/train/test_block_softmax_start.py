"""The script that compares starts of the block softmax: it converts what it says, and scores the rows that it says."""

import itertools

import pytest
import script
import torch

from fourleaf.checkpoint.convert import convert
from fourleaf.checkpoint.names import CLOVER_TENSORS
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.train.recipes import BLOCK_SIZE, cabin_source


@pytest.fixture(scope="module")
def starts():
    return script.load("block_softmax_start")


@pytest.fixture(scope="module")
def bundled():
    return Engine.load(bundled_path())


@pytest.fixture(scope="module")
def made(starts, bundled):
    documents = list(itertools.islice(cabin_source(bundled.tokenizer, bundled.chat)(3, 2), 4))
    return documents, *starts.canvases(documents, bundled.mask_id)


def test_a_canvas_row_is_the_token_at_its_clean_row_or_the_mask(made, bundled):
    documents, work, kinds = made
    assert list(kinds) == ["kept", "25%", "50%", "75%", "100%", "short"]
    answers = torch.cat([torch.from_numpy(d.ids[d.answer_start : -1]) for d in documents])
    for blocks in kinds.values():
        assert torch.equal(blocks.target, answers)
        assert torch.equal(work.tokens[blocks.clean], blocks.target)
        shown = torch.where(blocks.masked, bundled.mask_id, blocks.target)
        assert torch.equal(work.tokens[blocks.rows], shown)
        assert torch.equal(work.positions[blocks.rows], work.positions[blocks.clean])
    assert work.canvas.num_rows == sum(len(blocks.rows) for blocks in kinds.values())
    lengths = [kind.masked.float().mean().item() for kind in kinds.values()]
    assert lengths[0] == lengths[-1] == 0
    assert lengths[1:5] == sorted(lengths[1:5])
    assert lengths[4] == 1


def test_every_masked_canvas_has_one_first_row(made):
    _, work, kinds = made
    owner = work.canvas.owner
    for kind, blocks in kinds.items():
        inside = owner[blocks.rows - work.num_causal]
        firsts = inside[blocks.is_first].tolist()
        assert firsts == ([] if kind in ("kept", "short") else sorted(set(inside.tolist())))
        for canvas in firsts:
            rows = blocks.masked[inside == canvas]
            assert blocks.is_first[inside == canvas].tolist().index(True) == rows.tolist().index(True)


def test_a_trunk_is_the_ar_half_with_a_mask_that_nothing_has_taught(starts, bundled):
    trunk = dict(starts.trunk_of(bundled_path(), bundled.mask_id).named_tensors())
    model = dict(bundled.model.named_tensors())
    assert set(model) - set(trunk) == {name for name in model if name.endswith(CLOVER_TENSORS)}
    name = "model.embed_tokens.weight"
    changed = (trunk[name] != model[name]).any(1).nonzero().flatten().tolist()
    assert changed == [bundled.mask_id]
    assert all(torch.equal(tensor, model[other]) for other, tensor in trunk.items() if other != name)


def test_a_start_is_where_the_model_then_stands(starts, bundled):
    model = convert(starts.trunk_of(bundled_path(), bundled.mask_id), block_size=BLOCK_SIZE, mask_token_id=1)
    starts.begin_at(model, starts.Start(3.0, 4.0, 0.5))
    assert starts._start("3,4,0.5") == (3.0, 4.0, 0.5)
    for name, value in zip(CLOVER_TENSORS[1:], (3.0, 4.0, 0.5), strict=True):
        assert all(tensor.eq(value).all() for n, tensor in model.named_tensors() if n.endswith(name))


def test_a_trained_canvas_says_more_than_an_untrained_one(starts, bundled, made):
    _, work, kinds = made
    found = starts.measure(bundled.model, work, kinds, bundled.mask_id)
    trunk = starts.trunk_of(bundled_path(), bundled.mask_id)
    model = convert(trunk, block_size=BLOCK_SIZE, mask_token_id=bundled.mask_id).eval()
    untrained = starts.measure(model, work, kinds, bundled.mask_id)
    assert set(found) == set(untrained)
    assert all(found[f"{ratio:.0%}"] < untrained[f"{ratio:.0%}"] - 1 for ratio in starts.RATIOS)
    assert found["first"] > untrained["first"]
    now = starts.present(model)
    printed = starts.lines({now: untrained}, now)
    assert printed[1].split()[3] == "*"
