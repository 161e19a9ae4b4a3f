"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's events, and the whole message as their fold."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from fourleaf.engine.request import Frame
from fourleaf.errors import ContextLengthError, RequestError
from fourleaf.serve.answer import Finish, Item
from fourleaf.serve.anthropic import NAMES, parse_messages_request
from fourleaf.serve.body import renamed
from fourleaf.serve.faults import anthropic_error
from fourleaf.serve.models import Served
from fourleaf.serve.openai import ChatRequest, Prepared, prepare
from fourleaf.serve.server import Server
from fourleaf.serve.stream import Answers, EventStream, event, whole, with_pings
from fourleaf.serve.usage import cached_tokens, how
from fourleaf.text.router import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


async def messages(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError and BusyError before anything is sent."""
    asked = parse_messages_request(await server.body(request))
    served = server.find(asked.model)
    prepared = await run_in_threadpool(_prepare, served, asked)
    request.state.note = {"model": asked.model, "mode": prepared.params[0].mode}
    answers = server.answers(served, [prepared.prompt_ids], prepared.params, prepared.offer)
    reply = _Reply(answers, prepared, served.engine.name, server.settings.ping_seconds)
    if asked.stream:
        return EventStream(answers, reply.events())
    return await whole(request, answers, reply.message())


async def count_tokens(server: Server, request: Request) -> Response:
    """How long a prompt is, as the same request to /v1/messages would have it, and also where it is too long for it."""
    asked = parse_messages_request(await server.body(request), counts=True)
    try:
        prepared = await run_in_threadpool(_prepare, server.find(asked.model), asked)
    except ContextLengthError as error:
        if error.prompt_tokens is None:
            raise
        return JSONResponse({"input_tokens": error.prompt_tokens})
    return JSONResponse({"input_tokens": len(prepared.prompt_ids)})


def _prepare(served: Served, asked: ChatRequest) -> Prepared:
    try:
        # The limit is required here, so clients that know no better name the largest of any model.
        return prepare(served, asked, cuts=True)
    except RequestError as error:
        raise renamed(error, NAMES) from None


class Blocks:
    """One answer's items as events, each a (name, data) whose name is in the data as well."""

    def __init__(self, model: str, prepared: Prepared) -> None:
        self._model, self._prepared = model, prepared
        self._index = -1  # of the content block that is open, or was last
        self._open: str | None = None

    def start(self) -> dict[str, Any]:
        """message_start: sent at once, so its usage counts the prompt alone."""
        usage = {
            "input_tokens": len(self._prepared.prompt_ids),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        message = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return {"type": "message_start", "message": message}

    def events(self, item: Item) -> Iterator[dict[str, Any]]:
        match item:
            case ContentDelta(text):
                yield from self._into("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case ReasoningDelta(text):
                yield from self._into("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case ToolCallStart(name=name):
                yield from self._close()
                block = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": name, "input": {}}
                yield from self._into("tool_use", block)
            case ToolCallArguments(text=text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case ToolCallEnd():
                yield from self._close()
            case Finish():
                yield from self._close()
                yield self._last(item)
                yield {"type": "message_stop"}

    def _into(self, kind: str, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._open == kind:
            return
        yield from self._close()
        self._index += 1
        self._open = kind
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _last(self, finish: Finish) -> dict[str, Any]:
        usage = {
            "input_tokens": finish.usage.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached_tokens(finish),
            "output_tokens": finish.usage.completion_tokens,
            "fourleaf": how(finish, self._prepared.params[0]),
        }
        reason = "stop_sequence" if finish.stop and finish.reason == "stop" else _STOP_REASONS[finish.reason]
        if reason == "max_tokens" and self._prepared.is_cut:
            reason = "model_context_window_exceeded"
        delta = {"stop_reason": reason, "stop_sequence": finish.stop}
        return {"type": "message_delta", "delta": delta, "usage": usage}


def fold(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events add up to."""
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for one in events:
        match one["type"]:
            case "message_start":
                message = one["message"]
            case "content_block_start":
                message["content"].append(dict(one["content_block"]))
            case "content_block_delta":
                block, delta = message["content"][one["index"]], one["delta"]
                if delta["type"] == "input_json_delta":
                    inputs[one["index"]] = inputs.get(one["index"], "") + delta["partial_json"]
                else:
                    key = "text" if delta["type"] == "text_delta" else "thinking"
                    block[key] += delta[key]
            case "content_block_stop":
                if one["index"] in inputs:
                    message["content"][one["index"]]["input"] = json.loads(inputs[one["index"]])
            case "message_delta":
                message |= one["delta"] | {"usage": one["usage"]}
    return message


class _Reply:
    """One request's way back."""

    def __init__(self, answers: Answers[Item | Frame], prepared: Prepared, model: str, ping_seconds: float) -> None:
        self._answers, self._blocks, self._ping_seconds = answers, Blocks(model, prepared), ping_seconds

    async def message(self) -> Response:
        events = [self._blocks.start()]
        async for _, item in self._answers.items():
            assert not isinstance(item, Frame)
            events += self._blocks.events(item)
        return JSONResponse(fold(events))

    async def events(self) -> AsyncIterator[bytes]:
        yield _named(self._blocks.start())
        try:
            async for pair in with_pings(self._answers.items(), self._ping_seconds):
                if pair is None:
                    yield _named({"type": "ping"})
                    continue
                assert not isinstance(pair[1], Frame)
                for one in self._blocks.events(pair[1]):
                    yield _named(one)
        except Exception as error:  # the status is sent already
            yield _named(anthropic_error(error)[1])


def _named(data: dict[str, Any]) -> bytes:
    return event(data, data["type"])
