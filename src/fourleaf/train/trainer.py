"""The training loop: stages, steps, log, checkpoints, exact resume.

Read `Trainer.run`, then `_step`. A checkpoint is one safetensors file: weights, the optimiser's averages, and in its
metadata where the run stands (stage, step, pool, batch). Nothing else decides what comes next: data and noise are
functions of the seed and those numbers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fourleaf.checkpoint.convert import convert
from fourleaf.checkpoint.files import read_tensors, write_tensors
from fourleaf.diffusion.objective import cross_entropy_sum, masked_cross_entropy_sum
from fourleaf.errors import CheckpointError
from fourleaf.model.config import ModelConfig
from fourleaf.model.moe import balance_loss
from fourleaf.model.transformer import Transformer
from fourleaf.train.config import Stage, TrainConfig
from fourleaf.train.data import Batch, Document, Source, batches, collate, num_rows, pool
from fourleaf.train.optim import Optimizer
from fourleaf.train.start import start_weights

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"
Evaluate = Callable[[Transformer, str, int], dict[str, float]]


@dataclass
class Progress:
    """Where a run stands. seconds: time spent training, summed over resumes, evaluation and saving left out."""

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
        report: Callable[[dict[str, float | int | str]], None] | None = None,
    ) -> None:
        self.config, self.source, self.ids, self.out = config, source, ids, out
        self.evaluate, self.report = evaluate, report
        torch.manual_seed(config.seed)
        self.model = Transformer(trunk)
        start_weights(self.model)
        self.optimizer = Optimizer(self.model, config.weight_decay)
        self.at = Progress()
        self._documents: list[list[Document]] = []
        self._last_save = self._last_eval = time.monotonic()

    def run(self) -> Transformer:
        """Trains to the end of the budget from wherever the run stands, and saves."""
        self.out.mkdir(parents=True, exist_ok=True)
        window: dict[str, float] = {}
        while self.at.stage < len(self.config.stages):
            stage = self.config.stages[self.at.stage]
            self._enter(stage)
            while (progress := self._stage_progress()) < 1.0:
                begin = time.monotonic()
                for name, value in self._step(stage, progress).items():
                    window[name] = window.get(name, 0.0) + value
                self.at.seconds += time.monotonic() - begin
                if self.at.step % self.config.log_every == 0:
                    self._log(stage, progress, window)
                    window = {}
                self._pause(stage)
            self.at.stage, self.at.stage_step = self.at.stage + 1, 0
            self._evaluate(stage)
            self.save()
        return self.model.eval()

    def _enter(self, stage: Stage) -> None:
        if stage.objective == "joint" and not self.model.config.is_block_diffusion:
            self.model = convert(self.model, block_size=self.ids.block_size, mask_token_id=self.ids.mask)
            averages = self.optimizer.tensors()
            self.optimizer = Optimizer(self.model, self.config.weight_decay)
            self.optimizer.load_tensors(averages)

    def _stage_progress(self) -> float:
        """0..1 through the current stage, by steps or by the clock."""
        before = sum(s.share for s in self.config.stages[: self.at.stage])
        share = self.config.stages[self.at.stage].share
        if self.config.steps is not None:
            return self.at.stage_step / max(1, round(self.config.steps * share))
        assert self.config.minutes is not None
        return (self.at.seconds / (60 * self.config.minutes) - before) / share

    def _step(self, stage: Stage, progress: float) -> dict[str, float]:
        """One optimiser step on one batch. -> sums for the log."""
        batch = self._next_batch(stage, progress)
        self.model.train()
        losses = self.losses(batch, stage)
        total = sum(losses.values(), torch.zeros(()))
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient is not finite at step {self.at.step}: {losses}")
        self.optimizer.set_rate(stage.peak * stage.rate(self.at.stage_step, progress))
        self.optimizer.step()
        self.at.step += 1
        self.at.stage_step += 1
        self.at.tokens += batch.num_tokens
        self.at.examples += batch.work.causal.num
        return {**{k: v.item() for k, v in losses.items()}, "norm": norm.item(), "tokens": batch.num_tokens, "n": 1}

    def losses(self, batch: Batch, stage: Stage) -> dict[str, Tensor]:
        """The weighted terms of the objective (design, section 6). One process and one micro-batch: its counts are
        the global ones."""
        hidden, routers = self.model(batch.work)
        logits = self.model.head(hidden[batch.next_rows])
        following = cross_entropy_sum(logits, batch.next_target, batch.next_weight) / batch.num_next
        terms = {"next": following if stage.objective == "ar" else self.config.next_weight * following}
        if batch.num_masked:
            logits = self.model.head(hidden[batch.masked_rows])
            masked = masked_cross_entropy_sum(logits, batch.masked_target, batch.masked_weight, self.ids.mask)
            terms["masked"] = masked / batch.num_masked
        if routers:
            top_k = self.model.config.num_experts_per_tok
            terms["balance"] = self.config.balance_weight * balance_loss(routers, top_k)
        return terms

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
        return batches(documents, stage.rows, rng, lambda d: num_rows(d, stage.objective, self.ids.block_size))

    def _log(self, stage: Stage, progress: float, window: dict[str, float]) -> None:
        count = window.pop("n")
        tokens = window.pop("tokens")
        means = {k: round(v / count, 5) for k, v in window.items()}
        elapsed = self.at.seconds - getattr(self, "_logged_at", 0.0)
        self._logged_at = self.at.seconds
        line = {"stage": self.at.stage, "objective": stage.objective, "progress": round(progress, 4), **asdict(self.at)}
        self._write({**line, **means, "max_calls": self.at.pool_calls, "tokens_per_s": round(tokens / max(elapsed, 1e-9), 1)})

    def _write(self, line: dict[str, float | int | str]) -> None:
        with (self.out / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        if self.report is not None:
            self.report(line)

    def _pause(self, stage: Stage) -> None:
        """Saves and evaluates when it is time."""
        now = time.monotonic()
        if now - self._last_save >= self.config.save_every_s:
            self.save()
            self._last_save = now
        if now - self._last_eval >= self.config.eval_every_s:
            self._evaluate(stage)
            self._last_eval = time.monotonic()

    def _evaluate(self, stage: Stage) -> None:
        if self.evaluate is None:
            return
        self.model.eval()
        self.model.refresh()
        found = self.evaluate(self.model, stage.objective, self.config.eval_examples)
        self.model.refresh()
        self._write({"evaluation": stage.objective, "step": self.at.step, "tokens": self.at.tokens, **found})

    def save(self) -> None:
        """Writes the checkpoint, replacing the last one at once."""
        weights = {f"model:{name}": t for name, t in self.model.named_tensors()}
        averages = {f"optim:{name}": t for name, t in self.optimizer.tensors().items()}
        metadata = {"progress": json.dumps(asdict(self.at)), "config": json.dumps(self.model.config.to_dict())}
        write_tensors(self.out / CHECKPOINT, weights | averages, metadata)

    def resume(self) -> bool:
        """Takes up the run in `out`, if there is one. Raises CheckpointError where its model has other shapes."""
        if not (self.out / CHECKPOINT).is_file():
            return False
        tensors, metadata = read_tensors(self.out / CHECKPOINT)
        self.model = Transformer(ModelConfig.from_dict(json.loads(metadata["config"])))
        self.optimizer = Optimizer(self.model, self.config.weight_decay)
        weights = {name.removeprefix("model:"): t for name, t in tensors.items() if name.startswith("model:")}
        try:
            with torch.no_grad():
                for name, parameter in self.model.named_tensors():
                    parameter.copy_(weights[name])
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(f"{self.out / CHECKPOINT} does not fit its own config: {error}") from error
        averages = {name.removeprefix("optim:"): t for name, t in tensors.items() if name.startswith("optim:")}
        self.optimizer.load_tensors(averages)
        self.at = Progress(**json.loads(metadata["progress"]))
        self._logged_at = self.at.seconds
        if self.at.stage < len(self.config.stages) and self.at.pool_calls:
            self._documents = self._load_pool()
        return True


def read_log(out: Path) -> Iterator[dict[str, float | int | str]]:
    """The lines of a run's log."""
    for line in (out / LOG).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)
