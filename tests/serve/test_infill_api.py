"""`/v1/infill` and `/v1/fim/completions`, streaming and not, on a model with random weights; and `infill` in a chat."""

import json

import pytest
from fastapi.testclient import TestClient

from fourleaf.engine import Engine
from fourleaf.engine.request import Delta, Usage
from fourleaf.serve.app import create_app

TEMPLATE = ["ab", {"gap": {"max_tokens": 5}}, "cd ", {"gap": {"max_tokens": 3}}, "€!"]


@pytest.fixture(scope="module")
def engine(tiny_engine) -> Engine:
    return tiny_engine(96)


@pytest.fixture(scope="module")
def client(engine):
    with TestClient(create_app(engine)) as client:
        yield client


def ask(client, path="/v1/infill", **fields):
    given = {"model": "tiny", "prompt": "xy", "template": TEMPLATE} if path == "/v1/infill" else {"model": "tiny"}
    return client.post(path, json={**given, **fields})


def chunks_of(response) -> list[dict]:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("mode", ["diffuse", "ar", "draft", None])
@pytest.mark.parametrize(
    "context", [{"prompt": "xy"}, {"prompt": None, "messages": [{"role": "user", "content": "x"}]}]
)
def test_a_template_comes_back_filled_with_its_gaps_by_index(client, mode, context):
    body = ask(client, mode=mode, **context).json()
    assert body["object"] == "infill"
    (choice,) = body["choices"]
    first, second = choice["gaps"]
    assert [first["index"], second["index"]] == [0, 1]
    assert choice["text"] == f"ab{first['text']}cd {second['text']}€!"
    assert first["tokens"] <= 5
    assert second["tokens"] <= 3
    assert choice["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["completion_tokens"] == first["tokens"] + second["tokens"], "what is pinned was not generated"
    assert usage["pinned_tokens"] == len("abcd €!".encode())
    assert usage["prompt_tokens"] == (2 if context["prompt"] else len("<x>"))
    assert usage["fourleaf"]["mode"] == (mode or "diffuse")


def test_a_stream_says_the_same_and_which_text_fills_which_gap(client):
    fields = {"temperature": 1.0, "seed": 3, "n": 2}
    whole = ask(client, **fields).json()
    chunks = chunks_of(ask(client, **fields, stream=True, stream_options={"include_usage": True}))
    for choice in whole["choices"]:
        own = [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in own) == choice["text"]
        for gap in choice["gaps"]:
            assert "".join(one["text"] for one in own if one["gap"] == gap["index"]) == gap["text"]
        assert own[-1]["gaps"] == choice["gaps"]
        assert own[-1]["finish_reason"] == "stop"
        assert [one["finish_reason"] for one in own[:-1]] == [None] * (len(own) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert {chunk["object"] for chunk in chunks} == {"infill.chunk"}


def test_a_gap_without_text_behind_it_is_an_answer_with_a_limit(client):
    body = ask(client, template=["ab", {"gap": {"max_tokens": 4}}], logit_bias={"0": -100}).json()
    choice = body["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["gaps"][0]["tokens"] == body["usage"]["completion_tokens"] == 4
    assert choice["text"] == "ab" + choice["gaps"][0]["text"]


def test_tags_are_pinned_by_name_and_never_by_spelling(client, engine):
    spelled = ask(client, template=["<tool_call>", {"gap": {"max_tokens": 2}}, "z"]).json()
    named = ask(client, template=[{"tag": "<tool_call>"}, {"gap": {"max_tokens": 2}}, "z"]).json()
    assert spelled["usage"]["pinned_tokens"] == len("<tool_call>z")
    assert named["usage"]["pinned_tokens"] == 2
    assert named["choices"][0]["text"].startswith("<tool_call>")


def test_a_format_holds_for_the_whole_answer(client):
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": ["up", "down"]}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    template = ['{"a": "', {"gap": {"max_tokens": 5}}, '"}']
    body = ask(client, template=template, response_format=wanted).json()
    assert json.loads(body["choices"][0]["text"])["a"] in ("up", "down")
    refused = ask(client, template=['{"b": ', {"gap": {"max_tokens": 9}}], response_format=wanted)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "template"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"template": None}, "template"),
        ({"template": "ab"}, "template"),
        ({"template": ["ab"]}, "template"),
        ({"template": []}, "template"),
        ({"template": [{"gap": {"max_tokens": 5}}, "", {"gap": {"max_tokens": 5}}]}, "template[2]"),
        ({"template": [7]}, "template[0]"),
        ({"template": [{"gap": {"max_tokens": 5}, "tag": "<think>"}]}, "template[0]"),
        ({"template": ["a", {"gap": 5}]}, "template[1].gap"),
        ({"template": ["a", {"gap": {}}]}, "template[1].gap.max_tokens"),
        ({"template": ["a", {"gap": {"max_tokens": 0}}]}, "template[1].gap.max_tokens"),
        ({"template": ["a", {"gap": {"max_tokens": 1.5}}]}, "template[1].gap.max_tokens"),
        ({"template": ["a", {"gap": {"max_tokens": True}}]}, "template[1].gap.max_tokens"),
        ({"template": ["a", {"gap": {"max_tokens": 5, "stop": "x"}}]}, "template[1].gap.stop"),
        ({"template": ["a", {"tag": "<|end|>"}, {"gap": {"max_tokens": 5}}]}, "template[1].tag"),
        ({"template": ["a", {"gap": {"max_tokens": 94}}]}, "template"),
        ({"template": ["a", {"gap": {"max_tokens": 5}}] * 200}, "template"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ({"prompt": None, "messages": []}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"stop": "x"}, "stop"),
        ({"mode": "auto"}, "mode"),
        ({"logprobs": True}, "logprobs"),
        ({"n": 17}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "poem"}}, "response_format"),
    ],
)
def test_what_is_wrong_with_a_template_is_named(client, fields, param):
    response = ask(client, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not response.json()["error"]["message"].startswith("infill")


def test_an_engine_that_cannot_infill_says_so(scripted):
    with TestClient(create_app(scripted("x"))) as client:
        response = ask(client, model="cabin")
        capabilities = client.get("/v1/capabilities?model=cabin").json()
    assert (response.status_code, response.json()["error"]["param"]) == (400, "template")
    assert capabilities["infill"] is None


def test_capabilities_tell_how_far_a_gap_sees(client):
    infill = client.get("/v1/capabilities?model=tiny").json()["infill"]
    assert infill == {
        "modes": ["diffuse", "draft", "ar"],
        "right_context": {"diffuse": "block", "draft": "none", "ar": "none"},
        "fim_prompt": False,
    }


FIM = {"path": "/v1/fim/completions", "prompt": "def f(", "suffix": "return 1"}


def test_the_middle_comes_back_without_what_stands_around_it(client):
    body = ask(client, **FIM, max_tokens=6).json()
    (choice,) = body["choices"]
    assert body["object"] == "text_completion"
    assert choice["message"] == {"role": "assistant", "content": choice["text"]}
    assert body["usage"]["prompt_tokens"] == len("def f(return 1")
    assert body["usage"]["completion_tokens"] <= 6
    assert body["usage"]["total_tokens"] == len("def f(return 1") + body["usage"]["completion_tokens"]
    assert choice["finish_reason"] == ("length" if body["usage"]["completion_tokens"] == 6 else "stop")


@pytest.mark.parametrize("suffix", ["return 1", "", None])
def test_a_stream_of_the_middle_says_the_same(client, suffix):
    fields = {**FIM, "suffix": suffix, "max_tokens": 9, "temperature": 0.9, "random_seed": 4}
    whole = ask(client, **fields).json()
    chunks = chunks_of(ask(client, **fields, stream=True, stream_options={"include_usage": True}))
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert "".join(choice["delta"]["content"] for choice in choices) == whole["choices"][0]["text"]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


class Written(Engine):
    """Says what it is told, as an infilling's deltas or as any other answer's."""

    text = "one\n\ntwo"

    def generate(self, prompt_ids, params, observe=None):
        self.asked = (prompt_ids, params)
        tokens = self.tokenizer.encode(self.text)
        gaps = (0,) * len(tokens) if params.infill else None
        yield Delta(tuple(tokens), None, gaps=gaps)
        yield Delta((), "stop", Usage(len(prompt_ids), len(tokens), 1, 1, 1), gaps=() if params.infill else None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("suffix", ["three", None])
def test_the_middle_ends_before_a_stop(engine, stream, suffix):
    made = Written("tiny", engine.model, engine.tokenizer, engine.chat)
    with TestClient(create_app(made)) as client:
        response = ask(client, **{**FIM, "suffix": suffix}, stop=["\n\n"], stream=stream)
    choices = [chunk["choices"][0] for chunk in chunks_of(response)] if stream else response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == "one"
    assert choices[-1]["finish_reason"] == "stop"


def test_a_model_that_was_trained_for_it_gets_its_own_form_of_prompt(engine, monkeypatch):
    made = Written("tiny", engine.model, engine.tokenizer, engine.chat)
    forms = {"<|fim_prefix|>": 5, "<|fim_suffix|>": 6, "<|fim_middle|>": 7}
    monkeypatch.setattr(made.tokenizer, "controls", {**made.tokenizer.controls, **forms})
    with TestClient(create_app(made)) as client:
        assert ask(client, **FIM).status_code == 200
        assert client.get("/v1/capabilities?model=tiny").json()["infill"]["fim_prompt"] is True
        asked = made.asked
        assert ask(client, **{**FIM, "prompt": ""}).status_code == 200
    encode = made.tokenizer.encode
    assert asked[0] == [5, *encode("def f("), 6, *encode("return 1"), 7]
    assert asked[1].infill == ()
    assert made.asked[0] == [5, 6, *encode("return 1"), 7]


@pytest.mark.parametrize("suffix", ["return 1", None])
@pytest.mark.parametrize("begin", [None, "<|user|>"])
def test_the_top_of_a_file_has_nothing_before_it(engine, monkeypatch, suffix, begin):
    """Editors send an empty prompt there. No model answers nothing at all: it gets what its texts begin with."""
    made = Written("tiny", engine.model, engine.tokenizer, engine.chat)
    monkeypatch.setattr(made.tokenizer, "begin", begin)
    with TestClient(create_app(made)) as client:
        body = ask(client, **{**FIM, "prompt": "", "suffix": suffix}).json()
    assert made.asked[0] == [made.tokenizer.controls[begin or made.tokenizer.end]]
    assert body["choices"][0]["text"] == made.text
    assert body["usage"]["prompt_tokens"] == 1 + len(suffix or "")


@pytest.mark.parametrize("suffix", ["return 1", None])
def test_an_empty_prompt_is_answered_by_a_real_engine(client, suffix):
    choice = ask(client, **{**FIM, "prompt": "", "suffix": suffix}, max_tokens=4).json()["choices"][0]
    assert choice["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"suffix": 7}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 96}, "max_tokens"),
        ({"suffix": "x" * 96}, "prompt"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"seed": 1, "random_seed": 2}, "random_seed"),
        ({"mode": "auto"}, "mode"),
        ({"temperature": 9}, "temperature"),
    ],
)
def test_what_is_wrong_with_a_middle_is_named(client, fields, param):
    response = ask(client, **{**FIM, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_chat_takes_a_template_as_its_answer(client):
    fields = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "infill": TEMPLATE}
    body = client.post("/v1/chat/completions", json=fields).json()
    content = body["choices"][0]["message"]["content"]
    assert content.startswith("ab")
    assert content.endswith("€!")
    assert "cd " in content
    assert body["usage"]["fourleaf"]["mode"] == "diffuse"
    refused = client.post("/v1/chat/completions", json={**fields, "infill": [{"gap": 3}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "infill[0].gap")


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
@pytest.mark.parametrize("diffusing", [False, True])
def test_a_chat_streams_the_answer_that_it_gives_whole(client, mode, diffusing):
    fields = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "infill": TEMPLATE, "mode": mode}
    fields |= {"temperature": 1.0, "seed": 5}
    whole = client.post("/v1/chat/completions", json=fields).json()["choices"][0]["message"]["content"]
    chunks = chunks_of(client.post("/v1/chat/completions", json={**fields, "stream": True, "diffusing": diffusing}))
    texts = [text for chunk in chunks if (text := chunk["choices"][0]["delta"].get("content"))]
    assert (texts[-1] if diffusing else "".join(texts)) == whole
