"""The threads in which the engine is driven: as many jobs at a time as it decodes, the others waiting in line.

The event loop is never blocked: a job's items come to it through a queue.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing
from typing import Generic, TypeVar

from fourleaf.errors import FourleafError

log = logging.getLogger(__name__)

Item = TypeVar("Item")


class BusyError(FourleafError):
    """The line of waiting requests is full."""


class RequestTimeoutError(FourleafError):
    """A request took longer than the server allows."""


class _Cancelled(Exception):
    """Raised inside a job whose client has gone."""


class _End:
    """Marks the end of a job's items; carries what it failed with, if it did."""

    def __init__(self, fault: BaseException | None) -> None:
        self.fault = fault


class Job(Generic[Item]):
    """One piece of work: iterate it in the event loop that submitted it, and cancel it when nobody listens any more.

    timeout: seconds until it is given up, waiting in line included. first_pass: when its first pass was done, in
    nanoseconds, for whoever measures.
    """

    def __init__(self, work: Callable[[Job[Item]], Generator[Item]], timeout: float | None = None) -> None:
        self._work = work
        self._cancelled = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item | _End] = asyncio.Queue()
        self.first_pass: int | None = None
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def cancel(self) -> None:
        """Ends the work at its next check. Without effect on a finished job."""
        self._cancelled.set()

    def check(self) -> None:
        """Called by the work between any two forwards: raises where the job was cancelled."""
        if self._cancelled.is_set():
            raise _Cancelled

    async def items(self) -> AsyncGenerator[Item]:
        """The work's items as they come; raises what the work raised, RequestTimeoutError where it took too long."""
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            try:
                item = await asyncio.wait_for(self._items.get(), left)
            except TimeoutError:
                self.cancel()
                raise RequestTimeoutError(f"The request took longer than the allowed {self._timeout:g} s.") from None
            if not isinstance(item, _End):
                yield item
                continue
            if item.fault is not None:
                raise item.fault
            return

    def run(self) -> None:
        """In a thread of the worker."""
        fault: BaseException | None = None
        try:
            self.check()
            with closing(self._work(self)) as items:
                for item in items:
                    self.put(item)
                    self.check()
        except _Cancelled:
            log.debug("request cancelled by its client")
        except BaseException as error:  # the thread must live on, and the client must hear of it
            fault = error
        self._put(_End(fault))

    def put(self, item: Item) -> None:
        """Hands over an item before the work yields its next one."""
        self._put(item)

    def _put(self, item: Item | _End) -> None:
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the loop is closed: the server is going down
            self._cancelled.set()


class Worker:
    """Runs jobs in `concurrent` threads, first come, first served."""

    def __init__(self, max_waiting: int = 64, concurrent: int = 1) -> None:
        self._waiting: queue.Queue[Job | None] = queue.Queue(max_waiting)
        self._running: set[Job] = set()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"fourleaf-engine-{number}", daemon=True)
            for number in range(concurrent)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    @property
    def num_waiting(self) -> int:
        return self._waiting.qsize()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def submit(self, work: Callable[[Job[Item]], Generator[Item]], timeout: float | None = None) -> Job[Item]:
        """Puts work in line. `work` gets its job, whose `check` it calls between forwards.

        Raises BusyError where the line is full.
        """
        job = Job(work, timeout)
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            raise BusyError(f"{self._waiting.maxsize} requests are waiting already. Try again shortly.") from None
        return job

    def drain(self, seconds: float) -> None:
        """Waits until nothing waits or runs, at most so long. Blocks."""
        deadline = time.monotonic() + seconds
        while (self.num_waiting or self.num_running) and time.monotonic() < deadline:
            time.sleep(0.02)

    def stop(self) -> None:
        """Cancels what runs and what waits, and waits for the threads."""
        self._stopping = True
        for job in list(self._running):
            job.cancel()
        stops = 0
        while stops < len(self._threads):
            try:
                self._waiting.put_nowait(None)
                stops += 1
            except queue.Full:
                dropped = self._waiting.get_nowait()
                if dropped is None:
                    stops -= 1
                else:
                    dropped.cancel()
                    dropped.run()  # so that whoever iterates it hears of its end
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10)

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            if self._stopping:
                job.cancel()
            self._running.add(job)
            try:
                job.run()
            finally:
                self._running.discard(job)
