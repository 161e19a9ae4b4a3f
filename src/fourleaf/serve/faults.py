"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}` and the fitting status."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fourleaf.errors import ModelNotFoundError, RequestError
from fourleaf.serve.worker import BusyError
from fourleaf.text.tokenizer import replace_surrogates

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1


class KeyRefusedError(RequestError):
    """The request lacks the server's API key."""


class BodyTooLargeError(RequestError):
    """The request's body exceeds the limit."""


# The first class that fits gives status and type.
_STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (KeyRefusedError, 401, "invalid_request_error"),
    (ModelNotFoundError, 404, "invalid_request_error"),
    (BodyTooLargeError, 413, "invalid_request_error"),
    (RequestError, 400, "invalid_request_error"),
    (BusyError, 429, "rate_limit_error"),
)


def error_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body for an error. What is not a client's fault is logged and told without its details."""
    for kind, status, name in _STATUS:
        if isinstance(error, kind):
            return status, _body(str(error), name, getattr(error, "param", None), getattr(error, "code", None))
    log.error("request failed", exc_info=error)
    return 500, _body(
        "The server failed on this request; its log says why. It is ready for the next one.", "server_error"
    )


def _body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    # A message may quote the request, which may hold lone surrogates; a response is UTF-8.
    message, param = replace_surrogates(message), param and replace_surrogates(param)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(error: Exception) -> JSONResponse:
    """The response for an error, with the headers that its status wants."""
    status, body = error_body(error)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": str(RETRY_AFTER_SECONDS)}}.get(status)
    return JSONResponse(body, status, headers)


def install(app: FastAPI) -> None:
    """Gives every error of the app this shape, those of the framework included."""

    async def ours(request: Request, error: Exception) -> JSONResponse:
        return error_response(error)

    async def framework(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        message = {
            404: f"There is no {request.method} {request.url.path} here.",
            405: f"{request.url.path} does not take {request.method}.",
        }.get(error.status_code, error.detail)
        code = "unknown_url" if error.status_code == 404 else None
        return JSONResponse(_body(message, "invalid_request_error", code=code), error.status_code, error.headers)

    app.add_exception_handler(RequestError, ours)
    app.add_exception_handler(BusyError, ours)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(Exception, ours)
