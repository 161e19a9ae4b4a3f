"""How fast the decode modes are beside each other, and beside `transformers` with the same weights: one at a time.

One process, one request at a time. Every prompt is answered by all arms before the next one, in an order that rotates
from prompt to prompt, so that whatever else the machine does falls on all arms alike: read the ratios, not the times. A
clock runs from the prompt's ids to the last token's id; rendering and text are left out for every arm.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.engine.score import score
from fourleaf.measure import bootstrap
from fourleaf.measure.baseline import Baseline
from fourleaf.measure.bootstrap import Interval, Paired
from fourleaf.measure.timing import PASS, Cost, Forward, Timed, TimedCore, core_of, costs, mean_after_prefill, timed
from fourleaf.measure.workloads import Workload

AR, DRAFT, DIFFUSE, AUTO, MIXED, TRANSFORMERS = "ar", "draft", "diffuse", "auto", "mixed auto", "transformers"
HELD_AR, HELD_DRAFT, HELD_DIFFUSE = "held ar", "held draft", "held diffuse"
# Those without "held" go without the grammar of own tools, as `transformers` does.
ARMS: dict[str, dict[str, Any]] = {
    AR: {"mode": "ar", "grammar": False},
    DRAFT: {"mode": "draft", "grammar": False},
    DIFFUSE: {"mode": "diffuse", "grammar": False},
    AUTO: {"mode": "auto", "grammar": False},
    MIXED: {"mode": "auto", "grammar": False, "lossless": False},
    HELD_AR: {"mode": "ar", "grammar": True},
    HELD_DRAFT: {"mode": "draft", "grammar": True},
    HELD_DIFFUSE: {"mode": "diffuse", "grammar": True},
}
# Canvases shorter than a block come up only at a limit on tokens; these are timed on the side, on every fourth prompt.
SHORT_CANVASES = (8, 16)
_WARM_UP = 3

Runner = Callable[[int], Timed]  # answers the prompt of this index


@dataclass(frozen=True)
class Speed:
    """An arm on all prompts. Tokens count up to and including the end token; times in s and ms as named.

    exact: share right, where answers are right or wrong. nats: mean surprise of a token to the causal model, where they
    are drawn. same_as_ar: answers with the tokens of `ar`, where they are greedy. break_even_tpf: the tokens a forward
    from which the arm pays, its mean forward in `ar` steps. stood: of the proposals that were verified, the share that
    stood. modes: what `auto` chose, how often.
    """

    tokens: int
    seconds: float
    tokens_per_s: Interval
    tokens_per_s_after_prefill: Interval
    first_token_ms: float
    prefill_ms: float
    exact: Interval | None
    nats: Interval | None
    same_as_ar: int | None
    tpf: float | None = None
    rows_per_token: float | None = None
    forward_ms: float | None = None
    break_even_tpf: float | None = None
    passes_per_block: float | None = None
    tokens_per_block: float | None = None
    stood: float | None = None
    modes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SpeedUp:
    """How many times the tokens a second of another arm an arm makes, prompts resampled in pairs."""

    with_prefill: Interval
    after_prefill: Interval


@dataclass
class Benchmark:
    """Everything measured in one run. speed_ups: by "ARM against ARM". passes: blocks of `diffuse` by passes."""

    arms: dict[str, Speed]
    speed_ups: dict[str, SpeedUp]
    forwards: dict[str, Cost]
    passes: dict[int, int]
    exact_paired: dict[str, Paired]
    transformers: dict[str, Any] = field(default_factory=dict)

    @property
    def num_prompts(self) -> int:
        return self.arms[AR].tokens_per_s.n

    def document(self) -> dict[str, Any]:
        return asdict(self)


def run(
    engine: Engine,
    work: Workload,
    *,
    arms: Sequence[str] = tuple(ARMS),
    with_transformers: bool = True,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Benchmark:
    """Times every arm on every prompt; `ar` is always one. Raises RequestError for an AR model, which has no other."""
    chosen = [AR, *feasible(engine, work, arms)]
    params = {name: replace(work.params, **ARMS[name]) for name in ARMS if name in chosen}
    core = core_of(engine)
    for one in params.values():
        engine.admit(work.prompts[0], one)  # an AR model is refused here; `auto` times its forwards
    runners = {name: _runner(engine, work, one, core) for name, one in params.items()}
    warm = range(min(_WARM_UP, len(work.prompts)))
    about: dict[str, Any] = {}
    if with_transformers:
        baseline = Baseline(engine)
        baseline.temperature = work.params.temperature
        baseline.banned += [token for token, _ in work.params.logit_bias if token not in baseline.banned]
        baseline.settle([work.prompts[i] for i in warm], work.params.max_tokens)
        about = {"version": baseline.version, "attention": baseline.attention, "driver": baseline.driver}
        about["ms_per_token_of_each_way"] = baseline.trials
        runners[TRANSFORMERS] = lambda i: _of_baseline(baseline, work.prompts[i], work.params.max_tokens)
    for index in warm:
        for name in params:
            runners[name](index)
    found, short = _rotate(engine, work, runners, core, progress)
    return _summary(engine, work, found, short, about, seed)


def feasible(engine: Engine, work: Workload, arms: Sequence[str]) -> list[str]:
    """Those of the arms that mean something: the held ones want a model with tools of its own, and prompts that call
    for them."""
    can_hold = engine.taught is not None and work.examples is not None
    return [arm for arm in arms if can_hold or not ARMS[arm]["grammar"]]


def _runner(engine: Engine, work: Workload, params: GenerateParams, core: TimedCore) -> Runner:
    return lambda i: timed(engine, work.prompts[i], work.of(i, params), core)


def _rotate(
    engine: Engine,
    work: Workload,
    runners: dict[str, Runner],
    core: TimedCore,
    progress: Callable[[int, int, str], None] | None,
) -> tuple[dict[str, list[Timed]], list[Forward]]:
    """(answers by arm, passes of canvases shorter than a block)."""
    names = list(runners)
    found: dict[str, list[Timed]] = {name: [] for name in names}
    short: list[Forward] = []
    gc.collect()
    gc.freeze()  # what is there stays: collections between prompts need not look at it
    gc.disable()  # a collection in between would fall on one arm
    try:
        for index, prompt in enumerate(work.prompts):
            turn = index % len(names)
            for name in names[turn:] + names[:turn]:
                found[name].append(runners[name](index))
            if index % 4 == 0:
                for rows in SHORT_CANVASES:
                    cut = timed(engine, prompt, replace(work.params, **ARMS[DIFFUSE], max_tokens=rows), core)
                    short += [f for f in cut.forwards if f.kind == f"{PASS} of {rows}"]
            gc.collect()
            if progress is not None:
                progress(index + 1, len(work.prompts), work.name)
    finally:
        gc.enable()
        gc.unfreeze()
    return found, short


def _of_baseline(baseline: Baseline, prompt: list[int], max_tokens: int) -> Timed:
    answer = baseline.run(prompt, max_tokens)
    return Timed(answer.tokens, answer.seconds, answer.prefill_seconds, answer.prefill_seconds)


def _summary(
    engine: Engine,
    work: Workload,
    found: dict[str, list[Timed]],
    short: list[Forward],
    about: dict[str, Any],
    seed: int,
) -> Benchmark:
    own = [name for name in found if name != TRANSFORMERS]
    right: dict[str, list[bool]] = {}
    if work.examples is not None:
        right = {n: [work.is_right(engine, i, a.tokens) for i, a in enumerate(found[n])] for n in found}
    step_ms = mean_after_prefill(found[AR])
    speeds = {name: _speed(engine, work, found[name], found[AR], right.get(name), step_ms, seed) for name in found}
    pairs = [(AR, TRANSFORMERS), *((name, AR) for name in own if name != AR), (DIFFUSE, TRANSFORMERS)]
    singles = [name for name in (AR, DRAFT, DIFFUSE) if name in found]
    best = max(singles, key=lambda name: speeds[name].tokens_per_s.value)
    pairs += [(AUTO, best), (MIXED, best), (HELD_DRAFT, DRAFT), (HELD_DIFFUSE, DIFFUSE)]
    return Benchmark(
        arms=speeds,
        speed_ups={f"{a} against {b}": _speed_up(found[b], found[a], seed) for a, b in pairs if {a, b} <= set(found)},
        forwards=costs([f for name in own for a in found[name] for f in a.forwards] + short),
        passes=dict(sorted(Counter(p for a in found.get(DIFFUSE, []) for p in a.passes_per_block).items())),
        exact_paired={name: bootstrap.paired(right[AR], right[name], seed) for name in own if name != AR and right},
        transformers=about,
    )


def _speed(
    engine: Engine,
    work: Workload,
    answers: list[Timed],
    ar: list[Timed],
    right: list[bool] | None,
    step_ms: float,
    seed: int,
) -> Speed:
    tokens = [len(a.tokens) for a in answers]
    is_greedy = work.params.temperature == 0
    plain = Speed(
        tokens=sum(tokens),
        seconds=sum(a.seconds for a in answers),
        tokens_per_s=bootstrap.ratio(tokens, [a.seconds for a in answers], seed),
        tokens_per_s_after_prefill=bootstrap.ratio(tokens, [a.seconds_after_prefill for a in answers], seed),
        first_token_ms=1e3 * sum(a.first_seconds for a in answers) / len(answers),
        prefill_ms=1e3 * sum(a.prefill_seconds for a in answers) / len(answers),
        exact=None if right is None else bootstrap.mean(right, seed),
        nats=None if is_greedy else bootstrap.ratio(_surprises(engine, work, answers), tokens, seed),
        same_as_ar=sum(a.tokens == b.tokens for a, b in zip(answers, ar, strict=True)) if is_greedy else None,
    )
    usages = [a.usage for a in answers if a.usage is not None]
    if not usages:
        return plain
    forwards = sum(u.forwards for u in usages)
    blocks = 0 if any(u.modes for u in usages) else sum(u.blocks for u in usages)  # of `auto` no tokens of a block
    forward_ms = mean_after_prefill(answers)
    proposals = sum(u.proposals for u in usages)
    return replace(
        plain,
        tpf=sum(tokens) / forwards if forwards else None,
        rows_per_token=sum(u.rows for u in usages) / sum(tokens),
        forward_ms=forward_ms if forwards else None,
        break_even_tpf=forward_ms / step_ms if forwards else None,
        passes_per_block=sum(u.passes for u in usages) / blocks if blocks else None,
        tokens_per_block=sum(tokens) / blocks if blocks else None,
        stood=sum(u.stood for u in usages) / proposals if proposals else None,
        modes=dict(Counter[str](mode for u in usages for mode in u.modes)),
    )


def _surprises(engine: Engine, work: Workload, answers: list[Timed]) -> list[float]:
    """Minus the log-probability of each answer, by the causal model."""
    found = []
    for prompt, answer in zip(work.prompts, answers, strict=True):
        scores = score(engine.model, [*prompt, *answer.tokens], 0, engine.mask_id)[len(prompt) : -1]
        found.append(-sum(one.logprob for one in scores if one is not None))
    return found


def _speed_up(base: list[Timed], arm: list[Timed], seed: int) -> SpeedUp:
    def against(seconds: Callable[[Timed], float]) -> Interval:
        first, second = (([len(a.tokens) for a in answers], [seconds(a) for a in answers]) for answers in (base, arm))
        return bootstrap.ratio_of_ratios(first, second, seed)

    return SpeedUp(against(lambda a: a.seconds), against(lambda a: a.seconds_after_prefill))
