"""Counters for Prometheus, in its text format (version 0.0.4), which needs no library at this size."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fourleaf.engine.request import Frame
from fourleaf.serve.answer import Finish

_COUNTED = (
    "prompt_tokens", "completion_tokens", "forwards", "passes", "rows", "cached_tokens", "proposals", "stood",
)  # fmt: skip
_STATUS = Path("/proc/self/statm")  # in pages; the second number is what is resident
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def resident_bytes() -> int | None:
    """What this process holds in memory, mapped files included; None where the system does not say."""
    if not _STATUS.is_file():
        return None
    return int(_STATUS.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Histogram:
    """Values counted by the bucket that they fall in; a bucket's bound belongs to it."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = tuple(bounds), [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterable[str]:
        """Cumulative buckets, sum and count."""
        seen = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{le="{bound}"}} {seen}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {seen}"


class Metrics:
    """What one server has done since it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = dict.fromkeys(
            ("requests_total", "refused_total", *(f"{name}_total" for name in _COUNTED), "frames_total"), 0
        )
        self._seconds, self._first = Histogram(_SECONDS), Histogram(_SECONDS)
        self._tpf = Histogram((1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0))

    def note(self, item: object) -> None:
        """An item on its way to a client."""
        if not isinstance(item, Finish | Frame):
            return
        with self._lock:
            if isinstance(item, Frame):
                self._counters["frames_total"] += 1
                return
            self._counters["requests_total"] += 1
            for name in _COUNTED:
                self._counters[f"{name}_total"] += getattr(item.usage, name, 0)
            self._seconds.add(item.seconds)
            self._first.add(item.first_seconds)
            if item.usage.forwards:
                self._tpf.add(item.usage.tpf)

    def refused(self) -> None:
        """A request was turned away because the line was full."""
        with self._lock:
            self._counters["refused_total"] += 1

    def text(self, gauges: Mapping[str, float], counters: Mapping[str, int]) -> str:
        """The page that Prometheus reads. gauges: what is so at this moment. counters: what others count."""
        with self._lock:
            lines = []
            for name, value in gauges.items():
                lines += [f"# TYPE fourleaf_{name} gauge", f"fourleaf_{name} {value:.15g}"]
            for name, count in {**self._counters, **counters}.items():
                lines += [f"# TYPE fourleaf_{name} counter", f"fourleaf_{name} {count}"]
            for name, histogram in (
                ("request_seconds", self._seconds),
                ("first_block_seconds", self._first),
                ("tokens_per_forward", self._tpf),
            ):
                lines += [f"# TYPE fourleaf_{name} histogram", *histogram.lines(f"fourleaf_{name}")]
        return "\n".join(lines) + "\n"
