"""Who may come in: whoever has a key, and no page of another origin.

A browser sends some POSTs to another origin without asking first, so not to answer with CORS headers is not enough: a
page could spend this machine's time, or unload its models, without reading a word. And a name that its owner points to
127.0.0.1 makes a page of his of the same origin; so a server that needs no key answers to its own names alone.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from urllib.parse import urlsplit

from fastapi import Request

from fourleaf.errors import RequestError
from fourleaf.serve.settings import Settings


class KeyRefusedError(RequestError):
    """The request lacks the server's API key."""


class OriginRefusedError(RequestError):
    """The request comes from a page of another origin, or calls the server by a name that is not its own."""


def check_of(settings: Settings) -> Callable[[Request], None]:
    """The check that every request but those for health passes. It raises KeyRefusedError, OriginRefusedError."""

    def check(request: Request) -> None:
        _check_origin(request, settings.hosts)
        _check_key(request, settings.api_keys)

    return check


def _check_origin(request: Request, hosts: tuple[str, ...]) -> None:
    host = request.headers.get("host", "")
    name = urlsplit(f"//{host}").hostname
    if hosts and name not in hosts:
        raise OriginRefusedError(
            f"This server is not called {host[:100]!r}; use {hosts[0]}, or set a key.", code="host_refused"
        )
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise OriginRefusedError(f"Pages of {origin[:100]!r} may not use this server.", code="origin_refused")


def _check_key(request: Request, keys: tuple[str, ...]) -> None:
    """Bearer is OpenAI's way, x-api-key Anthropic's."""
    if not keys:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = request.headers.get("x-api-key", "")
    # Every key is compared, so that the time taken does not tell which one was nearly right.
    if sum(hmac.compare_digest(given.encode(), key.encode()) for key in keys) == 0:
        raise KeyRefusedError(
            "This server wants its API key, as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
            code="invalid_api_key",
        )
