"""How far a training run is, for a person: one line that is rewritten on a terminal, one a minute elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TextIO

BAR_CELLS = 20
QUIET_SECONDS = 60.0


class Meter:
    """Takes the lines of a run's log as they are written (`report` of a trainer).

    shares: each stage's part of the budget. The time left is what the run has taken so far, carried forward.
    """

    def __init__(self, shares: tuple[float, ...], out: TextIO) -> None:
        self._shares = shares
        self._out = out
        self._live = out.isatty()
        self._begun: tuple[float, float] | None = None  # progress and seconds at the first line
        self._score = ""
        self._printed = -QUIET_SECONDS
        self._width = 0

    def __call__(self, line: Mapping[str, float | int | str]) -> None:
        """One line of the log: of training, or of an evaluation."""
        if "evaluation" in line:
            self._score = _score(line)
            if not self._live:
                print(f"{line['evaluation']}: {self._score}", file=self._out, flush=True)
            return
        text = self._text(line)
        if self._live:
            print(f"\r{text:<{self._width}}", end="", file=self._out, flush=True)
            self._width = len(text)
        elif time.monotonic() - self._printed >= QUIET_SECONDS:
            print(text, file=self._out, flush=True)
            self._printed = time.monotonic()

    def close(self) -> None:
        """Leaves the last state on a line of its own."""
        if self._live and self._width:
            print(file=self._out, flush=True)

    def _text(self, line: Mapping[str, float | int | str]) -> str:
        stage = int(line["stage"])
        done = sum(self._shares[:stage]) + self._shares[stage] * min(1.0, float(line["progress"]))
        cells = round(BAR_CELLS * done)
        losses = [f"{name} {float(line[name]):.3f}" for name in ("next", "masked") if name in line]
        parts = [
            f"[{'#' * cells}{'.' * (BAR_CELLS - cells)}] {100 * done:3.0f}%",
            str(line["objective"]),
            f"step {line['step']}",
            *losses,
            *([self._score] if self._score else []),
            f"{float(line['tokens_per_s']):,.0f} tokens/s",
            self._left(done, float(line["seconds"])),
        ]
        return "  ".join(part for part in parts if part)

    def _left(self, done: float, seconds: float) -> str:
        begun, at = self._begun = self._begun or (done, seconds)
        if done <= begun:
            return ""
        left = (1 - done) * (seconds - at) / (done - begun)
        return f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left"


def _score(line: Mapping[str, float | int | str]) -> str:
    """What an evaluation found: exact match by mode, and tokens a forward."""
    exact = [f"{mode} {100 * float(line[mode]):.1f}%" for mode in ("ar", "diffuse") if mode in line]
    return f"exact {', '.join(exact)}" + (f", TPF {float(line['tpf']):.2f}" if "tpf" in line else "")
