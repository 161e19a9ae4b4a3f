"""Fields of requests all the way through the real engine and back, on a tiny model with random weights."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from fourleaf.serve.app import create_app

SAID = [{"role": "user", "content": "hi"}]
MODES = ("ar", "draft", "diffuse", "auto")
SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "level": {"enum": [1, 2, 3]}},
    "required": ["on", "level"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "set_fan", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def client(tiny_engine):
    engine = tiny_engine(256)
    with TestClient(create_app(engine)) as client:
        yield client


def ask(client, path: str = "/v1/chat/completions", **fields) -> dict:
    response = client.post(path, json={"model": "tiny", "messages": SAID, "threshold": 0.3, **fields})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("mode", MODES)
def test_a_schema_is_held_to(client, mode):
    """Pitfall 13: structured output on a diffusion model is a 500, or a 400."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    choice = ask(client, mode=mode, response_format=form, max_tokens=60)["choices"][0]
    assert choice["finish_reason"] == "stop"
    answer = json.loads(choice["message"]["content"])
    assert set(answer) == {"on", "level"}
    assert answer["level"] in (1, 2, 3)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_can_be_forced(client, mode):
    choice = ask(client, mode=mode, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=120)
    (made,) = choice["choices"][0]["message"]["tool_calls"]
    assert made["function"]["name"] == "set_fan"
    assert set(json.loads(made["function"]["arguments"])) == {"on", "level"}
    assert choice["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_can_be_forced_through_messages(client):
    tool = {"name": "set_fan", "input_schema": SCHEMA}
    message = ask(client, "/v1/messages", tools=[tool], tool_choice={"type": "any"}, max_tokens=200)
    assert message["content"][-1]["name"] == "set_fan"
    assert message["stop_reason"] in ("tool_use", "max_tokens")


@pytest.mark.parametrize("mode", MODES)
def test_logprobs_come_for_every_token(client, mode):
    completion = ask(client, mode=mode, logprobs=True, top_logprobs=2, max_tokens=20)
    choice = completion["choices"][0]
    tokens = choice["logprobs"]["content"]
    ended = choice["finish_reason"] == "stop"
    assert len(tokens) == completion["usage"]["completion_tokens"] - ended
    assert all(one["logprob"] <= 0 and len(one["top_logprobs"]) == 2 for one in tokens)
    spelled = b"".join(bytes(one["bytes"]) for one in tokens).decode("utf-8", "replace")
    assert spelled == choice["message"]["content"]


def test_several_answers_share_a_seed_and_differ(client):
    fields = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 16}
    first, again = (ask(client, **fields) for _ in range(2))
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert len(set(texts)) > 1
    assert [choice["message"]["content"] for choice in again["choices"]] == texts
    assert ask(client, **fields | {"n": 1})["choices"][0]["message"]["content"] == texts[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_ends_an_answer(client, mode):
    fields = {"mode": mode, "max_tokens": 24, "seed": 1}  # a seed keeps `auto` from looking at other answers
    whole = ask(client, **fields)
    text = whole["choices"][0]["message"]["content"]
    stop = text[4:6]
    choice = ask(client, **fields, stop=[stop])
    assert choice["choices"][0]["message"]["content"] == text[: text.index(stop)]
    assert choice["choices"][0]["finish_reason"] == "stop"
    assert choice["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]


def test_draft_answers_as_ar_and_says_so(client):
    answers = [ask(client, mode=mode, max_tokens=40) for mode in ("ar", "draft")]
    messages = [one["choices"][0]["message"] for one in answers]
    assert messages[0] == messages[1]
    assert [one["usage"]["fourleaf"]["mode"] for one in answers] == ["ar", "draft"]
    assert answers[1]["usage"]["fourleaf"]["rows"] > answers[0]["usage"]["fourleaf"]["rows"]


def test_autos_modes_replay_its_answer(client):
    fields = {"mode": "auto", "seed": 3, "temperature": 0.8, "max_tokens": 40}
    first = ask(client, **fields)
    modes = first["usage"]["fourleaf"]["modes"]
    assert modes
    again = ask(client, **fields, modes=modes)
    assert again["choices"][0]["message"] == first["choices"][0]["message"]


def test_a_prompt_seen_before_is_cached(client):
    said = [{"role": "user", "content": "x" * 100}]
    counts = [
        ask(client, messages=said, max_tokens=4)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(3)
    ]
    assert counts[0] == 0
    assert counts[2] >= 64, "the second stores the states that the third begins with"


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completion"])
def test_who_misses_a_path_hears_the_nearest(client, path):
    assert client.post(path, json={}).json()["error"]["message"].endswith("Did you mean /v1/chat/completions?")
    assert "Did you mean" not in client.get("/docs").json()["error"]["message"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("/v1/tokenize", "/tokenize"),
        ("/v1/tokenizer_info", "/tokenizer_info"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/openapi.json", "/openapi.json"),
        ("/models", "/v1/models"),
    ],
)
def test_every_path_can_be_the_nearest(client, wrong, right):
    said = client.get(wrong).json()
    assert said["error"]["message"].endswith(f"Did you mean {right}?")


def test_metrics_tell_memory_and_what_of_the_drafts_stood(client):
    def read() -> dict[str, float]:
        lines = client.get("/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines if line[0] != "#")}

    before = read()
    how = ask(client, mode="draft", max_tokens=40)["usage"]["fourleaf"]
    after = read()
    proposals, stood = (after[f"fourleaf_{n}_total"] - before[f"fourleaf_{n}_total"] for n in ("proposals", "stood"))
    assert (proposals, stood) == (how["proposals"], how["stood"])
    assert 0 <= stood <= proposals > 0
    assert after["fourleaf_cache_bytes"] >= before["fourleaf_cache_bytes"]
    assert after["fourleaf_cache_bytes"] > 0
    if Path("/proc/self/statm").is_file():
        assert 10e6 < after["fourleaf_resident_bytes"] < 1e12
    ar = ask(client, mode="ar", max_tokens=4)["usage"]["fourleaf"]
    assert (ar["proposals"], ar["stood"]) == (0, 0)


def test_harnesses_score_through_the_real_engine(client):
    body = {"model": "tiny", "prompt": "abcd", "max_tokens": 1, "echo": True, "logprobs": 1, "mode": "ar"}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    logprobs = response.json()["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 5
    assert all(value is not None for value in logprobs["token_logprobs"][1:])


def test_a_request_without_a_mode_is_drafted_unless_it_speaks_of_passes(client):
    silent = {"threshold": None}
    for fields, mode in ((silent, "draft"), ({"threshold": 0.5}, "diffuse"), (silent | {"policy": "fixed"}, "diffuse")):
        assert ask(client, max_tokens=8, **fields)["usage"]["fourleaf"]["mode"] == mode
    assert client.get("/v1/capabilities").json()["data"][0]["default_mode"] == "draft"
