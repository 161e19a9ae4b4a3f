"""Kinds of bugs that other engines of diffusion models had (docs/bug-kinds.md), where no other test holds them."""

import json
from dataclasses import replace

import pytest
import torch

from fourleaf.engine.core import Core, Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import POLICIES, Delta, GenerateParams, Usage
from fourleaf.engine.score import score
from fourleaf.text.constraint import Constraint

MODES = ("ar", "draft", "diffuse")
EVERY_MODE = pytest.mark.parametrize("mode", MODES)
TEXT = [20 + (7 * i) % 150 for i in range(250)]


def run(engine: Engine, requests, **limits) -> tuple[list[list[Delta]], Core]:
    """The deltas of requests that share a core, and the core."""
    core, heard = Core(engine.model, Limits(**{"num_pages": 64, **limits}), checks=True), [[] for _ in requests]
    for (prompt, params), deltas in zip(requests, heard, strict=True):
        core.submit(engine.admit(prompt, params), deltas.append)
    while core.step():
        pass
    return heard, core


def answer(engine: Engine, prompt: list[int], params: GenerateParams, **limits) -> list[Delta]:
    return run(engine, [(prompt, params)], **limits)[0][0]


def tokens_of(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


def usage_of(deltas: list[Delta]) -> Usage:
    found = deltas[-1].usage
    assert found is not None
    return found


def logprobs_of(deltas: list[Delta]) -> list[float]:
    return [entry.logprob for delta in deltas for entry in delta.logprobs or ()]


@pytest.fixture
def endless(random_engine) -> GenerateParams:
    """Answers that only their limit ends."""
    return GenerateParams(max_tokens=24, threshold=0.3, logit_bias=((random_engine.end_id, -100.0),))


@EVERY_MODE
def test_bug_kinds_2_and_5_a_prompt_of_masks_alone_is_text_as_any_other(random_engine, mode):
    """No phase is told by ids: the prompt runs as causal rows, all of it, and nothing of it comes out."""
    prompt, params = [random_engine.mask_id] * 40, GenerateParams(mode=mode, max_tokens=12, threshold=0.3)
    deltas, core = run(random_engine, [(prompt, params), (TEXT[:40], params)])
    assert usage_of(deltas[0]).prompt_tokens == 40
    assert random_engine.mask_id not in tokens_of(deltas[0])
    assert tokens_of(deltas[1]) == tokens_of(answer(random_engine, TEXT[:40], params))
    assert core.is_idle


@EVERY_MODE
@pytest.mark.parametrize("length", [33, 64, 65, 97, 129])
def test_bug_kinds_8_and_9_a_prefill_in_chunks_says_what_one_in_a_piece_says(random_engine, mode, length):
    """Also where a chunk leaves one row, which looks like a step of decoding."""
    params = GenerateParams(mode=mode, max_tokens=10, threshold=0.3)
    pieces = answer(random_engine, TEXT[:length], params, max_rows=64)
    whole = answer(random_engine, TEXT[:length], params)
    assert tokens_of(pieces) == tokens_of(whole)
    assert usage_of(pieces) == usage_of(whole)


def test_bug_kind_10_a_prompt_of_many_blocks_is_one_forward(random_engine, endless):
    core = Core(random_engine.model, Limits(num_pages=64), checks=True)
    core.submit(random_engine.admit(TEXT[:250], endless), lambda delta: None)
    core.step()
    assert [len(part.need.causal) for part in core.last] == [250]


@EVERY_MODE
def test_bug_kind_11_an_end_or_a_stop_in_the_prompt_ends_nothing(random_engine, mode, endless):
    prompt = [*TEXT[:9], random_engine.end_id, 77, *random_engine.tokenizer.encode("stop")]
    params = replace(
        endless, mode=mode, stop=("stop",), stop_token_ids=(77,), logit_bias=(*endless.logit_bias, (77, -100))
    )
    deltas = answer(random_engine, prompt, params)
    assert (deltas[-1].finish_reason, len(tokens_of(deltas))) == ("length", 24)


@EVERY_MODE
def test_bug_kinds_4_and_21_usage_after_preemptions_is_that_of_an_undisturbed_run(random_engine, mode, endless):
    """Cached tokens are those that others had left, and what runs a second time is no work of the answer's."""
    params = replace(endless, mode=mode, max_tokens=60, presence_penalty=0.5)
    requests = [([160 + i, *TEXT[:70]], replace(params, seed=i, temperature=0.8)) for i in range(5)]
    heard, core = run(random_engine, requests, num_pages=10)
    assert core.scheduler.num_preempted, "the case must exercise preemption"
    for request, deltas in zip(requests, heard, strict=True):
        assert usage_of(deltas) == usage_of(answer(random_engine, *request))
        assert usage_of(deltas).completion_tokens == 60


@EVERY_MODE
def test_bug_kinds_28_and_30_sixteen_requests_take_as_many_forwards_as_one(random_engine, mode):
    params = GenerateParams(mode=mode, max_tokens=16, logit_bias=((77, 100.0),))
    _, one = run(random_engine, [(TEXT[:9], params)])
    heard, many = run(random_engine, [(TEXT[i : i + 9], params) for i in range(16)])
    assert many.num_forwards == one.num_forwards
    assert all(tokens_of(deltas) == [77] * 16 for deltas in heard)


def test_bug_kind_32_logits_are_computed_where_somebody_wants_them(random_engine, endless, monkeypatch):
    """Of a prompt one row or its first canvas, of a canvas the masked rows, of a chunk none."""
    head, sizes = random_engine.model.head, []

    def counted(hidden):
        sizes.append(len(hidden))
        return head(hidden)

    monkeypatch.setattr(random_engine.model, "head", counted)
    answer(random_engine, TEXT[:100], replace(endless, mode="ar", max_tokens=4), max_rows=64)
    assert sizes == [0, 1, 1, 1, 1]
    sizes.clear()
    answer(random_engine, TEXT[:100], replace(endless, policy="fixed", tokens_per_pass=3, max_tokens=8))
    assert sizes == [8, 5, 2]


def test_bug_kind_33_no_forward_has_more_rows_than_the_limit_and_a_block(random_engine, endless):
    core, heard = Core(random_engine.model, Limits(max_rows=64, num_pages=64), checks=True), []
    for i in range(20):
        core.submit(random_engine.admit(TEXT[i : i + 9 + 10 * i], endless), heard.append)
    most = 0
    while core.step():
        most = max(most, sum(part.need.num_rows for part in core.last))
    assert 48 < most <= 64 + 8
    assert sum(delta.finish_reason is not None for delta in heard) == 20


def test_bug_kind_34_what_is_final_is_sent_before_its_block_is_done(random_engine, endless):
    deltas = answer(random_engine, TEXT[:9], replace(endless, threshold=1.0))
    assert [len(delta.tokens) for delta in deltas] == [1] * 24
    assert usage_of(deltas).blocks == 3


@EVERY_MODE
def test_bug_kind_46_a_longer_limit_changes_no_block_that_was_whole(random_engine, mode, endless):
    answers = [
        tokens_of(answer(random_engine, TEXT[:9], replace(endless, mode=mode, max_tokens=limit)))
        for limit in (16, 19, 24)
    ]
    assert answers[0] == answers[1][:16] == answers[2][:16]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_bug_kind_55_logprobs_of_a_batch_are_those_alone(random_engine, mode, temperature):
    params = GenerateParams(mode=mode, temperature=temperature, max_tokens=20, threshold=0.3, logprobs=2)
    requests = [(TEXT[i : i + 9 + i], replace(params, seed=i)) for i in range(6)]
    heard, _ = run(random_engine, requests)
    for request, deltas in zip(requests, heard, strict=True):
        assert logprobs_of(deltas) == pytest.approx(logprobs_of(answer(random_engine, *request)), abs=1e-9)
        assert len(logprobs_of(deltas)) == len(tokens_of(deltas))


@pytest.mark.parametrize("mode", ["ar", "draft"])
def test_bug_kind_56_logprobs_of_ar_and_draft_are_the_texts_likelihood(random_engine, mode):
    deltas = answer(random_engine, TEXT[:9], GenerateParams(mode=mode, max_tokens=20, logprobs=0))
    tokens = tokens_of(deltas)
    scored = score(random_engine.model, TEXT[:9] + tokens, 0, random_engine.mask_id)[9:-1]
    assert logprobs_of(deltas) == pytest.approx([entry.logprob for entry in scored if entry is not None])


@EVERY_MODE
def test_bug_kind_56_logprobs_under_a_grammar_are_those_of_what_it_allows(random_engine, mode):
    """Two letters at each place share all probability; what is forced has all of it."""
    pytest.importorskip("llguidance")
    params = GenerateParams(
        mode=mode,
        temperature=1.5,
        max_tokens=40,
        threshold=0.3,
        logprobs=4,
        constraint=Constraint("regex", "[ab]{9}-!!"),
    )
    for seed in range(3):
        deltas = answer(random_engine, TEXT[:9], replace(params, seed=seed))
        entries = [entry for delta in deltas for entry in delta.logprobs or ()]
        assert len(entries) == len(tokens_of(deltas)) == 12
        assert logprobs_of(deltas)[9:] == [0.0, 0.0, 0.0]
        asked = [entry for entry in entries[:9] if len(entry.top) == 2]
        for entry in asked:
            assert sum(torch.tensor([value for _, value in entry.top]).exp()) == pytest.approx(1)
            assert entry.logprob in [value for _, value in entry.top]
        assert len(asked) == 9 or mode == "diffuse"  # guesses are made without the grammar


@EVERY_MODE
def test_bug_kinds_57_and_63_requests_with_grammars_of_their_own_share_forwards(random_engine, mode):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22, 333]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    constraints = (
        Constraint("json_schema", json.dumps(schema)), None, Constraint("regex", "[a-c]{4,9}!"),
        Constraint("choices", ("yes", "yes, yes")),
    )  # fmt: skip
    params = GenerateParams(mode=mode, max_tokens=30, threshold=0.3, temperature=0.9)
    requests = [(TEXT[:9], replace(params, constraint=one, seed=i)) for i, one in enumerate(2 * constraints)]
    heard, _ = run(random_engine, requests, max_rows=64)
    for request, deltas in zip(requests, heard, strict=True):
        assert tokens_of(deltas) == tokens_of(answer(random_engine, *request))
    assert json.loads(random_engine.tokenizer.decode(tokens_of(heard[0])))["n"] in (1, 22, 333)


@pytest.mark.parametrize("policy", POLICIES)
def test_bug_kinds_53_and_64_every_policy_works_as_it_comes_and_an_answer_has_many_blocks(
    random_engine, policy, endless
):
    deltas = answer(
        random_engine, TEXT[:9], GenerateParams(policy=policy, logit_bias=endless.logit_bias, max_tokens=50)
    )
    assert (len(tokens_of(deltas)), usage_of(deltas).blocks) == (50, 7)


def test_frames_of_a_draft_count_their_passes_from_0(random_engine, endless):
    frames = []
    core = Core(random_engine.model, Limits(num_pages=64), checks=True)
    core.submit(random_engine.admit(TEXT[:9], replace(endless, mode="draft"), frames.append), lambda delta: None)
    while core.step():
        pass
    assert frames
    assert {frame.pass_index for frame in frames} == {0}
    assert [frame.block_index for frame in frames] == list(range(len(frames)))
    assert all(not frame.masked[0] for frame in frames)


@EVERY_MODE
def test_a_stop_across_the_edge_of_a_block_ends_the_answer(random_engine, mode, endless):
    letters = tuple((random_engine.tokenizer.encode(letter)[0], 100.0) for letter in "abcdefghijklmnopqrstuvwx")
    params = replace(endless, mode=mode, frequency_penalty=2.0, presence_penalty=2.0, logit_bias=letters)
    text = random_engine.tokenizer.decode(tokens_of(answer(random_engine, TEXT[:9], params)))
    stops = [text[edge - 2 : edge + 2] for edge in (8, 16) if text.index(text[edge - 2 : edge + 2]) == edge - 2]
    assert stops, "the case must have a stop at an edge"
    for stop in stops:
        deltas = answer(random_engine, TEXT[:9], replace(params, stop=("never", stop)))
        said = random_engine.tokenizer.decode(tokens_of(deltas))
        assert said == text[: text.index(stop) + len(stop)]
        assert (deltas[-1].finish_reason, usage_of(deltas).completion_tokens) == ("stop", len(said))
