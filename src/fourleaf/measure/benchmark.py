"""How fast the decode modes are beside each other, and beside `transformers` with the same weights.

One process, one request at a time, greedy. Every prompt is answered by all arms before the next one, in an order that
rotates from prompt to prompt, so that whatever else the machine does falls on all arms alike: read the ratios, not the
times. A clock runs from the prompt's ids to the last token's id; rendering and text are left out for every arm.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from fourleaf.checkpoint.files import write_json
from fourleaf.engine.core import Core
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import DEFAULT_THRESHOLD, GenerateParams
from fourleaf.measure import bootstrap, profile
from fourleaf.measure.baseline import Baseline
from fourleaf.measure.bootstrap import Interval, Paired
from fourleaf.measure.circumstances import Ticker, circumstances
from fourleaf.measure.evaluate import check_set, check_writable, examples_of
from fourleaf.measure.tables import percent, points, table, times
from fourleaf.measure.timing import PASS, Cost, Forward, Timed, core_of, costs, mean_after_prefill, timed
from fourleaf.tasks.cabin.schema import Example, messages, same_answer

AR, DIFFUSE, TRANSFORMERS = "ar", "diffuse", "transformers"
# Canvases shorter than a block come up only at a limit on tokens; these are timed on the side, on every fourth prompt.
SHORT_CANVASES = (8, 16)
_WARM_UP = 3


@dataclass(frozen=True)
class Speed:
    """An arm on all prompts. Tokens count up to and including the end token; times in s and ms as named."""

    tokens: int
    seconds: float
    tokens_per_s: Interval
    tokens_per_s_after_prefill: Interval
    first_token_ms: float
    prefill_ms: float
    exact: Interval
    tpf: float | None
    rows_per_token: float | None


@dataclass(frozen=True)
class SpeedUp:
    """How many times the tokens a second of `base` an arm makes, prompts resampled in pairs."""

    base: str
    with_prefill: Interval
    after_prefill: Interval


@dataclass
class Benchmark:
    """Everything measured in one run."""

    arms: dict[str, Speed]
    speed_ups: dict[str, SpeedUp]
    forwards: dict[str, Cost]
    ar_step_ms: float
    diffuse_forward_ms: float
    passes: dict[int, int]
    exact_paired: Paired
    same_as_transformers: int | None = None
    transformers: dict[str, Any] = field(default_factory=dict)

    @property
    def break_even_tpf(self) -> float:
        """The tokens a forward from which `diffuse` pays: what its forwards cost on average, in `ar` steps."""
        return self.diffuse_forward_ms / self.ar_step_ms

    @property
    def passes_per_block(self) -> float:
        return sum(p * n for p, n in self.passes.items()) / sum(self.passes.values())

    def document(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "break_even_tpf": self.break_even_tpf,
            "passes_per_block": self.passes_per_block,
        }


def run(
    engine: Engine,
    examples: Sequence[Example],
    *,
    threshold: float = DEFAULT_THRESHOLD,
    max_tokens: int = 512,
    with_transformers: bool = True,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Benchmark:
    """Times every arm on every example. Raises RequestError for an AR model: it has no `diffuse` to compare."""
    prompts = [engine.chat.render(messages(example)) for example in examples]
    diffuse = GenerateParams(mode=DIFFUSE, threshold=threshold, max_tokens=max_tokens)
    core = core_of(engine)
    engine.admit(prompts[0], diffuse)  # an AR model is refused before anything is built
    runners: dict[str, Callable[[list[int]], Timed]] = {
        AR: lambda prompt: timed(engine, prompt, replace(diffuse, mode=AR), core),
        DIFFUSE: lambda prompt: timed(engine, prompt, diffuse, core),
    }
    about: dict[str, Any] = {}
    warm = prompts[:_WARM_UP]
    if with_transformers:
        baseline = Baseline(engine)
        baseline.settle(warm, max_tokens)
        about = {"version": baseline.version, "attention": baseline.attention, "driver": baseline.driver}
        about["ms_per_token_of_each_way"] = baseline.trials
        runners[TRANSFORMERS] = lambda prompt: _of_baseline(baseline, prompt, max_tokens)
    for prompt in warm:
        for name in (AR, DIFFUSE):
            runners[name](prompt)
    found, short = _rotate(engine, prompts, runners, diffuse, progress, core)
    return _summary(engine, examples, found, short, about, seed)


def _rotate(
    engine: Engine,
    prompts: list[list[int]],
    runners: dict[str, Callable[[list[int]], Timed]],
    diffuse: GenerateParams,
    progress: Callable[[int, int, str], None] | None,
    core: Core | None = None,
) -> tuple[dict[str, list[Timed]], list[Forward]]:
    """(answers by arm, passes of canvases shorter than a block)."""
    names = list(runners)
    found: dict[str, list[Timed]] = {name: [] for name in names}
    short: list[Forward] = []
    gc.collect()
    gc.freeze()  # what is there stays: collections between prompts need not look at it
    gc.disable()  # a collection in between would fall on one arm
    try:
        for index, prompt in enumerate(prompts):
            turn = index % len(names)
            for name in names[turn:] + names[:turn]:
                found[name].append(runners[name](prompt))
            if index % 4 == 0:
                for rows in SHORT_CANVASES:
                    cut = timed(engine, prompt, replace(diffuse, max_tokens=rows), core)
                    short += [f for f in cut.forwards if f.kind == f"{PASS} of {rows}"]
            gc.collect()
            if progress is not None:
                progress(index + 1, len(prompts), "bench")
    finally:
        gc.enable()
        gc.unfreeze()
    return found, short


def _of_baseline(baseline: Baseline, prompt: list[int], max_tokens: int) -> Timed:
    answer = baseline.run(prompt, max_tokens)
    return Timed(answer.tokens, answer.seconds, answer.prefill_seconds, answer.prefill_seconds)


def _summary(
    engine: Engine,
    examples: Sequence[Example],
    found: dict[str, list[Timed]],
    short: list[Forward],
    about: dict[str, Any],
    seed: int,
) -> Benchmark:
    right = {name: [_is_right(engine, e, a) for e, a in zip(examples, found[name], strict=True)] for name in found}
    blocks = Counter(p for answer in found[DIFFUSE] for p in answer.passes_per_block)
    same = None
    if TRANSFORMERS in found:
        same = sum(a.tokens == b.tokens for a, b in zip(found[AR], found[TRANSFORMERS], strict=True))
    ups = {AR: (TRANSFORMERS, AR), DIFFUSE: (AR, DIFFUSE)}
    return Benchmark(
        arms={name: _speed(answers, right[name], seed) for name, answers in found.items()},
        speed_ups={arm: _speed_up(found, *pair, seed) for arm, pair in ups.items() if pair[0] in found},
        forwards=costs([f for a in (*found[AR], *found[DIFFUSE]) for f in a.forwards] + short),
        ar_step_ms=mean_after_prefill(found[AR]),
        diffuse_forward_ms=mean_after_prefill(found[DIFFUSE]),
        passes=dict(sorted(blocks.items())),
        exact_paired=bootstrap.paired(right[AR], right[DIFFUSE], seed),
        same_as_transformers=same,
        transformers=about,
    )


def _is_right(engine: Engine, example: Example, answer: Timed) -> bool:
    tokens = answer.tokens[:-1] if answer.tokens[-1:] == [engine.end_id] else answer.tokens
    return same_answer(example, engine.tokenizer.decode(tokens))


def _speed(answers: list[Timed], right: list[bool], seed: int) -> Speed:
    tokens = [len(a.tokens) for a in answers]
    usages = [a.usage for a in answers if a.usage is not None]
    forwards = sum(u.forwards for u in usages)
    return Speed(
        tokens=sum(tokens),
        seconds=sum(a.seconds for a in answers),
        tokens_per_s=bootstrap.ratio(tokens, [a.seconds for a in answers], seed),
        tokens_per_s_after_prefill=bootstrap.ratio(tokens, [a.seconds_after_prefill for a in answers], seed),
        first_token_ms=1e3 * sum(a.first_seconds for a in answers) / len(answers),
        prefill_ms=1e3 * sum(a.prefill_seconds for a in answers) / len(answers),
        exact=bootstrap.mean(right, seed),
        tpf=sum(tokens) / forwards if forwards else None,
        rows_per_token=sum(u.rows for u in usages) / sum(tokens) if usages else None,
    )


def _speed_up(found: dict[str, list[Timed]], base: str, arm: str, seed: int) -> SpeedUp:
    def against(seconds: Callable[[Timed], float]) -> Interval:
        pairs = [([len(a.tokens) for a in found[n]], [seconds(a) for a in found[n]]) for n in (base, arm)]
        return bootstrap.ratio_of_ratios(pairs[0], pairs[1], seed)

    return SpeedUp(base, against(lambda a: a.seconds), against(lambda a: a.seconds_after_prefill))


def lines(found: Benchmark) -> list[str]:
    """The run as tables."""
    rows = [["arm", "tokens/s", "after prefill", "first token ms", "prefill ms", "TPF", "rows a token", "exact match"]]
    for name, speed in found.arms.items():
        rows.append(
            [
                name,
                f"{speed.tokens_per_s.value:.1f}",
                f"{speed.tokens_per_s_after_prefill.value:.1f}",
                f"{speed.first_token_ms:.1f}",
                f"{speed.prefill_ms:.1f}",
                "-" if speed.tpf is None else f"{speed.tpf:.2f}",
                "-" if speed.rows_per_token is None else f"{speed.rows_per_token:.2f}",
                percent(speed.exact),
            ]
        )
    shown = [*table(rows), ""]
    rows = [["tokens/s, paired by prompt", "with prefill", "after prefill"]]
    for arm, up in found.speed_ups.items():
        rows.append([f"{arm} against {up.base}", times(up.with_prefill), times(up.after_prefill)])
    shown += [*table(rows), ""]
    rows = [["forward", "mean ms", "median ms", "ar steps", "rows", "times"]]
    for kind, cost in found.forwards.items():
        steps = f"{cost.mean_ms / found.ar_step_ms:.2f}"
        rows.append([kind, f"{cost.mean_ms:.2f}", f"{cost.median_ms:.2f}", steps, f"{cost.rows:.0f}", f"{cost.count}"])
    shown += [*table(rows), ""]
    histogram = ", ".join(f"{passes}: {blocks}" for passes, blocks in found.passes.items())
    pair = found.exact_paired
    shown += [
        f"break-even TPF {found.break_even_tpf:.2f} (mean diffuse forward {found.diffuse_forward_ms:.2f} ms, "
        f"ar step {found.ar_step_ms:.2f} ms)",
        f"passes a block {found.passes_per_block:.2f}; blocks by passes {histogram}",
        f"diffuse - ar, exact match: {points(pair.difference)}; right: both {pair.both}, only ar {pair.only_first}, "
        f"only diffuse {pair.only_second}, neither {pair.neither}",
    ]
    if found.same_as_transformers is not None:
        ways = ", ".join(f"{way} {ms:.2f}" for way, ms in found.transformers["ms_per_token_of_each_way"].items())
        shown += [
            f"ar gave the tokens of transformers on {found.same_as_transformers} of {pair.difference.n} prompts",
            f"transformers {found.transformers['version']} ran with {found.transformers['attention']} attention by "
            f"{found.transformers['driver']}, the fastest of its ways in ms a token: {ways}",
        ]
    return shown


def main_bench(
    set_name: str,
    *,
    model: Path | None,
    count: int,
    max_tokens: int,
    threshold: float,
    num_threads: int,
    with_transformers: bool,
    with_profile: bool,
    seed: int,
    json_file: Path | None,
    out: TextIO,
    progress: TextIO,
) -> None:
    """`fourleaf bench`. Raises ConfigError or RequestError for a setting outside its limits."""
    GenerateParams(threshold=threshold, max_tokens=max_tokens)  # its limits, before anything is loaded
    check_set(set_name)
    check_writable(json_file)
    path = model or bundled_path()
    engine = Engine.load(path, num_threads=num_threads)
    about = circumstances(engine, path)
    examples = examples_of(set_name, count)
    ticker = Ticker(progress)
    try:
        found = run(
            engine,
            examples,
            threshold=threshold,
            max_tokens=max_tokens,
            with_transformers=with_transformers,
            seed=seed,
            progress=ticker,
        )
    finally:
        ticker.close()
    how = f"one at a time, greedy, threshold {threshold:g}, threads {num_threads}"
    print(f"{len(examples)} prompts of {set_name}, {how}\n", *lines(found), sep="\n", file=out)
    document = {**about, "set": set_name, "prompts": len(examples), "threshold": threshold, "max_tokens": max_tokens}
    document |= {"seed": seed, **found.document()}
    if with_profile:
        parts = profile.profiles(engine, engine.chat.render(messages(examples[0])))
        for part in parts:
            print("", *profile.lines(part), sep="\n", file=out)
        document["profile"] = [asdict(part) for part in parts]
    if json_file is not None:
        write_json(json_file, document)
