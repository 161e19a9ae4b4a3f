"""One answer at a time under a clock: when each forward ended, and what it was."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from fourleaf.engine.core import Core, Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import Delta, GenerateParams, Usage
from fourleaf.engine.sequence import Need

PREFILL, AR_STEP, PASS, VERIFY = "prefill", "ar step", "pass", "verify"


@dataclass(frozen=True)
class Forward:
    """One forward and everything that was done with its logits. rows: what went through the model."""

    kind: str
    rows: int
    seconds: float


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


def core_of(engine: Engine) -> Core:
    """Runs an engine's requests one by one, where none finds what an earlier one left."""
    return Core(engine.model, Limits(reuse=False))


def timed(engine: Engine, prompt: list[int], params: GenerateParams, core: Core | None = None) -> Timed:
    """Decodes one prompt alone, on a core that is idle; a new one by default."""
    core = core or core_of(engine)
    sequence = engine.admit(prompt, params)
    found = Timed([], 0.0, 0.0, 0.0)
    news: list[Delta | BaseException] = []
    begin = last = time.perf_counter()
    core.submit(sequence, news.append)
    num_blocks = passes = 0
    while core.step():
        now = time.perf_counter()
        (part,) = core.last
        found.forwards.append(
            Forward(kind_of(part.need, is_prefill=not found.prefill_seconds), part.need.num_rows, now - last)
        )
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
        last = time.perf_counter()
    return found


def kind_of(need: Need, *, is_prefill: bool = False) -> str:
    """What a forward is called."""
    causal, canvas = len(need.causal), 0 if need.canvas is None else len(need.canvas)
    if is_prefill:
        return f"{PREFILL} + {PASS}" if canvas else PREFILL
    if need.is_held:
        return f"{VERIFY} of {causal}"
    if not canvas:
        return AR_STEP if causal == 1 else f"commit of {causal}"
    return f"commit of {causal} + {PASS} of {canvas}" if causal else f"{PASS} of {canvas}"


@dataclass(frozen=True)
class Cost:
    """What a kind of forward costs, in ms, over `count` of them."""

    mean_ms: float
    median_ms: float
    count: int
    rows: float


def costs(forwards: Iterable[Forward]) -> dict[str, Cost]:
    """By kind, most frequent first."""
    kinds: dict[str, list[Forward]] = {}
    for forward in forwards:
        kinds.setdefault(forward.kind, []).append(forward)
    found = {}
    for kind, alike in sorted(kinds.items(), key=lambda item: -len(item[1])):
        times = sorted(1e3 * f.seconds for f in alike)
        rows = sum(f.rows for f in alike) / len(alike)
        found[kind] = Cost(sum(times) / len(times), times[len(times) // 2], len(times), rows)
    return found


def mean_after_prefill(answers: Iterable[Timed]) -> float:
    """Mean cost in ms of the forwards after prefill. NaN where there is none."""
    times = [1e3 * f.seconds for a in answers for f in a.forwards if not f.kind.startswith(PREFILL)]
    return sum(times) / len(times) if times else float("nan")
