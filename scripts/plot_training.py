"""Draws held-out exact match against training tokens from a run's log.jsonl, as PNG or SVG.

    python scripts/plot_training.py runs/cabin/log.jsonl picture.svg

Several logs are drawn one behind another: runs that went on where the one before had ended. Needs matplotlib, which the
`dev` extra brings.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

MODES = {"ar": "one token a forward (ar)", "diffuse": "block diffusion (diffuse)"}


def evaluations(logs: list[Path]) -> list[dict[str, Any]]:
    """The lines of the logs that hold an evaluation. A run that resumed may have written one twice: the last counts."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    before = 0
    for log in logs:
        tokens = 0
        for text in log.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            tokens = max(tokens, int(line.get("tokens", 0)))
            if "evaluation" in line:
                line["tokens"] += before
                found[line["tokens"], line["evaluation"]] = line
        before += tokens
    return sorted(found.values(), key=lambda line: line["tokens"])


def draw(lines: list[dict[str, Any]], out: Path) -> None:
    """One curve a mode; a dashed line where the AR trunk became a block diffusion model."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "fourleaf"  # same log, same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for mode, label in MODES.items():
        points = [(line["tokens"] / 1e6, 100 * line[mode]) for line in lines if mode in line]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    joint = [line["tokens"] / 1e6 for line in lines if line["evaluation"] == "joint"]
    if joint and joint[0] > lines[0]["tokens"] / 1e6:
        axes.axvline(joint[0], color="grey", linestyle="--", linewidth=1)
        axes.text(joint[0], 2, " first evaluation as block diffusion", color="grey", fontsize=8)
    axes.set(xlabel="training tokens, millions", ylabel="held-out exact match, %", ylim=(0, 100), xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right" if not joint else "upper left")
    figure.savefig(out, dpi=150, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path, help="log.jsonl of each run, in order")
    parser.add_argument("out", type=Path, help="picture to write, .png or .svg")
    given = parser.parse_args()
    if given.out.suffix not in (".png", ".svg"):
        parser.error(f"{given.out} must end in .png or .svg")
    if missing := [str(log) for log in given.logs if not log.is_file()]:
        parser.error(f"there is no {missing[0]}")
    lines = evaluations(given.logs)
    if not lines:
        parser.error(f"{given.logs[0]} holds no evaluation yet")
    draw(lines, given.out)
    print(f"{given.out}: {len(lines)} evaluations, {lines[-1]['tokens'] / 1e6:.1f} million tokens")


if __name__ == "__main__":
    main()
