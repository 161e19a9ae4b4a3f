"""OpenTelemetry spans of requests: the extra `otel`. Nothing else imports this module unless spans are wanted.

    POST /v1/...            from the first byte in to the last one out; a child of the client's span where it sent one
      queue                 in line, until a thread takes the request
      prefill               the prompt, up to the first pass or token that came of it; waiting in the engine included
      decode                the rest; how many forwards, passes, blocks and pieces there were, and not a span for each

A request for several answers has the inner spans several times; a decision is read off its prompt and has no decode. No
span holds what was said, nor a key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fourleaf.serve.answer import Committed, Finish
from fourleaf.serve.filling import Piece
from fourleaf.serve.worker import Job

Work = Callable[[Job[Any]], Generator[Any]]


def exporting() -> Tracing:
    """Spans go to a collector by OTLP over HTTP; the usual variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME,
    OTEL_TRACES_SAMPLER and the like) say where and how many."""
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "fourleaf"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


@dataclass
class _Seen:
    """What one answer's items have shown so far."""

    begun: int
    first: int | None = None  # nanoseconds, as all times here
    pieces: int = 0
    finish: Finish | None = None

    def note(self, item: Any) -> None:
        if isinstance(item, Committed | Piece | Finish):
            self.first = self.first or time.time_ns()
        self.pieces += isinstance(item, Committed | Piece)
        if isinstance(item, Finish):
            self.finish = item


class Tracing:
    """Makes spans by one provider; `Server` has one where spans are wanted."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider, self._tracer = provider, provider.get_tracer("fourleaf.serve")

    def close(self) -> None:
        """Sends what has not been sent."""
        self._provider.shutdown()

    def followed(self, work: Work) -> Work:
        """The same work, with spans under the request's. Called when it is put in line, in the request's context."""
        context, queued = contexts.get_current(), time.time_ns()

        def run(job: Job[Any]) -> Generator[Any]:
            seen = _Seen(time.time_ns())
            try:
                with closing(work(job)) as items:
                    for item in items:
                        seen.note(item)
                        yield item
            finally:
                self._tell(context, queued, seen, job.first_pass)

        return run

    def _tell(self, context: contexts.Context, queued: int, seen: _Seen, first_pass: int | None) -> None:
        ended = time.time_ns()
        # An answer that ended, or was ended, before anything came of its prompt has no decode span.
        first = min((when for when in (first_pass, seen.first) if when is not None), default=None)
        attributes: dict[str, Any] = {}
        if seen.finish is not None:
            counts = asdict(seen.finish.usage)
            modes = counts.pop("modes")
            attributes = {f"fourleaf.{name}": value for name, value in counts.items()}
            attributes |= {"fourleaf.modes": list(modes)} if modes else {}
            attributes |= {"fourleaf.pieces": seen.pieces, "gen_ai.response.finish_reasons": [seen.finish.reason]}
        else:
            attributes = {"fourleaf.pieces": seen.pieces, "fourleaf.unfinished": True}
        spans: list[tuple[str, int, int, dict[str, Any]]] = [
            ("queue", queued, seen.begun, {}),
            ("prefill", seen.begun, first or ended, {}),
        ]
        if first is not None:
            spans.append(("decode", first, ended, attributes))
        for name, begin, end, said in spans:
            self._tracer.start_span(name, context, start_time=begin, attributes=said).end(end)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """A span around each request that asks for something; those that only look have none."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "POST":
                await app(scope, receive, send)
                return
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            path = scope["path"][:200]
            with self._tracer.start_as_current_span(
                f"POST {path}",
                propagate.extract(headers),
                kind=trace.SpanKind.SERVER,
                attributes={"http.request.method": "POST", "url.path": path},
                record_exception=False,  # its text may quote the request
                set_status_on_exception=False,
            ) as span:

                async def noted(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        span.set_attribute("http.response.status_code", message["status"])
                        if message["status"] >= 500:
                            span.set_status(trace.StatusCode.ERROR)
                    await send(message)

                try:
                    await app(scope, receive, noted)
                finally:
                    self._name(span, scope.get("state", {}))

        return traced

    @staticmethod
    def _name(span: trace.Span, state: dict[str, Any]) -> None:
        note = state.get("note") or {}
        known = {
            "fourleaf.request_id": state.get("request_id"),
            "gen_ai.request.model": note.get("model"),
            "fourleaf.mode": note.get("mode"),
        }
        span.set_attributes({name: value for name, value in known.items() if value is not None})
