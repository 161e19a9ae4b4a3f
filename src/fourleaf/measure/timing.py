"""One answer at a time under a clock: when each forward ended, and what it was."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from fourleaf.engine.decode import Decoding, Request
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams, Usage

PREFILL, AR_STEP, PASS = "prefill", "ar step", "pass"


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


def timed(engine: Engine, prompt: list[int], params: GenerateParams) -> Timed:
    """Decodes one prompt alone."""
    request = engine.admit(prompt, params)
    begin = time.perf_counter()
    decoding = Decoding(engine.model, [request], engine.end_id, engine.mask_id)
    found = Timed([], 0.0, 0.0, 0.0)
    num_blocks = passes = 0
    last = begin
    while request.finish_reason is None:
        kind, rows = _next_forward(engine, request)
        news = decoding.step()
        now = time.perf_counter()
        found.forwards.append(Forward(kind, rows, now - last))
        found.prefill_seconds = found.prefill_seconds or now - begin
        for _, delta in news:
            found.tokens += delta.tokens
            found.usage = delta.usage or found.usage
            ended = delta.finish_reason == "stop"
            if delta.tokens or ended:
                found.first_seconds = found.first_seconds or now - begin
            if ended:
                found.tokens.append(engine.end_id)
        if request.num_blocks > num_blocks:
            found.passes_per_block.append(request.passes - passes)
            num_blocks, passes = request.num_blocks, request.passes
        found.seconds = now - begin
        last = time.perf_counter()
    return found


def _next_forward(engine: Engine, request: Request) -> tuple[str, int]:
    """(kind, rows) of the forward that comes next."""
    causal, canvas = len(request.pending), 0
    if request.params.mode == "diffuse":
        block_size = engine.model.config.block_size
        assert block_size is not None
        left = min(block_size, request.max_tokens - request.num_committed)
        canvas = left if request.canvas is None else len(request.canvas.tokens)
    if not request.is_prefilled:
        return (f"{PREFILL} + {PASS}" if canvas else PREFILL), causal + canvas
    if not canvas:
        return AR_STEP, causal
    return (f"commit of {causal} + {PASS} of {canvas}" if causal else f"{PASS} of {canvas}"), causal + canvas


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
