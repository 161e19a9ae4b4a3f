"""Answers as OpenAI's chat completion chunks, and the whole completion as their fold.

Both kinds of response come from one place, so they cannot differ.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fourleaf.serve.answer import Committed, Finish, Item
from fourleaf.serve.faults import error_body
from fourleaf.serve.logprobs import chat_entries
from fourleaf.serve.stream import DONE, PING, Answers, event, with_pings
from fourleaf.text.router import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from fourleaf.text.tokenizer import Tokenizer

Chunk = dict[str, Any]


@dataclass(frozen=True)
class Stamp:
    """What all chunks of one response share."""

    model: str
    fingerprint: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None, *, index: int = 0) -> Chunk:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self.head("chat.completion.chunk") | {"choices": [choice]}

    def role_chunk(self, index: int = 0) -> Chunk:
        """The first chunk; it needs nothing of the answer, and so it can be sent at once."""
        return self.chunk({"role": "assistant", "content": ""}, index=index)

    def usage_chunk(self, usage: dict[str, Any], kind: str = "chat.completion.chunk") -> Chunk:
        """The last chunk of a stream that was asked for usage."""
        return self.head(kind) | {"choices": [], "usage": usage}

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


async def streamed(
    answers: Answers[Any],
    ping_seconds: float,
    chunks: Callable[[int, Any], Iterable[Chunk]],
    usage_chunk: Callable[[], Chunk] | None,
    first: Iterable[Chunk] = (),
) -> AsyncIterator[bytes]:
    """Server-sent events of what `chunks` makes of each item of a choice, and comment lines to keep the connection open
    while nothing is ready.

    first        sent at once
    usage_chunk  the last chunk, where usage was asked for: the others then say that they have none
    """
    extra: dict[str, Any] = {} if usage_chunk is None else {"usage": None}
    for chunk in first:
        yield event(chunk | extra)
    try:
        async for pair in with_pings(answers.items(), ping_seconds):
            if pair is None:
                yield PING
                continue
            for chunk in chunks(*pair):
                yield event(chunk | extra)
        if usage_chunk is not None:
            yield event(usage_chunk())
    except Exception as error:  # the status is sent already: what is left is a line that says so
        yield event(error_body(error)[1])
    yield DONE


class Choice:
    """One answer's items as chunks, behind its role chunk."""

    def __init__(self, stamp: Stamp, index: int, tokenizer: Tokenizer) -> None:
        self._stamp, self._index, self._tokenizer = stamp, index, tokenizer
        self._logprobs: list[dict[str, Any]] = []  # of tokens that no chunk has carried yet

    def chunks(self, item: Item) -> Iterator[Chunk]:
        """What an item gives rise to; a Finish ends the choice, and usage is for the response to say."""
        match item:
            case Committed(tokens, logprobs):
                if logprobs is not None:
                    self._logprobs += chat_entries(self._tokenizer, tokens, logprobs)
            case Finish():
                yield self._with_logprobs(self._stamp.chunk({}, item.reason, index=self._index))
            case _:
                if (delta := delta_of(item)) is not None:
                    yield self._with_logprobs(self._stamp.chunk(delta, index=self._index))

    def _with_logprobs(self, chunk: Chunk) -> Chunk:
        if self._logprobs:
            chunk["choices"][0]["logprobs"] = {"content": self._logprobs, "refusal": None}
            self._logprobs = []
        return chunk


def delta_of(event: Event) -> dict[str, Any] | None:
    """An event as the `delta` of a chunk; None where the wire has no word for it."""
    match event:
        case ContentDelta():
            return {"content": event.text} if event.text else None
        case ReasoningDelta():
            return {"reasoning_content": event.text} if event.text else None
        case ToolCallStart():
            call = {
                "index": event.index,
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
            return {"tool_calls": [call]}
        case ToolCallArguments():
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
        case ToolCallEnd():
            return None


def fold(stamp: Stamp, parts: Iterable[Chunk], usage: dict[str, Any]) -> dict[str, Any]:
    """The completion that the chunks of its choices add up to."""
    choices: dict[int, dict[str, Any]] = {}
    for part in parts:
        for piece in part["choices"]:
            index = piece["index"]
            message = {"role": "assistant", "content": ""}
            choice = choices.setdefault(
                index, {"index": index, "message": message, "logprobs": None, "finish_reason": None}
            )
            choice["finish_reason"] = piece["finish_reason"] or choice["finish_reason"]
            if piece["logprobs"] is not None:
                choice["logprobs"] = choice["logprobs"] or {"content": [], "refusal": None}
                choice["logprobs"]["content"] += piece["logprobs"]["content"]
            _add(choice["message"], piece["delta"])
    for choice in choices.values():
        message = choice["message"]
        if "tool_calls" in message:
            message["content"] = message["content"] or None
        message["refusal"] = None
    ordered = [choices[index] for index in sorted(choices)]
    return stamp.head("chat.completion") | {"choices": ordered, "usage": usage}


def _add(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key in ("content", "reasoning_content"):
        if delta.get(key):
            message[key] = message.get(key, "") + delta[key]
    for call in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if call["index"] == len(calls):
            calls.append({key: call[key] for key in ("id", "type")} | {"function": dict(call["function"])})
        else:
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
