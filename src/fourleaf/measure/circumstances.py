"""What a measurement was made with and on: model, library, machine. And a line that says how far it is."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any, TextIO

import torch

from fourleaf.checkpoint.files import WEIGHTS
from fourleaf.engine.cost import processor
from fourleaf.engine.engine import Engine

QUIET_SECONDS = 30.0


def circumstances(engine: Engine, path: Path) -> dict[str, Any]:
    """path: the checkpoint folder that `engine` was loaded from."""
    weights = path / WEIGHTS
    return {
        "model": engine.name,
        "parameters": engine.model.num_parameters,
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "dtype": str(engine.model.lm_head.weight.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


class Ticker:
    """Says how many answers are done: one line that is rewritten on a terminal, one every half minute elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._live = out, out.isatty()
        self._printed = time.monotonic()
        self._width = 0

    def __call__(self, done: int, total: int, what: str) -> None:
        text = f"{what}: {done} of {total}"
        if self._live:
            print(f"\r{text:<{self._width}}", end="", file=self._out, flush=True)
            self._width = len(text)
        elif time.monotonic() - self._printed >= QUIET_SECONDS:
            print(text, file=self._out, flush=True)
            self._printed = time.monotonic()

    def close(self) -> None:
        """Takes the line away, so that what is printed next starts clean."""
        if self._live and self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=self._out, flush=True)
