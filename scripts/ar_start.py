"""What an AR start buys: AR, then joint, against joint from nothing, at equal compute.

    python scripts/ar_start.py runs/ar_start --tera 9 --log docs/runs/ar_start.jsonl --picture docs/runs/ar_start.svg

Both arms have the bundled model's shape, tokenizer, recipe and examples, and the same budget in floating-point
operations: those of a step of either objective, forward and backward, are counted by torch on batches of the recipe,
and a stage takes as many steps as its part of the budget pays for. So neither the machine's load nor a pause changes
what an arm gets. What is not a matrix product is not counted (the optimiser, norms, triangular solves), nor is scoring.

The arms run side by side, in a process of one thread each, and are scored at even steps on the same noisy blocks of
examples that neither trains on: loss of masked rows, share of them named right, and of next tokens. A run that was
stopped goes on with the same command; `--show` prints and draws what there is. A tera takes about half a minute of a
core that does nothing else. The picture needs matplotlib, which the `dev` extra brings.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import shutil
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fourleaf.checkpoint.convert import convert
from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.diffusion.objective import cross_entropy_sum, masked_cross_entropy_sum
from fourleaf.engine import Engine, bundled_path
from fourleaf.errors import FourleafError
from fourleaf.measure.tables import table
from fourleaf.model.transformer import Transformer
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer
from fourleaf.train.config import Stage
from fourleaf.train.data import Batch, batches, collate, num_rows, pool
from fourleaf.train.folder import RunFolder
from fourleaf.train.gradients import Counts, accumulate
from fourleaf.train.recipes import BLOCK_SIZE, CABIN_NOISE, CABIN_STAGES, cabin_source, cabin_trunk, train_cabin
from fourleaf.train.trainer import Evaluate

TERA, GIGA = 1e12, 1e9
_EASY = {"warmup_steps": 20}  # a fifth of the recipe's budget and less: shorter warm-up, one or two calls
AR, JOINT = (replace(stage, **_EASY) for stage in CABIN_STAGES)  # type: ignore[arg-type]
# By arm, its stages; a stage's share is of the compute.
ARMS = {
    "AR half of the compute, then joint": (
        replace(AR, share=0.5, curriculum=((0.0, 1), (0.7, 2))),
        replace(JOINT, share=0.5, curriculum=((0.0, 2),)),
    ),
    "joint from nothing": (replace(JOINT, share=1.0, curriculum=((0.0, 1), (0.35, 2))),),
}
NUM, SCORINGS = 32, 10  # examples that score; times that an arm is scored, beside the end of each stage
POOL_SIZE = 256  # examples that are cut into batches at a time
PLAN = "plan.json"
_SEED = 900_001  # of the examples that score; no run draws its pools from it
COLUMNS = {
    "tokens": "tokens", "next": "next loss", "next_right": "next right", "masked": "masked loss",
    "masked_right": "masked right",
}  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """tera: floating-point operations of an arm, in 10^12. cost: of a step, by objective, in 10^9."""

    tera: float
    cost: dict[str, float]

    def steps(self, arm: str) -> list[int]:
        """Of the arm's stages."""
        return [max(1, round(self.tera * TERA * s.share / (self.cost[s.objective] * GIGA))) for s in ARMS[arm]]

    def stages(self, arm: str) -> tuple[Stage, ...]:
        """The arm's stages, with shares of its steps in place of shares of its compute."""
        steps = self.steps(arm)
        return tuple(replace(s, share=num / sum(steps)) for s, num in zip(ARMS[arm], steps, strict=True))

    def spent(self, arm: str, step: int) -> float:
        """Operations of the arm's first steps, in 10^12."""
        total = 0.0
        for stage, num in zip(ARMS[arm], self.steps(arm), strict=True):
            total += min(step, num) * self.cost[stage.objective] * GIGA / TERA
            step = max(0, step - num)
        return total


def cost(tokenizer: Tokenizer, chat: ChatTemplate, stage: Stage, num: int = 6) -> float:
    """Floating-point operations of a step, forward and backward, in 10^9: those of a row, from `num` batches of a pool
    of the recipe, times the rows that the pool's batches have on average (one of them is what was left over)."""
    model = Transformer(cabin_trunk(tokenizer.vocab_size))
    if stage.objective == "joint":
        model = convert(model, block_size=BLOCK_SIZE, mask_token_id=tokenizer.mask_id)
    model.train()
    weights = {"next": 1.0, "masked": 1.0}
    documents = pool(cabin_source(tokenizer, chat), _SEED + 1, 0, POOL_SIZE, 2)
    rows = partial(num_rows, objective=stage.objective, block_size=BLOCK_SIZE, copies=CABIN_NOISE.copies)
    groups = batches(documents, stage.rows, np.random.default_rng(0), rows)
    counted = 0
    for group in groups[:num]:
        batch = _batch(tokenizer, group, stage.objective, CABIN_NOISE)
        with FlopCounterMode(display=False) as counter:
            accumulate(model, batch, Counts.of([batch]), tokenizer.mask_id, weights)
        counted += counter.get_total_flops()
    of_row = counted / sum(sum(map(rows, group)) for group in groups[:num])
    return round(of_row * sum(map(rows, documents)) / len(groups) / GIGA, 3)


def budget(folder: Path, tera: float, tokenizer: Tokenizer, chat: ChatTemplate) -> Budget:
    """The budget that the runs in the folder have; a new folder gets `tera`, and costs as they are counted now.

    Raises FourleafError where the folder's is another.
    """
    path = folder / PLAN
    if not path.exists():
        found = Budget(tera, {stage.objective: cost(tokenizer, chat, stage) for stage in (AR, JOINT)})
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"tera": tera, "cost": found.cost}) + "\n", encoding="utf-8")
    found = Budget(**json.loads(path.read_text(encoding="utf-8")))
    if found.tera != tera:
        raise FourleafError(f"the runs in {folder} have {found.tera:g} tera; give that, or choose another folder")
    return found


def _batch(tokenizer: Tokenizer, documents: list[Any], objective: str, noise: NoiseConfig) -> Batch:
    return collate(
        documents, objective=objective, end_id=tokenizer.end_id, mask_id=tokenizer.mask_id, block_size=BLOCK_SIZE,
        noise=noise, fill_weight=0.0, prompt_weight=0.0, rng=np.random.default_rng(0),
    )  # fmt: skip


def scorer(tokenizer: Tokenizer, chat: ChatTemplate, num: int = NUM) -> Evaluate:
    """A function of the model: its losses and hits on noisy blocks of `num` examples, the same at every call."""
    documents = list(itertools.islice(cabin_source(tokenizer, chat)(_SEED, 2), num))
    noisy, clean = (_batch(tokenizer, documents, name, NoiseConfig()) for name in ("joint", "ar"))

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


def train(folder: Path, arm: str, given: Budget, seed: int) -> None:
    """One arm, to its end, with the bundled tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer.json").exists():
        shutil.copyfile(bundled_path() / "tokenizer.json", folder / "tokenizer.json")
    steps = sum(given.steps(arm))
    overrides: dict[str, object] = {
        "stages": given.stages(arm), "micro_batches": 1, "pool_size": POOL_SIZE, "log_every": 10,
        "eval_every_steps": max(1, steps // SCORINGS),
    }  # fmt: skip
    settings = {"num_threads": 1, "num_workers": 1, "compiled": False, "overrides": overrides}
    train_cabin(folder, steps=steps, seed=seed, evaluate=scorer, **settings)  # type: ignore[arg-type]


def curve(folder: Path, arm: str, given: Budget) -> list[dict[str, Any]]:
    """The scores of a run, each with the compute before it."""
    found = [line for line in RunFolder(folder).lines() if "evaluation" in line]
    return [{"arm": arm, **line, "tera": round(given.spent(arm, line["step"]), 4)} for line in found]


def draw(curves: dict[str, list[dict[str, Any]]], picture: Path) -> None:
    """Masked rows and next tokens named right, against compute."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "fourleaf"
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for axes, name, title in zip(both, ("masked_right", "next_right"), ("masked rows", "next tokens"), strict=True):
        for arm, lines in curves.items():
            points = [(line["tera"], 100 * line[name]) for line in lines if name in line]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=arm)
        axes.set(title=f"{title} named right, %", xlabel="compute, TFLOP", ylim=(0, 100), xlim=(0, None))
        axes.grid(alpha=0.3)
    both[1].legend(loc="lower right")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150, metadata={"Date": None} if picture.suffix == ".svg" else None)


def lines(curves: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Where each arm stood at the end of each of its stages."""
    rows = [["", "TFLOP", "steps", *COLUMNS.values()]]
    for arm, found in curves.items():
        for stage in dict.fromkeys(line["evaluation"] for line in found):
            last = [line for line in found if line["evaluation"] == stage][-1]
            cells = [f"{last[name]:,}" if name in last else "" for name in COLUMNS]
            rows.append([f"{arm}: {stage}", f"{last['tera']:.2f}", f"{last['step']:,}", *cells])
    return table(rows)


def run(folders: dict[str, Path], given: Budget, seed: int) -> None:
    """Both arms, side by side, to their ends."""
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=train, args=(f, arm, given, seed)) for arm, f in folders.items()]
    for process in running:
        process.start()
    for process in running:
        process.join()
    if any(process.exitcode for process in running):
        raise SystemExit("an arm ended with an error; what it had done goes on with the same command")


def main() -> None:
    """Reads the command line, runs both arms, prints where they end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the runs; what is there goes on")
    parser.add_argument("--tera", type=float, default=9.0, help="10^12 floating-point operations of each arm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="JSON lines to write: the budget, then every scoring")
    parser.add_argument("--picture", type=Path, help="to write, .png or .svg")
    parser.add_argument("--show", action="store_true", help="run nothing")
    given = parser.parse_args()
    if given.picture is not None and given.picture.suffix not in (".png", ".svg"):
        parser.error(f"{given.picture} must end in .png or .svg")
    bundled = Engine.load(bundled_path())
    compute = budget(given.folder, given.tera, bundled.tokenizer, bundled.chat)
    folders = {arm: given.folder / str(number) for number, arm in enumerate(ARMS)}
    print(f"operations of a step, in 10^9: {compute.cost}; steps: {[compute.steps(arm) for arm in ARMS]}", flush=True)
    if not given.show:
        run(folders, compute, given.seed)
    curves = {arm: curve(folder, arm, compute) for arm, folder in folders.items()}
    print("\n".join(lines(curves)))
    if given.log is not None:
        about = {"tera": compute.tera, "cost": compute.cost, "steps": {arm: compute.steps(arm) for arm in ARMS}}
        found = [about, *itertools.chain.from_iterable(curves.values())]
        given.log.write_text("".join(json.dumps(line) + "\n" for line in found), encoding="utf-8")
    if given.picture is not None:
        draw(curves, given.picture)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        main()
    except FourleafError as error:
        sys.exit(f"ar_start: {error}")
