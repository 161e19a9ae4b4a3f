"""What a client does wrong comes back as a 4xx in OpenAI's shape that names the field, and the server lives on."""

import asyncio
import json

import pytest
from fastapi.testclient import TestClient

from fourleaf.serve.app import create_app
from fourleaf.serve.openai import NEUTRAL
from fourleaf.serve.settings import Settings
from fourleaf.tasks.cabin.schema import TOOLS

SAID = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine(scripted):
    return scripted("Hello.", max_context=512)


@pytest.fixture
def client(engine):
    with TestClient(create_app(engine, fixed_tools=TOOLS), raise_server_exceptions=False) as client:
        yield client


def post(client, body=None, /, **fields):
    if body is None:
        body = json.dumps({"model": "cabin", "messages": SAID, **fields})
    return client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})


def refused(response, status: int = 400) -> dict:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def assert_alive(client):
    response = post(client)
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == "Hello."


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"\xff\xfe",
        b'{"model": "cabin", "messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        b'{"model": "cabin", "messages": [{"role": "user", "content": "hi"}], "seed": -Infinity}',
        b'{"seed": ' + b"9" * 10_000 + b"}",
        b'{"model": ' + b"[" * 500 + b"]" * 500 + b"}",
        b"[" * 200_000 + b"]" * 200_000,
    ],
)
def test_what_is_no_json(client, body):
    assert refused(post(client, body))["code"] == "invalid_json"
    assert_alive(client)


@pytest.mark.parametrize("body", [b"[]", b'"hi"', b"null", b"12"])
def test_what_is_no_object(client, body):
    assert refused(post(client, body))["code"] == "invalid_type"


WRONG = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [*SAID, {"role": "wizard", "content": "hi"}]}, "messages[1].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [*SAID, {"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[1].tool_calls[0].function"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "10"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 10**9}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"seed": 2**63}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"mode": "fast"}, "mode"),
    ({"mode": 3}, "mode"),
    ({"threshold": 1.5}, "threshold"),
    ({"threshold": -1}, "threshold"),
    ({"tools": "all"}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "set_window"}}}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": 4}, "tool_choice"),
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"top_p": 0.9}, "top_p"),
    ({"stop": "x"}, "stop"),
    ({"presence_penalty": 0.1}, "presence_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 0}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}, "response_format"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"reasoning_effort": "enormous"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"policy": "entropy"}, "policy"),
    ({"policy": "luck"}, "policy"),
    ({"lossless": True}, "lossless"),
    ({"n": 0}, "n"),
    ({"stop": ["a", 5]}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"top_logprobs": 50}, "top_logprobs"),
    ({"response_format": {"type": "grammar"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"functions": [{"name": "f"}]}, "functions"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[json.dumps(fields)[:60] for fields, _ in WRONG])
@pytest.mark.parametrize("stream", [False, True])
def test_a_field_that_is_wrong_is_named(client, engine, fields, param, stream):
    extra = {} if "stream" in fields or "stream_options" in fields else {"stream": stream}
    error = refused(post(client, **(extra | fields)))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert engine.prompts == []
    assert_alive(client)


def test_a_missing_field_is_named(client):
    error = refused(post(client, json.dumps({"messages": SAID})))
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


# What other engines may honour has its neutral values, too.
HONOURED_ELSEWHERE = {
    "n": (1,),
    "top_p": (1, 1.0),
    "top_k": (0, -1),
    "min_p": (0,),
    "stop": ([],),
    "presence_penalty": (0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "reasoning_effort": ("none", "minimal"),
    "diffusing": (False,),
    "policy": ("threshold",),
    "priority": ("interactive",),
    "modes": ([],),
    "chat_template_kwargs": ({},),
}


def test_every_neutral_value_and_every_ignored_field_changes_nothing(client, engine, caplog):
    caplog.set_level("DEBUG", "fourleaf")
    for name, values in (NEUTRAL | HONOURED_ELSEWHERE).items():
        for value in (None, *values):
            assert post(client, **{name: value}).status_code == 200, (name, value)
    ignored = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "invented": [1, 2]}
    assert post(client, **ignored).status_code == 200
    assert len(set(engine.prompts)) == len(set(engine.params)) == 1
    for name in ignored:
        assert name in caplog.text


def test_a_body_may_hold_half_a_surrogate(client):
    assert post(client, messages=[{"role": "user", "content": "half \ud83d"}]).status_code == 200
    assert "half" in refused(post(client, model="half \ud83d"), 404)["message"]


def test_an_unknown_model_is_not_found(client):
    error = refused(post(client, model="gpt-4o"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "cabin" in error["message"]


def test_too_long_a_prompt_says_what_is_needed_and_what_fits(client):
    error = refused(post(client, messages=[{"role": "user", "content": "a" * 600}], tool_choice="none"))
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert error["message"].startswith("This model's maximum context length is "), "litellm looks for these words"
    assert "602" in error["message"]
    assert "512" in error["message"]


def test_too_long_an_answer_says_what_is_needed_and_what_fits(client):
    error = refused(post(client, max_tokens=510, tool_choice="none"))
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
    assert "514" in error["message"]
    assert "508" in error["message"]
    assert post(client, max_tokens=508, tool_choice="none").status_code == 200


def test_unknown_routes_and_methods_have_the_same_shape(client):
    assert "/v1/embeddings" in refused(client.post("/v1/embeddings", json={}), 404)["message"]
    refused(client.get("/v1/chat/completions"), 405)
    refused(client.get("/v1/models/other"), 404)


def test_a_body_beyond_the_limit_is_refused(engine):
    with TestClient(create_app(engine, fixed_tools=TOOLS, max_body_bytes=1000)) as client:
        refused(post(client, messages=[{"role": "user", "content": "a" * 1000}]), 413)
        assert_alive(client)


def test_a_fault_of_the_engine_is_a_500_and_the_next_request_works(client, engine, caplog):
    engine.fault_at = 0
    error = refused(post(client), 500)
    assert (error["type"], error["param"]) == ("server_error", None)
    assert "burst" not in error["message"], "what broke inside is for the log"
    assert "burst" in caplog.text
    assert_alive(client)


def test_no_page_of_another_origin_may_read_answers(client):
    response = client.post(
        "/v1/chat/completions",
        json={"model": "cabin", "messages": SAID},
        headers={"Origin": "https://example.com"},
    )
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert refused(response, 403)["code"] == "origin_refused"
    preflight = client.options(
        "/v1/chat/completions",
        headers={"Origin": "https://example.com", "Access-Control-Request-Method": "POST"},
    )
    assert preflight.status_code == 405


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/models/load"])
def test_who_leaves_while_a_body_comes_is_no_fault_of_the_servers(engine, caplog, path):
    parts: list[dict] = [{"type": "http.request", "body": b'{"mod', "more_body": True}]
    sent: list[dict] = []

    async def receive() -> dict:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"127.0.0.1")], "query_string": b""}
    app = create_app(engine, settings=Settings(can_manage=True))
    asyncio.run(app(scope | {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}, receive, send))
    assert sent[0]["status"] == 499
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
