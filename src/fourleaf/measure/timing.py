"""One answer at a time under a clock: when each forward ended, what it was, and how much of it was the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from fourleaf.engine.core import Core, Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import Delta, GenerateParams, Usage
from fourleaf.engine.sequence import Need
from fourleaf.model.state import State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Work

PREFILL, AR_STEP, PASS, VERIFY = "prefill", "ar step", "pass", "verify"


@dataclass(frozen=True)
class Forward:
    """One forward and everything that was done with its logits. rows: what went through the model. model_seconds: the
    part of `seconds` that is the model itself: its layers, its head, and states moved on behind a verification."""

    kind: str
    rows: int
    seconds: float
    model_seconds: float = 0.0


@dataclass
class Timed:
    """One answer. `tokens` as committed, up to and including the end token where there is one.

    first_seconds: until the first committed token; prefill_seconds: until the prompt's forward had ended, which in
    `diffuse` carries the first pass along.
    """

    tokens: list[int]
    seconds: float
    prefill_seconds: float
    first_seconds: float
    forwards: list[Forward] = field(default_factory=list)
    passes_per_block: list[int] = field(default_factory=list)
    usage: Usage | None = None

    @property
    def seconds_after_prefill(self) -> float:
        return self.seconds - self.prefill_seconds


class Clocked:
    """A model that adds up the seconds spent in it. Everything else about it is the model's own."""

    def __init__(self, model: Transformer, clock: Callable[[], float] = time.perf_counter) -> None:
        self.model, self.clock = model, clock
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, work: Work, state: State) -> tuple[Tensor, list[Tensor]]:
        advance = state.advance

        def clocked(accepted: Sequence[int]) -> None:
            self._run(advance, accepted)

        state.advance = clocked
        return self._run(self.model, work, state)

    def head(self, hidden: Tensor) -> Tensor:
        return self._run(self.model.head, hidden)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        begin = self.clock()
        try:
            return function(*arguments)
        finally:
            self.seconds += self.clock() - begin


class TimedCore(Core):
    """A core that knows how long its model took. reuse: whether requests find what earlier ones left."""

    def __init__(
        self, model: Transformer, clock: Callable[[], float] = time.perf_counter, *, reuse: bool = False
    ) -> None:
        self.clocked = Clocked(model, clock)
        super().__init__(cast("Transformer", self.clocked), Limits(reuse=reuse))

    @property
    def model_seconds(self) -> float:
        return self.clocked.seconds


def core_of(engine: Engine) -> TimedCore:
    """A core in the place of the engine's own, which `auto` asks how many requests there are."""
    engine.core = core = TimedCore(engine.model)
    return core


def timed(engine: Engine, prompt: list[int], params: GenerateParams, core: TimedCore | None = None) -> Timed:
    """Decodes one prompt alone, on a core that is idle; a new one by default."""
    core = core or core_of(engine)
    sequence = engine.admit(prompt, params)
    found = Timed([], 0.0, 0.0, 0.0)
    news: list[Delta | BaseException] = []
    begin = last = time.perf_counter()
    core.submit(sequence, news.append)
    num_blocks = passes = 0
    in_model = core.model_seconds
    while core.step():
        now = time.perf_counter()
        (part,) = core.last
        kind = kind_of(part.need, is_prefill=not found.prefill_seconds)
        found.forwards.append(Forward(kind, part.need.num_rows, now - last, core.model_seconds - in_model))
        if not sequence.is_prefilling:
            found.prefill_seconds = found.prefill_seconds or now - begin
        for delta in news:
            if isinstance(delta, BaseException):
                raise delta
            found.tokens += delta.tokens
            found.usage = delta.usage or found.usage
            ended = delta.finish_reason == "stop"
            if delta.tokens or ended:
                found.first_seconds = found.first_seconds or now - begin
            if ended:
                found.tokens.append(engine.end_id)
        news.clear()
        usage = sequence.usage()
        if usage.blocks > num_blocks:
            found.passes_per_block.append(usage.passes - passes)
            num_blocks, passes = usage.blocks, usage.passes
        found.seconds = now - begin
        in_model, last = core.model_seconds, time.perf_counter()
    return found


def kind_of(need: Need, *, is_prefill: bool = False) -> str:
    """What a forward is called."""
    causal, canvas = len(need.causal), 0 if need.canvas is None else len(need.canvas)
    if is_prefill:
        return f"{PREFILL} + {PASS}" if canvas else PREFILL
    if need.is_held:
        return VERIFY  # of as many rows as there was hope for: any number, and each is rare
    if not canvas:
        return AR_STEP if causal == 1 else f"commit of {causal}"
    return f"commit of {causal} + {PASS} of {canvas}" if causal else f"{PASS} of {canvas}"


@dataclass(frozen=True)
class Cost:
    """What a kind of forward costs, in ms, over `count` of them; model_ms: the model alone, without what comes before
    and behind it. rows: on average."""

    mean_ms: float
    median_ms: float
    model_ms: float
    count: int
    rows: float


def costs(forwards: Iterable[Forward]) -> dict[str, Cost]:
    """By kind, those that took longest in all first."""
    kinds: dict[str, list[Forward]] = {}
    for forward in forwards:
        kinds.setdefault(forward.kind, []).append(forward)
    found = {}
    for kind, alike in sorted(kinds.items(), key=lambda item: -sum(f.seconds for f in item[1])):
        times, num = sorted(1e3 * f.seconds for f in alike), len(alike)
        model_ms = 1e3 * sum(f.model_seconds for f in alike) / num
        found[kind] = Cost(sum(times) / num, times[num // 2], model_ms, num, sum(f.rows for f in alike) / num)
    return found


def mean_after_prefill(answers: Iterable[Timed]) -> float:
    """Mean cost in ms of the forwards after prefill. NaN where there is none."""
    times = [1e3 * f.seconds for a in answers for f in a.forwards if not f.kind.startswith(PREFILL)]
    return sum(times) / len(times) if times else float("nan")
