"""Whatever JSON a client of any API sends, the answer is one or a 4xx in that API's shape; and it is never a 5xx."""

import json

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fourleaf.serve import anthropic, completions, responses
from fourleaf.serve.app import create_app
from fourleaf.serve.capabilities import ALL_FIELDS, Abilities
from fourleaf.tasks.cabin.schema import TOOLS

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
WORDS = st.sampled_from(
    "role content type text function name parameters arguments input output call_id id tool_use_id input_schema format "
    "schema effort summary is_error thinking budget_tokens json_schema disable_parallel_tool_use".split()
)
VALUES = st.sampled_from(
    "user assistant tool text function auto none any custom message function_call function_call_output reasoning "
    "input_text output_text refusal tool_use tool_result thinking json_schema json_object enabled adaptive required {} "
    "set_window item_reference high redacted_thinking".split()
)
JSON = st.recursive(
    SCALARS | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=5),
    max_leaves=15,
)
BLOCKS = st.lists(
    st.fixed_dictionaries({"type": VALUES}, optional=dict.fromkeys(("text", "id", "name", "input", "content"), JSON)),
    max_size=3,
)
ITEMS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={"type": VALUES, "role": VALUES, "content": JSON | BLOCKS}
        | dict.fromkeys(("name", "arguments", "call_id", "output", "summary"), JSON),
    ),
    max_size=3,
)
SAID = [{"role": "user", "content": "hi"}]
# Path -> (a body that is answered, the fields that may hold anything, what the conversation's field may hold).
APIS = {
    "/v1/responses": ({"input": "hi"}, {*responses.ResponsesRequest.model_fields, *responses.NEUTRAL}, ITEMS),
    "/v1/messages": (
        {"messages": SAID, "max_tokens": 9},
        {*anthropic.MessagesRequest.model_fields, *anthropic.NEUTRAL},
        ITEMS,
    ),
    "/v1/messages/count_tokens": ({"messages": SAID}, {*anthropic.MessagesRequest.model_fields}, ITEMS),
    "/v1/completions": (
        {"prompt": "hi"},
        {*completions.CompletionRequest.model_fields, *completions.NEUTRAL},
        JSON | st.lists(st.integers(-5, 400), max_size=9),
    ),
    "/v1/chat/events": (
        {"messages": SAID},
        {"n", "stop", "response_format", "tools", "tool_choice", "logprobs"},
        ITEMS,
    ),
}
RUN = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["few", "all"])
def client(scripted, request):
    engine = scripted("Hello.")
    if request.param == "all":
        engine.abilities = Abilities(ALL_FIELDS, constraints=("json_schema", "json_object", "tools"))
    with TestClient(create_app(engine, fixed_tools=TOOLS), raise_server_exceptions=False) as client:
        yield client


def check(client, path: str, body) -> None:
    response = client.post(path, content=json.dumps(body))
    if response.status_code == 200:
        assert "server_error" not in response.text
        assert "api_error" not in response.text
        return
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert error["message"]
    assert error["type"] in ("invalid_request_error", "not_found_error")


@pytest.mark.parametrize("path", APIS)
@RUN
@given(data=st.data())
def test_one_field_may_hold_anything(client, path, data):
    base, fields, _ = APIS[path]
    name = data.draw(st.sampled_from(sorted(fields - {"model"})))
    check(client, path, {"model": "cabin", **base, name: data.draw(JSON)})


@pytest.mark.parametrize("path", APIS)
@RUN
@given(data=st.data())
def test_a_conversation_may(client, path, data):
    base, _, conversation = APIS[path]
    name = next(iter(base))
    check(client, path, {"model": "cabin", **base, name: data.draw(conversation)})
