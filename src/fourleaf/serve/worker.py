"""The thread in which the engine runs: one job at a time, the others waiting in line, the event loop never blocked."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from fourleaf.errors import FourleafError

log = logging.getLogger(__name__)

Item = TypeVar("Item")


class BusyError(FourleafError):
    """The line of waiting requests is full."""


class _Cancelled(Exception):
    """Raised inside a job whose client has gone."""


class _End:
    """Marks the end of a job's items; carries what it failed with, if it did."""

    def __init__(self, fault: BaseException | None) -> None:
        self.fault = fault


class Job(Generic[Item]):
    """One piece of work: iterate it in the event loop that submitted it, and cancel it when nobody listens any more."""

    def __init__(self, work: Callable[[Callable[[], None]], Iterator[Item]]) -> None:
        self._work = work
        self._cancelled = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item | _End] = asyncio.Queue()

    def cancel(self) -> None:
        """Ends the work at its next check. Without effect on a finished job."""
        self._cancelled.set()

    def check(self) -> None:
        """Called by the work between any two forwards: raises where the job was cancelled."""
        if self._cancelled.is_set():
            raise _Cancelled

    async def items(self) -> AsyncIterator[Item]:
        """The work's items as they come; raises what the work raised."""
        while True:
            item = await self._items.get()
            if not isinstance(item, _End):
                yield item
                continue
            if item.fault is not None:
                raise item.fault
            return

    def run(self) -> None:
        """In the engine's thread."""
        fault: BaseException | None = None
        try:
            self.check()
            for item in self._work(self.check):
                self._put(item)
                self.check()
        except _Cancelled:
            log.debug("request cancelled by its client")
        except BaseException as error:  # the thread must live on, and the client must hear of it
            fault = error
        self._put(_End(fault))

    def _put(self, item: Item | _End) -> None:
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the loop is closed: the server is going down
            self._cancelled.set()


class Worker:
    """Runs jobs one after the other in its own thread."""

    def __init__(self, max_waiting: int = 64) -> None:
        self._waiting: queue.Queue[Job | None] = queue.Queue(max_waiting)
        self._current: Job | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="fourleaf-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, work: Callable[[Callable[[], None]], Iterator[Item]]) -> Job[Item]:
        """Puts work in line. `work` gets a function to call between forwards, which raises once the job is cancelled.

        Raises BusyError where the line is full.
        """
        job = Job(work)
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            raise BusyError(f"{self._waiting.maxsize} requests are waiting already. Try again shortly.") from None
        return job

    def stop(self) -> None:
        """Cancels what runs and what waits, and waits for the thread."""
        self._stopping = True
        running = self._current
        if running is not None:
            running.cancel()
        while True:
            try:
                self._waiting.put_nowait(None)
                break
            except queue.Full:
                self._waiting.get_nowait()
        if self.alive:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            if self._stopping:
                job.cancel()
            self._current = job
            job.run()
            self._current = None
