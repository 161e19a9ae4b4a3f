"""The page: static files beside this module, sent with a policy that lets nothing in from outside."""

from __future__ import annotations

import re
from importlib.resources import files
from random import Random
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from fourleaf.tasks.judgements.generator import FAMILIES, draw
from fourleaf.tasks.judgements.wording import TRAINING

KINDS = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}

# Of the page: its own scripts and styles, its own server, its own frames. Nothing inline, nothing from elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Of the frame in which an answer's HTML runs: inline scripts and styles, pictures inside the text, no network at all.
# Its origin is nobody's, so it reaches neither page nor API; the page's frame-src keeps it from going elsewhere.
FRAME_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; media-src data: blob:; connect-src 'none'; form-action 'none'; "
    "base-uri 'none'"
)
FRAME = "preview.html"
PUZZLE_SIZES = (3, 5)  # questions

_HEADERS = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
}


def page_router() -> APIRouter:
    """`/` and `/page/NAME`. No key is wanted: the page holds nothing, and asks for the key that the API wants."""
    router = APIRouter()
    router.add_api_route("/", _index, methods=["GET"])
    router.add_api_route("/page/judgement", judgement, methods=["GET"])
    router.add_api_route("/page/{name}", _file, methods=["GET"])
    return router


def judgement(seed: int = 0) -> dict[str, Any]:
    """A group of coupled questions with one consistent answer, to try decisions on; the same for the same seed."""
    random = Random(seed)
    family = random.choice(sorted(FAMILIES))
    return draw(family, random.randint(*PUZZLE_SIZES), random, TRAINING).document()


def _index(request: Request) -> Response:
    return _file(request, "index.html")


def _file(request: Request, name: str) -> Response:
    """Raises 404 for what is no file of the page."""
    request.state.is_file = True
    kind = KINDS.get(name.rpartition(".")[2])
    path = files("fourleaf.serve") / "page" / name
    if kind is None or not re.fullmatch(r"[a-z]+\.[a-z]+", name) or not path.is_file():
        raise HTTPException(404)
    headers = _HEADERS | {"Content-Security-Policy": FRAME_POLICY if name == FRAME else POLICY}
    return Response(path.read_bytes(), media_type=kind, headers=headers)
