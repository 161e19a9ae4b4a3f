"""Decoding against slow twins that know no cache: every forward starts from nothing."""

import itertools

import pytest
import torch

from fourleaf.engine.request import GenerateParams
from fourleaf.errors import ContextLengthError, RequestError
from fourleaf.model.work import Segments, Work

BOTH = ("ar", "diffuse")
PROMPTS = [list(range(20, 20 + n)) for n in (1, 3, 8, 17, 33)]


def tokens_of(engine, prompt, **params):
    """(tokens, last delta) of one answer."""
    deltas = list(engine.generate(prompt, GenerateParams(**params)))
    assert all(d.finish_reason is None for d in deltas[:-1])
    return [t for d in deltas for t in d.tokens], deltas[-1]


@torch.inference_mode()
def slow_ar(engine, prompt, max_tokens):
    """One full forward a token."""
    ids = list(prompt)
    for _ in range(max_tokens):
        hidden, _ = engine.model(Work(torch.tensor(ids), Segments([len(ids)]), [0]))
        logits = engine.model.head(hidden[-1])
        logits[engine.mask_id] = float("-inf")
        token = int(logits.argmax())
        if token == engine.end_id:
            break
        ids.append(token)
    return ids[len(prompt) :]


@torch.inference_mode()
def slow_diffuse(engine, prompt, max_tokens, tau):
    """Each pass runs all of the text and its canvas anew; the rule of design section 4 is written out in loops."""
    said = []
    while len(said) < max_tokens:
        clean = [*prompt, *said]
        rows = min(8, max_tokens - len(said))
        block: list[int | None] = [None] * rows
        while None in block and engine.end_id not in block:
            shown = [engine.mask_id if t is None else t for t in block]
            work = Work(torch.tensor(clean + shown), Segments([len(clean)]), [0], Segments([rows]), [0], [len(clean)])
            hidden, _ = engine.model(work)
            logits = engine.model.head(hidden[len(clean) :])
            logits[:, engine.mask_id] = float("-inf")
            sure, best = logits.softmax(-1).max(-1)
            before = list(block)
            for row in range(rows):
                if before[row] is None and sure[row] > tau:
                    is_end = int(best[row]) == engine.end_id
                    if not is_end or None not in block[:row]:
                        block[row] = int(best[row])
                    if is_end and block[row] is not None:
                        break
            if block == before:
                row = block.index(None)
                block[row] = int(best[row])
        if engine.end_id in block:
            return said + block[: block.index(engine.end_id)]
        said += block
    return said


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_ar_says_what_a_full_forward_for_each_token_says(random_engine, prompt):
    said, last = tokens_of(random_engine, prompt, mode="ar", max_tokens=40)
    assert said == slow_ar(random_engine, prompt, 40)
    assert last.usage.completion_tokens == len(said) + (last.finish_reason == "stop")
    assert last.usage.forwards == last.usage.rows == last.usage.completion_tokens - 1  # the first came with the prefill


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_diffuse_says_what_passes_without_a_cache_say(random_engine, prompt, tau):
    said, _ = tokens_of(random_engine, prompt, threshold=tau, max_tokens=40)
    assert said == slow_diffuse(random_engine, prompt, 40, tau)


@pytest.mark.parametrize("mode", ["ar", "diffuse"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_answer_is_the_same_alone_and_among_others(random_engine, mode, temperature):
    params = GenerateParams(mode=mode, temperature=temperature, seed=7, threshold=0.4, max_tokens=30)
    together = random_engine.generate_many(PROMPTS, params)
    for prompt, (tokens, last) in zip(PROMPTS, together, strict=True):
        alone = [t for d in random_engine.generate(prompt, params) for t in d.tokens]
        assert tokens == alone
        assert last.usage.prompt_tokens == len(prompt)


@pytest.mark.parametrize("mode", ["ar", "diffuse"])
@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9, 16, 17, 31])
def test_max_tokens_is_exact(random_engine, mode, limit):
    for prompt in PROMPTS:
        said, last = tokens_of(random_engine, prompt, mode=mode, max_tokens=limit)
        assert last.usage.completion_tokens <= limit
        if last.finish_reason == "length":
            assert len(said) == last.usage.completion_tokens == limit
        else:
            assert len(said) == last.usage.completion_tokens - 1


def test_both_ways_of_ending_occur(random_engine):
    ends = {
        tokens_of(random_engine, p, mode=m, max_tokens=60)[1].finish_reason for p in PROMPTS for m in ("ar", "diffuse")
    }
    assert ends == {"stop", "length"}, "the fixture's weights must exercise both"


@pytest.mark.parametrize("mode", ["ar", "diffuse"])
def test_neither_mask_nor_end_is_ever_said(random_engine, mode):
    for prompt in PROMPTS:
        for temperature in (0.0, 1.5):
            said, _ = tokens_of(random_engine, prompt, mode=mode, temperature=temperature, max_tokens=60)
            assert not {random_engine.mask_id, random_engine.end_id} & set(said)


def test_a_mask_id_in_the_prompt_is_ordinary_text(random_engine):
    prompt = [20, random_engine.mask_id, 30]
    said, _ = tokens_of(random_engine, prompt, threshold=0.9, max_tokens=12)
    assert said == slow_diffuse(random_engine, prompt, 12, 0.9)


@pytest.mark.parametrize("mode", ["ar", "diffuse"])
def test_a_seed_decides_the_answer_and_another_changes_it(random_engine, mode):
    answers = [
        tokens_of(random_engine, PROMPTS[3], mode=mode, temperature=1.0, seed=seed, max_tokens=30)[0]
        for seed in (1, 1, 2, 3, 4)
    ]
    assert answers[0] == answers[1]
    assert len({tuple(a) for a in answers}) > 2


def test_frames_tell_every_pass_and_only_ever_reveal(random_engine):
    frames = []
    params = GenerateParams(threshold=0.3, max_tokens=30)
    deltas = list(random_engine.generate(PROMPTS[2], params, frames.append))
    assert len(frames) == deltas[-1].usage.passes
    for one, next_ in itertools.pairwise(frames):
        if one.block_index == next_.block_index:
            assert next_.pass_index == one.pass_index + 1
            assert sum(next_.masked) < sum(one.masked)
            kept = zip(one.tokens, one.masked, next_.tokens, next_.masked, strict=True)
            assert all(a == b and not hidden for a, was, b, hidden in kept if not was)
        else:
            assert next_.block_start == one.block_start + len(one.tokens)


def test_forwards_count_a_fused_one_once(random_engine):
    """Every pass is a forward of its own or rides on the prefill or on a commit; only the prefill is not counted."""
    for prompt in PROMPTS:
        _, last = tokens_of(random_engine, prompt, threshold=0.3, max_tokens=30)
        assert last.usage.forwards == last.usage.passes - 1


def test_a_prompt_that_leaves_no_room_names_both_numbers(random_engine):
    with pytest.raises(ContextLengthError, match="300 tokens; this model's context is 300"):
        random_engine.generate([20] * 300, GenerateParams())
    said, last = tokens_of(random_engine, [20] * 299, mode="ar", max_tokens=50)
    assert last.usage.completion_tokens == 1
    assert len(said) <= 1
    with pytest.raises(RequestError, match="empty"):
        random_engine.generate([], GenerateParams())
