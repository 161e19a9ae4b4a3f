"""Temperatures: what a fit finds, what it leaves alone, and that a checkpoint keeps them."""

import json

import numpy as np
import pytest

from fourleaf.decide.answers import choice_confidence, score_confidence
from fourleaf.decide.calibration import (
    BUCKETS,
    FILE,
    MIN_ANSWERS,
    Temperatures,
    bucket,
    fit,
    fit_one,
    tempered,
)
from fourleaf.errors import CheckpointError


def _drawn(rng, temperature, size, number):
    """Answers drawn from p, stated as p^temperature: a fit should find the temperature."""
    answers = []
    for _ in range(number):
        p = rng.dirichlet(np.ones(size))
        stated = np.log(p) * temperature
        answers.append((stated - np.logaddexp.reduce(stated), int(rng.choice(size, p=p))))
    return answers


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_fit_finds_the_temperature_that_answers_were_stated_with(temperature):
    rng = np.random.default_rng(0)
    assert fit_one(_drawn(rng, temperature, 3, 4000)) == pytest.approx(temperature, rel=0.1)


def test_each_mode_type_and_bucket_has_its_own_and_small_ones_are_left_alone():
    rng = np.random.default_rng(1)
    answers = [("joint", "choice", *a) for a in _drawn(rng, 3.0, 3, 500)]
    answers += [("independent", "choice", *a) for a in _drawn(rng, 0.5, 3, 500)]
    answers += [("joint", "choice", *a) for a in _drawn(rng, 1.0, 7, 500)]
    answers += [("joint", "score", *a) for a in _drawn(rng, 3.0, 3, MIN_ANSWERS - 1)]
    answers += [("joint", "choice", np.zeros(1), 0)] * 100
    made = fit(answers).values
    assert set(made) == {("joint", "choice", 3), ("independent", "choice", 3), ("joint", "choice", 8)}
    assert made["joint", "choice", 3] > 2 > 1 > made["independent", "choice", 3]


def test_a_sharp_and_always_right_model_stays_within_the_limits():
    sure = [(np.log([0.9, 0.1]), 0)] * 50
    wrong = [(np.log([0.9, 0.1]), 1)] * 50
    assert fit_one(sure) == pytest.approx(0.05, rel=0.01)
    assert fit_one(wrong) == pytest.approx(20, rel=0.01)
    assert np.isfinite(fit_one([(np.array([0.0, -np.inf]), 1)] * 50))


def test_tempering_keeps_the_order_and_sums_to_one():
    log_p = np.log([0.7, 0.2, 0.1])
    warm = np.exp(tempered(log_p, 2.0))
    assert warm.sum() == pytest.approx(1)
    assert np.argsort(warm).tolist() == np.argsort(log_p).tolist()
    assert warm.max() < 0.7
    assert np.exp(tempered(np.array([0.0, -np.inf]), 5.0)).tolist() == [1.0, 0.0]


def test_buckets_cover_every_number_of_options():
    assert [bucket(n) for n in (1, 2, 3, 4, 5, 8, 9, 27, 255)] == [2, 2, 3, 4, 8, 8, 26, 255, 255]
    assert BUCKETS[-1] == 255


def test_a_checkpoint_keeps_them(tmp_path):
    for passes in (2, None):
        made = Temperatures({("joint", "noul", 2): 1.25, ("independent", "score", 4): 0.75}, {"groups": 3}, passes)
        made.save(tmp_path)
        assert Temperatures.load(tmp_path) == made
    assert Temperatures.load(tmp_path / "elsewhere") == Temperatures()


def test_later_passes_have_a_temperature_of_their_own_or_else_the_first_passes():
    log_p = np.log([0.6, 0.4])
    first = Temperatures({("joint", "noul", 2): 2.0})
    both = Temperatures({("joint", "noul", 2): 2.0, ("revealed", "noul", 2): 4.0})
    assert first.applied("revealed", "noul", log_p).tolist() == tempered(log_p, 2.0).tolist()
    assert both.applied("revealed", "noul", log_p).tolist() == tempered(log_p, 4.0).tolist()
    assert both.applied("joint", "noul", log_p).tolist() == tempered(log_p, 2.0).tolist()
    assert both.applied("independent", "noul", log_p).tolist() == log_p.tolist()


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"temperatures": []},
        {"temperatures": {"joint": {"noul": {"2": "hot"}}}},
        {"temperatures": {"joint": {"noul": {"5": 1.0}}}},
        {"temperatures": {"joint": {"box": {"2": 1.0}}}},
        {"temperatures": {"both": {"noul": {"2": 1.0}}}},
        {"temperatures": {"joint": {"noul": {"2": 0}}}},
        {"temperatures": {}, "passes": 0},
        {"temperatures": {}, "passes": 9},
        {"temperatures": {}, "passes": True},
        {"temperatures": {}, "passes": "two"},
    ],
)
def test_a_broken_file_is_refused(tmp_path, document):
    (tmp_path / FILE).write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(CheckpointError, match="calibrate"):
        Temperatures.load(tmp_path)


@pytest.mark.parametrize(
    ("p", "expected"),
    [([1.0], 1), ([0.5, 0.5], 0), ([0.02, 0.95, 0.03], 0.925), ([0.25] * 4, 0), ([0.0, 1.0], 1)],
)
def test_confidence_of_a_choice_is_the_share_above_chance(p, expected):
    assert choice_confidence(np.array(p)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("p", "expected"),
    [([1.0], 1), ([0.0, 0.95, 0.05], 0.925), ([1 / 3] * 3, 0), ([0.5, 0.0, 0.5], 0), ([0, 0, 1.0], 1)],
)
def test_confidence_of_a_score_is_one_less_its_spread(p, expected):
    assert score_confidence(np.array(p)) == pytest.approx(expected, abs=1e-12)
