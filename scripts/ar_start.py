"""What an AR start buys: AR, then joint, against joint from nothing, at equal time on one core each.

    python scripts/ar_start.py runs/ar_start --minutes 9 --picture docs/runs/ar_start.svg

Both arms have the bundled model's shape, recipe and examples. They run side by side, in a process of one thread each,
and are scored all along on the same noisy blocks of examples that neither trains on: loss of masked rows, share of them
named right, and of next tokens. Time spent on scoring does not count, and nothing is compiled, which would cost each
arm a minute of the budget. Needs two cores that do nothing else, and matplotlib, which the `dev` extra brings.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.diffusion.objective import cross_entropy_sum, masked_cross_entropy_sum
from fourleaf.errors import FourleafError
from fourleaf.measure.tables import table
from fourleaf.model.transformer import Transformer
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer
from fourleaf.train.data import Batch, collate
from fourleaf.train.folder import RunFolder
from fourleaf.train.recipes import BLOCK_SIZE, CABIN_STAGES, cabin_source, train_cabin
from fourleaf.train.trainer import Evaluate

AR, JOINT = CABIN_STAGES
ARMS = {
    "AR half of the time, then joint": (
        replace(AR, share=0.5, curriculum=((0.0, 1), (0.7, 2))),
        replace(JOINT, share=0.5, curriculum=((0.0, 2),)),
    ),
    "joint from nothing": (replace(JOINT, share=1.0, curriculum=((0.0, 1), (0.35, 2))),),
}
NUM = 64
_SEED = 900_001  # of the examples that score; no run draws its pools from it
COLUMNS = {
    "tokens": "tokens", "next": "next loss", "next_right": "next right", "masked": "masked loss",
    "masked_right": "masked right",
}  # fmt: skip


def scorer(tokenizer: Tokenizer, chat: ChatTemplate, num: int = NUM) -> Evaluate:
    """A function of the model: its losses and hits on noisy blocks of `num` examples, the same at every call."""
    documents = list(itertools.islice(cabin_source(tokenizer, chat)(_SEED, 2), num))
    make = partial(
        collate, documents, end_id=tokenizer.end_id, mask_id=tokenizer.mask_id, block_size=BLOCK_SIZE,
        noise=NoiseConfig(), fill_weight=0.0, prompt_weight=0.0,
    )  # fmt: skip
    noisy, clean = (make(objective=name, rng=np.random.default_rng(0)) for name in ("joint", "ar"))

    @torch.inference_mode()
    def score(model: Transformer, objective: str, num: int) -> dict[str, Any]:
        return scores(model, noisy if model.config.is_block_diffusion else clean, tokenizer.mask_id)

    return score


def scores(model: Transformer, batch: Batch, mask_id: int) -> dict[str, float]:
    """The terms of the objective, as `train.gradients.losses` has them, and the share of rows whose first choice is
    right: of next tokens, and of masked rows that count."""
    hidden, _ = model(batch.work)
    logits = model.head(hidden[batch.next_rows])
    loss = cross_entropy_sum(logits, batch.next_target, batch.next_weight) / batch.num_next
    found = {"next": loss, "next_right": _right(logits, batch.next_target)}
    if batch.num_masked:
        logits = model.head(hidden[batch.masked_rows])
        loss = masked_cross_entropy_sum(logits, batch.masked_target, batch.masked_weight, mask_id) / batch.num_masked
        counts = batch.masked_weight > 0
        logits[:, mask_id] = float("-inf")
        found |= {"masked": loss, "masked_right": _right(logits[counts], batch.masked_target[counts])}
    return {name: round(value.item(), 5) for name, value in found.items()}


def _right(logits: Tensor, target: Tensor) -> Tensor:
    return (logits.argmax(-1) == target).float().mean()


def train(folder: Path, arm: str, minutes: float, seed: int) -> None:
    """One arm, to its end."""
    overrides: dict[str, object] = {"stages": ARMS[arm], "micro_batches": 1, "eval_every_s": 30.0}
    settings = {"num_threads": 1, "num_workers": 1, "compiled": False, "overrides": overrides}
    train_cabin(folder, minutes=minutes, seed=seed, evaluate=scorer, **settings)  # type: ignore[arg-type]


def curve(folder: Path) -> list[dict[str, Any]]:
    """The scores of a run, each with the minutes of steps before it, by its step between those of the log."""
    lines = list(RunFolder(folder).lines())
    logged = [(0, 0.0), *((line["step"], line["seconds"]) for line in lines if "seconds" in line)]
    steps, seconds = zip(*logged, strict=True)
    return [
        line | {"minutes": float(np.interp(line["step"], steps, seconds)) / 60}
        for line in lines
        if "evaluation" in line
    ]


def draw(curves: dict[str, list[dict[str, Any]]], picture: Path) -> None:
    """Masked rows and next tokens named right, against minutes."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "fourleaf"
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for axes, name, title in zip(both, ("masked_right", "next_right"), ("masked rows", "next tokens"), strict=True):
        for arm, lines in curves.items():
            points = [(line["minutes"], 100 * line[name]) for line in lines if name in line]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=arm)
        axes.set(title=f"{title} named right, %", xlabel="minutes on one core", ylim=(0, 100), xlim=(0, None))
        axes.grid(alpha=0.3)
    both[1].legend(loc="lower right")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150, metadata={"Date": None} if picture.suffix == ".svg" else None)


def lines(curves: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Where each arm stood at the end of each of its stages."""
    rows = [["", "minutes", *COLUMNS.values()]]
    for arm, found in curves.items():
        for stage in dict.fromkeys(line["evaluation"] for line in found):
            last = [line for line in found if line["evaluation"] == stage][-1]
            cells = [f"{last[name]:,}" if name in last else "" for name in COLUMNS]
            rows.append([f"{arm}: {stage}", f"{last['minutes']:.1f}", *cells])
    return table(rows)


def main() -> None:
    """Reads the command line, runs both arms, prints where they end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the runs; what is there goes on")
    parser.add_argument("--minutes", type=float, default=9.0, help="of each arm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="to write, .png or .svg")
    given = parser.parse_args()
    if given.picture is not None and given.picture.suffix not in (".png", ".svg"):
        parser.error(f"{given.picture} must end in .png or .svg")
    folders = {arm: given.folder / str(number) for number, arm in enumerate(ARMS)}
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=train, args=(f, arm, given.minutes, given.seed)) for arm, f in folders.items()]
    for process in running:
        process.start()
    for process in running:
        process.join()
    if any(process.exitcode for process in running):
        raise SystemExit("an arm ended with an error; what it had done goes on with the same command")
    curves = {arm: curve(folder) for arm, folder in folders.items()}
    print("\n".join(lines(curves)))
    if given.picture is not None:
        draw(curves, given.picture)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        main()
    except FourleafError as error:
        sys.exit(f"ar_start: {error}")
