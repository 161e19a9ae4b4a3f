"""Whatever JSON a client sends, the answer is a completion or a 4xx in OpenAI's shape."""

import json

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fourleaf.serve.app import create_app
from fourleaf.serve.openai import NEUTRAL, ChatRequest
from fourleaf.tasks.cabin.schema import TOOLS

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8)
WORDS = st.sampled_from(
    ["role", "content", "type", "text", "function", "name", "parameters", "tool_calls", "arguments"]
)
VALUES = st.sampled_from(["user", "assistant", "tool", "text", "function", "auto", "none", "{}", "set_window", 1, 0])
JSON = st.recursive(
    SCALARS | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({*ChatRequest.model_fields, *NEUTRAL, "user", "invented"} - {"stream"})
REQUESTS = st.fixed_dictionaries(
    {"model": st.just("cabin"), "messages": st.just([{"role": "user", "content": "hi"}])},
    optional={name: JSON for name in FIELDS if name not in ("model", "messages")},
)


@pytest.fixture
def client(scripted):
    with TestClient(create_app(scripted("Hello."), fixed_tools=TOOLS)) as client:
        yield client


def check(client, body) -> int:
    response = client.post("/v1/chat/completions", content=json.dumps(body))
    if response.status_code != 200:
        assert 400 <= response.status_code < 500
        error = response.json()["error"]
        assert error["message"]
        assert error["type"] == "invalid_request_error"
    return response.status_code


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FIELDS), JSON)
def test_one_field_may_hold_anything(client, name, value):
    check(client, {"model": "cabin", "messages": [{"role": "user", "content": "hi"}], name: value})


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REQUESTS | JSON)
def test_all_fields_may(client, body):
    check(client, body)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(("role", "content", "tool_calls"), JSON))))
def test_messages_may(client, messages):
    check(client, {"model": "cabin", "messages": messages})
