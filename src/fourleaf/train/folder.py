"""What a training run keeps on disk: its checkpoint and its log.

The checkpoint is one safetensors file: weights, the optimiser's averages, and in its metadata where the run stands and
with which settings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fourleaf.checkpoint.files import read_metadata, read_tensors, write_tensors
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.train.optim import Optimizer

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"
_WEIGHT, _AVERAGE = "model:", "optim:"

Line = dict[str, Any]


@dataclass
class Progress:
    """Where a run stands. With the seed it decides what comes next: data and noise are functions of these numbers.

    stage: index into the stages; their number once the run is done. step, stage_step: optimiser steps in all, and in
    this stage. pool, batch: the pool of documents and how many of its batches are done; pool_calls: the most calls it
    was drawn with, 0 while none is open. tokens: clean tokens seen. seconds: time spent on steps, summed over resumes,
    evaluation and saving left out.
    """

    stage: int = 0
    step: int = 0
    stage_step: int = 0
    pool: int = 0
    batch: int = 0
    pool_calls: int = 0
    tokens: int = 0
    examples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint as read. settings: the run's TrainConfig as JSON, and window: sums since the last line of the log;
    both empty in checkpoints that did not keep them."""

    model_config: ModelConfig
    weights: dict[str, Tensor]
    averages: dict[str, Tensor]
    progress: Progress
    settings: dict[str, Any] = field(default_factory=dict)
    window: dict[str, float] = field(default_factory=dict)


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / CHECKPOINT

    def save(
        self,
        model: Transformer,
        optimizer: Optimizer,
        progress: Progress,
        settings: dict[str, Any],
        window: dict[str, float],
    ) -> None:
        """Writes the checkpoint, replacing the last one at once."""
        weights = {_WEIGHT + name: t for name, t in model.named_tensors()}
        averages = {_AVERAGE + name: t for name, t in optimizer.tensors().items()}
        parts = {
            "progress": asdict(progress),
            "config": model.config.to_dict(),
            "settings": settings,
            "window": window,
        }
        write_tensors(self.checkpoint, weights | averages, {name: json.dumps(part) for name, part in parts.items()})

    def load(self) -> Snapshot | None:
        """The checkpoint, or None where there is none. Raises CheckpointError where it is broken or of another kind."""
        if not self.checkpoint.is_file():
            return None
        tensors, metadata = read_tensors(self.checkpoint)
        progress, config, settings, window = self._parts(metadata)
        weights = {name.removeprefix(_WEIGHT): t for name, t in tensors.items() if name.startswith(_WEIGHT)}
        averages = {name.removeprefix(_AVERAGE): t for name, t in tensors.items() if name.startswith(_AVERAGE)}
        return Snapshot(config, weights, averages, progress, settings, window)

    def settings(self) -> dict[str, Any] | None:
        """The settings in the checkpoint, whose tensors stay unread; None where there is no checkpoint, empty where it
        did not keep them. Raises CheckpointError as `load` does."""
        return self._parts(read_metadata(self.checkpoint))[2] if self.checkpoint.is_file() else None

    def _parts(self, metadata: dict[str, str]) -> tuple[Progress, ModelConfig, dict[str, Any], dict[str, float]]:
        try:
            progress = Progress(**json.loads(metadata["progress"]))
            config = ModelConfig.from_dict(json.loads(metadata["config"]))
            settings, window = (json.loads(metadata.get(name, "{}")) for name in ("settings", "window"))
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise CheckpointError(f"{self.checkpoint} is no checkpoint of a training run: {error!r}") from error
        return progress, config, settings, window

    def write(self, line: Line) -> None:
        """Adds a line to the log."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line, ensure_ascii=False) + "\n")

    def lines(self) -> Iterator[Line]:
        """The log. A last line that a kill cut short is left out."""
        try:
            text = (self.path / LOG).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for line in text.split("\n")[:-1]:
            yield json.loads(line)

    def rewind(self, step: int) -> None:
        """Drops lines of the log past `step`: a run that was killed takes those steps again."""
        kept = [line for line in self.lines() if line["step"] <= step]
        temporary = self.path / (LOG + ".tmp")
        temporary.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept), encoding="utf-8")
        os.replace(temporary, self.path / LOG)
