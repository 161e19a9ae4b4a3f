"""Token ids of an answer to typed events: content, reasoning and tool calls.

Tags are recognised by token id, never by spelling, so an argument that spells "</tool_call>" ends nothing. A call is
announced when its closing tag has come and it has been read; until then it is held back, because what cannot be read
as a call goes out as content, word for word. Ids may come in portions of any size: what the events fold to is the
same, and no event ends inside a UTF-8 character.

Where the checkpoint's template puts tags on lines of their own, the newlines beside a tag belong to it and not to the
text. So newlines behind a text are held back until it is known whether a tag follows.
"""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fourleaf.text.calls import PLAIN, Markup, ToolCall, read_call, schemas_of
from fourleaf.text.tokenizer import THINK, THINK_END, TOOL_CALL, TOOL_CALL_END, Tokenizer


@dataclass(frozen=True)
class ContentDelta:
    """More of the visible answer."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """More of what stands between think tags."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins; `index` counts the calls of the answer from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """More JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True)
class ToolCallEnd:
    """The call's arguments are whole."""

    index: int


Event = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd


@dataclass(frozen=True)
class Message:
    """A finished answer."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


class _State(Enum):
    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


def opens_in_reasoning(tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt ends inside a thought, as that of Qwen3.5 does: the answer then begins there, without a tag."""
    tags = {tokenizer.controls.get(THINK), tokenizer.controls.get(THINK_END)} - {None}
    last = next((token_id for token_id in reversed(prompt_ids) if token_id in tags), None)
    return last is not None and last == tokenizer.controls.get(THINK)


class Router:
    """Reads one answer. Feed it the tokens as they come, without the end token, then call `finish` once.

    markup     how the checkpoint writes calls: `ChatTemplate.markup`
    tools      what the request offers, in the OpenAI format: arguments without types of their own take the schema's
    reasoning  whether the prompt has opened a thought already: `opens_in_reasoning`
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        markup: Markup = PLAIN,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        reasoning: bool = False,
    ) -> None:
        self._tokenizer, self._markup, self._schemas = tokenizer, markup, schemas_of(tools)
        tags = tokenizer.controls  # a checkpoint may lack some: its answers then have no such part
        self._think, self._think_end = tags.get(THINK), tags.get(THINK_END)
        self._call, self._call_end = tags.get(TOOL_CALL), tags.get(TOOL_CALL_END)
        self._state = _State.REASONING if reasoning else _State.CONTENT
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""  # decoded and not yet in an event
        self._newlines = ""  # behind the text: content, unless a tag follows
        self._is_behind_tag = reasoning
        self._held: list[int] = []  # the tokens of an open call, behind its tag
        self._before_call = ""  # the newlines before it, which come back where it is none
        self._calls = 0
        self.reasoning_tokens = 0  # tokens inside thoughts, their tags among them
        self._events: list[Event] = []

    def feed(self, ids: Iterable[int]) -> list[Event]:
        """What these tokens settle."""
        for token_id in ids:
            was_reasoning = self._state is _State.REASONING
            self._step(token_id)
            self.reasoning_tokens += was_reasoning or self._state is _State.REASONING
        self._send_text()
        return self._take()

    def gap(self, text: str) -> list[Event]:
        """For a view of an unfinished answer: text in place of tokens that are not known. Inside a call it is held back
        with the call."""
        if self._state is _State.CALL:
            self._held += self._tokenizer.encode(text)
            return []
        self._add_text(self._characters.decode(b"", final=True) + text)
        self._send_text()
        return self._take()

    def finish(self) -> list[Event]:
        """What was still held back: an unfinished call and an unfinished character come back as text."""
        if self._state is _State.CALL:
            self._give_up_call()
        self._add_text(self._characters.decode(b"", final=True))
        self._text += self._newlines
        self._newlines = ""
        self._send_text()
        return self._take()

    def _step(self, token_id: int) -> None:
        if self._state is _State.CALL:
            if token_id not in self._tokenizer.special_ids:
                self._held.append(token_id)
                return
            if token_id == self._call_end:
                self._end_call()
                return
            self._give_up_call()  # a control token inside a call breaks it, and means what it means outside
        if token_id == self._call:
            self._enter(_State.CALL)
        elif token_id == self._think and self._state is _State.CONTENT:
            self._enter(_State.REASONING)
        elif token_id == self._think_end and self._state is _State.REASONING:
            self._enter(_State.CONTENT)
        else:
            self._add_text(self._characters.decode(self._tokenizer.token_bytes(token_id)))

    def _enter(self, state: _State) -> None:
        self._add_text(self._characters.decode(b"", final=True))
        self._send_text()
        self._before_call, self._newlines = self._newlines, ""
        self._is_behind_tag = True
        self._state = state

    def _end_call(self) -> None:
        call = read_call(self._tokenizer.decode(self._held), self._markup, self._schemas)
        if call is None:
            self._give_up_call(TOOL_CALL_END)
            return
        self._events += [
            ToolCallStart(self._calls, call.name),
            ToolCallArguments(self._calls, call.arguments_json),
            ToolCallEnd(self._calls),
        ]
        self._calls += 1
        self._held = []
        self._state = _State.CONTENT

    def _give_up_call(self, closing: str = "") -> None:
        self._state = _State.CONTENT
        self._is_behind_tag = False
        self._add_text(self._before_call + TOOL_CALL + self._tokenizer.decode(self._held) + closing)
        self._held = []

    def _add_text(self, text: str) -> None:
        if not self._markup.lines:
            self._text += text
            return
        if self._is_behind_tag:
            text = text.lstrip("\n")
        if not text:
            return
        self._is_behind_tag = False
        body = text.rstrip("\n")
        if body:
            self._text += self._newlines + body
            self._newlines = ""
        self._newlines += text[len(body) :]

    def _send_text(self) -> None:
        if self._text:
            delta = ReasoningDelta if self._state is _State.REASONING else ContentDelta
            self._events.append(delta(self._text))
            self._text = ""

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class Spelling:
    """A router for text that is no chat: everything is content, control tokens as they are spelled."""

    reasoning_tokens = 0

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int]) -> list[Event]:
        """What these tokens settle."""
        return self._event("".join(self._characters.decode(self._tokenizer.token_bytes(one)) for one in ids))

    def finish(self) -> list[Event]:
        """An unfinished character."""
        return self._event(self._characters.decode(b"", final=True))

    def _event(self, text: str) -> list[Event]:
        return [ContentDelta(text)] if text else []


def fold(events: Iterable[Event]) -> Message:
    """The answer that the events spell out."""
    content, reasoning = "", ""
    names: list[str] = []
    arguments: list[str] = []
    for event in events:
        match event:
            case ContentDelta(text):
                content += text
            case ReasoningDelta(text):
                reasoning += text
            case ToolCallStart(index, name):
                assert index == len(names)
                names.append(name)
                arguments.append("")
            case ToolCallArguments(index, text):
                arguments[index] += text
            case ToolCallEnd():
                pass
    return Message(content, reasoning, [ToolCall(*call) for call in zip(names, arguments, strict=True)])
