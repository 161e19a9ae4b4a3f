"""Stops of `/v1/completions`: the text, the log-probabilities and the decoding end at the same place."""

import json

import pytest
from fastapi.testclient import TestClient

from fourleaf.engine.request import MODES
from fourleaf.serve.app import create_app
from fourleaf.serve.capabilities import ALL_FIELDS, Abilities


@pytest.fixture(scope="module")
def tiny(tiny_engine):
    with TestClient(create_app(tiny_engine(128))) as client:
        yield client


@pytest.fixture
def says(scripted):
    """Makes clients of a server whose model says what it is told to."""

    def make(text: str) -> TestClient:
        engine = scripted(text, name="tiny")
        engine.abilities = Abilities(fields=ALL_FIELDS)
        return TestClient(create_app(engine))

    return make


def complete(client, *, stream: bool = False, **fields) -> dict:
    """The one choice, put together where it was streamed, and its number of tokens."""
    body = {"model": "tiny", "prompt": "ab", "stream": stream, **fields}
    if stream:
        body["stream_options"] = {"include_usage": True}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    if not stream:
        (choice,) = response.json()["choices"]
        return choice | {"num_tokens": response.json()["usage"]["completion_tokens"]}
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    whole = choices[-1] | {"text": "".join(one["text"] for one in choices)}
    if whole["logprobs"] is not None:
        lists = [one["logprobs"] for one in choices]
        whole["logprobs"] = {key: [value for one in lists for value in one[key]] for key in lists[0]}
    return whole | {"num_tokens": chunks[-1]["usage"]["completion_tokens"]}


def lengths(logprobs: dict) -> set[int]:
    return {len(values) for values in logprobs.values()}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_log_probabilities_end_where_the_text_does(tiny, stream, echo):
    fields = {"mode": "ar", "max_tokens": 24, "logprobs": 1, "echo": echo, "stream": stream}
    whole = complete(tiny, **fields)
    begin = len("ab") if echo else 0
    stop = whole["text"][begin + 6 : begin + 9]
    cut = complete(tiny, **fields, stop=[stop])
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole["text"][: whole["text"].index(stop, begin)]
    assert lengths(cut["logprobs"]) == {len(cut["logprobs"]["tokens"])}
    (num,) = lengths(cut["logprobs"])
    assert [values[:num] for values in whole["logprobs"].values()] == [*cut["logprobs"].values()]
    assert cut["logprobs"]["text_offset"][-1] < len(cut["text"]) <= whole["logprobs"]["text_offset"][num]


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_say_where_a_tokens_text_begins(says, stream):
    """Also where the beginning of a stop was held back, and where two tokens share a character."""
    with says("Ça va\n? Oui.\n\nNon") as client:
        choice = complete(client, stream=stream, stop=["\n\n"], logprobs=1, max_tokens=99)
    assert (choice["text"], choice["finish_reason"]) == ("Ça va\n? Oui.", "stop")
    assert choice["logprobs"]["text_offset"] == [0, *range(len(choice["text"]))]
    assert "".join(choice["logprobs"]["tokens"][2:]) == choice["text"][1:]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_at_once_leaves_nothing(says, stream):
    with says("\n\nyes") as client:
        choice = complete(client, stream=stream, stop="\n", logprobs=0, max_tokens=99)
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert lengths(choice["logprobs"]) == {0}


@pytest.mark.parametrize("mode", MODES)
def test_decoding_ends_at_a_stop_among_tags(tiny, byte_tokenizer, mode):
    """A text completion is no chat: what a tag spells is text, for the engine as for the answer."""
    tag = "<tool_call>"
    bias = {str(byte_tokenizer.controls[tag]): 100}
    fields = {"mode": mode, "max_tokens": 60, "logit_bias": bias, "seed": 0}
    assert complete(tiny, **fields)["text"] == tag * 60, "the case must hold tags alone"
    choice = complete(tiny, **fields, stop=["call><tool"])
    assert (choice["text"], choice["finish_reason"], choice["num_tokens"]) == ("<tool_", "stop", 2)
