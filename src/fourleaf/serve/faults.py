"""Errors in the shapes that clients expect, with the fitting status.

OpenAI's: `{"error": {"message", "type", "param", "code"}}`. Anthropic's, under /v1/messages:
`{"type": "error", "error": {"type", "message"}}`. TypeSafe's, under /v1/systemone: `{"detail": {"error_type",
"message"}}`, and for fields that are wrong FastAPI's list `{"detail": [{"loc", "msg", "type"}]}` with status 422.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fourleaf.decide.questions import InvalidDecisionError
from fourleaf.errors import ContextLengthError, ModelNotFoundError, RequestError
from fourleaf.serve.door import KeyRefusedError, OriginRefusedError
from fourleaf.serve.models import NotReadyError
from fourleaf.serve.server import BodyTooLargeError, BodyTooSlowError
from fourleaf.serve.stream import GONE
from fourleaf.serve.worker import BusyError, RequestTimeoutError
from fourleaf.text.tokenizer import replace_surrogates

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1
ANTHROPIC_PATH = "/v1/messages"
SYSTEMONE_PATH = "/v1/systemone"


class UnsupportedMediaError(RequestError):
    """A body of a kind that is not read here."""


# The first class that fits gives status and type.
_STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (KeyRefusedError, 401, "invalid_request_error"),
    (OriginRefusedError, 403, "permission_error"),
    (ModelNotFoundError, 404, "invalid_request_error"),
    (BodyTooSlowError, 408, "timeout_error"),
    (BodyTooLargeError, 413, "invalid_request_error"),
    (UnsupportedMediaError, 415, "invalid_request_error"),
    (InvalidDecisionError, 422, "invalid_request_error"),
    (NotReadyError, 503, "service_unavailable_error"),
    (RequestError, 400, "invalid_request_error"),
    (BusyError, 429, "rate_limit_error"),
    (RequestTimeoutError, 504, "timeout_error"),
)
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body for an error. What is not a client's fault is logged and told without its details."""
    for kind, status, name in _STATUS:
        if isinstance(error, kind):
            return status, _body(str(error), name, getattr(error, "param", None), getattr(error, "code", None))
    log.error("request failed", exc_info=error)
    return 500, _body(
        "The server failed on this request; its log says why. It is ready for the next one.", "server_error"
    )


def anthropic_error(error: Exception) -> tuple[int, dict[str, Any]]:
    """The same in Anthropic's shape. A prompt that is too long is said in Anthropic's words first: clients that shorten
    what they sent look for these, and for the numbers."""
    status, body = error_body(error)
    message = body["error"]["message"]
    if isinstance(error, ContextLengthError) and error.prompt_tokens is not None:
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.max_prompt_tokens} maximum. {message}"
    return status, _anthropic(status, message)


def _anthropic(status: int, message: str) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


_SYSTEMONE_TYPES = {
    401: "authentication_error",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "body_too_large",
    415: "unsupported_media_type",
    429: "rate_limit_error",
    500: "unknown",
    503: "overloaded",
    504: "timeout",
}


def systemone_error(error: Exception) -> tuple[int, dict[str, Any]]:
    """The same in TypeSafe's shape."""
    if isinstance(error, InvalidDecisionError):
        faults = [
            {"loc": ["body", *map(_clean, fault.loc)], "msg": _clean(fault.message), "type": fault.kind}
            for fault in error.faults
        ]
        return 422, {"detail": faults}
    status, body = error_body(error)
    kind = "tokens_exceeded" if isinstance(error, ContextLengthError) else None
    return status, _systemone(status, body["error"]["message"], kind)


def _systemone(status: int, message: str, kind: str | None = None) -> dict[str, Any]:
    return {"detail": {"error_type": kind or _SYSTEMONE_TYPES.get(status, "invalid_request"), "message": message}}


def _clean(part: str | int) -> str | int:
    return replace_surrogates(part) if isinstance(part, str) else part


def _body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    # A message may quote the request, which may hold lone surrogates; a response is UTF-8.
    message, param = replace_surrogates(message), param and replace_surrogates(param)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(error: Exception, path: str = "") -> Response:
    """The response for an error on a path, with the headers that its status wants."""
    if isinstance(error, ClientDisconnect):  # while its body came: nobody's fault, and nobody reads this
        return Response(status_code=GONE)
    in_shape = error_body
    if path.startswith(ANTHROPIC_PATH):
        in_shape = anthropic_error
    elif path.startswith(SYSTEMONE_PATH):
        in_shape = systemone_error
    status, body = in_shape(error)
    retry = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    of_status = {401: {"WWW-Authenticate": "Bearer"}, 408: {"Connection": "close"}, 429: retry, 503: retry}
    headers = of_status.get(status)
    return JSONResponse(body, status, headers)


def _hint(path: str, known: Sequence[str]) -> str:
    """The nearest path that there is: most who miss one left /v1 out, or wrote it twice."""
    near = get_close_matches(path, known, n=1, cutoff=0.75)
    return f" Did you mean {near[0]}?" if near else ""


def install(app: FastAPI, paths: Sequence[str] = ()) -> None:
    """Gives every error of the app this shape, those of the framework included. paths: what a wrong one may mean."""

    async def ours(request: Request, error: Exception) -> Response:
        return error_response(error, request.url.path)

    async def framework(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        status = error.status_code
        message = {
            404: f"There is no {request.method} {request.url.path} here.{_hint(request.url.path, paths)}",
            405: f"{request.url.path} does not take {request.method}.",
        }.get(status, error.detail)
        code = "unknown_url" if status == 404 else None
        body = _body(message, "invalid_request_error", code=code)
        if request.url.path.startswith(ANTHROPIC_PATH):
            body = _anthropic(status, message)
        elif request.url.path.startswith(SYSTEMONE_PATH):
            body = _systemone(status, message)
        return JSONResponse(body, status, error.headers)

    for kind in (RequestError, BusyError, RequestTimeoutError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, ours)
    app.add_exception_handler(HTTPException, framework)
