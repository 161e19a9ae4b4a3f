"""The official `openai` package against a server that really listens."""

import json

import openai
import pytest

SAID = [{"role": "user", "content": "crack the back windows"}]


@pytest.fixture
def two_calls(call_text) -> str:
    return call_text("set_window", window="rear_left", position=20) + call_text(
        "set_window", window="rear_right", position=20
    )


def test_models_are_listed_and_found(client_of, scripted):
    client = client_of(scripted("Hi."))
    listed = client.models.list().data
    assert [(model.id, model.object) for model in listed] == [("cabin", "model")]
    assert client.models.retrieve("cabin") == listed[0]
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("some/other")
    assert caught.value.code == "model_not_found"


def test_a_text_answer(client_of, scripted):
    engine = scripted("Which one?")
    completion = client_of(engine).chat.completions.create(model="cabin", messages=SAID)
    choice = completion.choices[0]
    assert (choice.message.role, choice.message.content, choice.message.tool_calls) == ("assistant", "Which one?", None)
    assert choice.finish_reason == "stop"
    assert engine.prompts == ["<|user|>crack the back windows<|system|>" + engine.prompts[0].split("<|system|>")[1]]
    usage = completion.usage
    assert usage.completion_tokens == len("Which one?") + 1
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    ours = usage.model_extra["fourleaf"]
    assert (ours["mode"], ours["threshold"], ours["forwards"], ours["passes"]) == ("diffuse", 0.95, 2, 2)
    assert ours["tpf"] == pytest.approx(11 / 2)
    assert ours["seconds"] >= ours["first_seconds"] > 0


def test_calls_come_back_as_tool_calls(client_of, scripted, two_calls):
    completion = client_of(scripted(two_calls)).chat.completions.create(model="cabin", messages=SAID)
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["set_window", "set_window"]
    assert [json.loads(call.function.arguments)["window"] for call in calls] == ["rear_left", "rear_right"]
    assert all(call.type == "function" and call.id.startswith("call_") for call in calls)
    assert calls[0].id != calls[1].id


def test_a_stream_says_the_same_in_pieces(client_of, scripted, two_calls):
    client = client_of(scripted("Sure. Ça va? " * 9 + two_calls))
    whole = client.chat.completions.create(model="cabin", messages=SAID)
    chunks = list(
        client.chat.completions.create(
            model="cabin", messages=SAID, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    texts = [delta.content for delta in deltas if delta.content]
    assert "".join(texts) == whole.choices[0].message.content
    assert len(texts) > 10, "a committed block comes in small pieces"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]

    pieces = [call for delta in deltas for call in delta.tool_calls or []]
    starts = [piece for piece in pieces if piece.id]
    assert [(piece.index, piece.type, piece.function.name, piece.function.arguments) for piece in starts] == [
        (0, "function", "set_window", ""),
        (1, "function", "set_window", ""),
    ]
    for index, call in enumerate(whole.choices[0].message.tool_calls):
        arguments = "".join(piece.function.arguments for piece in pieces if piece.index == index)
        assert arguments == call.function.arguments


def test_without_include_usage_every_chunk_has_a_choice(client_of, scripted):
    stream = client_of(scripted("Which one?")).chat.completions.create(model="cabin", messages=SAID, stream=True)
    chunks = list(stream)
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)


def test_the_sdks_own_accumulator_agrees(client_of, scripted, two_calls):
    client = client_of(scripted(two_calls))
    with client.chat.completions.stream(model="cabin", messages=SAID) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert events.count("tool_calls.function.arguments.done") == 2
    assert final.choices[0].finish_reason == "tool_calls"
    assert [call.function.name for call in final.choices[0].message.tool_calls] == ["set_window", "set_window"]


def test_a_conversation_with_tool_results(client_of, scripted, two_calls):
    engine = scripted(two_calls, "Done.")
    client = client_of(engine)
    first = client.chat.completions.create(model="cabin", messages=SAID).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in first.tool_calls]
    second = client.chat.completions.create(model="cabin", messages=[*SAID, first.model_dump(), *results])
    assert second.choices[0].message.content == "Done."
    assert engine.prompts[1].startswith(f"<|user|>crack the back windows<|assistant|>{two_calls}<|end|><|tool|>ok")


def test_requested_parameters_reach_the_engine(client_of, scripted):
    engine = scripted("Hello there.")
    client = client_of(engine)
    completion = client.chat.completions.create(
        model="cabin",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}]},
        ],
        max_completion_tokens=5,
        temperature=0.7,
        seed=-3,
        extra_body={"mode": "ar", "threshold": 0.5},
    )
    params = engine.params[0]
    assert (params.mode, params.threshold, params.temperature, params.max_tokens) == ("ar", 0.5, 0.7, 5)
    assert params.seed == 2**63 - 3
    assert engine.prompts[0].startswith("<|system|>Be brief.<|user|>two\nparts")
    assert completion.choices[0].message.content == "Hello"
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage.completion_tokens == 5
    assert completion.usage.model_extra["fourleaf"]["mode"] == "ar"


def test_a_temperature_without_a_seed_reports_the_seed_it_drew(client_of, scripted):
    engine = scripted("Hello.")
    client = client_of(engine)
    usages = [
        client.chat.completions.create(model="cabin", messages=SAID, temperature=1).usage.model_extra["fourleaf"]
        for _ in range(2)
    ]
    assert [usage["seed"] for usage in usages] == [params.seed for params in engine.params]
    assert usages[0]["seed"] != usages[1]["seed"]


def test_an_api_key_is_checked_where_the_server_has_one(client_of, scripted):
    engine = scripted("Hello.")
    right = client_of(engine, api_key="sesame", key="sesame")
    assert right.models.list().data[0].id == "cabin"
    wrong = openai.OpenAI(base_url=right.base_url, api_key="guess", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError) as caught:
        wrong.chat.completions.create(model="cabin", messages=SAID)
    assert caught.value.code == "invalid_api_key"
    assert engine.prompts == []
