"""The OpenAPI document of a server: every route, what it takes and what it answers.

Requests are derived from the models and tables that check them (`requestschema`); answers are written down beside the
code that makes them (`answerschema`), and tests hold both against the server. The schema of a `text/event-stream` is
that of each event in it, as is usual before OpenAPI 3.2: an object of its `data` and, where it has one, its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fourleaf.serve.answerschema import answer_schemas
from fourleaf.serve.requestschema import request_schemas
from fourleaf.serve.schema import ANY_OBJECT, STRING, Schema, any_of, event_of, ref
from fourleaf.serve.settings import Settings

_WHY = {
    400: "The request cannot be honoured; `param` names the field.",
    401: "The server's API key is missing.",
    403: "A page of another origin, or a name that is not the server's.",
    404: "There is no such model.",
    408: "The body did not come in time.",
    413: "The body exceeds the limit.",
    415: "A body of a kind that is not read here.",
    422: "Fields are missing or wrong; each of them is listed.",
    429: "The line of waiting requests is full.",
    503: "The model is not loaded now, or the server stops.",
    504: "The request took longer than the server allows.",
}
_OF_ANSWERS = (400, 401, 403, 404, 408, 413, 429, 503, 504)
_AT_ONCE = (400, 401, 403, 404, 408, 413, 503)  # of what takes no turn
_RETRY = (429, 503)


@dataclass(frozen=True)
class Post:
    """An endpoint that takes a JSON body. event: of its stream, if it has one; answer None: it always streams."""

    path: str
    summary: str
    request: str
    answer: str | None
    event: Schema | None = None
    error: str = "Error"
    statuses: tuple[int, ...] = _OF_ANSWERS
    status: int = 200


POSTS = (
    Post(
        "/v1/chat/completions",
        "OpenAI's chat completions.",
        "ChatRequest",
        "ChatCompletion",
        event_of("ChatChunk", has_done=True),
    ),
    Post("/v1/chat/events", "An answer as typed events, with its canvas.", "ChatRequest", None, ref("ChatEvent")),
    Post(
        "/v1/completions",
        "Text that goes on.",
        "CompletionRequest",
        "Completion",
        event_of("CompletionChunk", has_done=True),
    ),
    Post(
        "/v1/fim/completions",
        "What stands between a prompt and a suffix.",
        "FimRequest",
        "FimCompletion",
        event_of("FimChunk", has_done=True),
    ),
    Post("/v1/infill", "A template, filled.", "InfillRequest", "Infill", event_of("InfillChunk", has_done=True)),
    Post("/v1/responses", "OpenAI's responses, stateless.", "ResponsesRequest", "Response", event_of("ResponseEvent")),
    Post(
        "/v1/messages",
        "Anthropic's messages.",
        "MessagesRequest",
        "Message",
        event_of("MessageEvent"),
        "AnthropicError",
    ),
    Post(
        "/v1/messages/count_tokens",
        "How long a prompt is.",
        "CountRequest",
        "TokenCount",
        error="AnthropicError",
        statuses=_AT_ONCE,
    ),
    Post(
        "/v1/systemone",
        "Typed questions answered with probabilities.",
        "DecisionRequest",
        "Decision",
        error="DecisionError",
        statuses=(*_OF_ANSWERS, 415, 422),
    ),
    Post("/tokenize", "A text's tokens.", "TokenizeRequest", "Tokens", statuses=_AT_ONCE),
    Post("/detokenize", "The text of tokens.", "DetokenizeRequest", "TokensText", statuses=_AT_ONCE),
)
MANAGING = (
    Post("/v1/models/load", "Begin to load a model.", "ModelRequest", "Model", statuses=_AT_ONCE, status=202),
    Post("/v1/models/unload", "Put a model away.", "ModelRequest", "Model", statuses=_AT_ONCE),
)


def known_paths(settings: Settings) -> list[str]:
    """Every path of a server as it can be asked for: without those that hold a model's name."""
    return [path for path in (*_looks(), *(post.path for post in _posts(settings))) if "{" not in path]


def document(names: Sequence[str], settings: Settings) -> dict[str, Any]:
    """The whole document, of a server with these models."""
    paths: dict[str, Any] = _looks()
    for post in _posts(settings):
        paths[post.path] = {"post": _post(post)}
    schemes: dict[str, Any] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Fourleaf",
            "version": version("fourleaf"),
            "summary": "Block diffusion language models behind the APIs that clients know.",
        },
        "paths": paths,
        "components": {"schemas": {**request_schemas(names), **answer_schemas()}, "securitySchemes": schemes},
    }
    if settings.api_keys:
        made["security"] = [{name: []} for name in schemes]
        for path in ("/health", "/v1/health"):
            made["paths"][path]["get"]["security"] = []
    return made


def _posts(settings: Settings) -> tuple[Post, ...]:
    return (*POSTS, *(MANAGING if settings.can_manage else ()))


def _post(post: Post) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if post.answer is not None:
        content["application/json"] = {"schema": ref(post.answer)}
    if post.event is not None:
        content["text/event-stream"] = {"schema": post.event}
    return _operation(
        post.path,
        post.summary,
        {post.status: content} | {status: _error(post, status) for status in post.statuses},
        requestBody={"required": True, "content": {"application/json": {"schema": ref(post.request)}}},
    )


def _error(post: Post, status: int) -> dict[str, Any]:
    return _json("DecisionFaults" if status == 422 else post.error)


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": ref(name)}}


def _looks() -> dict[str, Any]:
    """Routes that say something about the server and its models."""
    of_model = {"name": "model", "in": "query", "required": False, "schema": STRING}
    path_model = {"name": "model", "in": "path", "required": True, "schema": STRING | {"minLength": 1}}
    locked = {401: _json("Error"), 403: _json("Error")}
    missing = {404: _json("Error")}
    able: Schema = any_of(ref("CapabilitiesList"), ref("Capabilities"))
    whole = {"application/json": {"schema": ANY_OBJECT}}
    # Path -> summary, contents by status, parameters.
    gets: dict[str, tuple[str, dict[int, Any], list[Any]]] = {
        "/v1/models": ("The models known by name.", {200: _json("ModelList")} | locked, []),
        "/v1/models/{model}": ("One of them.", {200: _json("Model")} | locked | missing, [path_model]),
        "/v1/capabilities": (
            "What each model honours, or one.",
            {200: {"application/json": {"schema": able}}, 503: _json("Error")} | locked | missing,
            [of_model],
        ),
        "/tokenizer_info": (
            "What a client needs to write prompts as a model reads them.",
            {200: _json("TokenizerInfo"), 503: _json("Error")} | locked | missing,
            [of_model],
        ),
        "/metrics": ("Counters for Prometheus.", {200: {"text/plain": {"schema": STRING}}} | locked, []),
        "/openapi.json": ("This document.", {200: whole} | locked, []),
    }
    for path in ("/health", "/v1/health"):
        gets[path] = ("Whether requests can be answered.", {200: _json("Health"), 503: _json("Trouble")}, [])
    return {
        path: {"get": _operation(path, summary, contents, **({"parameters": parameters} if parameters else {}))}
        for path, (summary, contents, parameters) in gets.items()
    }


def _operation(path: str, summary: str, contents: dict[int, Any], **more: Any) -> dict[str, Any]:
    name = path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace(".", "_")
    answers = {str(status): _response(status, content) for status, content in sorted(contents.items())}
    return {"operationId": name, "summary": summary, "responses": answers, **more}


def _response(status: int, content: dict[str, Any]) -> dict[str, Any]:
    text = {"required": True, "schema": STRING}
    headers = {"x-request-id": text}
    if status in _RETRY:
        headers["Retry-After"] = text
    if status == 401:
        headers["WWW-Authenticate"] = text
    if status == 408:
        headers["Connection"] = text
    return {"description": _WHY.get(status, "Done."), "headers": headers, "content": content}
