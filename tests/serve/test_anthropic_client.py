"""The official `anthropic` package against a server that really listens."""

import json
from typing import Any

import anthropic
import httpx2
import pytest

from fourleaf.tasks.cabin.schema import TOOLS

SAID = [{"role": "user", "content": "crack the back windows"}]
WINDOW = next(tool["function"] for tool in TOOLS if tool["function"]["name"] == "set_window")
TOOL = {"name": "set_window", "description": "Windows.", "input_schema": WINDOW["parameters"]}


@pytest.fixture
def client_of(serve):
    """An official client of a server of an engine."""
    made: list[anthropic.Anthropic] = []

    def connect(engine, *, key: str = "none", **options) -> anthropic.Anthropic:
        made.append(anthropic.Anthropic(base_url=serve(engine, **options), api_key=key, max_retries=0, timeout=30))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def two_calls(call_text) -> str:
    return call_text("set_window", window="rear_left", position=20) + call_text(
        "set_window", window="rear_right", position=20
    )


def ask(client, **fields):
    return client.messages.create(**{"model": "cabin", "max_tokens": 400, "messages": SAID} | fields)


def error_of(caught) -> dict:
    body = caught.value.response.json()
    assert body["type"] == "error"
    return body["error"]


def raw_events(client, **fields) -> list[tuple[str, dict]]:
    """Names and data of a stream as they are on the wire."""
    body = {"model": "cabin", "max_tokens": 400, "messages": SAID, "stream": True} | fields
    text = httpx2.post(str(client.base_url.join("/v1/messages")), json=body, timeout=30).text
    pairs = [block.split("\n") for block in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


def test_a_text_answer(client_of, scripted):
    engine = scripted("Which one?")
    message = ask(client_of(engine), system="Be brief.")
    assert (message.type, message.role, message.model) == ("message", "assistant", "cabin")
    assert [block.text for block in message.content] == ["Which one?"]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens == len(engine.tokenizer.encode_markup(engine.prompts[0]))
    assert message.usage.output_tokens == len("Which one?") + 1
    assert message.usage.model_extra["fourleaf"]["mode"] == "diffuse"
    assert engine.prompts[0].startswith("<|system|>Be brief.<|user|>crack")


def test_calls_come_back_as_tool_use(client_of, scripted, two_calls):
    message = ask(client_of(scripted("Sure." + two_calls)), tools=[TOOL])
    assert message.stop_reason == "tool_use"
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert [block.input["window"] for block in message.content[1:]] == ["rear_left", "rear_right"]
    assert len({block.id for block in message.content[1:]}) == 2


def test_the_order_of_events(client_of, scripted, two_calls):
    """Pitfalls 10 and 11: fields lost where they hold defaults, two message_starts, a tool_use without input."""
    events = raw_events(client_of(scripted("<think>hm</think>Sure." + two_calls)))
    assert all(name == data["type"] for name, data in events)
    names = [name for name, data in events if name != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert names == ["message_start", *block * 4, "message_delta", "message_stop"]
    start = events[0][1]["message"]
    assert {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"} <= set(start)
    assert (start["type"], start["role"], start["content"]) == ("message", "assistant", [])
    assert start["usage"]["input_tokens"] > 0
    starts = [data for name, data in events if name == "content_block_start"]
    assert [data["index"] for data in starts] == [0, 1, 2, 3]
    assert [data["content_block"]["type"] for data in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert all(data["content_block"]["input"] == {} for data in starts[2:])
    last = events[-2][1]
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert last["usage"]["output_tokens"] > 0


def test_a_stream_says_the_same(client_of, scripted, two_calls):
    client = client_of(scripted("Sure. Ça va? " * 9 + two_calls))
    whole = ask(client, tools=[TOOL])
    with client.messages.stream(model="cabin", max_tokens=400, messages=SAID, tools=[TOOL]) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == whole.content[0].text
    assert len(texts) > 10, "a committed block comes in small pieces"
    plain = [block.model_dump(include={"type", "text", "name", "input"}) for block in final.content]
    assert plain == [block.model_dump(include={"type", "text", "name", "input"}) for block in whole.content]
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_a_loop_with_tool_results(client_of, scripted, two_calls):
    engine = scripted("Sure." + two_calls, "Done.")
    client = client_of(engine)
    first = ask(client, tools=[TOOL])
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "ok"}]}
        for block in first.content
        if block.type == "tool_use"
    ]
    results[1] |= {"is_error": True, "content": "jammed"}
    said = [*SAID, {"role": "assistant", "content": first.content}]
    second = ask(client, tools=[TOOL], messages=[*said, {"role": "user", "content": [*results, text("Well?")]}])
    assert second.content[0].text == "Done."
    answered = f"<|assistant|>Sure.{two_calls}<|end|><|tool|>ok<|tool|>Error: jammed<|user|>Well?"
    assert engine.prompts[1].startswith(f"<|user|>crack the back windows{answered}")


def text(words: str) -> dict:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


def test_tokens_are_counted_as_they_will_be(client_of, scripted):
    client = client_of(scripted("Hi."))
    counted = client.messages.count_tokens(model="cabin", messages=SAID, system=[text("Be brief.")], tools=[TOOL])
    assert counted.input_tokens == ask(client, system="Be brief.", tools=[TOOL]).usage.input_tokens


def test_an_answer_cut_at_the_limit(client_of, scripted):
    message = ask(client_of(scripted("Hello there.")), max_tokens=5)
    assert (message.content[0].text, message.stop_reason, message.usage.output_tokens) == ("Hello", "max_tokens", 5)


@pytest.mark.parametrize(
    ("said", "reason"), [("Hi.", "end_turn"), ("Hello there. " * 9, "model_context_window_exceeded")]
)
def test_a_limit_beyond_the_context_asks_for_all_that_is_left(client_of, scripted, said, reason):
    """Clients that know no better ask for the most that any model gives: litellm for 128,000."""
    engine = scripted(said, max_context=64)
    client = client_of(engine, fixed_tools=None)
    message = ask(client, max_tokens=128_000)
    room = 64 - message.usage.input_tokens
    assert (message.content[0].text, message.stop_reason) == (said[:room], reason)
    assert engine.params[0].max_tokens == room
    with client.messages.stream(model="cabin", max_tokens=128_000, messages=SAID) as stream:
        assert stream.get_final_message().stop_reason == reason
    assert ask(client, max_tokens=room).stop_reason == ("end_turn" if reason == "end_turn" else "max_tokens")


def test_too_long_a_prompt_is_said_in_anthropics_words_and_counted(client_of, scripted):
    client = client_of(scripted("Hi.", max_context=64), fixed_tools=None)
    said = [{"role": "user", "content": "a" * 100}]
    counted = client.messages.count_tokens(model="cabin", messages=said).input_tokens
    assert counted > 100
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, messages=said)
    body: Any = caught.value.body
    error = body["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"prompt is too long: {counted} tokens > 63 maximum"), "clients look for this"


def test_parameters_reach_the_engine(client_of, scripted):
    engine = scripted("Hi.")
    fields = {"temperature": 0.5, "seed": 7, "mode": "ar", "threshold": 0.4, "top_p": 1, "top_k": 0}
    ask(client_of(engine), extra_body=fields, metadata={"user_id": "me"}, service_tier="auto", stop_sequences=[])
    params = engine.params[0]
    assert (params.temperature, params.seed, params.mode, params.threshold) == (0.5, 7, "ar", 0.4)


WRONG = [
    ({"messages": [{"role": "wizard", "content": "hi"}]}, r"messages\[0\].role"),
    ({"messages": [{"role": "user", "content": 7}]}, r"messages\[0\].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, r"messages\[0\].content\[0\].type"),
    ({"messages": [*SAID, {"role": "assistant", "content": "Sure, I"}]}, "messages ends with the assistant"),
    ({"messages": []}, "messages"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"system": 5}, "system"),
    ({"stop_sequences": ["x"]}, "stop_sequences"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\].type"),
    ({"tools": [{"name": "make_tea", "input_schema": {"type": "object"}}]}, "tools are fixed"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "make_tea"}}, "make_tea"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "tool_choice.disable_parallel_tool_use"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"thinking": {"type": "perhaps"}}, "thinking"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
]


@pytest.mark.parametrize(("fields", "said"), WRONG, ids=[json.dumps(fields)[:50] for fields, _ in WRONG])
def test_what_is_wrong_is_named(client_of, scripted, fields, said):
    engine = scripted("Hi.")
    client = client_of(engine)
    with pytest.raises(anthropic.BadRequestError, match=said) as caught:
        ask(client, **fields)
    assert error_of(caught)["type"] == "invalid_request_error"
    assert engine.prompts == []


def test_other_errors_have_anthropics_shape(client_of, scripted):
    client = client_of(scripted("Hi."), api_key="sesame", key="sesame")
    with pytest.raises(anthropic.NotFoundError) as missing:
        ask(client, model="claude")
    assert error_of(missing)["type"] == "not_found_error"
    with pytest.raises(anthropic.AuthenticationError) as refused:
        ask(anthropic.Anthropic(base_url=client.base_url, api_key="guess", max_retries=0))
    assert error_of(refused)["type"] == "authentication_error"
    assert ask(client).content[0].text == "Hi.", "the key came as x-api-key"


def test_a_fault_in_a_stream_is_an_event(client_of, scripted):
    engine = scripted("One two three. " * 30)
    engine.fault_at = 4
    client = client_of(engine)
    events = raw_events(client)
    assert events[-1] == ("error", {"type": "error", "error": events[-1][1]["error"]})
    assert events[-1][1]["error"]["type"] == "api_error"
    engine.fault_at = engine.passes + 4
    with (
        pytest.raises(anthropic.APIStatusError),
        client.messages.stream(model="cabin", max_tokens=400, messages=SAID) as stream,
    ):
        stream.get_final_message()
