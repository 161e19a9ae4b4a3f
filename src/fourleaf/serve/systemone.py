"""`POST /v1/systemone`: TypeSafe's decision API, and the models list that its clients read.

Requests, answers and errors are TypeSafe's to the letter; fields of ours begin with x_ (docs/decision-api.md).
"""

from __future__ import annotations

import json
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

import zstandard
from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from fourleaf.decide.answers import Decision, wire_response
from fourleaf.decide.decider import Decider
from fourleaf.decide.questions import Fault, InvalidDecisionError, parse_request
from fourleaf.engine.engine import Engine
from fourleaf.errors import RequestError
from fourleaf.serve.body import note_unknown, read_document
from fourleaf.serve.faults import UnsupportedMediaError
from fourleaf.serve.models import Served
from fourleaf.serve.server import BodyTooLargeError, Server
from fourleaf.serve.stream import Answers, whole
from fourleaf.serve.worker import Job

ALIAS = "jev-latest"  # what TypeSafe's clients ask for unless told otherwise
KNOWN = frozenset(
    (
        "model",
        "state",
        "questions",
        "assets",
        "x_joint",
        "x_passes",
        "x_threshold",
        "x_rotations",
        "x_rules",
        "x_enforce",
    )
)

_deciders: WeakKeyDictionary[Engine, Decider] = WeakKeyDictionary()


async def systemone(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError and BusyError before anything is sent."""
    body = _decompressed(await server.body(request), request, server.settings.max_body_bytes)
    asked = parse_request(_document(body))
    name = asked.model
    if name == ALIAS and (loaded := server.models.served()):
        name = loaded[0].engine.name
    served = server.find(name)
    request.state.note = {"model": name, "mode": "joint" if asked.joint else "independent"}
    decider = await run_in_threadpool(_decider, served)

    def work(job: Job[Decision]) -> Generator[Decision]:
        yield decider.decide(asked, job.check)

    answers: Answers[Decision] = server.submit(served, [work])

    async def collected() -> Response:
        async for _, decision in answers.items():
            # Escaped, since ids and options come back as they were sent, lone surrogates too.
            text = json.dumps(wire_response(decision, asked, served.engine.name), allow_nan=False)
            return Response(text, media_type="application/json")
        raise AssertionError("a decision ends with an answer or an error")

    return await whole(request, answers, collected())


def decision_models(cards: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The models as TypeSafe's list has them. cards: OpenAI's."""
    return [
        {
            "name": card["id"],
            "description": "Block diffusion language model served by Fourleaf.",
            "release_date": datetime.fromtimestamp(card["created"], UTC).date().isoformat(),
        }
        for card in cards
    ]


def _decider(served: Served) -> Decider:
    engine = served.engine
    if not isinstance(engine, Engine):
        raise RequestError(f"{engine.name} cannot answer decisions.", param="model", code="unsupported_model")
    if engine not in _deciders:
        _deciders[engine] = Decider.of(engine)
    return _deciders[engine]


def _document(body: bytes) -> dict[str, Any]:
    """What is no JSON object is a fault of the body as a whole, in the same shape as the others."""
    try:
        document = read_document(body)
    except RequestError as error:
        raise InvalidDecisionError([Fault((), str(error), error.code or "json_invalid")]) from None
    note_unknown(set(document) - KNOWN)
    return document


def _decompressed(body: bytes, request: Request, limit: int) -> bytes:
    """The body as JSON text. Raises UnsupportedMediaError, BodyTooLargeError."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaError(f"This model reads no images: send application/json, not {kind[:60]}.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding != "zstd":
        raise UnsupportedMediaError(f"Content-Encoding may be zstd or identity, not {encoding[:60]}.")
    try:
        with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(body, read_across_frames=True) as reader:
            text = reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise InvalidDecisionError([Fault((), f"The body is not valid zstd: {error}", "zstd_invalid")]) from None
    if len(text) > limit:
        raise BodyTooLargeError(f"The body exceeds {limit} bytes when decompressed.", code="body_too_large")
    return text
