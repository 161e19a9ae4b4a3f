"""How well a model judges: every arm on every part of the judgements test set, with intervals, as table and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fourleaf.checkpoint.files import write_json
from fourleaf.decide.calibration import Temperatures
from fourleaf.decide.decider import Decider
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.errors import ConfigError
from fourleaf.measure import bootstrap
from fourleaf.measure.bootstrap import Interval, Paired
from fourleaf.measure.circumstances import Ticker, circumstances
from fourleaf.measure.evaluate import check_writable
from fourleaf.measure.judged import BASE_ARM, FREE_ARMS, MODEL_ARMS, RULED_ARMS, Judged, arms_of, free, judge, ruled
from fourleaf.measure.pictures import bars
from fourleaf.measure.reliability import Reliability
from fourleaf.measure.tables import percent, points, table
from fourleaf.tasks.judgements import testsets
from fourleaf.tasks.judgements.group import Group

ALL = "all"
_RESAMPLES_BY_KIND = 2_000

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Score:
    """An arm on a part of the set.

    groups: wholly right. questions: right of those that can be known, groups resampled; None where there is none.
    contradictory: groups whose answers break a rule.
    open_confidence: probability of the likeliest option where several are possible (the unknowable part); None where
    there is no such question. forwards, rows, passes: means of a group. p50, p95: seconds of a group.
    """

    groups: Interval
    questions: Interval | None
    contradictory: Interval
    reliability: Reliability | None
    open_confidence: float | None
    by_family: dict[Any, Interval]
    by_size: dict[Any, Interval]
    forwards: float
    rows: float
    passes: float
    p50: float
    p95: float

    @classmethod
    def of(cls, found: Sequence[Judged], seed: int) -> Score:
        """found: at least one group. Questions that several answers fit count nowhere but in `open_confidence`."""
        right = [float(judged.is_right) for judged in found]
        p, truth, unsure = _settled_questions(found)
        seconds = [judged.seconds for judged in found]
        known = [judged.hits for judged in found if judged.hits]
        hits, asked = [sum(one) for one in known], [len(one) for one in known]
        return cls(
            groups=bootstrap.mean(right, seed),
            questions=bootstrap.ratio(hits, asked, seed) if known else None,
            contradictory=bootstrap.mean([float(judged.broken > 0) for judged in found], seed),
            reliability=Reliability.of(p, truth, seed) if p else None,
            open_confidence=float(np.mean(unsure)) if unsure else None,
            by_family=_by(found, seed, lambda judged: judged.group.family),
            by_size=_by(found, seed, lambda judged: len(judged.chosen)),
            forwards=float(np.mean([judged.forwards for judged in found])),
            rows=float(np.mean([judged.rows for judged in found])),
            passes=float(np.mean([judged.passes for judged in found])),
            p50=float(np.quantile(seconds, 0.5)),
            p95=float(np.quantile(seconds, 0.95)),
        )

    def document(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class PartReport:
    """All arms on one part. paired: each arm against `alone`. flips: by arm, of a copy's answers the share that differ
    from those to the original, of a coupled group's those that differ where its choices list their options backwards;
    empty for other parts."""

    name: str
    found: dict[str, list[Judged]]
    scores: dict[str, Score]
    paired: dict[str, Paired]
    flips: dict[str, float]

    def document(self) -> dict[str, object]:
        return {
            "arms": {arm: score.document() for arm, score in self.scores.items()},
            "paired": {arm: pair.document() for arm, pair in self.paired.items()},
            "flips": self.flips,
        }


def _settled_questions(found: Sequence[Judged]) -> tuple[list[Any], list[int], list[float]]:
    """(probabilities and truth of questions that can be known, top probability of those that cannot)."""
    p, truth, unsure = [], [], []
    for judged in found:
        for values, answer, left in zip(judged.p, judged.group.answers, judged.group.possible, strict=True):
            if len(left) == 1:
                p.append(values)
                truth.append(answer)
            else:
                unsure.append(float(values.max()))
    return p, truth, unsure


def _by(found: Sequence[Judged], seed: int, kind: Callable[[Judged], Any]) -> dict[Any, Interval]:
    """Groups wholly right, kind by kind."""
    kinds = sorted({kind(judged) for judged in found})
    right = {name: [float(judged.is_right) for judged in found if kind(judged) == name] for name in kinds}
    return {name: bootstrap.mean(values, seed, _RESAMPLES_BY_KIND) for name, values in right.items()}


def evaluate(
    decider: Decider,
    parts: Sequence[str],
    *,
    draw: int = testsets.PUBLIC_SEED,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[PartReport]:
    """Every arm on every part. draw: the test set's seed. seed: of the bootstrap's resamples."""
    reports: list[PartReport] = []
    for name in parts:
        groups = testsets.build(name, draw)[:limit]
        found: dict[str, list[Judged]] = {}
        for arm in arms_of(name):
            told = None if progress is None else _told(progress, len(groups), f"{name}, {arm}")
            found[arm] = judge(decider, groups, arm, told)
        found |= {arm: ruled(found[source]) for arm, source in RULED_ARMS.items()}
        found |= {arm: free(groups, arm, seed) for arm in FREE_ARMS}
        originals = next((report for report in reports if report.name == "coupled"), None)
        flips: dict[str, float] = {}
        if name == "coupled":
            flips = listing_flips(decider, groups, found, progress)
        elif name == "copy" and originals is not None:
            flips = {arm: flip_rate(found[arm], originals.found[arm]) for arm in MODEL_ARMS}
        reports.append(_report(name, found, flips, seed))
    return reports


def _told(progress: Progress, total: int, what: str) -> Callable[[int], None]:
    return lambda done: progress(done, total, what)


def _report(name: str, found: dict[str, list[Judged]], flips: dict[str, float], seed: int) -> PartReport:
    right = {arm: [judged.is_right for judged in every] for arm, every in found.items()}
    paired = {arm: bootstrap.paired(right[BASE_ARM], right[arm], seed) for arm in found if arm != BASE_ARM}
    return PartReport(name, found, {arm: Score.of(every, seed) for arm, every in found.items()}, paired, flips)


def listing_flips(
    decider: Decider, groups: Sequence[Group], found: dict[str, list[Judged]], progress: Progress | None = None
) -> dict[str, float]:
    """By arm, the share of questions that get another answer where choices list their options backwards."""
    backwards, flips = [testsets.listed_backwards(group) for group in groups], {}
    for arm in MODEL_ARMS:
        told = None if progress is None else _told(progress, len(groups), f"backwards, {arm}")
        flips[arm] = flip_rate(judge(decider, backwards, arm, told), found[arm])
    return flips


def flip_rate(copies: Iterable[Judged], originals: Iterable[Judged]) -> float:
    """The share of questions that get another answer in another order. Pairs of the same groups."""
    moved = []
    for copy, original in zip(copies, originals, strict=True):
        assert copy.group.name.partition("-")[2] == original.group.name.partition("-")[2]
        first, second = (
            {v.name: v.options[chosen] for v, chosen in zip(j.group.variables, j.chosen, strict=True)}
            for j in (original, copy)
        )
        moved += [second[name] != answer for name, answer in first.items()]
    return float(np.mean(moved))


def lines(report: PartReport) -> list[str]:
    """A part's table, then the paired differences."""
    first = next(iter(report.scores.values()))
    head = [f"{report.name} (n {first.groups.n})", "groups right", "questions", "contradict", "ECE", "Brier"]
    rows = [[*head, "forwards", "rows", "p50 ms"]]
    for arm, score in report.scores.items():
        told = score.reliability
        measured = ["-", "-"] if told is None else [f"{told.ece:.3f}", f"{told.brier:.3f}"]
        cost = [f"{score.forwards:.1f}", f"{score.rows:.0f}", f"{1000 * score.p50:.0f}"] if arm in MODEL_ARMS else []
        others = (score.questions, score.contradictory)
        shares = [percent(score.groups), *("-" if i is None else f"{100 * i.value:.1f}%" for i in others)]
        rows.append([arm, *shares, *measured, *cost])
    shown = table(rows)
    for arm in MODEL_ARMS:
        if arm in report.paired:
            shown.append(f"{arm} - {BASE_ARM}: {points(report.paired[arm].difference)}")
    if report.flips:
        what = "the options' order" if report.name == "coupled" else "the order"
        shown.append(f"answers that change with {what}: " + _listed(report.flips))
    unsure = {arm: s.open_confidence for arm, s in report.scores.items() if s.open_confidence is not None}
    if unsure:
        of_models = {arm: share for arm, share in unsure.items() if arm in MODEL_ARMS}
        shown.append("top probability where nothing can be known: " + _listed(of_models))
    return shown


def _listed(shares: dict[str, float]) -> str:
    return ", ".join(f"{arm} {100 * share:.1f}%" for arm, share in shares.items())


def main_judgements(
    part: str,
    *,
    model: Path | None,
    draw: int | None,
    limit: int | None,
    seed: int,
    num_threads: int | None,
    json_file: Path | None,
    picture: Path | None,
    out: TextIO,
    progress: TextIO,
) -> None:
    """`fourleaf eval judgements`. draw: the test set's seed, the public one by default.

    part: one of the set's, several with commas between, or "all". Raises ConfigError for an unknown one, before it
    loads.
    """
    draw = testsets.PUBLIC_SEED if draw is None else draw
    parts = _parts(part)
    check_writable(json_file)
    check_writable(picture)
    path = model or bundled_path()
    engine = Engine.load(path, num_threads=num_threads)
    if not engine.model.config.is_block_diffusion:
        raise ConfigError(f"{path} is an AR model: without a canvas there is no joint arm to compare")
    about = circumstances(engine, path)
    ticker = Ticker(progress)
    try:
        reports = evaluate(Decider.of(engine), parts, draw=draw, limit=limit, seed=seed, progress=ticker)
    finally:
        ticker.close()
    for report in reports:
        print("\n".join(lines(report)), end="\n\n", file=out)
    print(f"95% bootstrap intervals over groups ({bootstrap.RESAMPLES:,} resamples, seed {seed})", file=out)
    if json_file is not None:
        settings: dict[str, Any] = {"draw": draw, "seed": seed, "resamples": bootstrap.RESAMPLES, "limit": limit}
        settings["calibration"] = dict(Temperatures.load(path).about)
        found = {report.name: report.document() for report in reports}
        write_json(json_file, {**about, "task": "judgements", **settings, "parts": found})
    if picture is not None:
        picture.write_text(_picture(reports[0]), encoding="utf-8")


def _parts(asked: str) -> list[str]:
    """In the set's order, so that copies come after what they are copies of."""
    names = testsets.PARTS if asked == ALL else tuple(name.strip() for name in asked.split(","))
    for name in names:
        if name not in testsets.PARTS:
            raise ConfigError(f"there is no set {name!r}; choose {', '.join(testsets.PARTS)} or {ALL}")
    return [name for name in testsets.PARTS if name in names]


def _picture(report: PartReport) -> str:
    rows = [(arm, score.groups.value, score.groups.low, score.groups.high) for arm, score in report.scores.items()]
    return bars(f"Groups wholly right, {report.name}", rows)
