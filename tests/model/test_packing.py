"""Documents that share a training forward do not see each other."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work
from fourleaf.train.data import Batch

SHAPES = ((70, 3), (9, 8), (41, 33), (34, 1))
OPTIONS = pytest.mark.parametrize(
    "options", [{"moe": False}, {}, {"coreset_top_p": 0.5}], ids=["dense", "experts", "coreset"]
)


def of_document(batch: Batch, seq: int) -> tuple[Work, Tensor]:
    """One document of a batch as a forward of its own, and the flat rows that it has in the batch."""
    work = batch.work
    assert work.canvas is not None
    assert work.canvas_seq is not None
    assert work.canvas_start is not None
    rows = torch.arange(len(work.tokens))
    clean = rows[: work.num_causal].split(work.causal.lengths)[seq]
    blocks = rows[work.num_causal :].split(work.canvas.lengths)
    mine = [c for c, owner in enumerate(work.canvas_seq) if owner == seq]
    where = torch.cat([clean, *(blocks[c] for c in mine)])
    canvas = Segments([len(blocks[c]) for c in mine])
    starts = [work.canvas_start[c] for c in mine]
    return Work(work.tokens[where], Segments([len(clean)]), [0], canvas, [0] * len(mine), starts), where


def hidden_rows(model: Transformer, work: Work) -> Tensor:
    """As training runs them, which is with gradients on."""
    hidden, _ = model(work)
    assert hidden.requires_grad
    return hidden.detach()


@OPTIONS
def test_packed_equals_alone(options, make_model, make_documents, joint_batch):
    model = make_model(**options)
    batch = joint_batch(make_documents(SHAPES), shifted=1.0)
    packed = hidden_rows(model, batch.work)
    for seq in range(len(SHAPES)):
        alone, where = of_document(batch, seq)
        torch.testing.assert_close(packed[where], hidden_rows(model, alone), rtol=0, atol=1e-12)


def others_after_a_change(model: Transformer, batch: Batch, seq: int) -> tuple[Tensor, Tensor]:
    """All other documents' rows before and after every token of document `seq` is another one."""
    before = hidden_rows(model, batch.work)
    _, where = of_document(batch, seq)
    tokens = batch.work.tokens.clone()
    tokens[where] = (tokens[where] + 7) % 61
    after = hidden_rows(model, replace(batch.work, tokens=tokens))
    assert (after[where] - before[where]).abs().amax(-1).min() > 1e-3
    others = torch.ones(len(tokens), dtype=torch.bool)
    others[where] = False
    return before[others], after[others]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("seq", range(len(SHAPES)))
def test_changing_one_document_leaves_the_others_bit_for_bit(seq, dtype, make_model, make_documents, joint_batch):
    batch = joint_batch(make_documents(SHAPES), shifted=1.0)
    before, after = others_after_a_change(make_model(moe=False, dtype=dtype), batch, seq)
    assert torch.equal(before, after)


@pytest.mark.parametrize("seq", range(len(SHAPES)))
def test_with_experts_it_leaves_the_others_up_to_the_rounding_of_a_product(
    seq, make_model, make_documents, joint_batch
):
    """An expert's rows are one matrix product, and BLAS may round a row's sum by how many rows there are."""
    batch = joint_batch(make_documents(SHAPES), shifted=1.0)
    before, after = others_after_a_change(make_model(coreset_top_p=0.5), batch, seq)
    torch.testing.assert_close(before, after, rtol=0, atol=1e-12)


def test_gradients_of_one_document_do_not_reach_the_others_tokens(make_model, make_documents, joint_batch):
    model = make_model(coreset_top_p=0.5)
    batch = joint_batch(make_documents(SHAPES), shifted=1.0)
    rows: list[Tensor] = []
    handle = model.model.embed_tokens.register_forward_hook(lambda _module, _inputs, out: rows.append(out))
    hidden, _ = model(batch.work)
    handle.remove()
    _, where = of_document(batch, 2)
    (gradient,) = torch.autograd.grad(hidden[where].square().sum(), rows)
    reached = gradient.abs().amax(-1) > 0
    others = torch.ones(len(reached), dtype=torch.bool)
    others[where] = False
    assert reached[where].all()
    assert not reached[others].any()
