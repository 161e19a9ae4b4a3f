"""Writes what `fourleaf eval judgements --json` and its like found into docs/decisions-benchmark.md.

    fourleaf calibrate MODEL
    fourleaf eval judgements --draw SEED --set coupled,copy --json a.json --threads 1 &
    fourleaf eval judgements --draw SEED --set control,twin,unknowable,ninth --json b.json --threads 1; wait
    python scripts/decision_latency.py --threads 2 --json c.json
    fourleaf eval sudoku --json d.json
    python scripts/judgements_page.py a.json b.json --latency c.json --sudoku d.json

`make judgements` is all of it, for the bundled model. Each table goes between its two markers, and two pictures into
`runs` beside the page. All of a set's parts must come from the same weights and the same seed. Tables that nothing was
measured for stay as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from decision_latency import EACH, JOINT, JOINT_EACH, ONE

from fourleaf.measure.judged import BASE_ARM, FREE_ARMS, MODEL_ARMS, ORDER_ARM, RULED_ARMS
from fourleaf.measure.marks import filled, markdown
from fourleaf.measure.pictures import bars, reliability
from fourleaf.measure.reliability import Bin, Reliability

PAGE = Path(__file__).parents[1] / "docs" / "decisions-benchmark.md"
ONCE, DEFAULT, DENOISED = "joint, 1 pass", "joint, default", "joint, denoised"
SHOWN = (BASE_ARM, ONCE, DEFAULT, DENOISED)  # where a table has no room for all
ARMS = (*MODEL_ARMS, *RULED_ARMS, *FREE_ARMS)
RELIABILITY = "![Share right against confidence](runs/judgements-reliability.svg)"
FITTED = "![The same before and after the fit, on half of the groups to fit on](runs/calibration.svg)"
SAME = ("weights_sha256", "draw", "limit", "calibration")
Found = dict[str, Any]


def share(found: Found | None) -> str:
    """80.4% (77.1-83.5)"""
    if found is None:
        return "-"
    value, low, high = (100 * found[key] for key in ("value", "low", "high"))
    return f"{value:.1f}% ({low:.1f}-{high:.1f})"


def difference(found: Found) -> str:
    """+18.0 (+14.2 to +21.8)"""
    value, low, high = (100 * found["difference"][key] for key in ("value", "low", "high"))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def merged(files: Sequence[Path]) -> Found:
    """The parts of all files. Exits where they are of different weights, seeds or sizes."""
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    first = documents[0]
    for document, file in zip(documents, files, strict=True):
        if wrong := [name for name in SAME if document[name] != first[name]]:
            sys.exit(f"{file} has another {' and another '.join(wrong)} than {files[0]}")
    return first | {"parts": {name: part for document in documents for name, part in document["parts"].items()}}


def machine(found: Found) -> str:
    """What was measured, and on what."""
    fitted = found["calibration"]
    warm = f"calibrated on {fitted['answers']:,} answers of {fitted['source']}" if fitted else "not calibrated"
    sizes = ", ".join(f"{_first(part)['groups']['n']} {name}" for name, part in found["parts"].items())
    return (
        f"{found['model']} (weights {found['weights_sha256'][:12]}, {found['parameters']:,} parameters), {warm}; "
        f"{found['processor']}, torch {found['torch']}; seed {found['draw']}; groups: {sizes}."
    )


def _first(part: Found) -> Found:
    return next(iter(part["arms"].values()))


def arms(found: Found) -> str:
    """Of the coupled groups, a line for each arm."""
    part = found["parts"]["coupled"]
    rows = []
    for arm in (arm for arm in ARMS if arm in part["arms"]):
        score, told = part["arms"][arm], part["arms"][arm]["reliability"]
        is_model = arm in MODEL_ARMS
        rows.append(
            [
                arm,
                share(score["groups"]),
                difference(part["paired"][arm]) if arm in part["paired"] else "-",
                f"{100 * score['questions']['value']:.1f}%",
                f"{100 * score['contradictory']['value']:.1f}%",
                *(f"{told[key]:.3f}" if is_model else "-" for key in ("ece", "floor", "brier")),
                *(f"{score[key]:.1f}" if is_model else "-" for key in ("forwards", "passes")),
            ]
        )
    head = ["arm", "groups right", f"points over {BASE_ARM}", "questions right", "contradictory", "ECE", "by chance"]
    shown = "![Groups wholly right by arm, with 95% intervals](runs/judgements.svg)"
    return f"{shown}\n\n{markdown([*head, 'Brier', 'forwards', 'passes'], rows)}"


def parts(found: Found) -> str:
    """The parts beside the coupled groups, a line for each and arm."""
    rows = []
    for name, part in found["parts"].items():
        for arm in SHOWN if name != "coupled" else ():
            score = part["arms"][arm]
            asked = score["questions"]
            sure = score["open_confidence"]
            rows.append(
                [
                    *(name, arm, share(score["groups"])),
                    difference(part["paired"][arm]) if arm in part["paired"] else "-",
                    "-" if asked is None else f"{100 * asked['value']:.1f}%",
                    f"{100 * score['contradictory']['value']:.1f}%",
                    "-" if score["reliability"] is None else f"{score['reliability']['ece']:.3f}",
                    "-" if sure is None else f"{100 * sure:.1f}%",
                ]
            )
    head = ["part", "arm", "groups right", f"points over {BASE_ARM}", "questions right", "contradictory", "ECE"]
    return markdown([*head, "top probability where open"], rows)


def kinds(found: Found) -> str:
    """Of the coupled groups, those wholly right by family and by number of questions."""
    scores = found["parts"]["coupled"]["arms"]
    ruled = next(iter(RULED_ARMS))
    columns = [*SHOWN, ruled]
    rows = []
    for key, name in (("by_family", "{}"), ("by_size", "{} questions")):
        for kind, first in scores[BASE_ARM][key].items():
            shares = [f"{100 * scores[arm][key][kind]['value']:.0f}%" for arm in columns]
            rows.append([name.format(kind), str(first["n"]), *shares])
    return markdown(["groups", "n", *columns], rows)


def orders(found: Found) -> str:
    """Answers that change when choices list their options backwards, and when everything is in another order."""
    listed, all_of_it = (found["parts"].get(part, {}).get("flips", {}) for part in ("coupled", "copy"))
    rows = [
        [arm, *(f"{100 * flips[arm]:.1f}%" if arm in flips else "-" for flips in (listed, all_of_it))]
        for arm in all_of_it or listed
    ]
    return markdown(["arm", "options backwards", "questions, options and sentences"], rows)


def latency(found: Found) -> str:
    """A line for each way of asking eight questions."""
    ways = found["ways"]
    one, each = ways[ONE]["p50"], ways[EACH]["p50"]
    rows = []
    for name, way in ways.items():
        times = (f"{1000 * way[key]:.0f}" for key in ("p50", "p95"))
        rows.append([name, *times, *(f"{way['p50'] / other:.2f}" for other in (one, each))])
    return markdown(["asked", "p50 ms", "p95 ms", "of one alone", "of one by one"], rows)


def puzzles(found: Found) -> str:
    """A line for each set of puzzles and arm."""
    rows = []
    for part, scores in found["parts"].items():
        for arm, score in scores.items():
            cells, cost = (
                f"{100 * score['cells']['value']:.1f}%",
                (f"{score[key]:.1f}" for key in ("passes", "forwards")),
            )
            rows.append([part, str(score["solved"]["n"]), arm, share(score["solved"]), cells, *cost])
    return markdown(["puzzles", "n", "arm", "solved", "cells right", "passes", "forwards"], rows)


def goals(found: Found, timed: Found | None) -> str:
    """Each goal, what was measured, and whether that meets it."""
    rows = [
        [goal, limit, measured, "met" if is_met else "missed"]
        for goal, limit, measured, is_met in [*_quality(found["parts"]), *(_speed(timed["ways"]) if timed else ())]
    ]
    return markdown(["goal", "limit", "measured", ""], rows)


def _quality(found: Found) -> Iterator[tuple[str, str, str, bool]]:
    if "coupled" in found:
        scores = found["coupled"]["arms"]
        for arm in (DEFAULT, DENOISED):
            paired = found["coupled"]["paired"][arm]
            gain = 100 * paired["difference"]["value"]
            yield f"{arm} over {BASE_ARM}, coupled", "15 points", difference(paired), gain >= 15
            mine, theirs = (scores[one]["contradictory"]["value"] for one in (arm, BASE_ARM))
            told = f"{100 * mine:.1f}% of {100 * theirs:.1f}%"
            yield f"contradictions, {arm} of {BASE_ARM}", "a third", told, mine <= theirs / 3
        for arm in SHOWN:
            error = scores[arm]["reliability"]["ece"]
            yield f"ECE, {arm}, coupled", "0.05", f"{error:.3f}", error <= 0.05
    if "control" in found:
        paired = found["control"]["paired"][DENOISED]
        same = paired["difference"]["low"] <= 0 <= paired["difference"]["high"]
        yield f"{DENOISED} over {BASE_ARM}, control", "0 within noise", difference(paired), same
    for part, what in (("coupled", "options'"), ("copy", "whole")):
        moved = found.get(part, {}).get("flips", {}).get(ORDER_ARM)
        if moved is not None:
            yield f"answers that change with the {what} order, {ORDER_ARM}", "2%", f"{100 * moved:.1f}%", moved <= 0.02


def _speed(ways: Found) -> Iterator[tuple[str, str, str, bool]]:
    one, each = (ways[name]["p50"] for name in (ONE, EACH))
    for name in (JOINT, JOINT_EACH):
        joint = ways[name]["p50"]
        yield f"p50 of {name}, of one alone", "2", f"{joint / one:.2f}", joint / one <= 2
        yield f"p50 of {name}, of eight one by one", "0.5", f"{joint / each:.2f}", joint / each <= 0.5


def sections(found: Found, timed: Found | None, solved: Found | None) -> dict[str, str]:
    """Text by marker, of what was measured."""
    made = {"machine": machine(found), "goals": goals(found, timed), "parts": parts(found)}
    if "coupled" in found["parts"]:
        made |= {"arms": arms(found), "kinds": kinds(found), "reliability": RELIABILITY}
    if any(found["parts"].get(part, {}).get("flips") for part in ("coupled", "copy")):
        made["orders"] = orders(found)
    made |= {"latency": latency(timed)} if timed else {}
    return made | ({"sudoku": puzzles(solved)} if solved else {})


def pictures(found: Found) -> dict[str, str]:
    """SVG by file name, of the coupled groups."""
    scores = found["parts"]["coupled"]["arms"]
    groups = [(arm, *(scores[arm]["groups"][key] for key in ("value", "low", "high"))) for arm in ARMS if arm in scores]
    told = []
    for arm in SHOWN:
        made = scores[arm]["reliability"]
        bins = tuple(Bin(**one) for one in made["bins"])
        told.append((arm, Reliability(made["ece"], made["floor"], made["brier"], made["n"], bins)))
    return {
        "judgements.svg": bars("Groups wholly right, coupled", groups),
        "judgements-reliability.svg": reliability("Coupled groups", told),
    }


def _beside(found: Found, file: Path | None) -> Found | None:
    """A file about the same weights. Exits where it is of others."""
    document = json.loads(file.read_text(encoding="utf-8")) if file else None
    if document and document["weights_sha256"] != found["weights_sha256"]:
        sys.exit(f"{file} is of other weights than the judgements")
    return document


def main() -> None:
    """Fills the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="what `fourleaf eval judgements --json` wrote")
    parser.add_argument("--latency", type=Path, help="what decision_latency.py --json wrote")
    parser.add_argument("--sudoku", type=Path, help="what `fourleaf eval sudoku --json` wrote")
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args()
    found = merged(asked.files)
    timed, solved = (_beside(found, file) for file in (asked.latency, asked.sudoku))
    made = sections(found, timed, solved)
    if "reliability" in made and (asked.page.parent / "runs" / "calibration.svg").is_file():
        made["reliability"] += f"\n\n{FITTED}"
    asked.page.write_text(filled(asked.page.read_text(encoding="utf-8"), made), encoding="utf-8")
    for name, text in pictures(found).items() if "coupled" in found["parts"] else ():
        folder = asked.page.parent / "runs"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{asked.page}: {', '.join(made)}")


if __name__ == "__main__":
    main()
