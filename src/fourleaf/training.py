"""The command that trains: parse, call, print."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fourleaf.conversions import Threads


class Task(StrEnum):
    """What recipes exist for."""

    cabin = "cabin"


Minutes = Annotated[
    float | None, typer.Option(help="Budget: minutes of steps, over all resumes. A new run has 30 by default.")
]
Judgements = Annotated[
    float | None,
    typer.Option(help="Share of the tokens that are question sheets, 0 to below 1. A new run has 0 by default."),
]
Puzzles = Annotated[
    float | None,
    typer.Option(help="Share of the tokens that are Sudoku grids, 0 to below 1. A new run has 0 by default."),
]


def train(
    task: Annotated[Task, typer.Argument(help="What to train for.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; the trained model comes to its `model` folder.")] = Path(
        "runs/cabin"
    ),
    minutes: Minutes = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Budget: optimiser steps, in place of minutes.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed and steps, same weights.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with a run that the folder holds, or refuse to.")
    ] = True,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile for a minute first; steps are faster then.")
    ] = True,
    start: Annotated[
        Path | None,
        typer.Option("--from", help="Checkpoint folder whose weights begin a new run."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that share a step; one for each core, two at most, by default.")
    ] = None,
    judgements: Judgements = None,
    puzzles: Puzzles = None,
    threads: Threads = None,
) -> None:
    """Train a model by its recipe: AR first, then block diffusion.

    Ctrl-C saves; the same command goes on from there. Example: fourleaf train cabin --minutes 20 --out runs/mine
    """
    from fourleaf.train.folder import RunFolder
    from fourleaf.train.heldout import evaluator
    from fourleaf.train.meter import Meter
    from fourleaf.train.recipes import cabin_stages, train_cabin

    meter = Meter(tuple(stage.share for stage in cabin_stages(RunFolder(out).settings(), start)), sys.stderr)
    try:
        made = train_cabin(
            out,
            minutes=minutes,
            steps=steps,
            seed=seed,
            resume=resume,
            compiled=compiled,
            num_threads=threads,
            num_workers=workers,
            start=start,
            judgements=judgements,
            puzzles=puzzles,
            evaluate=evaluator,
            report=meter,
        )
    except KeyboardInterrupt:
        meter.close()
        print(f"stopped; the run so far is in {out}, and the same command goes on from there", file=sys.stderr)
        raise
    finally:
        meter.close()
    print(made)
