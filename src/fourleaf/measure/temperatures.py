"""`fourleaf calibrate`: temperatures for a checkpoint's decisions, fitted on labelled groups that it never saw."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from fourleaf.decide.calibration import INDEPENDENT, JOINT, REVEALED, Temperatures, fit
from fourleaf.decide.decider import Decider
from fourleaf.decide.questions import MAX_JOINT, NOUL, SCORE, DecisionRequest, Question, parse_request
from fourleaf.engine.engine import Engine
from fourleaf.errors import ConfigError, RequestError
from fourleaf.measure.circumstances import Ticker
from fourleaf.measure.evaluate import check_writable
from fourleaf.measure.pictures import reliability
from fourleaf.measure.reliability import Reliability
from fourleaf.measure.tables import table
from fourleaf.tasks.judgements import testsets

SEED = 77_000_001  # of the groups to fit on: no other set is drawn from it
PASSES = (2, 4, 8)  # that a joint canvas may take by default: one pass reads no answer

Floats = NDArray[np.float64]
Record = tuple[str, str, Floats, int]  # mode, type, uncalibrated log probabilities, the right option


@dataclass(frozen=True)
class Labelled:
    """A request and the right option for each of its questions."""

    request: DecisionRequest
    right: tuple[int, ...]


def from_judgements(limit: int) -> list[Labelled]:
    """Coupled groups of a seed that is for this alone."""
    groups = testsets.build("coupled", SEED)[:limit]
    return [_labelled({"state": g.state, "questions": g.questions, "answers": g.document()["answers"]}) for g in groups]


def from_file(path: Path) -> list[Labelled]:
    """JSON lines of {"state", "questions", "answers"}; answers: id -> true or false, an option's name, or a level.

    Raises ConfigError, with the line's number.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append(_labelled(json.loads(line)))
            except (ValueError, KeyError, TypeError, RequestError) as error:
                raise ConfigError(f"{path}, line {number}: {error}") from error
    if not found:
        raise ConfigError(f"{path} holds no labelled requests")
    return found


def _labelled(document: dict[str, Any]) -> Labelled:
    request = parse_request({"model": "", "state": document["state"], "questions": document["questions"]})
    return Labelled(request, tuple(_option(q, document["answers"][q.id]) for q in request.questions))


def _option(question: Question, value: Any) -> int:
    if question.type == NOUL and isinstance(value, bool):
        return int(value)
    if question.type == SCORE and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    names = [option.name for option in question.options]
    if value not in names or question.type == NOUL:
        raise ValueError(f"{value!r} is no answer to {question.id}")
    return names.index(value)


def records(
    engine: Engine,
    temperatures: Temperatures,
    labelled: Sequence[Labelled],
    modes: Sequence[str],
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Record]:
    """What the model said of each question at these temperatures, alone and, of a joint canvas, at its first pass and,
    where that did not reveal it, at the pass that did.

    modes: INDEPENDENT, or JOINT for both of a joint canvas.
    """
    decider = Decider(engine, temperatures)
    found: list[Record] = []
    for mode in modes:
        for done, one in enumerate(labelled, 1):
            request = one.request
            if mode == JOINT and len(request.questions) > MAX_JOINT:
                continue
            asked = request if mode == INDEPENDENT else replace(request, joint=True, passes=MAX_JOINT)
            decision = decider.decide(asked)
            at_once = set(decision.order[0]) if decision.order else set()
            for answer, right in zip(decision.answers, one.right, strict=True):
                kind = answer.question.type
                found.append((mode, kind, _log(answer.p if answer.first is None else answer.first), right))
                if mode == JOINT and answer.question.id not in at_once:
                    found.append((REVEALED, kind, _log(answer.p), right))
            if progress is not None:
                progress(done, len(labelled), mode)
    return found


def rights(
    engine: Engine,
    temperatures: Temperatures,
    labelled: Sequence[Labelled],
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[int, NDArray[np.int64]]:
    """Passes of a joint canvas -> [requests] questions that were answered right with as many, of those that have more
    questions than the fewest passes: only there does the number say anything."""
    decider = Decider(engine, temperatures)
    jointly = [one for one in labelled if min(PASSES) < len(one.request.questions) <= MAX_JOINT]
    found = {}
    for passes in PASSES:
        hits = []
        for done, one in enumerate(jointly, 1):
            decision = decider.decide(replace(one.request, joint=True, passes=passes))
            hits.append(sum(a.chosen == right for a, right in zip(decision.answers, one.right, strict=True)))
            if progress is not None:
                progress(done, len(jointly), f"{passes} passes")
        found[passes] = np.array(hits)
    return found


def worth_it(found: dict[int, NDArray[np.int64]]) -> int | None:
    """The fewest passes that answer as many questions right as the best number does, within one standard error of the
    paired difference. None where there is nothing to tell by."""
    best = max(found, key=lambda passes: found[passes].sum())
    for passes, hits in found.items():
        lost = found[best] - hits
        if len(lost) > 1 and lost.mean() <= lost.std(ddof=1) / np.sqrt(len(lost)):
            return passes
    return None


def _log(p: Floats) -> Floats:
    return np.log(np.maximum(p, 1e-300))


def told(found: Sequence[Record]) -> dict[str, Reliability]:
    """By mode."""
    modes = dict.fromkeys(mode for mode, *_ in found)
    return {
        mode: Reliability.of([np.exp(p) for m, _, p, _ in found if m == mode], [r for m, *_, r in found if m == mode])
        for mode in modes
    }


def main_calibrate(
    model: Path,
    *,
    data: Path | None,
    groups: int,
    picture: Path | None,
    num_threads: int | None,
    out: TextIO,
    progress: TextIO,
) -> None:
    """Fits on the first half, measures on the second, then fits on all of it and writes decisions.json into `model`.

    Raises ConfigError for labelled data that cannot be read.
    """
    check_writable(picture)
    labelled = from_judgements(groups) if data is None else from_file(data)
    engine = Engine.load(model, num_threads=num_threads)
    modes = (INDEPENDENT, JOINT) if engine.model.config.is_block_diffusion else (INDEPENDENT,)
    about = {"source": f"judgements of seed {SEED}" if data is None else data.name, "requests": len(labelled)}
    ticker = Ticker(progress)
    try:
        first, second = (records(engine, Temperatures(), part, modes, ticker) for part in _halves(labelled))
        made = fit([*first, *second], about | {"answers": len(first) + len(second)})
        by_passes = rights(engine, made, labelled, ticker) if JOINT in modes else {}
    finally:
        ticker.close()
    made = replace(made, passes=worth_it(by_passes) if by_passes else None)
    half = fit(first)
    before, after = told(second), told([(m, k, half.applied(m, k, p), r) for m, k, p, r in second])
    rows = [["mode", "n", "ECE", "calibrated", "by chance", "Brier", "calibrated"]]
    for mode, plain in before.items():
        warm = after[mode]
        cells = plain.ece, warm.ece, warm.floor, plain.brier, warm.brier
        rows.append([mode, str(plain.n), *(f"{value:.3f}" for value in cells)])
    print("\n".join(table(rows)), file=out)
    rows = [["mode", "type", "options up to", "temperature"]]
    rows += [[mode, kind, str(limit), f"{value:.3f}"] for (mode, kind, limit), value in sorted(made.values.items())]
    print("\n".join(table(rows)), file=out)
    if by_passes:
        rows = [["passes", "questions right"], *([str(n), str(hits.sum())] for n, hits in by_passes.items())]
        print("\n".join(table(rows)), f"passes by default: {made.passes or 'one a question'}", sep="\n", file=out)
    print(made.save(model), file=out)
    if picture is not None:
        series = [(f"{mode}, as it is", before[mode]) for mode in before]
        series += [(f"{mode}, calibrated", after[mode]) for mode in after]
        picture.write_text(reliability("Decisions", series), encoding="utf-8")


def _halves(labelled: Sequence[Labelled]) -> tuple[Sequence[Labelled], Sequence[Labelled]]:
    return labelled[::2], labelled[1::2]
