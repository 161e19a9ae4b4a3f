"""How far a training run is: on a terminal one line that is rewritten, elsewhere a line for each of the log's."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any, TextIO

BAR_CELLS = 20


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
        self._width = 0

    def __call__(self, line: Mapping[str, Any]) -> None:
        """One line of the log: of training, of an evaluation, or a remark."""
        if "evaluation" in line:
            self._score = _score(line)
            if not self._live:
                self._print(f"{line['evaluation']}: {self._score}")
        elif "changed" in line:
            self._print(f"settings that have changed since: {', '.join(line['changed'])}")
        elif "note" in line:
            self._print(str(line["note"]))
        elif self._live:
            self._rewrite(self._text(line))
        else:
            self._print(self._text(line))

    def close(self) -> None:
        """Leaves the last state on a line of its own."""
        if self._width:
            print(file=self._out, flush=True)
            self._width = 0

    def _print(self, text: str) -> None:
        self.close()
        print(text, file=self._out, flush=True)

    def _rewrite(self, text: str) -> None:
        """A line that wrapped could not be rewritten, so it is cut to the terminal; what matters most comes first."""
        text = text[: shutil.get_terminal_size().columns - 1]
        print(f"\r{text:<{self._width}}", end="", file=self._out, flush=True)
        self._width = len(text)

    def _text(self, line: Mapping[str, Any]) -> str:
        stage = int(line["stage"])
        done = sum(self._shares[:stage]) + self._shares[stage] * min(1.0, float(line["progress"]))
        cells = round(BAR_CELLS * done)
        losses = [f"{name} {float(line[name]):.3f}" for name in ("next", "masked") if name in line]
        parts = [
            f"[{'#' * cells}{'.' * (BAR_CELLS - cells)}] {100 * done:3.0f}%",
            self._left(done, float(line["seconds"])),
            str(line["objective"]),
            *losses,
            self._score,
            f"{float(line['tokens_per_s']):,.0f} tokens/s",
            f"step {line['step']}",
        ]
        return "  ".join(part for part in parts if part)

    def _left(self, done: float, seconds: float) -> str:
        begun, at = self._begun = self._begun or (done, seconds)
        if done <= begun:
            return ""
        left = (1 - done) * (seconds - at) / (done - begun)
        return f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left"


def _score(line: Mapping[str, Any]) -> str:
    """What an evaluation found: exact match by mode, and tokens a forward."""
    exact = [f"{mode} {100 * float(line[mode]):.1f}%" for mode in ("ar", "diffuse") if mode in line]
    return f"exact {', '.join(exact)}" + (f", TPF {float(line['tpf']):.2f}" if "tpf" in line else "")
