"""Simon Willison's `llm`, with the models that its extra-openai-models.yaml names."""

import json
import subprocess
import sys

import llm
import openai
import pytest

DECLINED = "Sorry, I can't do that."
MODELS = """\
- model_id: cabin
  model_name: cabin
  api_base: {url}/v1
  supports_tools: true
  supports_schema: true
- model_id: cabin-responses
  model_name: cabin
  api_base: {url}/v1
  responses: true
  supports_tools: true
  supports_schema: true
- model_id: cabin-text
  model_name: cabin
  api_base: {url}/v1
  completion: true
"""
FUNCTION = """
def set_window(window: str, position: int) -> str:
    "Opens a window, 100, or closes it, 0."
    return '{"ok": true}'
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, url):
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(url=url), encoding="utf-8")
    return tmp_path


def command(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "llm", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("how", [(), ("--no-stream",)])
def test_a_prompt_is_answered_and_logged(how):
    assert command("-m", "cabin", "tell me a joke", *how) == DECLINED
    (logged,) = json.loads(command("logs", "--json"))
    assert (logged["model"], logged["response"]) == ("cabin", DECLINED)
    assert logged["input_tokens"] > 0
    assert logged["output_tokens"] > 0


@pytest.mark.parametrize("how", [(), ("--no-stream",)])
def test_the_command_runs_a_function_that_it_is_given(how):
    said = command("-m", "cabin", "open all windows", "--functions", FUNCTION, "--no-log", *how)
    assert said, "the model says something behind the tool's result"


@pytest.mark.parametrize("name", ["cabin", "cabin-responses"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_stream_and_a_whole_answer_say_the_same(name, stream):
    response = llm.get_model(name).prompt("tell me a joke", stream=stream)
    pieces = list(response)
    assert "".join(pieces) == response.text() == DECLINED
    assert len(pieces) > 1 or not stream
    usage = response.usage()
    assert usage.input > 0
    assert usage.output > 0


@pytest.mark.parametrize("name", ["cabin", "cabin-responses"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_chain_calls_a_tool_and_goes_on(name, stream, set_window):
    chain = llm.get_model(name).chain("open all windows", tools=[set_window], stream=stream)
    text = chain.text()
    assert set_window.calls == [("all", 100)]
    first, second = chain.responses()
    (call,) = first.tool_calls()
    assert (call.name, call.arguments) == ("set_window", {"window": "all", "position": 100})
    assert text.endswith(second.text())
    assert not second.tool_calls()


@pytest.mark.parametrize("stream", [True, False])
def test_a_schema_is_held_to(stream):
    schema = llm.schema_dsl("on bool, level int")
    response = llm.get_model("cabin").prompt("set the fan to 3", schema=schema, stream=stream)
    answer = json.loads(response.text())
    assert set(answer) == {"on", "level"}
    assert isinstance(answer["on"], bool)


def test_a_conversation_goes_on():
    conversation = llm.get_model("cabin").conversation()
    assert conversation.prompt("tell me a joke").text() == DECLINED
    assert conversation.prompt("who won the world cup").text()
    assert len(conversation.responses) == 2


@pytest.mark.parametrize("stream", [True, False])
def test_text_goes_on(stream):
    response = llm.get_model("cabin-text").prompt("open all", stream=stream, max_tokens=8)
    pieces = list(response)
    assert pieces
    assert "".join(pieces) == response.text()


def test_options_reach_the_server_and_a_refusal_names_the_field():
    model = llm.get_model("cabin")
    assert model.prompt("tell me a joke", max_tokens=2, stop="x").text() != DECLINED
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        model.prompt("tell me a joke", logit_bias={999999: 5}).text()
