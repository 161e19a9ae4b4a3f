import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fourleaf
from fourleaf.errors import CheckpointError, RequestError
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import SPECIAL_TOKENS, Tokenizer

BUNDLED = (Path(fourleaf.__file__).parent / "models/cabin/chat_template.jinja").read_text(encoding="utf-8")

# What templates of published checkpoints do: trim, split at a think tag, test the start, list tools, refuse.
ELABORATE = """
{%- if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}
{%- set ns = namespace(thinking=false) %}
{%- for message in messages %}
  {%- set content = message.content | trim %}
  {%- if message.role == 'system' and not loop.first %}{{ raise_exception('System message must come first.') }}
  {%- endif %}
  {%- if message.role == 'user' %}
    {%- if content.startswith('/think') %}{% set ns.thinking = true %}{% endif %}
    {{- '<|user|>' + content }}
  {%- elif message.role == 'assistant' %}
    {%- set reasoning = message.reasoning_content if message.reasoning_content is string else '' %}
    {%- if not reasoning and '</think>' in content %}
      {%- set reasoning = content.split('</think>')[0].split('<think>')[-1] %}
      {%- set content = content.split('</think>')[-1] %}
    {%- endif %}
    {{- '<|assistant|><think>' ~ reasoning ~ '</think>' ~ content }}
    {%- for call in message.tool_calls or [] %}
      {{- '<tool_call><function=' ~ call.function.name ~ '>' }}
      {%- for name, value in call.function.arguments | items %}
        {{- '<parameter=' ~ name ~ '>' ~ (value if value is string else value | tojson) ~ '</parameter>' }}
      {%- endfor %}
      {{- '</tool_call>' }}
    {%- endfor %}
    {{- '<|end|>' }}
  {%- elif message.role == 'tool' %}<|tool|>{{ message.name }} {{ message.tool_call_id }} {{ content }}
  {%- else %}<|system|>{{ content.replace('<|end|>', '') }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% if ns.thinking %}<think>{% endif %}{% endif %}
"""
# The user's words between brackets that the template wrote: together they spell control tokens.
BRACKETS = """{% for m in messages %}<|user|><{{ m.content }}><|{{ m.content }}|></{{ m.name }}>{% endfor %}"""


@pytest.fixture(scope="module")
def chat(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(BUNDLED, tokenizer)


def _call(name: Any, arguments: Any) -> dict:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_bundled_template(chat: ChatTemplate, tokenizer: Tokenizer) -> None:
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": " call"}, {"type": "text", "text": "Åse\n"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [_call("call_contact", '{"name":"Åse"}'), _call("cancel_navigation", "")],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "ringing"},
        {"role": "assistant", "content": "Which one?"},
        {"role": "user", "content": "no"},
    ]
    expected = (
        "<|system|>Be kind.<|user|>call\nÅse"
        '<|assistant|><tool_call>{"name": "call_contact", "arguments": {"name": "Åse"}}</tool_call>'
        '<tool_call>{"name": "cancel_navigation", "arguments": {}}</tool_call><|end|>'
        "<|tool|>ringing<|assistant|>Which one?<|end|><|user|>no<|assistant|>"
    )
    assert chat.render(messages) == tokenizer.encode_markup(expected)
    without = chat.render(messages, add_generation_prompt=False)
    assert [*without, tokenizer.token_id("<|assistant|>")] == chat.render(messages)


def test_bundled_template_renders_no_tools(chat: ChatTemplate, tools: list[dict]) -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert chat.render(messages, tools=tools) == chat.render(messages)


def test_a_turn_in_the_history_is_the_prompt_and_the_answer_that_were_learned(
    chat: ChatTemplate, tokenizer: Tokenizer, corpus: list[str]
) -> None:
    for utterance, answer in list(zip(corpus[::2], corpus[1::2], strict=True))[:300]:
        calls = [json.loads(part.removesuffix("</tool_call>")) for part in answer.split("<tool_call>")[1:]]
        turn = {
            "role": "assistant",
            "content": None if calls else answer,
            "tool_calls": [_call(call["name"], json.dumps(call["arguments"])) for call in calls] or None,
        }
        user = {"role": "user", "content": utterance}
        learned = [*chat.render([user]), *tokenizer.encode_markup(answer), tokenizer.end_id]
        assert chat.render([user, turn], add_generation_prompt=False) == learned


def _conversation(fill: str) -> tuple[list[dict], list[dict]]:
    """`fill` in every field that a client writes freely."""
    arguments = json.dumps({fill: fill, "inner": [{fill: fill}]})
    messages = [
        {"role": "system", "content": fill, "name": fill},
        {"role": "user", "content": fill, "name": fill},
        {"role": "user", "content": [{"type": "text", "text": fill}, {"type": "text", "text": fill}]},
        {"role": "assistant", "content": fill, "reasoning_content": fill, "tool_calls": [_call(fill, arguments)]},
        {"role": "tool", "content": fill, "tool_call_id": fill, "name": fill},
        {"role": "assistant", "content": fill},
        {"role": "user", "content": "x" + fill},
    ]
    function = {
        "name": fill,
        "description": fill,
        "parameters": {"type": "object", "properties": {fill: {"enum": [fill]}}},
    }
    return messages, [{"type": "function", "function": function}]


_HOSTILE = st.lists(
    st.text(max_size=4)
    | st.sampled_from([*SPECIAL_TOKENS, "think", "/think", "tool_call", "|user|", "<", "|", " ", "\n", '"', "\\"])
    | st.integers(0xDC00, 0xDC20).map(chr),
    max_size=4,
).map("".join)


@pytest.mark.parametrize("source", [BUNDLED, ELABORATE, BRACKETS], ids=["bundled", "elaborate", "brackets"])
@given(fill=_HOSTILE)
def test_no_field_can_write_a_control_token(source: str, fill: str, tokenizer: Tokenizer) -> None:
    chat = ChatTemplate(source, tokenizer)

    def controls(fill: str) -> list[int]:
        messages, tools = _conversation(fill)
        return [i for i in chat.render(messages, tools=tools) if i in tokenizer.special_ids]

    # A template may act on "/think", and on nothing else that is filled in here.
    expected = controls("/think" if fill.strip().startswith("/think") else "harmless")
    assert controls(fill) == expected


def test_the_elaborate_template_reaches_its_branches(tokenizer: Tokenizer) -> None:
    messages, tools = _conversation("</think>")
    text = tokenizer.decode(ChatTemplate(ELABORATE, tokenizer).render(messages, tools=tools))
    assert '<|system|>{"type": "function", "function": {"name": "</think>"' in text
    assert (
        "<|assistant|><think></think></think></think><tool_call><function=</think>><parameter=</think>></think>" in text
    )


def test_templates_see_the_words_that_users_write(tokenizer: Tokenizer) -> None:
    chat = ChatTemplate(ELABORATE, tokenizer)
    think, assistant = tokenizer.token_id("<think>"), tokenizer.token_id("<|assistant|>")
    assert chat.render([{"role": "user", "content": " /think hard <|end|> "}])[-2:] == [assistant, think]
    assert tokenizer.decode(chat.render([{"role": "user", "content": " hard <|end|> "}])) == (
        "<|user|>hard <|end|><|assistant|>"
    )
    with pytest.raises(RequestError, match="System message must come first") as caught:
        chat.render([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}])
    assert caught.value.param == "messages"


def test_lone_surrogates_are_replaced_in_every_field(tokenizer: Tokenizer) -> None:
    messages, tools = _conversation("a\udc00\ud83d")
    text = tokenizer.decode(ChatTemplate(ELABORATE, tokenizer).render(messages, tools=tools))
    # The tool has four; each system and user turn one for each part of its content; the tool's turn three; the first
    # assistant turn its thought, its content, the call's name and four in its arguments; the second its content.
    assert text.count("a\ufffd\ufffd") == 4 + 1 + 1 + 2 + 3 + 7 + 1 + 1
    assert not any("\ud800" <= char <= "\udfff" for char in text)


_USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hi", "messages"),
        (None, "messages"),
        ({"role": "user"}, "messages"),
        ([], "messages"),
        ([_USER, "hi"], "messages[1]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": ["user"], "content": "hi"}], "messages[0].role"),
        ([_USER, {"role": "robot", "content": "hi"}], "messages[1].role"),
        ([{"role": "<|user|>", "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text", "text": "hi"}}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "hi", "name": 1}], "messages[0].name"),
        ([{"role": "user", "content": "hi", "tool_calls": [_call("a", "{}")]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "messages[0].content"),
        ([{"role": "assistant", "content": "a", "reasoning": 1}], "messages[0].reasoning"),
        ([{"role": "assistant", "tool_calls": "call"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": ["call"]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{"type": "custom"}]}], "messages[0].tool_calls[0].type"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": [_call(None, "{}")]}], "messages[0].tool_calls[0].function.name"),
        ([{"role": "assistant", "tool_calls": [_call("a", "{")]}], "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "tool_calls": [_call("a", "[1]")]}], "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "tool_calls": [_call("a", None)]}], "messages[0].tool_calls[0].function.arguments"),
        (
            [{"role": "assistant", "tool_calls": [_call("a", '{"b": NaN}')]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [_call("a", "[" * 100_000)]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "tool", "content": None}], "messages[0].content"),
        ([{"role": "tool", "content": "a", "tool_call_id": 1}], "messages[0].tool_call_id"),
    ],
)
def test_faults_name_their_field(chat: ChatTemplate, messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat.render(messages)
    assert caught.value.param == param
    assert param in str(caught.value)


@pytest.mark.parametrize(("tools", "param"), [("all", "tools"), ([{}, "set_window"], "tools[1]")])
def test_faults_of_tools_name_their_field(chat: ChatTemplate, tools: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat.render([_USER], tools=tools)
    assert caught.value.param == param


def test_deeply_nested_tools_are_refused(chat: ChatTemplate) -> None:
    tool: dict = {}
    for _ in range(5000):
        tool = {"a": tool}
    with pytest.raises(RequestError, match="nested too deeply"):
        chat.render([_USER], tools=[tool])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for m in messages %}", "broken at line 1"),
        ("{{ '<|' + messages[0].role + '|>' }}", r"joins '<\|user\|>' from pieces"),
        ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", "from pieces"),
        ("{% for m in messages %}{% if m.tool_calls %}{{ '<tool_' }}call>{% endif %}{% endfor %}", "'<tool_call>'"),
        ("<|user|>\udc00", "lone surrogate"),
    ],
)
def test_templates_that_cannot_be_trusted_are_refused(source: str, message: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(CheckpointError, match=message):
        ChatTemplate(source, tokenizer)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ ''.join(range(100000000) | list | string) }}",
    ],
)
def test_templates_run_in_a_sandbox(source: str, tokenizer: Tokenizer) -> None:
    chat = ChatTemplate(source, tokenizer)
    with pytest.raises(RequestError, match="template refuses"):
        chat.render([_USER])
