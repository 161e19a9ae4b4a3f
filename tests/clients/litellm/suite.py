"""`litellm`, through which agents and harnesses reach a model: chat, text, responses, tools and errors."""

import asyncio
import json

import litellm
import pytest

DECLINED = "Sorry, I can't do that."


@pytest.fixture
def server(url) -> dict:
    """What a user says instead of OpenAI's address."""
    return {"model": "openai/cabin", "api_base": f"{url}/v1", "api_key": "none", "timeout": 60, "max_retries": 0}


def asked(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def folded(chunks: list) -> litellm.ModelResponse:
    """litellm's own way to put a stream together."""
    return litellm.stream_chunk_builder(chunks)


def ask(server, text: str, *, stream: bool, **fields):
    answer = litellm.completion(messages=asked(text), stream=stream, **server, **fields)
    return folded(list(answer)) if stream else answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_answer(server, stream):
    answer = ask(server, "tell me a joke", stream=stream)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (DECLINED, "stop")


def test_usage_comes_with_a_stream_that_asks_for_it(server):
    chunks = list(
        litellm.completion(
            messages=asked("tell me a joke"), stream=True, stream_options={"include_usage": True}, **server
        )
    )
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1
    whole = ask(server, "tell me a joke", stream=False)
    assert folded(chunks).usage.completion_tokens == whole.usage.completion_tokens > 0
    assert folded(chunks).usage.prompt_tokens == whole.usage.prompt_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(server, tools, stream):
    messages = asked("open all windows and lock the doors")
    first = litellm.completion(messages=messages, tools=tools, stream=stream, **server)
    first = folded(list(first)) if stream else first
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
    assert calls == [("set_window", {"window": "all", "position": 100}), ("lock_doors", {"locked": True})]
    assert len({call.id for call in message.tool_calls}) == 2
    messages.append(message.model_dump())
    for call in message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"ok": true}'})
    second = litellm.completion(messages=messages, tools=tools, stream=stream, **server)
    second = folded(list(second)) if stream else second
    assert second.choices[0].message.content
    assert second.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_can_be_forced(server, tools, stream):
    choice = {"type": "function", "function": {"name": "set_fan"}}
    answer = ask(server, "tell me a joke", stream=stream, tools=tools, tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "set_fan"
    assert set(json.loads(call.function.arguments)) == {"level"}


def test_the_async_client(server):
    async def run() -> tuple[str, str]:
        fields = {"messages": asked("tell me a joke"), **server}
        whole = await litellm.acompletion(**fields)
        stream = await litellm.acompletion(**fields, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return whole.choices[0].message.content, "".join(pieces)

    assert asyncio.run(run()) == (DECLINED, DECLINED)


def test_a_schema_is_held_to(server):
    schema = {
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "switch", "schema": schema, "strict": True}}
    answer = ask(server, "set the fan to 3", stream=False, response_format=form)
    assert set(json.loads(answer.choices[0].message.content)) == {"on"}


@pytest.mark.parametrize("mode", ["ar", "diffuse"])
def test_our_fields_go_through_extra_body(server, mode):
    answer = ask(server, "tell me a joke", stream=False, extra_body={"mode": mode})
    assert answer.usage.model_dump()["fourleaf"]["mode"] == mode


@pytest.mark.parametrize("stream", [False, True])
def test_text_goes_on(server, stream):
    fields = server | {"model": "text-completion-openai/cabin"}
    answer = litellm.text_completion(prompt="open all", max_tokens=8, stream=stream, **fields)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert any(choice.text for choice in choices)


@pytest.mark.parametrize("stream", [False, True])
def test_responses(server, stream):
    answer = litellm.responses(input="tell me a joke", stream=stream, **server)
    if stream:
        events = list(answer)
        answer = next(event.response for event in events if event.type == "response.completed")
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == DECLINED
    assert answer.output[0].content[0].text == DECLINED


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_protocol(url, stream):
    fields = {"model": "anthropic/cabin", "api_base": url, "api_key": "none", "timeout": 60, "max_retries": 0}
    answer = ask(fields, "tell me a joke", stream=stream)
    assert answer.choices[0].message.content == DECLINED


def test_errors_have_their_types(server):
    with pytest.raises(litellm.BadRequestError, match="max_tokens"):
        ask(server, "hello", stream=False, max_tokens=0)
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(server, "hello " * 3000, stream=False)
    with pytest.raises(litellm.NotFoundError):
        ask(server | {"model": "openai/other"}, "hello", stream=False)
