"""Scores of a text against the plain way: one causal forward for each prefix."""

import pytest
import torch

from fourleaf.engine import score as score_module
from fourleaf.engine.score import score
from fourleaf.model.work import Segments, Work

IDS = [5, 9, 9, 2, 30, 7, 1]


@pytest.fixture
def model(random_engine):
    return random_engine.model


def plain(model, ids: list[int], mask_id: int | None) -> list[torch.Tensor]:
    """The distribution behind each prefix, from a forward of its own."""
    rows = []
    for end in range(1, len(ids) + 1):
        hidden, _ = model(Work(torch.tensor(ids[:end]), Segments([end]), [0]))
        logits = model.head(hidden[-1:])[0].double()
        if mask_id is not None:
            logits[mask_id] = -torch.inf
        rows.append(logits.log_softmax(-1))
    return rows


@torch.inference_mode()
@pytest.mark.parametrize("mask_id", [None, 1])
@pytest.mark.parametrize("chunk", [3, 128])
def test_each_token_is_scored_by_those_before_it(model, monkeypatch, mask_id, chunk):
    monkeypatch.setattr(score_module, "CHUNK_ROWS", chunk)
    found = score(model, IDS, 3, mask_id)
    assert len(found) == len(IDS) + 1
    assert found[0] is None
    rows = plain(model, IDS, mask_id)
    for at, row in enumerate(rows):
        one = found[at + 1]
        assert one is not None
        expected = row[IDS[at + 1]] if at + 1 < len(IDS) else row.max()
        if torch.isfinite(expected):
            assert one.logprob == pytest.approx(float(expected), abs=1e-9)
        else:
            assert one.logprob == -torch.inf
        best, best_ids = row.topk(3)
        assert [token for token, _ in one.top] == best_ids.tolist()
        assert [logprob for _, logprob in one.top] == pytest.approx(best.tolist(), abs=1e-9)


def test_no_alternatives_are_wanted(model):
    assert [one and one.top for one in score(model, IDS[:2], 0, None)] == [None, (), ()]
    assert len(score(model, [5], 0, None)) == 2
