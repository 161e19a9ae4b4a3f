"""Learning rates, curricula, budgets."""

import pytest

from fourleaf.errors import ConfigError
from fourleaf.train.config import Stage, TrainConfig
from fourleaf.train.recipes import CABIN_STAGES


def stage(**options) -> Stage:
    return Stage(**({"objective": "ar", "share": 1.0} | options))


def test_the_rate_warms_up_by_steps_stays_and_falls_by_progress():
    s = stage(warmup_steps=4, decay_from=0.6, floor=0.1)
    assert [s.rate(step, 0.0) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert [s.rate(100, p) for p in (0.3, 0.6)] == [1.0, 1.0]
    assert s.rate(100, 0.8) == pytest.approx(0.5)
    assert s.rate(100, 0.9) == pytest.approx(0.25)
    assert s.rate(100, 0.97) == s.rate(100, 1.0) == 0.1
    assert s.rate(1, 0.8) == pytest.approx(0.25), "a short run may decay before it is warm"


def test_a_rate_may_stay_to_the_end_and_start_at_once():
    s = stage(warmup_steps=0, decay_from=1.0)
    assert [s.rate(0, p) for p in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]


def test_the_curriculum_is_the_last_entry_that_has_begun():
    s = stage(curriculum=((0.0, 1), (0.25, 2), (0.5, 8)))
    assert [s.max_calls(p) for p in (0.0, 0.24, 0.25, 0.49, 0.5, 1.0)] == [1, 1, 2, 2, 8, 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "diffusion"}, "'ar' or 'joint'"),
        ({"share": 0.0}, "share is 0.0"),
        ({"share": 1.5}, "share is 1.5"),
        ({"curriculum": ()}, "curriculum"),
        ({"curriculum": ((0.1, 1),)}, "rise from 0"),
        ({"curriculum": ((0.0, 1), (0.5, 2), (0.4, 3))}, "rise from 0"),
        ({"decay_from": 1.2}, "decay_from is 1.2"),
    ],
)
def test_a_stage_out_of_limits_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        stage(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either minutes or steps"),
        ({"minutes": 1.0, "steps": 5}, "either minutes or steps"),
        ({"minutes": 0.0}, "budget is 0.0"),
        ({"steps": -1}, "budget is -1"),
        ({"steps": 5, "stages": (stage(share=0.7),)}, "sum to 0.7"),
    ],
)
def test_a_run_out_of_limits_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**({"stages": (stage(),)} | options))


@pytest.mark.parametrize("steps", [2, 3, 7, 100, 101, 99_999])
def test_the_steps_of_all_stages_are_the_budget(steps):
    stages = (stage(share=0.45), stage(share=0.25), stage(share=0.3))
    config = TrainConfig(stages=stages, steps=steps)
    counts = [config.stage_steps(i) for i in range(3)]
    assert sum(counts) == max(3, steps), "each stage has at least one"
    if steps >= 100:
        assert counts == pytest.approx([0.45 * steps, 0.25 * steps, 0.3 * steps], abs=1)


def test_the_bundled_recipe_is_ar_first_and_from_few_calls_to_eight():
    objectives = [s.objective for s in CABIN_STAGES]
    assert objectives == sorted(objectives) == ["ar", "joint"]
    calls = [s.max_calls(p / 100) for s in CABIN_STAGES for p in range(101)]
    assert calls == sorted(calls)
    assert (calls[0], calls[-1]) == (1, 8)
