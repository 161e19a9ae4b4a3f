"""The HTTP server: OpenAI's chat completions, models and a health check, over one engine."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from fourleaf.engine.request import Decoder, Frame, GenerateParams
from fourleaf.errors import ModelNotFoundError
from fourleaf.serve.answer import answer
from fourleaf.serve.chunks import Chunk, Stamp, chunks, fold
from fourleaf.serve.faults import BodyTooLargeError, KeyRefusedError, error_body, install
from fourleaf.serve.openai import ChatRequest, parse_chat_request
from fourleaf.serve.tools import Offer, offer
from fourleaf.serve.worker import Job, Worker

MAX_BODY_BYTES = 4 * 2**20
PING_SECONDS = 10.0


def create_app(
    engine: Decoder,
    *,
    fixed_tools: list[dict[str, Any]] | None = None,
    api_key: str | None = None,
    max_waiting: int = 64,
) -> FastAPI:
    """An app that serves `engine`.

    fixed_tools  the tools in the model's weights; None for a model that reads tools from its prompt
    api_key      wanted as a Bearer token by everything but /health; None wants none
    max_waiting  requests that may wait for the engine before the next one is told to come back (429)

    No CORS header is sent: pages of other origins cannot read answers.
    """
    server = _Server(engine, fixed_tools, Worker(max_waiting))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        server.worker.start()
        yield
        await run_in_threadpool(server.worker.stop)

    def check_key(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        known = scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), (api_key or "").encode())
        if api_key is not None and not known:
            raise KeyRefusedError(
                "This server wants its API key, as `Authorization: Bearer KEY`.", code="invalid_api_key"
            )

    app = FastAPI(title="Fourleaf", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    install(app)
    app.add_api_route("/health", server.health, methods=["GET"])
    api = APIRouter(prefix="/v1", dependencies=[Depends(check_key)])
    api.add_api_route("/models", server.models, methods=["GET"])
    api.add_api_route("/models/{model:path}", server.model, methods=["GET"])
    api.add_api_route("/chat/completions", server.chat_completions, methods=["POST"], response_model=None)
    app.include_router(api)
    return app


class _Server:
    """The routes, and what they share."""

    def __init__(self, engine: Decoder, fixed_tools: list[dict[str, Any]] | None, worker: Worker) -> None:
        self.worker = worker
        self._engine = engine
        self._fixed_tools = fixed_tools
        self._started = int(time.time())
        self._fingerprint = f"fourleaf-{version('fourleaf')}"

    async def health(self) -> JSONResponse:
        if self.worker.alive:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "the engine's thread has ended"}, 503)

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [self._model_card()]}

    async def model(self, model: str) -> dict[str, Any]:
        self._check_model(model)
        return self._model_card()

    async def chat_completions(self, request: Request) -> Response:
        asked = parse_chat_request(await _body(request))
        self._check_model(asked.model)
        offered = offer(self._fixed_tools, asked.tool_list(), asked.tool_choice or "auto")
        prompt_ids, params = await run_in_threadpool(self._prompt, asked, offered)
        stamp = Stamp(self._engine.name, self._fingerprint)
        job = self.worker.submit(self._work(stamp, prompt_ids, params, offered))
        if asked.stream:
            return _EventStream(job, _events(job, stamp, include_usage=asked.include_usage))
        return await _whole(job, stamp, request)

    def _prompt(self, asked: ChatRequest, offered: Offer) -> tuple[list[int], GenerateParams]:
        ids = self._engine.chat.render(asked.messages, tools=offered.tools)
        return ids, asked.params(len(ids), self._engine.max_context)

    def _work(
        self, stamp: Stamp, prompt_ids: list[int], params: GenerateParams, offered: Offer
    ) -> Callable[[Callable[[], None]], Iterator[Chunk]]:
        def work(check: Callable[[], None]) -> Iterator[Chunk]:
            def watch(frame: Frame) -> None:  # deltas come once a block, frames once a pass
                check()

            return chunks(stamp, answer(self._engine, prompt_ids, params, offered, watch), params)

        return work

    def _check_model(self, model: str) -> None:
        if model != self._engine.name:
            raise ModelNotFoundError(
                f"The model {model[:100]!r} is not served here; {self._engine.name!r} is.",
                param="model",
                code="model_not_found",
            )

    def _model_card(self) -> dict[str, Any]:
        return {"id": self._engine.name, "object": "model", "created": self._started, "owned_by": "fourleaf"}


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLargeError(f"The body exceeds {MAX_BODY_BYTES} bytes.", code="body_too_large")
    return bytes(body)


async def _whole(job: Job[Chunk], stamp: Stamp, request: Request) -> Response:
    """The answer in one piece; the job is cancelled where the client leaves first."""

    async def collected() -> list[Chunk]:
        return [stamp.role_chunk()] + [chunk async for chunk in job.items()]

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answered, left = asyncio.ensure_future(collected()), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({answered, left}, return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            return JSONResponse(fold(stamp, answered.result()))
        return Response(status_code=499)  # nobody reads it
    finally:
        job.cancel()
        answered.cancel()
        left.cancel()


async def _events(job: Job[Chunk], stamp: Stamp, *, include_usage: bool) -> AsyncIterator[bytes]:
    """The answer as server-sent events, with comment lines to keep the connection open while nothing is ready."""
    extra: dict[str, Any] = {"usage": None} if include_usage else {}
    yield _event(stamp.role_chunk() | extra)
    try:
        async for chunk in _with_pings(job.items()):
            if chunk is None:
                yield b": ping\n\n"
            elif chunk["choices"]:
                yield _event(chunk | extra)
            elif include_usage:
                yield _event(chunk)
    except Exception as error:  # the status is sent already: what is left is a line that says so
        yield _event(error_body(error)[1])
    yield b"data: [DONE]\n\n"


async def _with_pings(items: AsyncIterator[Chunk]) -> AsyncIterator[Chunk | None]:
    """The items, with None for every PING_SECONDS in which none came."""
    coming = asyncio.ensure_future(anext(items, _NOTHING))
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=PING_SECONDS)
            if not done:
                yield None
                continue
            item = coming.result()
            if item is _NOTHING:
                return
            yield item
            coming = asyncio.ensure_future(anext(items, _NOTHING))
    finally:
        coming.cancel()


_NOTHING: Any = object()


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class _EventStream(StreamingResponse):
    """An event stream that cancels its job when it ends, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, job: Job[Chunk], events: AsyncIterator[bytes]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._job.cancel()
