"""What many clients get at once: goodput, waiting for the first block, and what the engine does besides its forwards.

A closed loop: each of so many clients sends its next request when its last one has ended. One thread drives the core,
so nothing but the clock decides what is measured. A request's clock starts when it is sent; what counts are whole steps
inside a window that opens when as many requests have ended as there are clients, and closes after so many seconds.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import Delta
from fourleaf.measure.speed import AR, ARMS, AUTO, DIFFUSE, DRAFT
from fourleaf.measure.timing import TimedCore, core_of
from fourleaf.measure.workloads import Workload

CLIENTS = (1, 4, 16)
LIMIT_S = 2.0  # a first block that comes later is no good
SECONDS = 4.0
_ROUNDS = 4  # windows of an arm, the arms in turn, so that none has all of a bad moment

Clock = Callable[[], float]


@dataclass
class Load:
    """One arm under so many clients. tokens: committed in the window; good: those of requests whose first block came
    in time. waits: s from sending to the first block. model_seconds: spent in the model. ended, right: answers."""

    seconds: float = 0.0
    tokens: int = 0
    good: int = 0
    waits: list[float] = field(default_factory=list)
    forwards: int = 0
    rows: int = 0
    model_seconds: float = 0.0
    ended: int = 0
    right: int = 0

    def add(self, other: Load) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def goodput(self) -> float:
        """Tokens a second."""
        return self.good / self.seconds

    @property
    def rows_per_forward(self) -> float:
        return self.rows / self.forwards

    @property
    def model_share(self) -> float:
        """Of the time, what the forwards alone take: where it is 1, nothing but a faster model helps."""
        return self.model_seconds / self.seconds

    @property
    def late(self) -> int:
        return sum(wait > LIMIT_S for wait in self.waits)

    def wait_ms(self, quantile: float) -> float | None:
        return 1e3 * float(np.quantile(self.waits, quantile)) if self.waits else None

    def document(self) -> dict[str, Any]:
        derived = {"goodput": self.goodput, "rows_per_forward": self.rows_per_forward, "model_share": self.model_share}
        waits = {"first_block_p50_ms": self.wait_ms(0.5), "first_block_p95_ms": self.wait_ms(0.95), "late": self.late}
        return {**derived, **waits, **{k: v for k, v in asdict(self).items() if k != "waits"}}


@dataclass
class _Request:
    """One that was sent: the prompt's index, when, and when its first block came."""

    index: int
    sent: float
    key: int = -1
    first: float | None = None
    tokens: list[int] = field(default_factory=list)


class Loop:
    """A closed loop of one arm on an idle core."""

    def __init__(
        self,
        engine: Engine,
        work: Workload,
        arm: str,
        clients: int,
        core: TimedCore,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.engine, self.work, self.core, self.clock = engine, work, core, clock
        self.params = replace(work.params, **ARMS[arm])
        self.found = Load()
        self.num_sent = 0
        self._clients = clients
        self._order = itertools.cycle(range(len(work.prompts)))
        self._live: dict[int, _Request] = {}
        self._news: list[tuple[_Request, Delta | BaseException]] = []

    def run(self, seconds: float) -> Load:
        """One window. Raises what ended a request, if it was a fault."""
        assert self.core.is_idle
        for _ in range(self._clients):
            self._send()
        while self.found.ended < self._clients:  # until all answers are at different places
            self._step()
        self.found = Load()
        begin, in_model = self.clock(), self.core.model_seconds
        while (now := self.clock()) < begin + seconds:
            self._step()
        self.found.seconds, self.found.model_seconds = now - begin, self.core.model_seconds - in_model
        waiting = [now - request.sent for request in self._live.values() if request.first is None]
        self.found.waits += [wait for wait in waiting if wait > LIMIT_S]  # late already, however long it will take
        for key in list(self._live):
            self.core.cancel(key)
        return self.found

    def _send(self) -> None:
        index = next(self._order)
        request = _Request(index, self.clock())
        sequence = self.engine.admit(self.work.prompts[index], self.work.of(self.num_sent, self.params))
        self.num_sent += 1

        def sink(delta: Delta | BaseException) -> None:
            self._news.append((request, delta))

        request.key = self.core.submit(sequence, sink)
        self._live[request.key] = request

    def _step(self) -> None:
        self.core.step()
        now, found = self.clock(), self.found
        found.forwards += 1
        found.rows += sum(part.need.num_rows for part in self.core.last)
        for request, delta in self._news:
            if isinstance(delta, BaseException):
                raise delta
            is_end = delta.finish_reason == "stop"
            if request.first is None:
                request.first = now
                found.waits.append(now - request.sent)
            request.tokens += delta.tokens
            num = len(delta.tokens) + is_end
            found.tokens += num
            found.good += num * (request.first - request.sent <= LIMIT_S)
            if delta.finish_reason is not None:
                found.ended += 1
                if self.work.examples is not None:
                    found.right += self.work.is_right(self.engine, request.index, request.tokens)
                del self._live[request.key]
                self._send()
        self._news.clear()


@dataclass
class Goodput:
    """loads: by number of clients, by arm."""

    is_judged: bool
    loads: dict[int, dict[str, Load]]

    def document(self) -> dict[str, Any]:
        return {str(n): {arm: load.document() for arm, load in arms.items()} for n, arms in self.loads.items()}


def run(
    engine: Engine,
    work: Workload,
    *,
    seconds: float = SECONDS,
    clients: Sequence[int] = CLIENTS,
    arms: Sequence[str] = (AR, DRAFT, DIFFUSE, AUTO),
    progress: Callable[[int, int, str], None] | None = None,
) -> Goodput:
    """Every arm under every number of clients, for `seconds` each."""
    core = core_of(engine)
    loads: dict[int, dict[str, Load]] = {number: {arm: Load() for arm in arms} for number in clients}
    plan = [(n, arm) for n in clients for part in range(_ROUNDS) for arm in (arms if part % 2 == 0 else arms[::-1])]
    gc.collect()
    gc.freeze()
    try:
        for done, (number, arm) in enumerate(plan, 1):
            loads[number][arm].add(Loop(engine, work, arm, number, core).run(seconds / _ROUNDS))
            if progress is not None:
                progress(done, len(plan), f"{work.name}, {number} at once")
    finally:
        gc.unfreeze()
    return Goodput(work.examples is not None, loads)
