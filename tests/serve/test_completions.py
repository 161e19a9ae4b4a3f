"""`/v1/completions`: with the official client, and scored prompts as evaluation harnesses read them."""

import math
from dataclasses import replace

import openai
import pytest
from fastapi.testclient import TestClient

from fourleaf.engine import Engine
from fourleaf.engine.request import Delta, TokenLogprob
from fourleaf.engine.score import score
from fourleaf.serve.app import create_app
from fourleaf.serve.capabilities import ABILITIES, ALL_FIELDS


@pytest.fixture(scope="module")
def engine(tiny_engine) -> Engine:
    return tiny_engine(64)


@pytest.fixture(scope="module")
def scored(engine):
    with TestClient(create_app(engine)) as client:
        yield client


def post(client, **fields):
    return client.post("/v1/completions", json={"model": "tiny", "prompt": "ab", **fields})


def test_text_goes_on(client_of, scripted):
    engine = scripted("and so <think>on</think>", name="tiny")
    completion = client_of(engine).completions.create(model="tiny", prompt="This <|user|>", max_tokens=100)
    assert completion.object == "text_completion"
    assert completion.choices[0].text == "and so <think>on</think>", "no chat: tags are text"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.prompt_tokens == len("This <|user|>"), "what a user writes is no control token"
    assert engine.prompts == ["This <|user|>"]


def test_sixteen_tokens_by_default(client_of, scripted):
    client = client_of(scripted("x" * 100))
    choice = client.completions.create(model="cabin", prompt="a").choices[0]
    assert (choice.text, choice.finish_reason) == ("x" * 16, "length")


def test_several_prompts_as_texts_or_ids(client_of, scripted, byte_tokenizer):
    engine = scripted("1", "2", "3")
    client = client_of(engine)
    for prompt in (["a", "bc"], [byte_tokenizer.encode("a"), byte_tokenizer.encode("bc")]):
        completion = client.completions.create(model="cabin", prompt=prompt, echo=True, max_tokens=9)
        assert [choice.index for choice in completion.choices] == [0, 1]
        assert completion.usage.prompt_tokens == 3
    assert engine.prompts == ["a", "bc"] * 2
    assert [choice.text for choice in completion.choices] == ["a3", "bc3"]


def test_a_stream_says_the_same(client_of, scripted):
    client = client_of(scripted("Ça va? " * 9))
    fields = {"model": "cabin", "prompt": "a", "max_tokens": 100, "echo": True}
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert len(chunks) > 10
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def loglikelihood(choice: dict, context_len: int) -> tuple[float, bool]:
    """As lm-eval's `local-completions` computes it of a choice."""
    logprobs = choice["logprobs"]["token_logprobs"][context_len:-1]
    tops = choice["logprobs"]["top_logprobs"][context_len:-1]
    greedy = all(own == max(top.values()) for own, top in zip(logprobs, tops, strict=True))
    return sum(logprobs), greedy


def test_an_echoed_prompt_is_scored(scored, engine):
    ids = engine.tokenizer.encode("abcab")
    response = post(scored, prompt=ids, max_tokens=0, echo=True, logprobs=2)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abcab", "length")
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == list("abcab")
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    expected = score(engine.model, ids, 2, engine.mask_id)
    assert logprobs["token_logprobs"][1:] == [pytest.approx(one.logprob) for one in expected[1:-1] if one]
    assert response.json()["usage"]["completion_tokens"] == 0


def test_a_harness_reads_scores_from_one_more_token(byte_tokenizer, engine):
    """Also where that token is the end token, which has no text: the list is one longer than the prompt."""

    class Scoring(Engine):
        abilities = replace(ABILITIES, fields=ALL_FIELDS)
        says: tuple[int, ...] = ()

        def generate(self, prompt_ids, params, observe=None):
            for delta in super().generate(prompt_ids, replace(params, logprobs=None, mode="ar"), observe):
                logprobs = tuple(TokenLogprob(-1.0, 0, ((token, -1.0),)) for token in self.says)
                yield Delta(self.says, delta.finish_reason, delta.usage, logprobs)

    context, ids = byte_tokenizer.encode("ab"), byte_tokenizer.encode("abca")
    expected = sum(one.logprob for one in score(engine.model, ids, 1, engine.mask_id)[2:-1] if one)
    for says in ((), (ids[0],)):
        made = Scoring("tiny", engine.model, byte_tokenizer, engine.chat)
        made.says = says
        with TestClient(create_app(made)) as client:
            response = post(client, prompt=ids, max_tokens=1, echo=True, logprobs=1, temperature=0, seed=1234)
        choice = response.json()["choices"][0]
        assert len(choice["logprobs"]["tokens"]) == len(ids) + 1
        total, greedy = loglikelihood(choice, len(context))
        assert total == pytest.approx(expected)
        assert isinstance(greedy, bool)


def test_scores_of_greedy_continuations_are_called_greedy(scored, engine):
    ids = engine.tokenizer.encode("ab")
    behind = score(engine.model, ids, 1, engine.mask_id)[-1]
    assert behind is not None
    ((best, _),) = behind.top
    other = next(one for one in engine.tokenizer.encode("xyz") if one != best)
    greedy = []
    for token in (best, other):
        response = post(scored, prompt=[*ids, token, ids[0]], max_tokens=0, echo=True, logprobs=1)
        greedy.append(loglikelihood(response.json()["choices"][0], len(ids))[1])
    assert greedy == [True, False]


def test_bug_54_scores_where_they_cannot_be_had_are_refused_at_the_door(scripted):
    with TestClient(create_app(scripted("x"))) as client:
        response = post(client, model="cabin", echo=True, logprobs=1, max_tokens=0)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logprobs"


def test_the_mask_has_no_probability_and_may_not_be_asked_for(scored, engine):
    response = post(scored, prompt=[20, engine.mask_id], max_tokens=0, echo=True, logprobs=1)
    assert response.json()["error"]["param"] == "prompt"
    top = post(scored, max_tokens=0, echo=True, logprobs=20).json()["choices"][0]["logprobs"]["top_logprobs"][1]
    assert "<|mask|>" not in top
    assert all(math.isfinite(value) for value in top.values())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": ["a"] * 1000}, "prompt"),
        ({"prompt": "a" * 65}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 64}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"echo": "yes"}, "echo"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_what_is_wrong_is_named(scored, fields, param):
    response = post(scored, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_the_client_raises_for_an_unknown_model(client_of, scripted):
    with pytest.raises(openai.NotFoundError):
        client_of(scripted("x")).completions.create(model="davinci", prompt="a")
