"""Which tools a request may name, and what becomes of calls to those that it left out."""

import copy
import json

import pytest
from fastapi.testclient import TestClient

from fourleaf.checkpoint.tools import fixed_tools
from fourleaf.errors import CheckpointError, RequestError
from fourleaf.serve.app import create_app
from fourleaf.serve.tools import offer
from fourleaf.tasks.cabin.schema import OUT_OF_SCOPE, TOOLS

SAID = [{"role": "user", "content": "hi"}]
OTHER = {"type": "function", "function": {"name": "make_tea", "parameters": {"type": "object", "properties": {}}}}
NAMES = [tool["function"]["name"] for tool in TOOLS]


@pytest.fixture
def post(scripted):
    """Posts one request to a server that answers what it is told to, whole or streamed, and folds the stream."""

    def send(answer: str, *, stream: bool = False, **fields) -> dict:
        app = create_app(scripted(answer, max_context=20_000), fixed_tools=TOOLS)
        body = {"model": "cabin", "messages": SAID, "stream": stream, **fields}
        with TestClient(app) as client:
            response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        if not stream:
            return response.json()["choices"][0]
        deltas = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        choices = [delta["choices"][0] for delta in deltas]
        message: dict = {"content": "".join(choice["delta"].get("content", "") for choice in choices) or None}
        for choice in choices:
            for call in choice["delta"].get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if "id" in call:
                    assert call["index"] == len(calls)
                    calls.append({"function": dict(call["function"])})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        return {"message": message, "finish_reason": choices[-1]["finish_reason"]}

    return send


def named(choice: dict) -> list[str]:
    return [call["function"]["name"] for call in choice["message"].get("tool_calls", [])]


def test_all_tools_are_offered_where_a_request_names_none():
    for asked in (None, []):
        assert offer(TOOLS, asked, "auto").names == set(NAMES)


def test_any_order_and_any_subset_will_do():
    assert offer(TOOLS, TOOLS[::-1], "auto").names == set(NAMES)
    assert offer(TOOLS, TOOLS[3:5], "auto").names == set(NAMES[3:5])
    assert offer(TOOLS, TOOLS, "none").names == set()


def test_wording_and_order_inside_a_schema_make_no_difference():
    tool = copy.deepcopy(next(tool for tool in TOOLS if tool["function"]["name"] == "set_window"))
    tool["function"]["description"] = "Something else."
    parameters = tool["function"]["parameters"]
    parameters["title"] = "SetWindow"
    parameters["required"].reverse()
    parameters["properties"]["window"]["enum"].reverse()
    parameters["properties"]["window"]["description"] = "Which one."
    parameters["properties"] = dict(reversed(parameters["properties"].items()))
    assert offer(TOOLS, [tool], "auto").names == {"set_window"}


def test_what_an_sdk_makes_of_a_function_is_the_tool_that_allows_its_calls():
    """They never rule out other properties, say nothing of required ones without any, and drop limits of numbers."""
    asked = copy.deepcopy(TOOLS)
    for tool in asked:
        parameters = tool["function"]["parameters"]
        del parameters["additionalProperties"]
        if not parameters["required"]:
            del parameters["required"]
        parameters["properties"] = dict(reversed(parameters["properties"].items()))
        for inner in parameters["properties"].values():
            for limit in ("minimum", "maximum", "enum"):
                inner.pop(limit, None)
    assert offer(TOOLS, asked, "auto").tools == TOOLS, "the grammar is that of the tools as the model learnt them"


def test_copied_text_may_be_left_unsaid_and_not_be_asked_for_beyond_the_own():
    own = next(tool for tool in TOOLS if tool["function"]["name"] == "navigate")
    for said in ({}, {"x-copied": False}, {"x-copied": True, "x-mine": 1}):
        asked = copy.deepcopy(own)
        asked["function"]["parameters"]["properties"]["destination"] = {"type": "string", **said}
        assert offer([own], [asked], "auto").tools == [own]
    plain = copy.deepcopy(own)
    del plain["function"]["parameters"]["properties"]["destination"]["x-copied"]
    with pytest.raises(RequestError, match="other parameters"):
        offer([plain], [own], "auto")


def test_an_unknown_tool_is_refused():
    with pytest.raises(RequestError, match=r"tools are fixed.*make_tea") as caught:
        offer(TOOLS, [TOOLS[0], OTHER], "auto")
    assert caught.value.param == "tools[1].function.name"


def test_a_tool_with_other_parameters_is_refused():
    for change in ({"maximum": 50}, {"title": None, "minimum": -1}, {"type": "string"}, {"pattern": "x"}):
        tool = copy.deepcopy(TOOLS[0])
        tool["function"]["parameters"]["properties"]["position"].update(change)
        with pytest.raises(RequestError, match=r"tools are fixed.*other parameters") as caught:
            offer(TOOLS, [tool], "auto")
        assert caught.value.param == "tools[0].function.parameters"


@pytest.mark.parametrize(
    "change",
    [
        lambda schema: schema["properties"].pop("position"),
        lambda schema: schema["properties"].update(speed={"type": "integer"}),
        lambda schema: schema["required"].append("speed"),
        lambda schema: schema["properties"]["window"]["enum"].remove("all"),
        lambda schema: schema.update(properties=["window", "position"]),
        lambda schema: schema.update(anyOf=[{"required": ["window"]}]),
    ],
)
def test_a_schema_that_could_refuse_the_models_calls_is_refused(change):
    tool = copy.deepcopy(next(tool for tool in TOOLS if tool["function"]["name"] == "set_window"))
    change(tool["function"]["parameters"])
    with pytest.raises(RequestError, match="other parameters"):
        offer(TOOLS, [tool], "auto")


def test_a_parameter_named_like_an_annotation_counts():
    parameters = {"type": "object", "properties": {"title": {"type": "string"}}}
    fixed = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    bare = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    with pytest.raises(RequestError):
        offer(fixed, bare, "auto")


def test_a_tool_named_twice_is_refused():
    with pytest.raises(RequestError, match="twice") as caught:
        offer(TOOLS, [TOOLS[0], TOOLS[1], TOOLS[0]], "auto")
    assert caught.value.param == "tools[2].function.name"


@pytest.mark.parametrize("stream", [False, True])
def test_calls_to_tools_left_out_are_taken_out(post, call_text, stream):
    answer = (
        call_text("set_sunroof", position=5)
        + call_text("set_window", window="all", position=0)
        + call_text("set_ac", on=True)
        + call_text("set_window", window="driver", position=100)
    )
    window = [tool for tool in TOOLS if tool["function"]["name"] == "set_window"]
    choice = post(answer, tools=window, stream=stream)
    assert named(choice) == ["set_window", "set_window"]
    assert [json.loads(call["function"]["arguments"])["position"] for call in choice["message"]["tool_calls"]] == [
        0,
        100,
    ]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": TOOLS[-2:]}], ids=["none", "subset"])
def test_where_no_call_is_left_the_answer_declines(post, call_text, fields, stream):
    choice = post(call_text("set_window", window="all", position=0), stream=stream, **fields)
    assert named(choice) == []
    assert choice["message"]["content"] == OUT_OF_SCOPE
    assert choice["finish_reason"] == "stop"


def test_text_beside_a_call_that_is_taken_out_stays(post, call_text):
    choice = post("Let me see." + call_text("set_ac", on=True), tool_choice="none")
    assert choice["message"]["content"] == "Let me see."


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_cut_at_the_limit_is_text_and_says_length(post, call_text, stream):
    choice = post(call_text("set_ac", on=True), max_tokens=20, stream=stream)
    assert choice["message"]["content"] == call_text("set_ac", on=True)[: len("<tool_call>") + 19]
    assert choice["finish_reason"] == "length"


def test_a_model_that_reads_tools_from_its_prompt_takes_any(scripted, call_text):
    engine = scripted(call_text("make_tea"), name="reader")
    with TestClient(create_app(engine)) as client:
        body = {"model": "reader", "messages": SAID}
        with_tool = client.post("/v1/chat/completions", json=body | {"tools": [OTHER]}).json()["choices"][0]
        without = client.post("/v1/chat/completions", json=body).json()["choices"][0]
        none = client.post("/v1/chat/completions", json=body | {"tool_choice": "none"}).json()["choices"][0]
    assert named(with_tool) == ["make_tea"]
    assert named(without) == ["make_tea"], "nobody said what may not be called"
    assert named(none) == []
    assert ["make_tea" in prompt for prompt in engine.prompts] == [True, False, False]


def test_the_tools_in_the_weights_are_in_the_folder(tmp_path):
    assert fixed_tools(tmp_path) is None
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    assert fixed_tools(tmp_path) == TOOLS
    for broken in ("{", "5", "{}", "[5]", '[{"function": {}}]', '[{"function": {"name": 5}}]'):
        (tmp_path / "tools.json").write_text(broken)
        with pytest.raises(CheckpointError, match="tools"):
            fixed_tools(tmp_path)
