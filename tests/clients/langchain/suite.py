"""`langchain-openai`: chat models, tools, structured answers, an agent, and plain text."""

import asyncio

import openai
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

DECLINED = "Sorry, I can't do that."


class Switch(BaseModel):
    """Whether something is on."""

    on: bool


def chat(url: str, *, responses: bool = False, **more) -> ChatOpenAI:
    """Usage comes with a stream where it is asked for; by default the client asks OpenAI's own servers alone."""
    address = {"base_url": f"{url}/v1", "api_key": "none", "timeout": 60, "max_retries": 0}
    return ChatOpenAI(model="cabin", stream_usage=True, use_responses_api=responses, **address, **more)


@pytest.fixture(params=["completions", "responses"])
def model(request, url):
    """Over each of the two APIs that the client speaks."""
    return chat(url, responses=request.param == "responses")


def together(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def ask(model, said, stream: bool):
    return together(list(model.stream(said))) if stream else model.invoke(said)


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_answer_with_its_usage(model, stream):
    answer = ask(model, "tell me a joke", stream)
    assert answer.text == DECLINED
    assert answer.usage_metadata["input_tokens"] > 0
    assert answer.usage_metadata["output_tokens"] > 0


def test_a_stream_comes_in_pieces(model):
    assert len([chunk for chunk in model.stream("tell me a joke") if chunk.text]) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(model, stream, set_window):
    bound = model.bind_tools([tool(set_window)])
    said: list = [HumanMessage("open all windows")]
    answer = ask(bound, said, stream)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("set_window", {"window": "all", "position": 100})
    assert not answer.invalid_tool_calls
    said += [answer, ToolMessage(set_window(**call["args"]), tool_call_id=call["id"])]
    last = ask(bound, said, stream)
    assert last.text
    assert not last.tool_calls


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_stay_apart(model, stream, tools):
    answer = ask(model.bind_tools(tools), "open all windows and lock the doors", stream)
    assert [call["name"] for call in answer.tool_calls] == ["set_window", "lock_doors"]
    assert [call["args"] for call in answer.tool_calls] == [{"window": "all", "position": 100}, {"locked": True}]


@pytest.mark.parametrize("choice", ["required", "set_fan"])
def test_a_tool_can_be_forced(model, tools, choice):
    answer = model.bind_tools(tools, tool_choice=choice, parallel_tool_calls=False).invoke("tell me a joke")
    (call,) = answer.tool_calls
    assert choice in ("required", call["name"])


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_runs_its_tool_and_goes_on(model, stream, set_window):
    agent = create_agent(model, [tool(set_window)])
    said = {"messages": [HumanMessage("open all windows")]}
    if stream:
        *_, state = agent.stream(said, stream_mode="values")
    else:
        state = agent.invoke(said)
    assert set_window.calls == [("all", 100)]
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert state["messages"][-1].text


def test_a_structured_answer(model):
    assert isinstance(model.with_structured_output(Switch).invoke("set the fan to 3"), Switch)


def test_the_async_client(url):
    async def run() -> set[str]:
        said = set()
        for responses in (False, True):  # in one loop: the client keeps its connections for the next model
            model = chat(url, responses=responses)
            said.add((await model.ainvoke("tell me a joke")).text)
            said.add(together([chunk async for chunk in model.astream("tell me a joke")]).text)
        return said

    assert asyncio.run(run()) == {DECLINED}


@pytest.mark.parametrize("stream", [False, True])
def test_text_goes_on(url, stream):
    model = OpenAI(model="cabin", base_url=f"{url}/v1", api_key="none", max_tokens=8, max_retries=0)
    text = "".join(model.stream("open all")) if stream else model.invoke("open all")
    assert text


def test_logprobs_and_our_fields(url):
    answer = chat(url, logprobs=True, top_logprobs=2, extra_body={"mode": "ar"}).invoke("tell me a joke")
    tokens = answer.response_metadata["logprobs"]["content"]
    assert "".join(one["token"] for one in tokens) == DECLINED
    assert answer.response_metadata["token_usage"]["fourleaf"]["mode"] == "ar"


def test_a_refusal_is_an_error_of_its_kind(model):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        model.bind(temperature=9).invoke("hello")
