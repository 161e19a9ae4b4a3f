"""Answers on their way to a client: several jobs as one, server-sent events, and an end when the client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fourleaf.serve.worker import Job

Item = TypeVar("Item")
Result = TypeVar("Result")

GONE = 499  # the status for the log where the client left; nobody reads it
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

_NOTHING: Any = object()


class Answers(Generic[Item]):
    """The jobs of one request, iterated as one."""

    def __init__(self, jobs: list[Job[Item]], note: Callable[[Item], None]) -> None:
        """note: hears of every item, for metrics."""
        self._jobs, self._note = jobs, note

    def cancel(self) -> None:
        """Ends the jobs that still run."""
        for job in self._jobs:
            job.cancel()

    async def items(self) -> AsyncGenerator[tuple[int, Item]]:
        """(index of the job, item), each job's in order; raises what a job raises."""
        async with aclosing(self._merged()) as merged:
            async for index, item in merged:
                self._note(item)
                yield index, item

    async def _merged(self) -> AsyncGenerator[tuple[int, Item]]:
        if len(self._jobs) == 1:
            async with aclosing(self._jobs[0].items()) as items:
                async for item in items:
                    yield 0, item
            return
        merged: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

        async def pump(index: int, job: Job[Item]) -> None:
            try:
                async with aclosing(job.items()) as items:
                    async for item in items:
                        merged.put_nowait((index, item))
                merged.put_nowait((index, _NOTHING))
            except Exception as error:  # handed to whoever iterates
                merged.put_nowait((-1, error))

        pumps = [asyncio.ensure_future(pump(index, job)) for index, job in enumerate(self._jobs)]
        try:
            live = len(pumps)
            while live:
                index, item = await merged.get()
                if index < 0:
                    raise item
                if item is _NOTHING:
                    live -= 1
                else:
                    yield index, item
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """One server-sent event; a JSON document has no line break."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def with_pings(items: AsyncGenerator[Item], seconds: float) -> AsyncGenerator[Item | None]:
    """The items, with None for every `seconds` in which none came."""
    coming: asyncio.Future[Any] = asyncio.ensure_future(_next(items))
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=seconds)
            if not done:
                yield None
                continue
            item = coming.result()
            if item is _NOTHING:
                return
            yield item
            coming = asyncio.ensure_future(_next(items))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await items.aclose()


async def _next(items: AsyncIterator[Any]) -> Any:
    return await anext(items, _NOTHING)


async def whole(request: Request, answers: Answers[Any], collected: Coroutine[Any, Any, Response]) -> Response:
    """The response that `collected` makes of the answers; they are cancelled where the client leaves first."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answered, left = asyncio.ensure_future(collected), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({answered, left}, return_when=asyncio.FIRST_COMPLETED)
        return answered.result() if answered.done() else Response(status_code=GONE)
    finally:
        answers.cancel()
        answered.cancel()
        left.cancel()


class EventStream(StreamingResponse):
    """An event stream that cancels its answers when it ends, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, answers: Answers[Any], events: AsyncIterator[bytes]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.cancel()


Endpoint = Callable[[Request], Awaitable[Response]]
