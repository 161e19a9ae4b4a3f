"""What an AR start buys: AR, then joint, against joint from nothing, at equal time on one core each.

    python scripts/ar_start.py runs/ar_start --minutes 9 --picture docs/runs/ar_start.svg

Both arms run side by side, in a process of one thread each, and are scored all along on the same noisy blocks of
examples that neither trains on: loss of masked rows, share of them named right, and of next tokens. Needs matplotlib,
which the `dev` extra brings.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.model.transformer import Transformer
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer
from fourleaf.train.data import collate
from fourleaf.train.folder import RunFolder
from fourleaf.train.gradients import Counts, losses
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
_SEED = 900_001  # of the examples that score; no run draws its pools from it


def scorer(tokenizer: Tokenizer, chat: ChatTemplate) -> Evaluate:
    """A function of the model: its losses and hits on noisy blocks that are always the same."""
    documents = list(itertools.islice(cabin_source(tokenizer, chat)(_SEED, 2), 200))
    make = partial(
        collate, documents, end_id=tokenizer.end_id, mask_id=tokenizer.mask_id, block_size=BLOCK_SIZE,
        noise=NoiseConfig(), fill_weight=0.0, prompt_weight=0.0,
    )  # fmt: skip
    noisy, clean = (make(objective=name, rng=np.random.default_rng(0)) for name in ("joint", "ar"))

    def score(model: Transformer, objective: str, num: int) -> dict[str, Any]:
        batch = noisy if model.config.is_block_diffusion else clean
        terms = losses(model, batch, Counts.of([batch]), tokenizer.mask_id)
        hidden, _ = model(batch.work)
        found = {name: round(term.item(), 4) for name, term in terms.items()}
        following = model.head(hidden[batch.next_rows]).argmax(-1) == batch.next_target
        found["next_right"] = round(following.float().mean().item(), 4)
        if batch.num_masked:
            counts = batch.masked_weight > 0
            right = model.head(hidden[batch.masked_rows]).argmax(-1) == batch.masked_target
            found["masked_right"] = round(right[counts].float().mean().item(), 4)
        return found

    return score


def train(folder: Path, arm: str, minutes: float, seed: int) -> None:
    """One arm, to its end."""
    overrides: dict[str, object] = {"stages": ARMS[arm], "micro_batches": 1, "eval_every_s": 30.0}
    train_cabin(folder, minutes=minutes, seed=seed, num_threads=1, num_workers=1, evaluate=scorer, overrides=overrides)


def curve(folder: Path) -> list[dict[str, Any]]:
    """The scores of a run, each with the minutes of steps before it."""
    found, seconds = [], 0.0
    for line in RunFolder(folder).lines():
        seconds = line.get("seconds", seconds)
        if "evaluation" in line:
            found.append(line | {"minutes": seconds / 60})
    return found


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
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=arm)
        axes.set(title=f"{title} named right, %", xlabel="minutes on one core", ylim=(0, 100), xlim=(0, None))
        axes.grid(alpha=0.3)
    both[0].legend(loc="lower right")
    figure.savefig(picture, dpi=150, metadata={"Date": None} if picture.suffix == ".svg" else None)


def main() -> None:
    """Reads the command line, runs both arms, prints where they end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the runs; what is there goes on")
    parser.add_argument("--minutes", type=float, default=9.0, help="of each arm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    folders = {arm: arguments.folder / str(number) for number, arm in enumerate(ARMS)}
    context = multiprocessing.get_context("spawn")
    running = [
        context.Process(target=train, args=(folder, arm, arguments.minutes, arguments.seed))
        for arm, folder in folders.items()
    ]
    for process in running:
        process.start()
    for process in running:
        process.join()
        if process.exitcode:
            raise SystemExit(process.exitcode)
    curves = {arm: curve(folder) for arm, folder in folders.items()}
    for arm, lines in curves.items():
        print(f"{arm}: {json.dumps(lines[-1])}")
    if arguments.picture is not None:
        draw(curves, arguments.picture)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
