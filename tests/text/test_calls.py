"""Tool calls as the families of checkpoints write them, and the text around them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fourleaf.text.calls import Markup, ToolCall, markup_of, read_call
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.router import Message, Router, ToolCallStart, fold, opens_in_reasoning
from fourleaf.text.tokenizer import Tokenizer

# The parts of two public templates that write calls and thoughts, in this project's control tokens.
QWEN3 = """\
{%- for m in messages %}{%- if m.role == "assistant" %}
{{- '<|assistant|>' + m.content }}
{%- for c in m.tool_calls or [] %}
{%- if (loop.first and m.content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' }}{{- c.function.name }}{{- '", "arguments": ' }}
{{- c.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|end|>' }}{%- else %}{{- '<|user|>' + m.content }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
QWEN35 = """\
{%- for m in messages %}{%- if m.role == "assistant" %}
{{- '<|assistant|>' + m.content }}
{%- for c in m.tool_calls or [] %}
{%- if loop.first and m.content %}{{- '\\n\\n' }}{%- elif not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n<function=' + c.function.name + '>\\n' }}
{%- for key, value in c.function.arguments | items %}
{{- '<parameter=' + key + '>\\n' }}
{%- set text = value | tojson if value is mapping or (value is sequence and value is not string) else value | string %}
{{- text }}{{- '\\n</parameter>\\n' }}
{%- endfor %}{{- '</function>\\n</tool_call>' }}
{%- endfor %}{{- '<|end|>' }}{%- else %}{{- '<|user|>' + m.content }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}
{%- else %}{{- '<think>\\n' }}{%- endif %}{%- endif %}"""
FAMILIES = {"Qwen3": QWEN3, "Qwen3.5": QWEN35}

PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": "integer"},
        "share": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"$ref": "#/$defs/Where"},
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "any": {},
        "size": {"enum": [1, 2]},
    },
    "$defs": {"Where": {"type": "object"}},
}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}]
XML = Markup("xml", lines=True)


def answer_ids(source: str, tokenizer: Tokenizer, message: dict) -> list[int]:
    """What the template renders behind the assistant's header, without the end token."""
    chat = ChatTemplate(source, tokenizer)
    said = [{"role": "user", "content": "x"}, {"role": "assistant", **message}]
    ids = chat.render(said, tools=TOOLS, add_generation_prompt=False)
    return ids[ids.index(tokenizer.token_id("<|assistant|>")) + 1 : -1]


def route(source: str, tokenizer: Tokenizer, ids: list[int], *, reasoning: bool = False) -> Message:
    """The folded answer; the same for every cut in two, and for single tokens."""
    markup = ChatTemplate(source, tokenizer).markup

    def read(portions: list[list[int]]) -> Message:
        router = Router(tokenizer, markup, TOOLS, reasoning=reasoning)
        return fold([event for portion in portions for event in router.feed(portion)] + router.finish())

    whole = read([ids])
    assert all(read([ids[:cut], ids[cut:]]) == whole for cut in range(len(ids) + 1))
    assert read([[token_id] for token_id in ids]) == whole
    return whole


def call(**arguments) -> dict:
    return {"id": "a", "type": "function", "function": {"name": "read", "arguments": json.dumps(arguments)}}


def test_the_markup_comes_from_the_template(tokenizer):
    assert ChatTemplate(QWEN3, tokenizer).markup == Markup("json", lines=True)
    assert ChatTemplate(QWEN35, tokenizer).markup == XML
    assert markup_of('<tool_call>{"name": {{ name }}}</tool_call>') == Markup("json", lines=False)
    assert markup_of("<tool_call>\n{") == Markup("json", lines=True)
    assert (XML.separator, Markup().separator) == ("\n", "")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_template_writes_is_read_back(tokenizer, family):
    """Bug kinds 58 and 60: a call lost on the way, its markup left in content."""
    calls = [call(path="a </parameter> b\n\n<c>", limit=5, share=0.5, deep=True), call(tags=["x"], where={"y": [None]})]
    ids = answer_ids(FAMILIES[family], tokenizer, {"content": "Let me see.", "tool_calls": calls})
    message = route(FAMILIES[family], tokenizer, ids)
    assert message.content == "Let me see."
    assert [json.loads(made.arguments_json) for made in message.tool_calls] == [
        json.loads(asked["function"]["arguments"]) for asked in calls
    ]
    assert [made.name for made in message.tool_calls] == ["read", "read"]


VALUES = {
    "path": st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    "limit": st.integers(),
    "share": st.floats(allow_nan=False, allow_infinity=False),
    "deep": st.booleans(),
    "tags": st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3),
    "count": st.none() | st.integers(),
    "size": st.sampled_from([1, 2]),
}


@pytest.mark.parametrize("family", FAMILIES)
@given(calls=st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=2))
def test_any_arguments_are_read_back(tokenizer, family, calls):
    ids = answer_ids(FAMILIES[family], tokenizer, {"content": "", "tool_calls": [call(**one) for one in calls]})
    message = route(FAMILIES[family], tokenizer, ids)
    assert message.content == ""
    assert [json.loads(made.arguments_json) for made in message.tool_calls] == calls


def read(text: str) -> ToolCall | None:
    return read_call(text, XML, {"read": PARAMETERS})


def arguments(**spelled: str) -> dict:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in spelled.items())
    made = read(f"\n<function=read>\n{inner}</function>\n")
    assert made is not None
    return json.loads(made.arguments_json)


def test_a_schema_gives_bare_text_its_type():
    assert arguments(path="5", limit="5", share="5", deep="True", count="None") == {
        "path": "5",
        "limit": 5,
        "share": 5,
        "deep": True,
        "count": None,
    }
    assert arguments(path="null", deep="false", count="null", any="[1]", where='{"a": 1}', size="2") == {
        "path": "null",
        "deep": False,
        "count": None,
        "any": [1],
        "where": {"a": 1},
        "size": 2,
    }


def test_text_that_is_not_of_its_type_stays_text():
    """The caller sees what the model wrote, and can say what is wrong with it."""
    assert arguments(limit="five", share="1e999", deep="1", tags="{}", unknown="5", any="hello") == {
        "limit": "five",
        "share": "1e999",
        "deep": "1",
        "tags": "{}",
        "unknown": "5",
        "any": "hello",
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<function=read>",
        "<function=>\n</function>",
        "<function=read>\n</function> and more",
        "<function=read>\n<parameter=path>\nx\n</function>",
        "<function=read>\nx\n<parameter=path>\nx\n</parameter>\n</function>",
        "<function=read>\n<parameter=path>\nx\n</parameter>\n<parameter=path>\ny\n</parameter>\n</function>",
        '{"name": "read", "arguments": {}}',
    ],
)
def test_what_is_no_xml_call_is_none(text):
    assert read(text) is None


def test_a_broken_call_comes_back_word_for_word(tokenizer):
    for body in ("\n<function=read>\n", "\nno call\n", "\n\n"):
        markup = f"a\n\n<tool_call>{body}</tool_call>\n b\n"
        assert route(QWEN35, tokenizer, tokenizer.encode_markup(markup)) == Message(content=markup)


def test_newlines_beside_tags_are_no_content(tokenizer):
    good = "<tool_call>\n<function=read>\n</function>\n</tool_call>"
    markup = f"<think>\n\nhm\nhm\n\n</think>\n\nSo:\n\n- a\n- b\n\n{good}\n{good}\n\nDone.\n"
    assert route(QWEN35, tokenizer, tokenizer.encode_markup(markup)) == Message(
        content="So:\n\n- a\n- bDone.\n", reasoning="hm\nhm", tool_calls=[ToolCall("read", "{}")] * 2
    )


@pytest.mark.parametrize(("family", "opens"), [("Qwen3", False), ("Qwen3.5", True)])
def test_a_prompt_may_have_opened_the_thought(tokenizer, family, opens):
    chat = ChatTemplate(FAMILIES[family], tokenizer)
    said = [{"role": "user", "content": "hi <think>"}]
    assert opens_in_reasoning(tokenizer, chat.render(said)) is opens
    assert not opens_in_reasoning(tokenizer, chat.render(said, options={"enable_thinking": False}))
    ids = tokenizer.encode_markup("warm\n</think>\n\nYes.")
    assert route(QWEN35, tokenizer, ids, reasoning=True) == Message(content="Yes.", reasoning="warm")
    assert route(QWEN35, tokenizer, ids[:1], reasoning=True).content == ""


@given(ids=st.lists(st.integers(0, 10) | st.sampled_from([11 + 10, 200]) | st.integers(11, 1023), max_size=30))
def test_any_ids_fold_to_the_same_however_they_arrive(tokenizer, ids):
    message = route(QWEN35, tokenizer, ids, reasoning=bool(ids) and ids[0] % 2 == 0)
    (message.content + message.reasoning).encode()


def test_calls_are_numbered_from_zero(tokenizer):
    good = tokenizer.encode_markup("<tool_call>\n<function=read>\n</function>\n</tool_call>")
    router = Router(tokenizer, XML, TOOLS)
    events = router.feed([*good, *good]) + router.finish()
    assert [event.index for event in events if isinstance(event, ToolCallStart)] == [0, 1]
