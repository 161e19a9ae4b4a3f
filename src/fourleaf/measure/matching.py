"""What a grammar costs: a matcher that books the time of every question."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fourleaf.diffusion.constraint import Matcher


@dataclass
class Watch:
    """Seconds of this thread's processor by what was asked, so that other processes do not count."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds[what] += time.thread_time() - began


class TimedMatcher:
    """Answers as `inner` does. Its copies book on the same watch."""

    def __init__(self, inner: Matcher, watch: Watch) -> None:
        self._inner, self._watch = inner, watch

    @property
    def reserve(self) -> int:
        return self._inner.reserve

    @reserve.setter
    def reserve(self, value: int) -> None:
        self._inner.reserve = value

    @property
    def is_accepting(self) -> bool:
        with self._watch.of("advance"):
            return self._inner.is_accepting

    def allowed(self) -> NDArray[np.bool_]:
        with self._watch.of("mask"):
            return self._inner.allowed()

    def allows(self, token: int) -> bool:
        with self._watch.of("mask"):
            return self._inner.allows(token)

    def accepts(self, token: int) -> bool:
        with self._watch.of("advance"):
            return self._inner.accepts(token)

    def advance(self, token: int) -> None:
        with self._watch.of("advance"):
            self._inner.advance(token)

    def forced(self) -> list[int]:
        with self._watch.of("forced"):
            return self._inner.forced()

    def copy(self) -> Self:
        with self._watch.of("copy"):
            return type(self)(self._inner.copy(), self._watch)

    def adopt(self, other: Self) -> None:
        self._inner.adopt(other._inner)

    def ending(self, limit: int, goal: Sequence[int] = ()) -> list[int] | None:
        with self._watch.of("ending"):
            return self._inner.ending(limit, goal)
