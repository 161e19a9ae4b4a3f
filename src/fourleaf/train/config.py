"""Settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field

from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One objective for a share of the run's budget.

    objective: "ar" (next token over clean rows) or "joint" (masked blocks plus next token). share: of the budget.
    curriculum: (progress of the stage from which it holds, most calls in an answer), rising.
    rows: flat rows of a batch at most. peak: learning rate after warm-up; it falls linearly to `floor` times that from `decay_from` (progress) on.
    """

    objective: str
    share: float
    curriculum: tuple[tuple[float, int], ...] = ((0.0, 8),)
    rows: int = 1024
    peak: float = 3e-3
    warmup_steps: int = 50
    decay_from: float = 0.5
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.objective not in ("ar", "joint"):
            raise ConfigError(f"objective is {self.objective!r}; it must be 'ar' or 'joint'")
        if not 0 < self.share <= 1:
            raise ConfigError(f"share is {self.share}; it must be in (0, 1]")

    def max_calls(self, progress: float) -> int:
        return [calls for begin, calls in self.curriculum if progress >= begin][-1]

    def rate(self, step: int, progress: float) -> float:
        """Factor on the peak learning rate: warm-up by steps, then constant, then linear decay by progress."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        left = (1.0 - progress) / (1.0 - self.decay_from) if self.decay_from < 1 else 1.0
        return warm * max(self.floor, min(1.0, left))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A run: its stages, batch, objective and budget.

    Exactly one of `minutes` (time at the machine, summed over resumes) and `steps` is the budget. A run by steps is
    bit-exact under resume on one device; a run by minutes reads a clock, so its schedule follows the machine's speed.
    """

    stages: tuple[Stage, ...]
    minutes: float | None = None
    steps: int | None = None
    seed: int = 0
    pool_size: int = 1024
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    next_weight: float = 0.5
    fill_weight: float = 0.1
    prompt_weight: float = 0.0
    balance_weight: float = 0.01
    clip_norm: float = 1.0
    weight_decay: float = 0.01
    log_every: int = 20
    save_every_s: float = 180.0
    eval_every_s: float = 600.0
    eval_examples: int = 100

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ConfigError("give either minutes or steps as the run's budget")
        total = sum(stage.share for stage in self.stages)
        if abs(total - 1) > 1e-6:
            raise ConfigError(f"the stages' shares sum to {total}; they must sum to 1")
