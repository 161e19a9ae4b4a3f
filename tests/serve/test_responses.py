"""`/v1/responses` by the official client, and the order of its events on the wire."""

import json

import httpx2
import openai
import pytest

from fourleaf.tasks.cabin.schema import TOOLS

WINDOW = next(tool["function"] for tool in TOOLS if tool["function"]["name"] == "set_window")
TOOL = {"type": "function", "name": "set_window", "parameters": WINDOW["parameters"], "strict": False}
TEXT = ["response.output_item.added", "response.content_part.added"]
TEXT_DONE = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
CALL = ["response.output_item.added", "response.function_call_arguments.done", "response.output_item.done"]


@pytest.fixture
def two_calls(call_text) -> str:
    return call_text("set_window", window="rear_left", position=20) + call_text(
        "set_window", window="rear_right", position=20
    )


def raw_events(client, **fields) -> list[dict]:
    body = {"model": "cabin", "input": "crack the back windows", "stream": True} | fields
    text = httpx2.post(str(client.base_url.join("/v1/responses")), json=body, timeout=30).text
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_a_text_answer(client_of, scripted):
    engine = scripted("Which one?")
    response = client_of(engine).responses.create(model="cabin", input="hi", instructions="Be brief.", metadata={})
    assert (response.object, response.status, response.output_text) == ("response", "completed", "Which one?")
    assert [item.type for item in response.output] == ["message"]
    assert response.output[0].status == "completed"
    usage = response.usage
    assert usage.input_tokens == len(engine.tokenizer.encode_markup(engine.prompts[0]))
    assert usage.output_tokens == len("Which one?") + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.model_extra["fourleaf"]["mode"] == "diffuse"
    assert engine.prompts[0].startswith("<|system|>Be brief.<|user|>hi")


def test_the_order_of_events(client_of, scripted, two_calls):
    """Pitfall 12: events that clients wait for left out, numbers missing, the last one without its output."""
    events = raw_events(client_of(scripted("<think>hm</think>Sure." + two_calls)))
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    names = [one["type"] for one in events if not one["type"].endswith(".delta")]
    thought = [*TEXT, "response.reasoning_text.done", *TEXT_DONE[1:]]
    begin = ["response.created", "response.in_progress"]
    assert names == [*begin, *thought, *TEXT, *TEXT_DONE, *CALL, *CALL, "response.completed"]
    assert all(one["response"]["output"] == [] for one in events[:2])
    added = [one for one in events if one["type"] == "response.output_item.added"]
    assert [one["output_index"] for one in added] == [0, 1, 2, 3]
    assert all(one["item"]["status"] == "in_progress" for one in added)
    assert added[1]["item"]["content"] == [], "an event is what was so when it was sent"
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[2]["id"] != output[2]["call_id"], "two different ids"
    assert events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == 4
    for one in events:
        if one["type"].endswith((".delta", ".done")) and "item_id" in one:
            assert one["item_id"] == output[one["output_index"]]["id"]


def test_a_stream_says_the_same(client_of, scripted, two_calls):
    client = client_of(scripted("Sure. Ça va? " * 9 + two_calls))
    whole = client.responses.create(model="cabin", input="hi", tools=[TOOL])
    with client.responses.stream(model="cabin", input="hi", tools=[TOOL]) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == whole.output_text == final.output_text
    assert len(deltas) > 10
    calls = [[item.arguments for item in one.output if item.type == "function_call"] for one in (whole, final)]
    assert calls[0] == calls[1]
    assert len(calls[0]) == 2


def test_a_loop_with_tool_results(client_of, scripted, two_calls):
    engine = scripted("Sure." + two_calls, "Done.")
    client = client_of(engine)
    said: list = [{"role": "user", "content": [{"type": "input_text", "text": "windows"}]}]
    first = client.responses.create(model="cabin", input=said, tools=[TOOL, {"type": "web_search"}])
    said += first.output
    said += [
        {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
        for item in first.output
        if item.type == "function_call"
    ]
    second = client.responses.create(model="cabin", input=said, tools=[TOOL])
    assert second.output_text == "Done."
    assert engine.prompts[1].startswith(
        f"<|user|>windows<|assistant|>Sure.{two_calls}<|end|><|tool|>ok<|tool|>ok<|system|>"
    )


def test_an_answer_cut_at_the_limit_is_incomplete(client_of, scripted):
    client = client_of(scripted("Hello there."))
    response = client.responses.create(model="cabin", input="hi", max_output_tokens=5)
    assert (response.status, response.output_text) == ("incomplete", "Hello")
    assert response.incomplete_details.reason == "max_output_tokens"
    assert raw_events(client, max_output_tokens=5)[-1]["type"] == "response.incomplete"


def test_an_empty_answer_has_no_output(client_of, scripted):
    response = client_of(scripted("")).responses.create(model="cabin", input="hi")
    assert (response.status, response.output) == ("completed", [])


def test_a_fault_in_a_stream_is_an_event(client_of, scripted):
    engine = scripted("One two three. " * 30)
    engine.fault_at = 4
    last = raw_events(client_of(engine))[-1]
    assert (last["type"], last["code"]) == ("error", "server_error")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "wizard", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": "a" * 5000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "function", "name": "make_tea"}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"extra_body": {"stop": ["x"]}}, "stop"),
    ],
)
def test_what_is_wrong_is_named(client_of, scripted, fields, param):
    engine = scripted("Hi.")
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(engine).responses.create(**{"model": "cabin", "input": "hi"} | fields)
    assert caught.value.param == param
    assert engine.prompts == []


def test_what_cannot_change_an_answer_is_taken(client_of, scripted):
    taken = {"store": True, "include": ["reasoning.encrypted_content"], "user": "me", "prompt_cache_key": "k"}
    response = client_of(scripted("Hi.")).responses.create(
        model="cabin", input="hi", truncation="disabled", background=False, **taken
    )
    assert response.output_text == "Hi."
