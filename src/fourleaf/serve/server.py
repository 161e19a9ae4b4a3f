"""What all APIs share: models by name, bodies within the limit, jobs for the engine, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import Request

from fourleaf.engine.request import Frame, GenerateParams
from fourleaf.errors import RequestError
from fourleaf.serve.answer import Item, answer
from fourleaf.serve.metrics import Metrics
from fourleaf.serve.models import Models, NotReadyError, Served
from fourleaf.serve.settings import Settings
from fourleaf.serve.stream import Answers
from fourleaf.serve.tools import Offer
from fourleaf.serve.worker import BusyError, Job

if TYPE_CHECKING:
    from fourleaf.serve.tracing import Tracing

MAX_FRAMES_PER_SECOND = 30


class BodyTooLargeError(RequestError):
    """The request's body exceeds the limit."""


class BodyTooSlowError(RequestError):
    """The request's body did not come in time."""


class Server:
    """One server's state. `draining`: it finishes what runs and takes nothing new. tracing: where spans are wanted."""

    def __init__(self, models: Models, settings: Settings, tracing: Tracing | None = None) -> None:
        self.models, self.settings, self.tracing = models, settings, tracing
        self.metrics = Metrics()
        self.fingerprint = f"fourleaf-{version('fourleaf')}"
        self.draining = False

    async def body(self, request: Request) -> bytes:
        """A request's body. Raises BodyTooLargeError before more than the limit is held, and BodyTooSlowError."""
        limit, seconds = self.settings.max_body_bytes, self.settings.receive_seconds
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > limit:
                        raise BodyTooLargeError(f"The body exceeds {limit} bytes.", code="body_too_large")
        except TimeoutError:
            message = f"After {seconds:g} seconds the body was not complete ({len(body)} bytes of it had come)."
            raise BodyTooSlowError(message, code="body_too_slow") from None
        return bytes(body)

    def find(self, model: str) -> Served:
        """The loaded model of that name. Raises ModelNotFoundError, NotReadyError."""
        if self.draining:
            raise NotReadyError("The server is about to stop and takes no new requests.", code="draining")
        return self.models.find(model)

    def answers(
        self,
        served: Served,
        prompts: Sequence[list[int]],
        params: Sequence[GenerateParams],
        offer: Offer,
        *,
        frames: bool = False,
    ) -> Answers[Item | Frame]:
        """Puts one answer for each prompt and its parameters in line. frames: they come between the items.

        Raises BusyError where the line is full.
        """

        def work_of(prompt_ids: list[int], one: GenerateParams) -> Any:
            def work(job: Job[Item | Frame]) -> Generator[Item | Frame]:
                return answer(served.engine, prompt_ids, one, offer, watcher(job, frames=frames))

            return work

        return self.submit(served, [work_of(ids, one) for ids, one in zip(prompts, params, strict=True)])

    def submit(self, served: Served, works: Sequence[Any]) -> Answers[Any]:
        """Puts pieces of work in line, all or none. Raises BusyError where the line is full."""
        jobs: list[Job[Any]] = []
        if self.tracing is not None:
            works = [self.tracing.followed(work) for work in works]
        try:
            for work in works:
                jobs.append(served.worker.submit(work, self.settings.timeout))
        except BusyError:
            for job in jobs:
                job.cancel()
            self.metrics.refused()
            raise
        return Answers(jobs, self.metrics.note)


def watcher(job: Job[Item | Frame], *, frames: bool) -> Any:
    """Called after each pass, which is more often than tokens come: the place to notice that a client has gone."""
    last = 0.0

    def watch(frame: Frame) -> None:
        nonlocal last
        job.check()
        job.first_pass = job.first_pass or time.time_ns()
        now = time.monotonic()
        if frames and now - last >= 1 / MAX_FRAMES_PER_SECOND:
            last = now
            job.put(frame)

    return watch
