"""The HTTP server: every route, over models by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.telemetry import TelemetryConfig
from starlette.concurrency import run_in_threadpool

from fourleaf.engine.request import Decoder
from fourleaf.serve import capabilities, door, openapi
from fourleaf.serve.body import read_document, refuse, shown
from fourleaf.serve.chat import chat_completions
from fourleaf.serve.completions import completions
from fourleaf.serve.events import chat_events
from fourleaf.serve.faults import error_response, install
from fourleaf.serve.fim import fim_completions
from fourleaf.serve.infill import infill
from fourleaf.serve.messages import count_tokens, messages
from fourleaf.serve.metrics import resident_bytes
from fourleaf.serve.models import Models
from fourleaf.serve.page import page_router
from fourleaf.serve.requestlog import RequestLog
from fourleaf.serve.responsestream import responses
from fourleaf.serve.server import Server
from fourleaf.serve.settings import Settings
from fourleaf.serve.systemone import decision_models, systemone
from fourleaf.serve.tokens import detokenize, tokenize, tokenizer_info

# The framework's own spans and logs would carry bodies and exceptions' texts to whatever collector the process has.
QUIET: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}

if TYPE_CHECKING:
    from fourleaf.serve.tracing import Tracing

# Path -> endpoint; each takes the server and the request.
ENDPOINTS = {
    "/chat/completions": chat_completions,
    "/chat/events": chat_events,
    "/completions": completions,
    "/fim/completions": fim_completions,
    "/infill": infill,
    "/responses": responses,
    "/messages": messages,
    "/messages/count_tokens": count_tokens,
    "/systemone": systemone,
}


def create_app(
    served: Decoder | Models,
    *,
    fixed_tools: list[dict[str, Any]] | None = None,
    api_key: str | None = None,
    settings: Settings | None = None,
    tracing: Tracing | None = None,
    **limits: Any,
) -> FastAPI:
    """An app that serves models, or one engine.

    fixed_tools  with one engine: the tools in the model's weights; None for a model that reads tools from its prompt
    api_key      the one key, where there are no settings
    settings     or its fields as `limits`
    tracing      makes spans of requests; None: none

    No CORS header is sent: pages of other origins cannot read answers.
    """
    if settings is None:
        settings = Settings(api_keys=() if api_key is None else (api_key,), **limits)
    is_ready = not isinstance(served, Models)
    models = Models.of(served, fixed_tools, settings.max_waiting) if not isinstance(served, Models) else served
    server = Server(models, settings, tracing)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        server.models.load_all(wait=is_ready)
        yield
        await run_in_threadpool(server.models.close)
        if tracing is not None:
            await run_in_threadpool(tracing.close)

    app = FastAPI(title="Fourleaf", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, telemetry=QUIET)
    app.state.server = server
    if tracing is not None:
        app.add_middleware(tracing.middleware)
    app.add_middleware(RequestLog)
    install(app, openapi.known_paths(settings))
    about = _About(server)
    for path in ("/health", "/v1/health"):
        app.add_api_route(path, about.health, methods=["GET"])
    keyed = APIRouter(dependencies=[Depends(door.check_of(settings))])
    keyed.add_api_route("/metrics", about.metrics, methods=["GET"])
    keyed.add_api_route("/openapi.json", about.openapi, methods=["GET"])
    api = APIRouter(prefix="/v1")
    api.add_api_route("/models", about.models, methods=["GET"])
    if settings.can_manage:
        api.add_api_route("/models/load", about.load, methods=["POST"])
        api.add_api_route("/models/unload", about.unload, methods=["POST"])
    api.add_api_route("/models/{model:path}", about.model, methods=["GET"])
    api.add_api_route("/capabilities", about.capabilities, methods=["GET"])
    keyed.add_api_route("/tokenizer_info", about.tokenizer, methods=["GET"])
    for path, endpoint in (("/tokenize", tokenize), ("/detokenize", detokenize)):
        keyed.add_api_route(path, _bound(endpoint, server), methods=["POST"], response_model=None)
    for path, endpoint in ENDPOINTS.items():
        api.add_api_route(path, _bound(endpoint, server), methods=["POST"], response_model=None)
    keyed.include_router(api)
    app.include_router(keyed)
    app.include_router(page_router())
    return app


def _bound(endpoint: Any, server: Server) -> Any:
    """The endpoint as the framework wants it: a function of the request alone."""

    async def route(request: Request) -> Response:
        try:
            return await endpoint(server, request)
        except Exception as error:  # the framework's own handler raises it again, and the connection breaks
            return error_response(error, request.url.path)

    return route


class _About:
    """Routes that say something about the server and its models."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def health(self) -> JSONResponse:
        trouble = "draining" if self._server.draining else self._server.models.trouble
        if not trouble:
            return JSONResponse({"status": "ok"})
        error = {"message": trouble, "type": "service_unavailable_error", "param": None, "code": "unavailable"}
        return JSONResponse({"status": trouble, "error": error}, 503, {"Retry-After": "1"})

    async def models(self) -> dict[str, Any]:
        cards = self._server.models.cards()
        return {"object": "list", "data": cards, "models": decision_models(cards)}

    async def model(self, model: str) -> dict[str, Any]:
        return self._server.models.card(model)

    async def capabilities(self, model: str | None = None) -> JSONResponse:
        server = self._server
        names = [card["id"] for card in server.models.cards()] if model is None else [model]
        found = [server.find(name) for name in names]
        documents = [capabilities.document(one.engine, fixed_tools=one.fixed_tools is not None) for one in found]
        return JSONResponse({"object": "list", "data": documents} if model is None else documents[0])

    async def tokenizer(self, model: str | None = None) -> JSONResponse:
        return JSONResponse(tokenizer_info(self._server, model))

    async def metrics(self) -> PlainTextResponse:
        served = self._server.models.served()
        workers = [one.worker for one in served]
        gauges = {
            "waiting_requests": float(sum(worker.num_waiting for worker in workers)),
            "running_requests": float(sum(worker.num_running for worker in workers)),
            "loaded_models": float(len(workers)),
            "cache_bytes": float(sum(one.cache_bytes for one in served)),
        }
        if (resident := resident_bytes()) is not None:
            gauges["resident_bytes"] = float(resident)
        counters: Counter[str] = Counter()
        for one in served:
            counters.update(one.cache_counts)
        text = self._server.metrics.text(gauges, counters)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def openapi(self) -> JSONResponse:
        names = [card["id"] for card in self._server.models.cards()]
        return JSONResponse(openapi.document(names, self._server.settings))

    async def load(self, request: Request) -> JSONResponse:
        name = await self._named(request)
        self._server.models.load(name)
        return JSONResponse(self._server.models.card(name), 202)

    async def unload(self, request: Request) -> JSONResponse:
        name = await self._named(request)
        await run_in_threadpool(partial(self._server.models.unload, name, self._server.settings.drain_seconds))
        return JSONResponse(self._server.models.card(name))

    async def _named(self, request: Request) -> str:
        name = read_document(await self._server.body(request)).get("model")
        if not isinstance(name, str):
            refuse("model", f"must be a model's name, not {shown(name)}", "invalid_type")
        return name
