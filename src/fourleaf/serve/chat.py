"""`POST /v1/chat/completions`: one or several answers, whole or as server-sent events."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from fourleaf.engine.request import Frame
from fourleaf.serve.answer import Finish, Item
from fourleaf.serve.chunks import Choice, Chunk, fold
from fourleaf.serve.models import Served
from fourleaf.serve.openai import ChatRequest, Prepared, parse_chat_request, prepare
from fourleaf.serve.reply import Reply
from fourleaf.serve.server import Server
from fourleaf.serve.snapshot import Snapshots
from fourleaf.serve.stream import Answers
from fourleaf.serve.usage import usage_of_choices


async def chat_completions(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError and BusyError before anything is sent."""
    asked = parse_chat_request(await server.body(request))
    served = server.find(asked.model)
    prepared = await run_in_threadpool(prepare, served, asked)
    request.state.note = {"model": asked.model, "mode": prepared.params[0].mode}
    prompts = [prepared.prompt_ids] * len(prepared.params)
    answers = server.answers(served, prompts, prepared.params, prepared.offer, frames=bool(asked.diffusing))
    return await _Reply(server, served, asked, prepared, answers).respond(request)


class _Reply(Reply):
    chunk_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(
        self, server: Server, served: Served, asked: ChatRequest, prepared: Prepared, answers: Answers[Any]
    ) -> None:
        super().__init__(server, served, asked, answers)
        self._asked, self._prepared = asked, prepared
        tokenizer = served.engine.tokenizer
        self._choices = [Choice(self._stamp, index, tokenizer) for index in range(len(prepared.params))]
        self._snapshots = [
            Snapshots(self._stamp, index, served.engine, prepared) for index in range(len(prepared.params))
        ]
        self._finishes: list[Finish | None] = [None] * len(prepared.params)
        self._parts: list[Chunk] = list(self.opening())

    def usage(self) -> dict[str, Any]:
        finishes = [finish for finish in self._finishes if finish is not None]
        return usage_of_choices(finishes, self._prepared.params)

    def opening(self) -> list[Chunk]:
        return [self._stamp.role_chunk(index) for index in range(len(self._prepared.params))]

    def chunks(self, index: int, item: Item | Frame) -> list[Chunk]:
        if isinstance(item, Finish):
            self._finishes[index] = item
        if self._asked.diffusing:
            return list(self._snapshots[index].chunks(item))
        assert not isinstance(item, Frame)
        return list(self._choices[index].chunks(item))

    def take(self, index: int, item: Item | Frame) -> None:
        self._parts += self.chunks(index, item)

    def body(self) -> dict[str, Any]:
        return fold(self._stamp, self._parts, self.usage())
