"""The training loop: stages, steps, log, checkpoints, exact resume.

Read `Trainer.run`, then `_step`. Nothing but the seed and `Progress` decides what comes next, so a run that stops and
goes on takes the steps that it would have taken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fourleaf.checkpoint.convert import convert
from fourleaf.checkpoint.files import fill_model
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.train.config import Stage, TrainConfig
from fourleaf.train.data import Batch, Document, Source, batches, collate, num_rows, pool
from fourleaf.train.folder import Line, Progress, RunFolder, Snapshot
from fourleaf.train.grow import grow
from fourleaf.train.interrupts import Interrupts
from fourleaf.train.optim import Optimizer
from fourleaf.train.start import start_weights
from fourleaf.train.workers import Workers

Evaluate = Callable[[Transformer, str, int], dict[str, Any]]

# Settings that give a pool's number its meaning: other values would be another run.
_IDENTITY = ("seed", "pool_size", "judgements", "puzzles")
# Settings that change how long and how loudly, not what.
_BUDGET = ("minutes", "steps", "log_every", "save_every_s", "eval_every_s", "eval_every_steps", "eval_examples")


@dataclass(frozen=True)
class Ids:
    """Token ids that the objective needs."""

    end: int
    mask: int
    block_size: int


class Trainer:
    """Runs `config.stages` on one model: AR stages on the trunk, then conversion, then joint stages."""

    def __init__(
        self,
        config: TrainConfig,
        trunk: ModelConfig,
        source: Source,
        ids: Ids,
        out: Path,
        evaluate: Evaluate | None = None,
        report: Callable[[Line], None] | None = None,
        num_workers: int = 1,
    ) -> None:
        self.config, self.trunk, self.source, self.ids = config, trunk, source, ids
        self.folder = RunFolder(out)
        self.evaluate, self.report, self._num_workers = evaluate, report, num_workers
        torch.manual_seed(config.seed)
        self.model = Transformer(trunk)
        start_weights(self.model)
        self.optimizer = Optimizer(self.model, config.weight_decay)
        self.at = Progress()
        self._documents: list[list[Document]] = []
        self._window: dict[str, float] = {}  # sums since the last line of the log
        self._interrupts = Interrupts()
        self._last_save = self._last_eval = time.monotonic()

    def run(self) -> Transformer:
        """Trains to the end of the budget from wherever the run stands, and saves.

        Ctrl-C and SIGTERM end it with KeyboardInterrupt once the step under way is done and saved.
        """
        self._last_save = self._last_eval = time.monotonic()
        with self._interrupts:
            try:
                while self.at.stage < len(self.config.stages):
                    self._run_stage(self.config.stages[self.at.stage])
            except KeyboardInterrupt:
                if not self._interrupts.torn:
                    self.save()
                raise
        return self.model.eval()

    def _run_stage(self, stage: Stage) -> None:
        with self._interrupts.hold():
            self._enter(stage)
        with Workers(self.model, self.ids.mask, self._num_workers) as self._workers:
            self._steps(stage)
        with self._interrupts.hold():
            self._leave()
        self.save()
        self._evaluate(stage)

    def _steps(self, stage: Stage) -> None:
        progress = self._stage_progress()
        while progress < 1.0:
            with self._interrupts.hold():
                begin = time.monotonic()
                sums = self._step(stage, progress)
                sums["elapsed"] = time.monotonic() - begin
                self.at.seconds += sums["elapsed"]
                for name, value in sums.items():
                    self._window[name] = self._window.get(name, 0.0) + value
            if self.at.step % self.config.log_every == 0:
                self._log(stage, progress)
            progress = self._stage_progress()
            if progress < 1.0:
                self._pause(stage)
        if self._window:
            self._log(stage, 1.0)

    def _enter(self, stage: Stage) -> None:
        if stage.objective == "joint" and not self.model.config.is_block_diffusion:
            self.model = convert(self.model, block_size=self.ids.block_size, mask_token_id=self.ids.mask)
            averages = self.optimizer.tensors()
            self.optimizer = Optimizer(self.model, self.config.weight_decay)
            self.optimizer.load_tensors(averages)

    def _leave(self) -> None:
        """Ends the stage and its pool: the next objective cuts documents into other batches."""
        self.at.stage, self.at.stage_step = self.at.stage + 1, 0
        self.at.pool += bool(self._documents)
        self.at.batch = self.at.pool_calls = 0
        self._documents = []

    def _stage_progress(self) -> float:
        """From 0 to 1 through the current stage, by steps or by the clock."""
        if self.config.steps is not None:
            return self.at.stage_step / self.config.stage_steps(self.at.stage)
        assert self.config.minutes is not None
        before = sum(s.share for s in self.config.stages[: self.at.stage])
        share = self.config.stages[self.at.stage].share
        # Below 0 where the budget grew after the stage was entered.
        return max(0.0, (self.at.seconds / (60 * self.config.minutes) - before) / share)

    def _step(self, stage: Stage, progress: float) -> dict[str, float]:
        """One optimiser step. -> what the log sums up."""
        batches = [self._next_batch(stage, progress) for _ in range(self.config.micro_batches)]
        self.model.train()
        values = self._workers.gradients(batches, self._weights(stage))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient is not finite after {self.at.step} steps; losses: {values}")
        self.optimizer.set_rate(stage.peak * stage.rate(self.at.stage_step, progress))
        self.optimizer.step()
        num_tokens = sum(batch.num_tokens for batch in batches)
        self.at.step += 1
        self.at.stage_step += 1
        self.at.tokens += num_tokens
        self.at.examples += sum(batch.work.causal.num for batch in batches)
        return {**values, "norm": norm.item(), "tokens": num_tokens, "n": 1}

    def _weights(self, stage: Stage) -> dict[str, float]:
        """Of the objective's terms."""
        return {
            "next": 1.0 if stage.objective == "ar" else self.config.next_weight,
            "masked": 1.0,
            "balance": self.config.balance_weight,
        }

    def _next_batch(self, stage: Stage, progress: float) -> Batch:
        if self.at.batch >= len(self._documents):
            self.at.pool += bool(self._documents)
            self.at.batch = 0
            self.at.pool_calls = stage.max_calls(progress)
            self._documents = self._load_pool()
        documents = self._documents[self.at.batch]
        rng = np.random.default_rng([self.config.seed, 1, self.at.pool, self.at.batch])
        self.at.batch += 1
        return collate(
            documents,
            objective=stage.objective,
            end_id=self.ids.end,
            mask_id=self.ids.mask,
            block_size=self.ids.block_size,
            noise=self.config.noise,
            fill_weight=self.config.fill_weight,
            prompt_weight=self.config.prompt_weight,
            rng=rng,
        )

    def _load_pool(self) -> list[list[Document]]:
        config, at = self.config, self.at
        stage = config.stages[at.stage]
        documents = pool(self.source, config.seed, at.pool, config.pool_size, at.pool_calls)
        rng = np.random.default_rng([config.seed, 0, at.pool])
        copies, block_size = config.noise.copies, self.ids.block_size
        return batches(documents, stage.rows, rng, lambda d: num_rows(d, stage.objective, block_size, copies))

    def _log(self, stage: Stage, progress: float) -> None:
        window, self._window = self._window, {}
        count, tokens, elapsed = (window.pop(name) for name in ("n", "tokens", "elapsed"))
        self._write(
            {
                "objective": stage.objective,
                **asdict(self.at),
                "progress": round(progress, 4),
                "max_calls": self.at.pool_calls,
                **{name: round(total / count, 5) for name, total in window.items()},
                "tokens_per_s": round(tokens / max(elapsed, 1e-9), 1),
            }
        )

    def _write(self, line: Line) -> None:
        self.folder.write(line)
        if self.report is not None:
            self.report(line)

    def _pause(self, stage: Stage) -> None:
        """Saves and evaluates when it is time."""
        if time.monotonic() - self._last_save >= self.config.save_every_s:
            self.save()
        every = self.config.eval_every_steps
        waited = time.monotonic() - self._last_eval
        if waited >= self.config.eval_every_s if every is None else self.at.step % every == 0:
            self._evaluate(stage)

    def _evaluate(self, stage: Stage) -> None:
        if self.evaluate is None:
            return
        self.model.eval()
        self.model.refresh()
        found = self.evaluate(self.model, stage.objective, self.config.eval_examples)
        self.model.refresh()
        self._last_eval = time.monotonic()
        self._write({"evaluation": stage.objective, "step": self.at.step, "tokens": self.at.tokens, **found})

    def save(self) -> None:
        """Writes the checkpoint, replacing the last one at once."""
        self.folder.save(self.model, self.optimizer, self.at, self._settings(), self._window)
        self._last_save = time.monotonic()

    def _settings(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self.config)))

    def resume(self) -> bool:
        """Takes up the run in the folder, if there is one. A run that was done goes on where the budget has grown.

        Raises CheckpointError where the checkpoint is broken, ConfigError where it is another run's: another seed,
        pool size or model. Other settings may change along the way; the log says so.
        """
        snapshot = self.folder.load()
        if snapshot is None:
            return False
        self._check_identity(snapshot)
        self.model = Transformer(snapshot.model_config)
        fill_model(self.model, snapshot.weights, self.folder.checkpoint)
        self.optimizer = Optimizer(self.model, self.config.weight_decay)
        try:
            self.optimizer.load_tensors(snapshot.averages)
        except CheckpointError as error:
            raise CheckpointError(f"{self.folder.checkpoint}: {error}") from error
        self.at, self._window = snapshot.progress, dict(snapshot.window)
        self._check_budget()
        self._reopen()
        self.folder.rewind(self.at.step)
        if self.at.stage < len(self.config.stages) and self.at.pool_calls:
            self._documents = self._load_pool()
        ours, theirs = self._settings(), snapshot.settings
        changed = {name: [theirs[name], ours[name]] for name in theirs if theirs[name] != ours.get(name)}
        if any(name not in _BUDGET for name in changed):
            self._write({"changed": changed, "step": self.at.step})
        return True

    def _check_identity(self, snapshot: Snapshot) -> None:
        where, settings = self.folder.path, self._settings()
        for name in _IDENTITY:
            if name in snapshot.settings and snapshot.settings[name] != settings[name]:
                was, now = snapshot.settings[name], settings[name]
                raise ConfigError(
                    f"the run in {where} has {name} {was}, not {now}; give that, or choose another folder"
                )
        self._check_shape(snapshot.model_config, f"the model of the run in {where}")

    def _check_shape(self, there: ModelConfig, whose: str) -> None:
        """Raises ConfigError where `there` is not this run's shape, converted or not yet."""
        theirs, ours = asdict(there), asdict(self._shape(converted=there.is_block_diffusion))
        if different := [f"{name} {theirs[name]}, not {ours[name]}" for name in ours if theirs[name] != ours[name]]:
            raise ConfigError(f"{whose} has {'; '.join(different)}; choose another folder")

    def _shape(self, *, converted: bool) -> ModelConfig:
        """Of the model that this run trains."""
        blocks = {"block_size": self.ids.block_size, "mask_token_id": self.ids.mask}
        return replace(self.trunk, **blocks) if converted else self.trunk

    def begin_with(self, model: Transformer, origin: Path) -> None:
        """Starts a new run from a model's weights, converted or not; a narrower one grows (`grow`).

        Raises ConfigError where its shape cannot become this run's.
        """
        assert self.at == Progress(), "a run that has begun keeps its weights"
        ours = self._shape(converted=model.config.is_block_diffusion)
        if model.config != ours:
            try:
                model = grow(model, ours, self.config.seed)
            except ConfigError as error:
                raise ConfigError(f"the model in {origin} has another shape: {error}") from error
        self.model = model
        self.optimizer = Optimizer(model, self.config.weight_decay)

    def _check_budget(self) -> None:
        """A budget that is spent already would end stages that have not begun."""
        steps, minutes = self.config.steps, self.config.minutes
        if self.at.stage >= len(self.config.stages) - 1:
            return
        if steps is not None and self.at.step >= steps:
            spent = f"taken {self.at.step} steps; a budget of {steps}"
        elif minutes is not None and self.at.seconds >= 60 * minutes:
            spent = f"taken {self.at.seconds / 60:.1f} minutes; a budget of {minutes:g}"
        else:
            return
        raise ConfigError(f"the run in {self.folder.path} has {spent} is spent; give a larger one")

    def _reopen(self) -> None:
        """Back into the last stage where the run was done and the budget has grown since."""
        last = len(self.config.stages) - 1
        if self.at.stage <= last:
            return
        self.at.stage = last
        if self.config.steps is not None:
            self.at.stage_step = self.at.step - sum(self.config.stage_steps(i) for i in range(last))
        if self._stage_progress() >= 1.0:
            self.at.stage, self.at.stage_step = last + 1, 0
