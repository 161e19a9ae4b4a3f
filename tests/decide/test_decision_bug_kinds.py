"""Kinds of bug that other engines for diffusion models have had, where they could occur in decisions."""

import numpy as np
import pytest
import torch

from fourleaf.decide.canvas import Reading, denoise
from fourleaf.decide.decider import Decider
from fourleaf.errors import NumericError
from fourleaf.text.tokenizer import MASK


def _p(decision):
    return [answer.p.tolist() for answer in decision.answers]


def test_kind_01_literal_mask_text_stays_text(diffusing, decider, asked):
    """Masked is what the bitmap says: a state or an option that spells the mask token holds no mask."""
    questions = {"q": {"type": "choice", "instructions": MASK, "criteria": {MASK: MASK, "b": None}}}
    sheet = decider._printer.sheet(MASK, asked(questions).questions, [(0, 1)])
    assert diffusing.mask_id not in sheet.prompt
    answer = decider.decide(asked(questions, state=MASK, x_joint=True)).answers[0]
    assert answer.question.options[0].name == MASK
    assert answer.p.sum() == pytest.approx(1)


def test_kind_19_a_cancelled_request_leaves_nothing_behind(decider, asked):
    expected = _p(decider.decide(asked(x_joint=True)))
    for at in (1, 2, 3):
        calls = []

        def check(at=at, calls=calls):
            calls.append(1)
            if len(calls) == at:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            decider.decide(asked(state="Another state.", x_joint=True, x_threshold=1.0), check)
    assert _p(decider.decide(asked(x_joint=True))) == expected


@pytest.mark.parametrize("num_slots", [1, 8])
def test_kind_31_filling_ends_where_nothing_is_sure(num_slots):
    flat = Reading(np.log(np.full(4, 0.25)), 1.0)
    path = denoise(lambda known, wanted: [flat] * len(wanted), num_slots, num_slots, threshold=1.0)
    assert [len(slots) for slots in path.order] == [1] * num_slots
    assert sorted(path.known) == list(range(num_slots))


def test_kind_42_nan_fails_its_own_request_and_not_the_next_one(decider, asked, monkeypatch):
    request = asked(x_joint=True)
    expected = _p(decider.decide(request))
    head = decider.model.head
    with monkeypatch.context() as broken:
        broken.setattr(decider.model, "head", lambda hidden: head(hidden) * torch.nan)
        with pytest.raises(NumericError):
            decider.decide(request)
    assert _p(decider.decide(request)) == expected


@pytest.mark.parametrize("joint", [False, True])
def test_kind_49_the_mask_id_takes_no_part_of_the_mass(diffusing, asked, joint, monkeypatch):
    decider = Decider(diffusing)
    plain = decider.decide(asked(x_joint=joint, **({"x_passes": 1} if joint else {})))
    head = diffusing.model.head

    def loud(hidden):
        logits = head(hidden).clone()
        logits[:, diffusing.mask_id] = 1e4
        return logits

    monkeypatch.setattr(diffusing.model, "head", loud)
    found = decider.decide(asked(x_joint=joint, **({"x_passes": 1} if joint else {})))
    assert _p(found) == _p(plain)
    assert [answer.mass for answer in found.answers] == [answer.mass for answer in plain.answers]
