"""One log line for each request: who, what, how long; never what was said.

Every response carries its id as `x-request-id`, the client's own where it sent a sane one.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("fourleaf.requests")

_SANE_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class RequestLog:
    """ASGI middleware. An endpoint adds to the line through `request.state.note`, a dict; one that only sends a file
    of the page says so through `request.state.is_file`, and its line is for `debug`, unless something is wrong."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)
        status = 0

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # The second name is what TypeSafe's clients look for.
                names = (b"x-request-id", b"x-typesafe-request-id")
                message["headers"] = [*message["headers"], *((name, request_id.encode()) for name in names)]
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        try:
            await self._app(scope, receive, numbered)
        finally:
            line: dict[str, Any] = {
                "id": request_id,
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status,
                "seconds": round(time.perf_counter() - started, 4),
            }
            line |= scope["state"].get("note") or {}
            is_dull = scope["state"].get("is_file", False) and 200 <= status < 400
            log.log(logging.DEBUG if is_dull else logging.INFO, "%s", json.dumps(line))


def _request_id(scope: Scope) -> str:
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if _SANE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
