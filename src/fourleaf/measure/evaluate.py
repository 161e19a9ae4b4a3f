"""How often a model answers right: exact match on the cabin task's held-out sets, by decode mode and by tag.

Requests share forwards, some 32 of them at a time, sorted so that those of one batch end together. Sharing changes
sums in their last bits and nothing else: an answer differs from the one that `Engine.generate` gives alone only where
two tokens, or a confidence and the threshold, lie within rounding of each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from fourleaf.checkpoint.files import write_json
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import GenerateParams, Usage
from fourleaf.errors import ConfigError
from fourleaf.measure import bootstrap
from fourleaf.measure.bootstrap import Interval, Paired
from fourleaf.measure.circumstances import Ticker, circumstances
from fourleaf.measure.tables import percent, points, table
from fourleaf.tasks.cabin import testsets
from fourleaf.tasks.cabin.schema import Example, answer_text, messages, same_answer

BATCH = 32
MODES = ("ar", "diffuse", "both")
DEV = "dev"
SETS = (*testsets.NAMES, DEV)
ALL = "all"

# Called with (answers so far, answers in all, what is being measured).
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Arm:
    """One way to decode, with a name for tables."""

    name: str
    params: GenerateParams


@dataclass(frozen=True)
class Outcome:
    """One answer. `answer` is what was decoded, without the end token."""

    example: Example
    answer: str
    is_right: bool
    finish_reason: str
    usage: Usage


@dataclass(frozen=True)
class Score:
    """An arm on one set: exact match overall and by tag, and what decoding took."""

    exact: Interval
    tags: dict[str, Interval]
    tpf: Interval | None
    forwards: float
    rows_per_token: float
    cut: int

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], seed: int) -> Score:
        """outcomes: at least one. `tpf` is None where no answer needed a forward after its prefill."""
        right = [float(o.is_right) for o in outcomes]
        tags = sorted({tag for o in outcomes for tag in o.example.tags})
        by_tag = {tag: [float(o.is_right) for o in outcomes if tag in o.example.tags] for tag in tags}
        tokens = [o.usage.completion_tokens for o in outcomes]
        forwards = [o.usage.forwards for o in outcomes]
        return cls(
            exact=bootstrap.mean(right, seed),
            tags={tag: bootstrap.mean(values, seed) for tag, values in by_tag.items()},
            tpf=bootstrap.ratio(tokens, forwards, seed) if any(forwards) else None,
            forwards=sum(forwards) / len(forwards),
            rows_per_token=sum(o.usage.rows for o in outcomes) / sum(tokens),
            cut=sum(o.finish_reason == "length" for o in outcomes),
        )

    def document(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class SetReport:
    """All arms on one set. `paired` compares each `diffuse` arm with `ar`, where both ran."""

    name: str
    outcomes: dict[str, list[Outcome]]
    scores: dict[str, Score]
    paired: dict[str, Paired]

    def document(self) -> dict[str, object]:
        return {
            "arms": {arm: score.document() for arm, score in self.scores.items()},
            "paired": {arm: pair.document() for arm, pair in self.paired.items()},
        }


def arms(mode: str, thresholds: Sequence[float], max_tokens: int, seed: int, *, grammar: bool = True) -> list[Arm]:
    """The arms of a run; one `diffuse` arm a threshold. grammar: as in `GenerateParams`. Raises ConfigError for an
    unknown mode."""
    if mode not in MODES:
        raise ConfigError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
    plain = GenerateParams(mode="ar", max_tokens=max_tokens, seed=seed, grammar=grammar)
    found = [] if mode == "diffuse" else [Arm("ar", plain)]
    if mode != "ar":
        found += [Arm(f"diffuse {tau:g}", replace(plain, mode="diffuse", threshold=tau)) for tau in thresholds]
    return found


def check_set(name: str) -> None:
    """Raises ConfigError where there is no set of this name."""
    if name not in SETS:
        raise ConfigError(f"there is no set {name!r}; choose {', '.join(SETS)} or {ALL}")


def check_writable(file: Path | None) -> None:
    """Raises ConfigError where there is no folder to write `file` to: better before a long run than behind it."""
    if file is not None and not file.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent} to write {file.name} to")


def examples_of(name: str, limit: int | None = None) -> list[Example]:
    """The first `limit` examples of a set, or all. Raises ConfigError for an unknown set."""
    check_set(name)
    examples = testsets.dev() if name == DEV else testsets.build(name)
    return examples[:limit]


def decode_all(
    engine: Engine, examples: Sequence[Example], params: GenerateParams, progress: Callable[[int], None] | None = None
) -> list[Outcome]:
    """An outcome for each example, in their order. `progress` is told how many are done."""
    order = sorted(range(len(examples)), key=lambda i: len(answer_text(examples[i])))
    found: dict[int, Outcome] = {}
    for begin in range(0, len(order), BATCH):
        chosen = order[begin : begin + BATCH]
        prompts = [engine.chat.render(messages(examples[i])) for i in chosen]
        for i, (tokens, last) in zip(chosen, engine.generate_many(prompts, params), strict=True):
            assert last.usage is not None
            assert last.finish_reason is not None
            answer = engine.tokenizer.decode(tokens)
            right = same_answer(examples[i], answer)
            found[i] = Outcome(examples[i], answer, right, last.finish_reason, last.usage)
        if progress is not None:
            progress(len(found))
    return [found[i] for i in range(len(examples))]


def evaluate(
    engine: Engine,
    sets: Sequence[str],
    chosen: Sequence[Arm],
    *,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[SetReport]:
    """Every arm on every set. `seed` draws the bootstrap's resamples."""
    reports = []
    for name in sets:
        examples = examples_of(name, limit)
        outcomes = {}
        for arm in chosen:
            told = None if progress is None else _told(progress, len(examples), f"{name}, {arm.name}")
            outcomes[arm.name] = decode_all(engine, examples, arm.params, told)
        reports.append(_report(name, outcomes, seed))
    return reports


def _told(progress: Progress, total: int, what: str) -> Callable[[int], None]:
    return lambda done: progress(done, total, what)


def _report(name: str, outcomes: dict[str, list[Outcome]], seed: int) -> SetReport:
    scores = {arm: Score.of(found, seed) for arm, found in outcomes.items()}
    right = {arm: [o.is_right for o in found] for arm, found in outcomes.items()}
    others = [arm for arm in outcomes if arm != "ar"] if "ar" in outcomes else []
    return SetReport(name, outcomes, scores, {arm: bootstrap.paired(right["ar"], right[arm], seed) for arm in others})


def failures(reports: Iterable[SetReport]) -> Iterable[str]:
    """A JSON line for each wrong answer."""
    for report in reports:
        for arm, outcomes in report.outcomes.items():
            for outcome in outcomes:
                if not outcome.is_right:
                    yield json.dumps(
                        {
                            "set": report.name,
                            "arm": arm,
                            "utterance": outcome.example.utterance,
                            "wanted": answer_text(outcome.example),
                            "got": outcome.answer,
                            "finish_reason": outcome.finish_reason,
                            "tags": sorted(outcome.example.tags),
                        },
                        ensure_ascii=False,
                    )


def lines(report: SetReport) -> list[str]:
    """A set's table: exact match overall and by tag, then what decoding took, then the paired differences."""
    scores = report.scores
    first = next(iter(scores.values()))
    rows = [[report.name, "n", *scores], ["all", f"{first.exact.n}", *(percent(s.exact) for s in scores.values())]]
    for tag, interval in first.tags.items():
        rows.append([f"  {tag}", f"{interval.n}", *(percent(s.tags[tag]) for s in scores.values())])
    rows += [
        ["tokens a forward", "", *("-" if s.tpf is None else f"{s.tpf.value:.2f}" for s in scores.values())],
        ["forwards an answer", "", *(f"{s.forwards:.1f}" for s in scores.values())],
        ["rows a token", "", *(f"{s.rows_per_token:.2f}" for s in scores.values())],
        ["cut at max tokens", "", *(f"{s.cut}" for s in scores.values())],
    ]
    shown = table(rows)
    for arm, pair in report.paired.items():
        counts = f"both {pair.both}, only ar {pair.only_first}, only diffuse {pair.only_second}, neither {pair.neither}"
        shown.append(f"{arm} - ar: {points(pair.difference)}; right: {counts}")
    return shown


def main_eval(
    sets: str,
    mode: str,
    thresholds: Sequence[float],
    *,
    model: Path | None,
    limit: int | None,
    max_tokens: int,
    seed: int,
    num_threads: int | None,
    json_file: Path | None,
    failures_file: Path | None,
    grammar: bool = True,
    out: TextIO,
    progress: TextIO,
) -> None:
    """`fourleaf eval cabin`. Raises ConfigError or RequestError for a setting outside its limits, before it loads."""
    chosen = arms(mode, thresholds, max_tokens, seed, grammar=grammar)
    names = SETS if sets == ALL else (sets,)
    for name in names:
        check_set(name)
    check_writable(json_file)
    check_writable(failures_file)
    path = model or bundled_path()
    engine = Engine.load(path, num_threads=num_threads)
    about = circumstances(engine, path)
    ticker = Ticker(progress)
    try:
        reports = evaluate(engine, names, chosen, limit=limit, seed=seed, progress=ticker)
    finally:
        ticker.close()
    for report in reports:
        print("\n".join(lines(report)), end="\n\n", file=out)
    is_held = grammar and engine.taught is not None
    held = "answers held to the model's tools" if is_held else "answers free"
    print(f"exact match, 95% bootstrap intervals ({bootstrap.RESAMPLES:,} resamples, seed {seed}); {held}", file=out)
    if failures_file is not None:
        failures_file.write_text("".join(f"{line}\n" for line in failures(reports)), encoding="utf-8")
    if json_file is not None:
        settings = {
            "max_tokens": max_tokens,
            "grammar": is_held,
            "seed": seed,
            "resamples": bootstrap.RESAMPLES,
            "limit": limit,
        }
        found = {report.name: report.document() for report in reports}
        write_json(json_file, {**about, "task": "cabin", **settings, "sets": found})
