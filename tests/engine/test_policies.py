"""Every policy and every way of sampling, through the engine, on random weights."""

import dataclasses
import math

import pytest

from fourleaf.engine.request import POLICIES, GenerateParams
from fourleaf.errors import RequestError

PROMPTS = [[20, 30], [40, 50, 60, 70], list(range(100, 140)), [25]]
WAYS = {
    "threshold": GenerateParams(threshold=0.4),
    "fixed": GenerateParams(policy="fixed", tokens_per_pass=3),
    "entropy": GenerateParams(policy="entropy", entropy_bound=1.0),
    "edit": GenerateParams(policy="edit", threshold=0.4, edit_threshold=0.5),
    "sampled": GenerateParams(
        temperature=1.3, top_p=0.9, top_k=40, min_p=0.01, presence_penalty=0.5, frequency_penalty=0.3,
        repetition_penalty=1.2, logit_bias=((65, 3.0), (66, -5.0)), seed=11, threshold=0.2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_is_the_same_alone_and_among_others(random_engine, way):
    params = dataclasses.replace(WAYS[way], max_tokens=21)
    together = random_engine.generate_many(PROMPTS, params)
    assert len({tuple(tokens) for tokens, _ in together}) > 1
    for prompt, (tokens, last) in zip(PROMPTS, together, strict=True):
        deltas = list(random_engine.generate(prompt, params))
        assert [token for delta in deltas for token in delta.tokens] == tokens
        assert dataclasses.replace(deltas[-1].usage, cached_tokens=0) == dataclasses.replace(
            last.usage, cached_tokens=0
        )
        assert last.usage.completion_tokens == len(tokens) + (last.finish_reason == "stop") <= 21
        assert random_engine.mask_id not in tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_kind_52_the_limit_is_exact_under_every_policy(random_engine, policy):
    for limit in (1, 7, 8, 9, 17):
        params = dataclasses.replace(WAYS[policy], max_tokens=limit, logit_bias=((random_engine.end_id, -100.0),))
        (tokens, last), *_ = random_engine.generate_many(PROMPTS[:1], params)
        assert (len(tokens), last.finish_reason, last.usage.completion_tokens) == (limit, "length", limit)


def test_fixed_takes_as_many_passes_as_its_number_says(random_engine):
    bias = ((random_engine.end_id, -100.0),)
    params = GenerateParams(policy="fixed", tokens_per_pass=3, max_tokens=16, logit_bias=bias)
    (_, last), *_ = random_engine.generate_many(PROMPTS[:1], params)
    assert last.usage.passes == 2 * 3  # two blocks of 8 rows: 3, 3 and 2


def test_kind_47_edit_is_refused_where_the_model_was_not_trained_for_it(random_engine, monkeypatch):
    monkeypatch.setattr(random_engine.model, "config", dataclasses.replace(random_engine.model.config, bd_edits=False))
    for mode in ("diffuse", "auto"):
        with pytest.raises(RequestError, match="bd_edits") as caught:
            random_engine.admit([20], GenerateParams(policy="edit", mode=mode))
        assert caught.value.param == "policy"
    random_engine.admit([20], GenerateParams(policy="edit", mode="ar"))  # where policies mean nothing


def test_kind_36_temperature_changes_answers_and_seed_and_choice_tell_them_apart(random_engine):
    ways = [GenerateParams(temperature=1.5, max_tokens=16, seed=seed, choice=choice) for seed, choice in
            ((1, 0), (2, 0), (1, 1))]  # fmt: skip
    answers = [tuple(random_engine.generate_many(PROMPTS[2:3], params)[0][0]) for params in ways]
    assert len(set(answers)) == 3


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
def test_penalties_and_bias_bind_in_every_mode(random_engine, mode):
    for changes in ({"presence_penalty": 2.0, "frequency_penalty": 2.0}, {"logit_bias": ((77, 100.0),)}):
        plain, changed = (
            random_engine.generate_many(PROMPTS, GenerateParams(mode=mode, max_tokens=20, **options))
            for options in ({}, changes)
        )
        assert [tokens for tokens, _ in plain] != [tokens for tokens, _ in changed]
        if "logit_bias" in changes:
            assert all(set(tokens) <= {77} for tokens, _ in changed)


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
def test_logprobs_come_one_a_token_in_every_mode(random_engine, mode):
    deltas = list(random_engine.generate(PROMPTS[1], GenerateParams(mode=mode, max_tokens=20, logprobs=3)))
    for delta in deltas:
        assert delta.logprobs is not None
        assert len(delta.logprobs) == len(delta.tokens)
        for token, entry in zip(delta.tokens, delta.logprobs, strict=True):
            assert entry.top[0] == (token, entry.logprob)  # greedy: the most probable one
            assert math.exp(entry.logprob) <= 1
            assert len(entry.top) == 3
            assert entry.pass_index == 0 or mode == "diffuse"
    assert all(delta.logprobs is None for delta in random_engine.generate(PROMPTS[1], GenerateParams(max_tokens=5)))


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
def test_an_answer_ends_with_the_token_that_completes_a_stop(random_engine, mode):
    letters = tuple((random_engine.tokenizer.encode(letter)[0], 100.0) for letter in "abcdefgh")
    plain = GenerateParams(mode=mode, max_tokens=24, threshold=0.3, logit_bias=letters)
    (tokens, _), *_ = random_engine.generate_many(PROMPTS[1:2], plain)
    text = random_engine.tokenizer.decode(tokens)
    stop = text[9:12]
    kept = text.index(stop)
    (cut, last), *_ = random_engine.generate_many(PROMPTS[1:2], dataclasses.replace(plain, stop=("zzzz", stop)))
    assert cut == tokens[: len(cut)]
    assert random_engine.tokenizer.decode(cut) == text[:kept] + stop
    assert (last.finish_reason, last.usage.completion_tokens) == ("stop", len(cut))


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
def test_a_stop_token_ends_the_answer_and_is_left_out(random_engine, mode):
    plain = GenerateParams(mode=mode, max_tokens=24, threshold=0.3, logit_bias=((random_engine.end_id, -100.0),))
    (tokens, _), *_ = random_engine.generate_many(PROMPTS[1:2], plain)
    stop = tokens[12]
    (cut, last), *_ = random_engine.generate_many(PROMPTS[1:2], dataclasses.replace(plain, stop_token_ids=(stop,)))
    assert cut == tokens[: tokens.index(stop)]
    assert (last.finish_reason, last.usage.completion_tokens) == ("stop", len(cut) + 1)


def test_ids_that_the_model_lacks_are_refused_before_generation(random_engine):
    size = random_engine.model.config.vocab_size
    for fields in ({"logit_bias": ((size, 1.0),)}, {"stop_token_ids": (size,)}):
        with pytest.raises(RequestError) as caught:
            random_engine.admit([20], GenerateParams(**fields))
        assert caught.value.param in fields
