"""`POST /v1/chat/completions`: one or several answers, whole or as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from fourleaf.engine.request import Frame
from fourleaf.serve.answer import Finish, Item
from fourleaf.serve.chunks import Choice, Chunk, Stamp, fold, streamed
from fourleaf.serve.models import Served
from fourleaf.serve.openai import ChatRequest, Prepared, parse_chat_request, prepare
from fourleaf.serve.server import Server
from fourleaf.serve.snapshot import Snapshots
from fourleaf.serve.stream import Answers, EventStream, whole
from fourleaf.serve.usage import usage_of_choices


async def chat_completions(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError and BusyError before anything is sent."""
    asked = parse_chat_request(await server.body(request))
    served = server.find(asked.model)
    prepared = await run_in_threadpool(prepare, served, asked)
    request.state.note = {"model": asked.model, "mode": prepared.params[0].mode}
    prompts = [prepared.prompt_ids] * len(prepared.params)
    answers = server.answers(served, prompts, prepared.params, prepared.offer, frames=bool(asked.diffusing))
    reply = _Reply(server, served, asked, prepared, answers)
    if asked.stream:
        return EventStream(answers, reply.events())
    return await whole(request, answers, reply.completion())


class _Reply:
    """One request's way back."""

    def __init__(
        self,
        server: Server,
        served: Served,
        asked: ChatRequest,
        prepared: Prepared,
        answers: Answers[Item | Frame],
    ) -> None:
        self._asked, self._prepared, self._answers = asked, prepared, answers
        self._ping_seconds = server.settings.ping_seconds
        self._stamp = Stamp(served.engine.name, server.fingerprint)
        tokenizer = served.engine.tokenizer
        self._choices = [Choice(self._stamp, index, tokenizer) for index in range(len(prepared.params))]
        self._snapshots = [
            Snapshots(self._stamp, index, served.engine, prepared) for index in range(len(prepared.params))
        ]
        self._finishes: list[Finish | None] = [None] * len(prepared.params)

    def _usage(self) -> dict[str, Any]:
        finishes = [finish for finish in self._finishes if finish is not None]
        return usage_of_choices(finishes, self._prepared.params)

    def _chunks(self, index: int, item: Item | Frame) -> list[Chunk]:
        if isinstance(item, Finish):
            self._finishes[index] = item
        if self._asked.diffusing:
            return list(self._snapshots[index].chunks(item))
        assert not isinstance(item, Frame)
        return list(self._choices[index].chunks(item))

    async def completion(self) -> Response:
        parts = [self._stamp.role_chunk(index) for index in range(len(self._choices))]
        async for index, item in self._answers.items():
            parts += self._chunks(index, item)
        return JSONResponse(fold(self._stamp, parts, self._usage()))

    def _usage_chunk(self) -> Chunk:
        return self._stamp.usage_chunk(self._usage())

    def events(self) -> AsyncIterator[bytes]:
        roles = [self._stamp.role_chunk(index) for index in range(len(self._choices))]
        last = self._usage_chunk if self._asked.include_usage else None
        return streamed(self._answers, self._ping_seconds, self._chunks, last, roles)
