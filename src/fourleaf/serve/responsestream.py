"""`POST /v1/responses`: OpenAI's events in their order, and the whole response as what the last of them carries."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from fourleaf.engine.request import Frame
from fourleaf.errors import RequestError
from fourleaf.serve.answer import Finish, Item
from fourleaf.serve.body import renamed
from fourleaf.serve.faults import error_body
from fourleaf.serve.models import Served
from fourleaf.serve.openai import ChatRequest, Prepared, prepare
from fourleaf.serve.responses import NAMES, ResponsesRequest, parse_responses_request
from fourleaf.serve.server import Server
from fourleaf.serve.stream import PING, Answers, EventStream, event, whole, with_pings
from fourleaf.serve.usage import cached_tokens, how
from fourleaf.text.router import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

Data = dict[str, Any]


async def responses(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError and BusyError before anything is sent."""
    asked, chat = parse_responses_request(await server.body(request))
    served = server.find(chat.model)
    prepared = await run_in_threadpool(_prepare, served, chat)
    request.state.note = {"model": chat.model, "mode": prepared.params[0].mode}
    answers = server.answers(served, [prepared.prompt_ids], prepared.params, prepared.offer)
    reply = _Reply(answers, Events(asked, prepared, served.engine.name), server.settings.ping_seconds)
    if chat.stream:
        return EventStream(answers, reply.events())
    return await whole(request, answers, reply.response())


def _prepare(served: Served, chat: ChatRequest) -> Prepared:
    try:
        return prepare(served, chat)
    except RequestError as error:
        raise renamed(error, NAMES) from None


class Events:
    """One answer's items as events with rising sequence numbers. `response` is always what has been said so far."""

    def __init__(self, asked: ResponsesRequest, prepared: Prepared, model: str) -> None:
        self._prepared = prepared
        self._number = 0
        self._open: Data | None = None  # the output item that is being said
        self.response: Data = _blank(asked, prepared, model)

    def start(self) -> Iterator[Data]:
        """Both need nothing of the answer, and so they can be sent at once."""
        yield self._event("response.created", response=self._copy())
        yield self._event("response.in_progress", response=self._copy())

    def events(self, item: Item) -> Iterator[Data]:
        match item:
            case ContentDelta(text):
                yield from self._say("message", "output_text", text)
            case ReasoningDelta(text):
                yield from self._say("reasoning", "reasoning_text", text)
            case ToolCallStart(name=name):
                yield from self._close()
                call = {"call_id": f"call_{secrets.token_hex(12)}", "name": name, "arguments": ""}
                yield from self._begin("function_call", "fc", call)
            case ToolCallArguments(text=text):
                assert self._open is not None
                self._open["arguments"] += text
                yield self._about("response.function_call_arguments.delta", delta=text)
            case ToolCallEnd():
                yield from self._close()
            case Finish():
                yield from self._close()
                yield self._end(item)

    def error(self, error: Exception) -> Data:
        """The event for a fault once the stream has begun."""
        body = error_body(error)[1]["error"]
        return self._event("error", code=body["code"] or body["type"], message=body["message"], param=body["param"])

    def _say(self, kind: str, part: str, text: str) -> Iterator[Data]:
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            more: Data = {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
            yield from self._begin(kind, "msg" if kind == "message" else "rs", more)
            assert self._open is not None
            self._open["content"].append(_part(part))
            yield self._about("response.content_part.added", content_index=0, part=_part(part))
        assert self._open is not None
        self._open["content"][0]["text"] += text
        yield self._about(f"response.{part}.delta", content_index=0, delta=text, **_logprobs(part))

    def _begin(self, kind: str, prefix: str, more: Data) -> Iterator[Data]:
        made = {"type": kind, "id": f"{prefix}_{secrets.token_hex(12)}", "status": "in_progress"} | more
        self._open = made
        self.response["output"].append(made)
        yield self._event("response.output_item.added", output_index=self._index, item=_copied(made))

    def _close(self) -> Iterator[Data]:
        """The item that is open, if one is, comes to its end."""
        item = self._open
        if item is None:
            return
        if item["type"] == "function_call":
            named = {"name": item["name"], "arguments": item["arguments"]}
            yield self._about("response.function_call_arguments.done", **named)
        else:
            part = item["content"][0]
            name = part["type"]
            yield self._about(f"response.{name}.done", content_index=0, text=part["text"], **_logprobs(name))
            yield self._about("response.content_part.done", content_index=0, part=dict(part))
        item["status"] = "completed"
        self._open = None
        yield self._event("response.output_item.done", output_index=self._index, item=_copied(item))

    def _end(self, finish: Finish) -> Data:
        response = self.response
        response["status"] = "completed"
        if finish.reason == "length":
            response |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
            if response["output"]:
                response["output"][-1]["status"] = "incomplete"
        response["completed_at"] = int(time.time())
        counts = finish.usage
        response["usage"] = {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached_tokens(finish), "cache_write_tokens": 0},
            "output_tokens": counts.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": finish.reasoning_tokens},
            "total_tokens": counts.prompt_tokens + counts.completion_tokens,
            "fourleaf": how(finish, self._prepared.params[0]),
        }
        return self._event(f"response.{response['status']}", response=self._copy())

    @property
    def _index(self) -> int:
        return len(self.response["output"]) - 1

    def _about(self, kind: str, **data: Any) -> Data:
        """An event about the open item."""
        assert self._open is not None
        return self._event(kind, item_id=self._open["id"], output_index=self._index, **data)

    def _event(self, kind: str, **data: Any) -> Data:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **data}

    def _copy(self) -> Data:
        return self.response | {"output": [_copied(item) for item in self.response["output"]]}


def _blank(asked: ResponsesRequest, prepared: Prepared, model: str) -> Data:
    params = prepared.params[0]
    return {
        "id": f"resp_{secrets.token_hex(12)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": asked.reasoning or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": asked.text or {"format": {"type": "text"}},
        "tool_choice": asked.tool_choice or "auto",
        "tools": [tool for tool in asked.tools or [] if tool.get("type") == "function"],
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def _part(kind: str) -> Data:
    return {"type": kind, "text": ""} | ({"annotations": [], "logprobs": []} if kind == "output_text" else {})


def _logprobs(kind: str) -> Data:
    return {"logprobs": []} if kind == "output_text" else {}


def _copied(item: Data) -> Data:
    """An item as it is now: the stream's events must not change when it grows."""
    return item | ({"content": [dict(part) for part in item["content"]]} if "content" in item else {})


class _Reply:
    """One request's way back."""

    def __init__(self, answers: Answers[Item | Frame], events: Events, ping_seconds: float) -> None:
        self._answers, self._events, self._ping_seconds = answers, events, ping_seconds

    async def response(self) -> Response:
        async for _, item in self._answers.items():
            assert not isinstance(item, Frame)
            for _ in self._events.events(item):  # each adds to the response
                pass
        return JSONResponse(self._events.response)

    async def events(self) -> AsyncIterator[bytes]:
        for one in self._events.start():
            yield event(one, one["type"])
        try:
            async for pair in with_pings(self._answers.items(), self._ping_seconds):
                if pair is None:
                    yield PING
                    continue
                assert not isinstance(pair[1], Frame)
                for one in self._events.events(pair[1]):
                    yield event(one, one["type"])
        except Exception as error:  # the status is sent already
            one = self._events.error(error)
            yield event(one, one["type"])
