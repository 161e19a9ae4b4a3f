"""The engine without a thread: requests go in, each `step` is one forward, what became final goes to each one's sink.

One caller at a time. `Engine` adds the thread, the lock and the ways in.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fourleaf.engine import runner
from fourleaf.engine.cache import DEFAULT_CACHE_BYTES, Cache
from fourleaf.engine.draws import draw_together
from fourleaf.engine.request import Delta
from fourleaf.engine.runner import Part
from fourleaf.engine.scheduler import MAX_ROWS, MAX_RUNNING, Entry, Scheduler
from fourleaf.engine.sequence import Sequence
from fourleaf.errors import NumericError
from fourleaf.model.transformer import Transformer

log = logging.getLogger(__name__)

# Takes what is final now, or what ended the request if it was a fault.
Sink = Callable[[Delta | BaseException], None]


@dataclass(frozen=True)
class Limits:
    """Of an engine: rows of a forward, requests that run at once, bytes of the prefix cache, whether requests find in
    it what earlier ones left, and how many pages it has instead of what its bytes give."""

    max_rows: int = MAX_ROWS
    max_running: int = MAX_RUNNING
    cache_bytes: int = DEFAULT_CACHE_BYTES
    reuse: bool = True
    num_pages: int | None = None


class Core:
    """All requests of one model."""

    def __init__(self, model: Transformer, limits: Limits | None = None, *, checks: bool = False) -> None:
        """checks: every step ends with a count of all pages and snapshots. For tests."""
        self.limits = limits or Limits()
        weight = model.lm_head.weight
        self.model = model
        self.cache = Cache(
            model.config,
            weight.dtype,
            self.limits.cache_bytes,
            num_pages=self.limits.num_pages,
            device=str(weight.device),
            reuse=self.limits.reuse,
        )
        self.scheduler = Scheduler(self.limits.max_rows, self.limits.max_running)
        self.num_forwards = self.num_rows = 0
        self.last: list[Part] = []  # of the last forward, for those who measure
        self._checks = checks
        self._keys = itertools.count()
        self._sinks: dict[int, Sink] = {}

    def renewed(self) -> Core:
        """One without requests and with an empty cache. Its keys go on: no key ever stands for two requests."""
        core = Core(self.model, self.limits, checks=self._checks)
        core._keys = self._keys
        return core

    @property
    def is_idle(self) -> bool:
        return not self._sinks

    @property
    def sinks(self) -> list[Sink]:
        """Of all requests."""
        return list(self._sinks.values())

    @property
    def num_requests(self) -> int:
        """Requests that wait or run."""
        return len(self._sinks)

    def submit(self, sequence: Sequence, sink: Sink) -> int:
        """Puts a request in line. -> its key, for `cancel`."""
        key = next(self._keys)
        self._sinks[key] = sink
        self.scheduler.submit(key, sequence)
        return key

    def cancel(self, key: int) -> None:
        """Ends a request and frees what it holds. Without effect on one that has ended."""
        if self._sinks.pop(key, None) is not None and self.scheduler.remove(key):
            self.cache.release(key)

    def step(self) -> bool:
        """One forward. -> False where nobody is left."""
        chosen = self.scheduler.plan(self.cache)
        faults = self.scheduler.take_faults()
        for entry, fault in faults:
            self._fail(entry, fault)
        if not chosen and not faults:
            assert self.is_idle, "requests wait, and none can run"
            return False
        if chosen:
            self._run(runner.arrange(chosen))
        if self._checks:
            self.cache.check()
        return True

    def _run(self, parts: list[Part]) -> None:
        try:
            state, logits = runner.forward(self.model, self.cache, parts)
        except Exception as fault:
            if len(parts) > 1:  # whose fault it is shows when each runs alone
                for part in parts:
                    self._run([part])
                return
            log.exception("a forward failed")
            self._fail(parts[0].entry, fault)
            return
        self.last = parts
        self.num_forwards += 1
        self.num_rows += sum(part.need.num_rows for part in parts)
        with torch.inference_mode():
            own = logits.split([len(part.need.wanted) for part in parts])
            if len(parts) > 1:
                draws = [part.entry.sequence.draw(part.need) for part in parts]
                for part, drawn in zip(parts, draw_together(draws, own), strict=True):
                    part.entry.sequence.drawn = drawn
            news = [(part.entry, _take(part, rows)) for part, rows in zip(parts, own, strict=True)]
            if any(part.need.is_held for part in parts):
                state.advance([part.entry.sequence.accepted if part.need.is_held else 0 for part in parts])
        for entry, delta in news:
            self._after(entry, delta)

    def _after(self, entry: Entry, delta: Delta | BaseException | None) -> None:
        if entry.key not in self._sinks:  # another one's sink has cancelled it
            return
        if isinstance(delta, BaseException):
            self._fail(entry, delta)
            return
        self.cache.settle(entry.key, entry.sequence)
        if delta is None:
            return
        if delta.finish_reason is not None:
            tell(self._end(entry), delta)
        elif not tell(self._sinks[entry.key], delta):
            self.cancel(entry.key)

    def _fail(self, entry: Entry, fault: BaseException) -> None:
        tell(self._end(entry, has_no_numbers=isinstance(fault, NumericError)), fault)

    def _end(self, entry: Entry, *, has_no_numbers: bool = False) -> Sink:
        if self.scheduler.remove(entry.key):
            self.cache.release(entry.key, has_no_numbers=has_no_numbers)
        return self._sinks.pop(entry.key)


def tell(sink: Sink, news: Delta | BaseException) -> bool:
    """Whether the sink took it: one whose event loop is closed must not end anybody else's request."""
    try:
        sink(news)
    except Exception:
        log.exception("an answer could not be handed over")
        return False
    return True


def _take(part: Part, logits: torch.Tensor) -> Delta | BaseException | None:
    """A fault in one request, or in who watches it, ends that request alone."""
    try:
        return part.entry.sequence.take(part.need, logits)
    except BaseException as fault:
        return fault
