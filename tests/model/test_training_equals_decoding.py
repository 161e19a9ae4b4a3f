"""What training sees of a noisy block is what decoding sees of it: the same logits from a committed state."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fourleaf.model.state import State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work
from fourleaf.train.data import Batch, Document

SHAPES = ((71, 3), (40, 33), (9, 8), (34, 1))
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def training_logits(model: Transformer, batch: Batch) -> list[Tensor]:
    """Logits of each noisy block in one forward over [clean | noisy], without a state.

    With gradients on, as training runs it: what decoding runs is written for few rows and no gradients.
    """
    work = batch.work
    assert work.canvas is not None
    with torch.enable_grad():
        hidden, _ = model(work)
        logits = model.head(hidden[work.num_causal :])
    assert logits.requires_grad
    return list(logits.detach().split(work.canvas.lengths))


def decoding_logits(model: Transformer, batch: Batch, documents: list[Document]) -> list[Tensor]:
    """Logits of each block as a canvas behind the clean text before it, one block at a time."""
    work = batch.work
    assert work.canvas is not None
    assert work.canvas_seq is not None
    assert work.canvas_start is not None
    rows = work.tokens[work.num_causal :].split(work.canvas.lengths)
    logits = []
    for ids, seq, start in zip(rows, work.canvas_seq, work.canvas_start, strict=True):
        state = State.empty(model.config, dtype=model.lm_head.weight.dtype)
        model(Work(torch.from_numpy(documents[seq].ids[:start]), Segments([start]), [0]), state)
        hidden, _ = model(Work(ids, Segments([0]), [start], Segments([len(ids)]), [0], [start]), state)
        assert state.lengths == [start]
        logits.append(model.head(hidden))
    return logits


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 7, 31, 32])
@torch.no_grad()
def test_noisy_blocks_of_any_length(rows, dtype, make_model, make_documents, joint_batch):
    model = make_model(dtype=dtype, coreset_top_p=0.8)
    answers = {3: 2 * rows + 1, 33: rows, 8: 1, 1: rows + 1}  # by their start
    documents = make_documents([(start + answer, start) for start, answer in answers.items()])
    batch = joint_batch(documents, block_size=rows)
    assert set(batch.work.canvas.lengths) == {rows}
    found = training_logits(model, batch)
    for ours, wanted in zip(found, decoding_logits(model, batch, documents), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("options", [{"moe": False}, {}, {"coreset_top_p": 0.5}], ids=["dense", "experts", "coreset"])
@torch.no_grad()
def test_blocks_of_many_lengths_in_one_batch(options, make_model, make_documents, joint_batch):
    model, documents = make_model(**options), make_documents(SHAPES)
    batch = joint_batch(documents, shifted=1.0)
    assert len(set(batch.work.canvas.lengths)) >= 4
    found = training_logits(model, batch)
    for ours, wanted in zip(found, decoding_logits(model, batch, documents), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-9)


@torch.no_grad()
def test_a_noisy_block_sees_nothing_of_the_clean_text_from_its_start_on(make_model, make_documents, joint_batch):
    model, (document,) = make_model(), make_documents(((50, 20),))
    batch = joint_batch([document], block_size=8)
    assert batch.work.canvas_start == [20, 28, 36, 44]
    before = training_logits(model, batch)
    changed = document.ids.copy()
    changed[28:-1] = np.where(changed[28:-1] == 5, 6, 5)
    tokens = torch.cat((torch.from_numpy(changed[:-1]), batch.work.tokens[batch.work.num_causal :]))
    after = training_logits(model, replace(batch, work=replace(batch.work, tokens=tokens)))
    for block in (0, 1):  # start at or before the change
        torch.testing.assert_close(after[block], before[block], rtol=0, atol=1e-12)
    for block in (2, 3):
        assert (after[block] - before[block]).abs().max() > 1e-3


def test_a_real_mask_token_in_the_clean_text_changes_no_masking(make_documents, joint_batch):
    """Masking is a bitmap: the id may stand in the prompt, or in the answer, as any other token."""
    (document,) = make_documents(((50, 20),))
    ids = document.ids.copy()
    ids[[3, 25, 30]] = 1  # the mask's id
    truth = torch.cat((torch.from_numpy(ids[20:]), torch.zeros(2, dtype=torch.long)))  # one block, filled with ends
    shown_masks = 0
    for seed in range(8):
        plain, spelt = (joint_batch([d], seed=seed) for d in (document, Document(ids, 20)))
        for name in ("masked_rows", "masked_weight", "next_rows", "next_weight"):
            assert torch.equal(getattr(plain, name), getattr(spelt, name)), name
        assert plain.num_masked == spelt.num_masked
        noisy = spelt.work.tokens[spelt.work.num_causal :]
        shown = torch.ones(32, dtype=torch.bool)
        shown[spelt.masked_rows - spelt.work.num_causal] = False
        assert torch.equal(noisy[shown], truth[shown])
        assert (noisy[~shown] == 1).all()
        assert torch.equal(spelt.masked_target, truth[~shown])
        shown_masks += int((noisy[shown] == 1).sum())
    assert shown_masks > 0
