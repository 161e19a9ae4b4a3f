"""Ctrl-C and SIGTERM during training: never in the middle of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, either signal raises KeyboardInterrupt, inside `hold` once its block is done.

    A second signal during `hold` does not wait any longer. `torn` says that a block of `hold` was left by an exception
    (that one, or another): what it was changing may be half changed.
    """

    def __init__(self) -> None:
        self.torn = False
        self._holding = False
        self._pending = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        # Elsewhere than on the main thread Python lets nobody handle signals; the caller's handlers stay in force.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def hold(self) -> Generator[None]:
        """Puts a signal off to the end of the block."""
        self.torn = self._holding = True
        try:
            yield
            self.torn = False
        finally:
            pending, self._pending, self._holding = self._pending, False, False
        if pending:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._holding and not self._pending:
            self._pending = True
            return
        raise KeyboardInterrupt
