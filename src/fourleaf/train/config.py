"""Settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One objective for a share of the run's budget.

    objective: "ar" (next token over clean rows) or "joint" (masked blocks plus next token). share: of the budget.
    curriculum: (progress of the stage from which it holds, most calls in an answer), rising from progress 0.
    rows: flat rows of a batch at most. peak: learning rate after `warmup_steps`; from `decay_from` (progress) on it
    falls linearly to `floor` times that.
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
        begins = [begin for begin, _ in self.curriculum]
        if not begins or begins[0] != 0 or begins != sorted(begins):
            raise ConfigError(f"curriculum begins at {begins}; it must rise from 0")
        if not 0 <= self.decay_from <= 1:
            raise ConfigError(f"decay_from is {self.decay_from}; it must be in 0..1")

    def max_calls(self, progress: float) -> int:
        """Most calls in an answer at this progress of the stage."""
        return [calls for begin, calls in self.curriculum if progress >= begin][-1]

    def at_full_length(self) -> Stage:
        """The same stage without its easy beginning, for weights that have passed it."""
        return replace(self, curriculum=((0.0, self.curriculum[-1][1]),))

    def rate(self, step: int, progress: float) -> float:
        """Factor on the peak learning rate: warm-up by steps, then constant, then linear decay by progress."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        left = (1.0 - progress) / (1.0 - self.decay_from) if self.decay_from < 1 else 1.0
        return warm * max(self.floor, min(1.0, left))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A run: its stages, batch, objective and budget.

    Exactly one of `minutes` (time spent on steps, summed over resumes) and `steps` is the budget. A run by steps is
    bit-exact under resume on one device; a run by minutes reads a clock, so its schedule follows the machine's speed.
    micro_batches: batches whose gradients a step sums. judgements, puzzles: shares of the tokens that are
    question sheets and Sudoku grids.
    eval_every_steps: steps between evaluations, where they are not to follow the clock.
    """

    stages: tuple[Stage, ...]
    minutes: float | None = None
    steps: int | None = None
    seed: int = 0
    judgements: float = 0.0
    puzzles: float = 0.0
    pool_size: int = 1024
    micro_batches: int = 1
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
    eval_every_steps: int | None = None
    eval_examples: int = 100

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ConfigError("give either minutes or steps as the run's budget")
        budget = self.minutes if self.steps is None else self.steps
        if budget is not None and budget <= 0:
            raise ConfigError(f"the run's budget is {budget}; it must be above 0")
        for name, share in (("judgements", self.judgements), ("puzzles", self.puzzles)):
            if not 0 <= share < 1:
                raise ConfigError(f"{name} is {share}; it must be from 0 to below 1")
        if self.judgements + self.puzzles >= 1:
            raise ConfigError(f"judgements {self.judgements} and puzzles {self.puzzles} leave nothing for the rest")
        if self.micro_batches < 1:
            raise ConfigError(f"micro_batches is {self.micro_batches}; it must be at least 1")
        if self.eval_every_steps is not None and self.eval_every_steps < 1:
            raise ConfigError(f"eval_every_steps is {self.eval_every_steps}; it must be at least 1")
        total = sum(stage.share for stage in self.stages)
        if abs(total - 1) > 1e-6:
            raise ConfigError(f"the stages' shares sum to {total}; they must sum to 1")

    def stage_steps(self, stage: int) -> int:
        """Steps of a stage where the budget is in steps: its share, rounded so that the stages' steps sum up."""
        assert self.steps is not None
        begin, end = (sum(s.share for s in self.stages[:count]) for count in (stage, stage + 1))
        return max(1, round(self.steps * end) - round(self.steps * begin))
