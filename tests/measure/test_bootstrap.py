import math

import numpy as np
import pytest

from fourleaf.measure import bootstrap


def test_the_interval_of_a_share_is_the_textbooks():
    right = [1.0] * 700 + [0.0] * 300
    found = bootstrap.mean(right, seed=0)
    half = 1.96 * math.sqrt(0.7 * 0.3 / 1000)
    assert (found.value, found.n) == (0.7, 1000)
    assert found.low == pytest.approx(0.7 - half, abs=0.003)
    assert found.high == pytest.approx(0.7 + half, abs=0.003)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(300):
        found = bootstrap.mean(rng.random(60) < 0.7, seed=trial, resamples=400)
        covered += found.low <= 0.7 <= found.high
    assert 0.90 <= covered / 300 <= 0.98


def test_the_seed_decides_the_resamples():
    values = list(np.random.default_rng(2).random(50))
    assert bootstrap.mean(values, seed=5) == bootstrap.mean(values, seed=5)
    assert bootstrap.mean(values, seed=5) != bootstrap.mean(values, seed=6)


def test_values_that_are_all_alike_have_no_width():
    found = bootstrap.mean([True] * 9, seed=0)
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_a_ratio_is_of_sums():
    """Two prompts, 1 token in 1 s and 99 tokens in 9 s: 10 tokens a second, not the 6 that the mean of ratios is."""
    assert bootstrap.ratio([1, 99], [1, 9], seed=0).value == pytest.approx(10)


def test_prompts_without_a_denominator_count_in_the_sum_and_leave_the_interval_finite():
    """Answers that end within their prefill have tokens and no forward."""
    found = bootstrap.ratio([3, 3, 40], [0, 0, 8], seed=0)
    assert found.value == pytest.approx(46 / 8)
    assert 0 < found.low <= found.value <= found.high < float("inf")


def test_a_speed_up_that_every_prompt_shares_has_no_width():
    rng = np.random.default_rng(3)
    tokens, seconds = rng.integers(5, 90, 40), rng.random(40) + 0.1
    found = bootstrap.ratio_of_ratios((tokens, seconds), (tokens, seconds / 3), seed=0)
    assert found.value == pytest.approx(3)
    assert found.low == pytest.approx(3)
    assert found.high == pytest.approx(3)


def test_prompts_are_resampled_in_pairs():
    """Prompts differ a hundredfold while the arms differ by a third: only pairs show it."""
    rng = np.random.default_rng(4)
    seconds = 10 ** rng.uniform(-1, 1, 60)
    noise = rng.uniform(0.95, 1.05, 60)
    tokens = np.full(60, 50)
    found = bootstrap.ratio_of_ratios((tokens, seconds), (tokens, seconds / 1.3 * noise), seed=0)
    assert found.value == pytest.approx(1.3, abs=0.04)
    assert found.high - found.low < 0.1


def test_paired_counts_and_difference():
    first = [True, True, True, False, False, False, False, True, True, True]
    second = [True, True, True, True, True, False, False, False, True, True]
    found = bootstrap.paired(first, second, seed=0)
    assert (found.both, found.only_first, found.only_second, found.neither) == (5, 1, 2, 2)
    assert found.difference.value == pytest.approx(0.1)
    assert found.difference.n == 10


def test_arms_that_fail_on_the_same_prompts_differ_by_nothing():
    right = list(np.random.default_rng(5).random(200) < 0.5)
    found = bootstrap.paired(right, right, seed=0).difference
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_paired_arms_have_one_length():
    with pytest.raises(AssertionError):
        bootstrap.paired([True], [True, False], seed=0)


def test_no_prompt_no_estimate():
    with pytest.raises(AssertionError):
        bootstrap.mean([], seed=0)
