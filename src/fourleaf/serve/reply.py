"""An answer's way back to an OpenAI-like client: one body, or a stream of chunks with usage at its end."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from fourleaf.serve.chunks import Chunk, Stamp, streamed
from fourleaf.serve.models import Served
from fourleaf.serve.openai import Streamable
from fourleaf.serve.server import Server
from fourleaf.serve.stream import Answers, EventStream, whole


class Reply(ABC):
    """One request's way back. Each API says what its chunks and its body look like, and names them.

    chunk_kind  `object` of a chunk
    id_prefix   how the response's id begins
    """

    chunk_kind = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, server: Server, served: Served, asked: Streamable, answers: Answers[Any]) -> None:
        self._streams, self._wants_usage = bool(asked.stream), asked.include_usage
        self._answers = answers
        self._ping_seconds = server.settings.ping_seconds
        self._stamp = Stamp(served.engine.name, server.fingerprint, f"{self.id_prefix}-{secrets.token_hex(12)}")

    @abstractmethod
    def chunks(self, index: int, item: Any) -> Iterable[Chunk]:
        """Takes an item of a choice, and gives what a stream says of it."""

    @abstractmethod
    def take(self, index: int, item: Any) -> None:
        """Takes an item of a choice where no stream is wanted."""

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The whole response, once all items are taken."""

    @abstractmethod
    def usage(self) -> dict[str, Any]:
        """Of all choices that have ended."""

    def opening(self) -> Iterable[Chunk]:
        """Chunks that can be sent before there is anything of an answer."""
        return ()

    async def respond(self, request: Request) -> Response:
        """The response in the form that was asked for; the answers are cancelled where the client leaves first."""
        if self._streams:
            return EventStream(self._answers, self._events())
        return await whole(request, self._answers, self._collected())

    async def _collected(self) -> Response:
        async for index, item in self._answers.items():
            self.take(index, item)
        return JSONResponse(self.body())

    def _usage_chunk(self) -> Chunk:
        return self._stamp.usage_chunk(self.usage(), self.chunk_kind)

    def _events(self) -> AsyncIterator[bytes]:
        last = self._usage_chunk if self._wants_usage else None
        return streamed(self._answers, self._ping_seconds, self.chunks, last, self.opening())
