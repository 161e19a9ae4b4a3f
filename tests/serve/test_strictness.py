"""What the OpenAPI document forbids and was taken once; and what it allows and was refused."""

import json

import pytest
from fastapi.testclient import TestClient

from fourleaf.errors import RequestError
from fourleaf.serve.app import create_app
from fourleaf.serve.responses import parse_responses_request
from fourleaf.text.messages import clean_messages

SAID = [{"role": "user", "content": "hi"}]
CALL = {"function": {"name": "f", "arguments": "{}"}}


@pytest.fixture
def client(scripted):
    with TestClient(create_app(scripted("Hello."))) as client:
        yield client


def test_a_whole_number_with_a_point_is_an_integer(client):
    body = {"model": "cabin", "messages": SAID}
    assert client.post("/v1/chat/completions", json=body | {"max_tokens": 3.0, "n": 1.0}).status_code == 200
    refused = client.post("/v1/chat/completions", json=body | {"max_tokens": 3.5})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [], "system": "Be brief."},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": "yes"}},
        {
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "", "is_error": 1}]}
            ]
        },
    ],
)
def test_of_messages(client, fields):
    body = {"model": "cabin", "messages": SAID, "max_tokens": 9}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert client.post(path, json=body).status_code == 200
        assert client.post(path, json=body | fields).status_code == 400


@pytest.mark.parametrize(
    "item",
    [
        {"type": False, "role": "user", "content": "hi"},
        {"type": "reasoning", "content": [{"text": "a"}], "summary": 5},
        {"type": "reasoning", "summary": ["a"]},
        {"type": "reasoning", "summary": 0},
    ],
)
def test_of_responses(item):
    good = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "content": None}
    parse_responses_request(written(good))
    with pytest.raises(RequestError, match="input"):
        parse_responses_request(written(item))


def written(item: dict) -> bytes:
    return json.dumps({"model": "m", "input": [item]}).encode()


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "a", "reasoning_content": "b", "reasoning": 5},
        {"role": "assistant", "tool_calls": [CALL | {"type": 0}]},
    ],
)
def test_of_chat_messages(message):
    clean_messages([{"role": "assistant", "tool_calls": [CALL | {"type": ""}]}])
    (clean,) = clean_messages([{"role": "assistant", "content": "a", "reasoning": "c", "reasoning_content": "b"}])
    assert clean["reasoning_content"] == "b"
    with pytest.raises(RequestError):
        clean_messages([message])
