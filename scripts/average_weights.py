"""The weighted mean of checkpoints that were trained on from one another: often better than each of them.

    python scripts/average_weights.py NINTH ELEVENTH --out OUT
    python scripts/average_weights.py NINTH ELEVENTH TWELFTH --shares 1 1 2 --out OUT

OUT is a new folder: a copy of the last one with the mean in it, in bf16, and without what was fitted to its weights
(decisions.json). Sums are made in fp32. "Model soups" (Wortsman et al. 2022, arXiv:2203.05482) average fine-tuned
weights in this way.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from fourleaf.checkpoint.files import load_model, save_model
from fourleaf.checkpoint.shards import refuse_taken
from fourleaf.decide.calibration import FILE as FITTED


@torch.no_grad()
def average(folders: Sequence[Path], shares: Sequence[float], out: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes `out`. shares: of each folder's weights, in any unit. Raises ValueError where configs differ, ConfigError
    where a checkpoint is there already."""
    refuse_taken(out)
    models = [load_model(folder) for folder in folders]
    if len({str(model.config) for model in models}) > 1:
        raise ValueError(f"{', '.join(map(str, folders))} do not have the same config")
    each = [dict(model.named_tensors()) for model in models]
    for name, x in each[-1].items():
        weighted = [share * tensors[name] for share, tensors in zip(shares, each, strict=True)]
        x.copy_(torch.stack(weighted).sum(0) / sum(shares))
    shutil.copytree(folders[-1], out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(FITTED))
    save_model(models[-1], out, dtype)


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--shares", type=float, nargs="+", help="equal by default")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    shares = asked.shares or [1.0] * len(asked.folders)
    if len(shares) != len(asked.folders):
        parser.error(f"{len(shares)} shares for {len(asked.folders)} folders; give one for each")
    if not sum(shares):
        parser.error(f"shares {shares} sum to 0; give at least one that counts")
    average(asked.folders, shares, asked.out)


if __name__ == "__main__":
    main()
