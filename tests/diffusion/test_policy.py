import numpy as np
import pytest
import torch

from fourleaf.diffusion.policy import Canvas, Noise, Purpose, choose, threshold

END, MASK = 0, 1


def test_everything_above_the_threshold_is_revealed():
    assert threshold([0, 2, 5], [7, 8, 9], [0.95, 0.5, 0.91], END, 0.9) == ([0, 5], [7, 9])


def test_confidence_equal_to_the_threshold_is_not_above_it():
    assert threshold([0, 1], [7, 8], [0.9, 0.95], END, 0.9) == ([1], [8])


def test_where_no_row_is_sure_the_first_is_revealed_however_sure_another():
    assert threshold([1, 2, 3], [7, 8, 9], [0.2, 0.6, 0.3], END, 0.9) == ([1], [7])


def test_an_end_token_waits_for_all_rows_left_of_it():
    assert threshold([0, 1, 2], [7, 8, END], [0.95, 0.5, 0.99], END, 0.9) == ([0], [7])


def test_an_end_token_is_revealed_with_the_rows_left_of_it_and_nothing_behind_it():
    assert threshold([0, 1, 2, 3], [7, 8, END, 9], [0.95, 0.93, 0.99, 0.99], END, 0.9) == ([0, 1, 2], [7, 8, END])


def test_an_unsure_end_token_is_revealed_only_as_the_first_masked_row():
    assert threshold([3, 4], [7, END], [0.2, 0.8], END, 0.9) == ([3], [7])
    assert threshold([3, 4], [END, 7], [0.8, 0.2], END, 0.9) == ([3], [END])
    assert threshold([3, 4], [END, END], [0.2, 0.8], END, 0.9) == ([3], [END])


def test_confidence_is_untempered_and_the_mask_id_is_never_chosen():
    logits = torch.tensor([[0.0, 9.0, 2.0, 1.0]])
    tokens, sure = choose(logits.clone(), MASK, 0.0, [5], 0, Noise(0))
    expected = torch.softmax(torch.tensor([0.0, 2.0, 1.0]), 0)
    assert tokens == [2]
    assert sure == pytest.approx([float(expected[1])])
    seen = set()
    for seed in range(60):
        tokens, sure = choose(logits.clone(), MASK, 1.5, [5], 0, Noise(seed))
        seen.add(tokens[0])
        assert sure[0] == pytest.approx(float(expected[{0: 0, 2: 1, 3: 2}[tokens[0]]]))
    assert seen == {0, 2, 3}


def test_samples_follow_the_tempered_distribution():
    logits = torch.tensor([[0.3, 5.0, 1.2, -0.4]])
    wanted = torch.softmax(torch.tensor([0.3, 1.2, -0.4]) / 0.7, 0).numpy()
    counts = np.zeros(4)
    draws = 4000
    for seed in range(draws):
        counts[choose(logits.clone(), MASK, 0.7, [3], 1, Noise(seed))[0][0]] += 1
    found = counts[[0, 2, 3]] / draws
    assert ((found - wanted) ** 2 / wanted).sum() * draws < 13.8  # chi-square, 2 degrees of freedom, p = 0.001


def test_noise_is_a_function_of_its_counter_alone():
    base = Noise(3).uniform(5, 2, Purpose.PROPOSE, 4)
    assert (Noise(3).uniform(5, 2, Purpose.PROPOSE, 4) == base).all()
    others = [
        Noise(4).uniform(5, 2, Purpose.PROPOSE, 4),
        Noise(3, choice=1).uniform(5, 2, Purpose.PROPOSE, 4),
        Noise(3).uniform(6, 2, Purpose.PROPOSE, 4),
        Noise(3).uniform(5, 3, Purpose.PROPOSE, 4),
        Noise(3).uniform(5, 2, Purpose.ACCEPT, 4),
    ]
    assert all((other != base).all() for other in others)
    assert (Noise(2**63 - 1).uniform(10**6, 10**4, Purpose.TIE, 2) < 1).all()


def test_streams_of_one_position_do_not_overlap_those_of_the_next():
    """A stream longer than one Philox block must not run into the next position's."""
    here, there = Noise(1).uniform(5, 0, Purpose.PROPOSE, 2000), Noise(1).uniform(6, 0, Purpose.PROPOSE, 2000)
    assert not set(here) & set(there)


def test_a_canvas_is_masked_by_its_bitmap_whatever_its_tokens():
    canvas = Canvas.blank(10, 4, MASK)
    canvas.reveal([1], [MASK])
    assert canvas.masked.tolist() == [True, False, True, True]
    assert canvas.num_settled == 0
    canvas.reveal([0], [9])
    assert canvas.num_settled == 2
    assert not canvas.is_done(END)
    with pytest.raises(AssertionError):
        canvas.reveal([1], [5])
    canvas.reveal([2], [END])
    assert canvas.is_done(END)
    assert canvas.end_row(END) == 2
