import dataclasses
import math

import pytest

from fourleaf.engine.request import LIMITS, MODES, POLICIES, WHOLE_LIMITS, Delta, GenerateParams, TokenLogprob
from fourleaf.errors import RequestError
from fourleaf.text.constraint import Constraint


def refused(**fields) -> RequestError:
    with pytest.raises(RequestError) as caught:
        GenerateParams(**fields)
    assert caught.value.param is not None
    assert caught.value.param in caught.value.message
    return caught.value


@pytest.mark.parametrize("name", LIMITS)
def test_a_number_may_reach_its_limits_and_not_pass_them(name):
    low, high = LIMITS[name]
    for value in (low, high):
        assert getattr(GenerateParams(**{name: value}), name) == value
    for value in (low - 1e-3, high + 1e-3, math.nan, math.inf, -math.inf):
        error = refused(**{name: value})
        assert (error.param, error.code) == (name, "invalid_value")
        assert f"{high:g}" in error.message
    for value in ("0.5", True, None, [0.5]):
        error = refused(**{name: value})
        assert (error.param, error.code) == (name, "invalid_type")


@pytest.mark.parametrize("name", WHOLE_LIMITS)
def test_a_whole_number_may_reach_its_limits_and_not_pass_them(name):
    low, high = WHOLE_LIMITS[name]
    assert getattr(GenerateParams(**{name: low}), name) == low
    assert refused(**{name: low - 1}).param == name
    if high is not None:
        assert getattr(GenerateParams(**{name: high}), name) == high
        assert refused(**{name: high + 1}).param == name
    for value in (1.0, "1", True, None):
        assert refused(**{name: value}).code == "invalid_type"


@pytest.mark.parametrize(("name", "allowed"), [("mode", MODES), ("policy", POLICIES)])
def test_a_word_outside_its_list_is_refused_with_the_list(name, allowed):
    for word in allowed:
        assert getattr(GenerateParams(**{name: word}), name) == word
    error = refused(**{name: "fast"})
    assert error.param == name
    assert all(word in error.message for word in allowed)
    assert refused(**{name: 3}).param == name


def test_priority_is_one_of_two():
    assert GenerateParams(priority="batch").priority == "batch"
    assert refused(priority="urgent").param == "priority"


def test_logit_bias_names_each_token_once_within_limits():
    assert GenerateParams(logit_bias=((5, -100), (6, 100.0))).logit_bias == ((5, -100), (6, 100.0))
    for bias in (((5, 101),), ((-1, 1),), ((5, math.nan),), ((5, True),), ((5.0, 1),), ((5, 1), (5, 2))):
        assert refused(logit_bias=bias).param == "logit_bias"


def test_stops_are_texts_that_are_not_empty_and_ids_that_are_not_negative():
    params = GenerateParams(stop=("\n", "é"), stop_token_ids=(0, 7))
    assert (params.stop, params.stop_token_ids) == (("\n", "é"), (0, 7))
    for stop in (("",), ("a", ""), (5,), (None,)):
        assert refused(stop=stop).param == "stop"
    for ids in ((-1,), (True,), ("a",), (1.0,)):
        assert refused(stop_token_ids=ids).param == "stop_token_ids"


def test_ids_that_a_model_lacks_are_refused_by_name():
    GenerateParams(logit_bias=((9, 1.0),), stop_token_ids=(0, 9)).check_ids(10)
    for name, params in (
        ("logit_bias", GenerateParams(logit_bias=((3, 1.0), (10, 1.0)))),
        ("stop_token_ids", GenerateParams(stop_token_ids=(3, 10))),
    ):
        with pytest.raises(RequestError, match="9, not 10") as caught:
            params.check_ids(10)
        assert caught.value.param == name


def test_logprobs_are_off_or_say_how_many_alternatives():
    for value in (None, 0, 20):
        assert GenerateParams(logprobs=value).logprobs == value
    for value in (-1, 21, True, 1.0):
        assert refused(logprobs=value).param == "logprobs"


def test_lossless_excludes_diffuse_and_only_it():
    for mode in ("ar", "draft", "auto"):
        assert GenerateParams(mode=mode, lossless=True).lossless
    assert refused(mode="diffuse", lossless=True).param == "lossless"
    assert refused(mode="auto", lossless=1).code == "invalid_type"


def test_auto_is_lossless_unless_diffuse_is_asked_for():
    assert GenerateParams(mode="auto").is_lossless
    assert not GenerateParams(mode="auto", lossless=False).is_lossless


def test_modes_are_replayed_under_auto_alone_and_lossless_holds_for_them():
    assert GenerateParams(mode="auto", modes=("ar", "diffuse")).modes == ("ar", "diffuse")
    assert refused(mode="ar", modes=("ar",)).param == "modes"
    assert refused(mode="auto", modes=("auto",)).param == "modes"
    assert refused(mode="auto", lossless=True, modes=("draft", "diffuse")).param == "modes"


def test_equal_params_are_equal_keys():
    fields = {"stop": ("a",), "logit_bias": ((3, 1.0),), "constraint": Constraint("choices", ("yes", "no"))}
    assert len({GenerateParams(**fields), GenerateParams(**fields), GenerateParams()}) == 2


def test_a_deltas_logprobs_are_plain_data():
    delta = Delta((5,), logprobs=(TokenLogprob(-0.5, 2, ((5, -0.5), (6, -1.5))),))
    assert dataclasses.asdict(delta)["logprobs"] == ({"logprob": -0.5, "pass_index": 2, "top": ((5, -0.5), (6, -1.5))},)
