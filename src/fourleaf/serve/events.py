"""`POST /v1/chat/events`: an answer as typed events, with every pass of the canvas, for pages and other viewers.

The request is that of chat completions. docs/streaming.md says what each event holds.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from fourleaf.engine.request import Frame
from fourleaf.serve.answer import Committed, Finish, Item
from fourleaf.serve.body import refuse
from fourleaf.serve.faults import error_body
from fourleaf.serve.models import Served
from fourleaf.serve.openai import Prepared, parse_chat_request, prepare
from fourleaf.serve.server import Server
from fourleaf.serve.stream import PING, Answers, EventStream, event, with_pings
from fourleaf.serve.usage import usage
from fourleaf.text.router import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from fourleaf.text.tokenizer import Tokenizer

Named = tuple[str, dict[str, Any]]


async def chat_events(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError and BusyError before anything is sent."""
    asked = parse_chat_request(await server.body(request))
    if asked.choices() > 1:
        refuse("n", "must be 1 here: events are of one answer")
    served = server.find(asked.model)
    prepared = await run_in_threadpool(prepare, served, asked)
    request.state.note = {"model": asked.model, "mode": prepared.params[0].mode}
    answers = server.answers(served, [prepared.prompt_ids], prepared.params, prepared.offer, frames=True)
    return EventStream(answers, _events(answers, served, prepared, server.settings.ping_seconds))


async def _events(
    answers: Answers[Item | Frame], served: Served, prepared: Prepared, ping_seconds: float
) -> AsyncIterator[bytes]:
    view = View(served.engine.tokenizer, prepared)
    yield event(
        {
            "id": f"chatevents-{secrets.token_hex(12)}",
            "model": served.engine.name,
            "mode": prepared.params[0].mode,
            "prompt_tokens": len(prepared.prompt_ids),
        },
        "start",
    )
    try:
        async for pair in with_pings(answers.items(), ping_seconds):
            if pair is None:
                yield PING
                continue
            for name, data in view.events(pair[1]):
                yield event(data, name)
    except Exception as error:  # the status is sent already
        yield event(error_body(error)[1], "error")


class View:
    """One answer's frames and items as (event name, data)."""

    def __init__(self, tokenizer: Tokenizer, prepared: Prepared) -> None:
        self._tokenizer, self._prepared = tokenizer, prepared
        self._shown: Frame | None = None  # what the viewer has of the canvas
        self._position = 0
        self._commit: dict[str, Any] | None = None  # gathers what its tokens gave rise to
        self._call: dict[str, Any] = {}

    def events(self, item: Item | Frame) -> Iterator[Named]:
        match item:
            case Frame():
                yield from self._flush()
                yield "frame", self._frame(item)
            case Committed():
                yield from self._flush()
                self._commit = self._opened(item)
                self._position += len(item.tokens)
            case ContentDelta(text):
                self._say("content", text)
            case ReasoningDelta(text):
                self._say("reasoning", text)
            case ToolCallStart(index, name):
                self._call = {"index": index, "id": f"call_{secrets.token_hex(12)}", "name": name, "arguments": ""}
            case ToolCallArguments(_, text):
                self._call["arguments"] += text
            case ToolCallEnd():
                yield from self._flush()
                yield "tool_call", self._call
            case Finish():
                yield from self._flush()
                yield "usage", usage(item, self._prepared.params[0])
                yield "done", {"finish_reason": item.reason}

    def _say(self, channel: str, text: str) -> None:
        if self._commit is None:  # behind a call, or at the end: text that no token of this moment stands for
            self._commit = self._opened(Committed(()))
        self._commit[channel] += text

    def _opened(self, committed: Committed) -> dict[str, Any]:
        """A commit that has said nothing yet. Confidences go where logprobs were asked for."""
        said: dict[str, Any] = {"position": self._position, "tokens": len(committed.tokens)}
        said["cells"] = [self._spelled(token) for token in committed.tokens]
        if committed.logprobs is not None:
            said["confidence"] = [round(math.exp(one.logprob), 4) for one in committed.logprobs]
            said["passes"] = [one.pass_index for one in committed.logprobs]
        return said | {"content": "", "reasoning": ""}

    def _flush(self) -> Iterator[Named]:
        if self._commit is not None:
            yield "commit", self._commit
            self._commit = None

    def _frame(self, frame: Frame) -> dict[str, Any]:
        """What differs from the frame before, if that was of the same canvas, or else from one all masked. An infilling
        has several in a block, of different lengths."""
        before = self._shown
        if before is not None and _canvas_of(before) != _canvas_of(frame):
            before = None
        self._shown = frame
        cells: list[list[Any]] = []
        for row, (token, masked) in enumerate(zip(frame.tokens, frame.masked, strict=True)):
            was = None if before is None or before.masked[row] else before.tokens[row]
            now = None if masked else token
            if now != was:
                cells.append([row, None if now is None else self._spelled(now)])
        return {
            "block": frame.block_index,
            "pass": frame.pass_index,
            "position": frame.block_start - len(self._prepared.prompt_ids),
            "rows": len(frame.tokens),
            "cells": cells,
        }

    def _spelled(self, token: int) -> str:
        """A token's text; half a character shows as U+FFFD, and the end token as nothing."""
        return "" if token == self._tokenizer.end_id else self._tokenizer.decode([token])


def _canvas_of(frame: Frame) -> tuple[int, int, int]:
    """Block, first position and length: what makes a canvas the same one."""
    return frame.block_index, frame.block_start, len(frame.tokens)
