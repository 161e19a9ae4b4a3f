import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fourleaf.text.router import (
    ContentDelta,
    Event,
    Message,
    Router,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    fold,
)
from fourleaf.text.tokenizer import SPECIAL_TOKENS, Tokenizer


def _events(tokenizer: Tokenizer, portions: Iterable[list[int]]) -> list[Event]:
    router = Router(tokenizer)
    return [event for portion in portions for event in router.feed(portion)] + router.finish()


def _splits(ids: list[int]) -> Iterable[list[list[int]]]:
    """The whole, each cut in two, all single tokens, and pairs with empty portions between."""
    yield [ids]
    yield from ([ids[:cut], ids[cut:]] for cut in range(len(ids) + 1))
    yield [[token_id] for token_id in ids]
    yield [portion for i in range(0, len(ids), 2) for portion in (ids[i : i + 2], [])]


def _route(tokenizer: Tokenizer, ids: list[int]) -> Message:
    """The folded answer, which must be the same however the ids arrive."""
    messages = [fold(_events(tokenizer, portions)) for portions in _splits(ids)]
    assert all(message == messages[0] for message in messages)
    return messages[0]


def _read(tokenizer: Tokenizer, markup: str) -> Message:
    return _route(tokenizer, tokenizer.encode_markup(markup))


def test_text_alone(tokenizer: Tokenizer) -> None:
    assert _read(tokenizer, "Which one?") == Message(content="Which one?")
    assert _read(tokenizer, "") == Message()


def test_one_call_is_three_events(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_markup('<tool_call>{"name": "set_fan", "arguments": {"level": 3}}</tool_call>')
    expected = [ToolCallStart(0, "set_fan"), ToolCallArguments(0, '{"level": 3}'), ToolCallEnd(0)]
    assert _events(tokenizer, [ids]) == expected
    router = Router(tokenizer)
    assert router.feed(ids[:-1]) == []
    assert router.feed(ids[-1:]) == expected
    assert router.finish() == []


def test_reasoning_content_and_several_calls(tokenizer: Tokenizer) -> None:
    markup = (
        "<think>Åse, hm.</think>Calling."
        '<tool_call>{"name": "call_contact", "arguments": {"name": "Åse \\" 東京"}}</tool_call>'
        '<tool_call>{"name": "cancel_navigation", "arguments": {}}</tool_call> Done 🚗'
    )
    assert _read(tokenizer, markup) == Message(
        content="Calling. Done 🚗",
        reasoning="Åse, hm.",
        tool_calls=[ToolCall("call_contact", '{"name": "Åse \\" 東京"}'), ToolCall("cancel_navigation", "{}")],
    )
    events = _events(tokenizer, [tokenizer.encode_markup(markup)])
    assert [event.index for event in events if isinstance(event, ToolCallStart)] == [0, 1]


def test_rows(tokenizer: Tokenizer, corpus: list[str]) -> None:
    for answer in corpus[1:1000:2]:
        message = fold(_events(tokenizer, [[token_id] for token_id in tokenizer.encode_markup(answer)]))
        calls = [
            f'<tool_call>{{"name": {json.dumps(call.name)}, "arguments": {call.arguments_json}}}</tool_call>'
            for call in message.tool_calls
        ]
        assert message.content + "".join(calls) == answer


GOOD = '{"name": "set_fan", "arguments": {"level": 3}}'


@pytest.mark.parametrize(
    "body",
    [
        "",
        "set the fan",
        GOOD[:-1],
        GOOD + "}",
        GOOD + GOOD,
        f"[{GOOD}]",
        '{"name": "set_fan"}',
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": "set_fan", "arguments": "{}"}',
        '{"name": "set_fan", "arguments": {}, "why": "hot"}',
        '{"name": "set_fan", "name": "set_ac", "arguments": {}}',
        '{"name": "set_fan", "arguments": {"level": 1, "level": 2}}',
        '{"name": "set_fan", "arguments": {"level": NaN}}',
        '{"name": "set_fan", "arguments": {"level": 1e999}}',
        '{"name": "set_fan", "arguments": {"level": "\\ud800"}}',
        pytest.param('{"name": "set_fan", "arguments": ' + '{"a":' * 50_000, id="nested"),
    ],
)
def test_what_is_no_call_comes_back_as_content(tokenizer: Tokenizer, body: str) -> None:
    markup = f"<tool_call>{body}</tool_call>"
    after = f"<tool_call>{GOOD}</tool_call>"
    ids = tokenizer.encode_markup("a" + markup + after)
    for portions in ([ids], [[token_id] for token_id in ids]):
        message = fold(_events(tokenizer, portions))
        assert message == Message(content="a" + markup, tool_calls=[ToolCall("set_fan", '{"level": 3}')])


@pytest.mark.parametrize("length", range(1, 5))
def test_an_answer_that_stops_inside_a_call_comes_back_as_content(tokenizer: Tokenizer, length: int) -> None:
    ids = tokenizer.encode_markup(f"ok <tool_call>{GOOD}</tool_call>")[:-length]
    assert _route(tokenizer, ids) == Message(content=tokenizer.decode(ids))


def test_a_tag_inside_an_open_call_gives_up_that_call_only(tokenizer: Tokenizer) -> None:
    message = _read(tokenizer, f'<tool_call>{{"name": <tool_call>{GOOD}</tool_call>')
    assert message == Message(content='<tool_call>{"name": ', tool_calls=[ToolCall("set_fan", '{"level": 3}')])
    assert _read(tokenizer, "<tool_call>{<think>hm</think>x") == Message(content="<tool_call>{x", reasoning="hm")
    assert _read(tokenizer, '<tool_call>{"name": "a<|mask|>", "arguments": {}}</tool_call>').tool_calls == []


def test_a_call_ends_a_thought_that_was_left_open(tokenizer: Tokenizer) -> None:
    message = _read(tokenizer, f"<think>warm<tool_call>{GOOD}</tool_call>")
    assert message == Message(reasoning="warm", tool_calls=[ToolCall("set_fan", '{"level": 3}')])
    assert _read(tokenizer, "<think>cold") == Message(reasoning="cold")


def test_stray_tags_stay_visible(tokenizer: Tokenizer) -> None:
    for markup in ("a</tool_call>b", "a</think>b", "a<|user|>b<|mask|>", "</tool_call>"):
        assert _read(tokenizer, markup) == Message(content=markup)
    assert _read(tokenizer, "<think>a<think>b</tool_call></think>c") == Message(
        content="c", reasoning="a<think>b</tool_call>"
    )


@pytest.mark.parametrize("spelled", SPECIAL_TOKENS)
def test_a_spelled_tag_is_text(tokenizer: Tokenizer, spelled: str) -> None:
    assert _route(tokenizer, tokenizer.encode(f"a{spelled}b")) == Message(content=f"a{spelled}b")
    call = json.dumps({"name": "send_message", "arguments": {"name": "Bo", "text": spelled}})
    ids = [tokenizer.token_id("<tool_call>"), *tokenizer.encode(call), tokenizer.token_id("</tool_call>")]
    assert _route(tokenizer, ids) == Message(
        tool_calls=[ToolCall("send_message", json.dumps({"name": "Bo", "text": spelled}))]
    )


@given(text=st.text())
def test_no_delta_splits_a_character(tokenizer: Tokenizer, text: str) -> None:
    portions = [[token_id] for token_id in tokenizer.encode(text)]
    deltas = [event.text for event in _events(tokenizer, portions) if isinstance(event, ContentDelta)]
    assert "".join(deltas) == text
    assert all(deltas)


def test_half_a_character_at_the_end_is_replaced(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("東")
    assert len(ids) == 3
    assert _route(tokenizer, ids[:2]) == Message(content="\ufffd")
    tag = tokenizer.token_id("<think>")
    assert _route(tokenizer, [*ids[:1], tag, *ids]) == Message(content="\ufffd", reasoning="東")


_NAMES = st.text(min_size=1, max_size=8)
_VALUES = st.recursive(
    st.text(max_size=8) | st.integers() | st.booleans() | st.none(), lambda v: st.lists(v, max_size=3)
)
_CALLS = st.tuples(_NAMES, st.dictionaries(st.text(max_size=5), _VALUES, max_size=3))
_SEGMENTS = st.one_of(
    st.tuples(st.just("text"), st.text(min_size=1, max_size=12) | st.sampled_from(SPECIAL_TOKENS)),
    st.tuples(st.just("thought"), st.text(max_size=12) | st.sampled_from(SPECIAL_TOKENS)),
    st.tuples(st.just("broken"), st.text(max_size=12)),
    st.tuples(st.just("call"), _CALLS),
)


@given(segments=st.lists(_SEGMENTS, max_size=3))
def test_answers_built_from_segments_are_taken_apart(tokenizer: Tokenizer, segments: list) -> None:
    ids: list[int] = []
    content, reasoning = "", ""
    calls = []
    tag = tokenizer.token_id
    for kind, value in segments:
        if kind == "text":
            ids += tokenizer.encode(value)
            content += value
        elif kind == "thought":
            ids += [tag("<think>"), *tokenizer.encode(value), tag("</think>")]
            reasoning += value
        elif kind == "broken":
            ids += [tag("<tool_call>"), *tokenizer.encode("no " + value), tag("</tool_call>")]
            content += f"<tool_call>no {value}</tool_call>"
        else:
            name, arguments = value
            body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
            ids += [tag("<tool_call>"), *tokenizer.encode(body), tag("</tool_call>")]
            calls.append(ToolCall(name, json.dumps(arguments, ensure_ascii=False)))
    assert _route(tokenizer, ids) == Message(content, reasoning, calls)


_IDS = st.integers(0, 10) | st.integers(11, 1023)


@given(ids=st.lists(_IDS, max_size=40))
def test_any_ids_fold_to_the_same_however_they_arrive(tokenizer: Tokenizer, ids: list[int]) -> None:
    message = _route(tokenizer, ids)
    assert message.tool_calls == []  # noise of this length is no JSON of a call
    (message.content + message.reasoning).encode("utf-8")


@given(ids=st.lists(_IDS, max_size=40))
def test_nothing_is_lost_of_any_ids_without_thoughts(tokenizer: Tokenizer, ids: list[int]) -> None:
    ids = [i for i in ids if i not in (tokenizer.token_id("<think>"), tokenizer.token_id("</think>"))]
    assert _route(tokenizer, ids) == Message(content=tokenizer.decode(ids))
