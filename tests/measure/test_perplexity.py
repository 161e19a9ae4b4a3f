"""Perplexity: which tokens are scored, with what before them, and by which numbers."""

import math

import pytest
import torch

from fourleaf.checkpoint.files import load_model
from fourleaf.errors import ConfigError
from fourleaf.measure.perplexity import losses, token_ids, windows
from fourleaf.model.work import Segments, Work

TEXT = "Where there is a will, there is a way; where there is <|mask|>, there is none."


def test_every_token_behind_the_first_half_window_is_scored_once():
    ids = torch.arange(50)
    pieces = windows(ids, 8)
    assert all(len(piece) == 9 for piece in pieces)
    scored = torch.cat([piece[5:] for piece in pieces])
    assert scored.tolist() == list(range(5, 49))
    assert len(windows(ids[:9], 8)) == 1


@pytest.mark.parametrize(("num", "window", "message"), [
    (8, 8, "the text has 8 tokens; a window of 8 needs 9"), (50, 7, "window is 7; it must be even"), (50, 0, "is 0"),
])  # fmt: skip
def test_a_window_that_does_not_fit_is_named(num, window, message):
    with pytest.raises(ConfigError, match=message):
        windows(torch.arange(num), window)


def test_losses_are_those_of_one_row_at_a_time(tiny):
    """The slow twin: each scored token's own forward, from its window's start, by hand."""
    model, told = load_model(tiny), []
    pieces = windows(token_ids(tiny, TEXT, 60), 12)
    found = losses(model, pieces, lambda done, all_: told.append((done, all_)))
    assert told == [(i + 1, len(pieces)) for i in range(len(pieces))]
    with torch.inference_mode():
        for piece, loss in zip(pieces, found, strict=True):
            by_hand = []
            for at in range(7, 13):
                hidden, _ = model(Work(piece[:at], Segments([at]), [0]))
                by_hand.append(-model.head(hidden[-1:]).double().log_softmax(-1)[0, piece[at]].item())
            assert math.isclose(loss, sum(by_hand) / 6, rel_tol=1e-5)
    assert len({round(loss, 6) for loss in found}) == len(found), "windows of other text have other losses"


def test_many_rows_are_scored_as_few_are(tiny, monkeypatch):
    model, pieces = load_model(tiny), windows(token_ids(tiny, TEXT, 60), 12)
    whole = losses(model, pieces)
    monkeypatch.setattr("fourleaf.measure.perplexity._ROWS", 4)
    torch.testing.assert_close(torch.tensor(losses(model, pieces)), torch.tensor(whole))


def test_text_is_read_as_serving_reads_it(tiny, byte_tokenizer):
    ids = token_ids(tiny, TEXT, 1000)
    assert byte_tokenizer.mask_id not in ids
    assert byte_tokenizer.decode(ids.tolist()) == TEXT
    assert len(token_ids(tiny, TEXT, 5)) == 5
