"""The mean of two checkpoints' weights, of which one was trained on from the other: often better than both.

    python scripts/average_weights.py EARLIER LATER OUT [--share 0.5]

OUT is a copy of LATER's folder with the mean in it; `share` is LATER's. Sums are made in fp32 and rounded once to the
type of LATER's file. "Model soups" (Wortsman et al. 2022, arXiv:2203.05482) average fine-tuned weights in this way.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def average(earlier: Path, later: Path, out: Path, share: float) -> None:
    """Writes `out`. Raises ValueError where the two do not have the same tensors."""
    first, second = load_file(earlier / WEIGHTS), load_file(later / WEIGHTS)
    if {name: x.shape for name, x in first.items()} != {name: x.shape for name, x in second.items()}:
        raise ValueError(f"{earlier} and {later} do not have the same tensors")
    mean = {name: ((1 - share) * first[name].float() + share * x.float()).to(x.dtype) for name, x in second.items()}
    shutil.copytree(later, out, dirs_exist_ok=True)
    with safe_open(later / WEIGHTS, "pt") as file:
        save_file(mean, out / WEIGHTS, metadata=file.metadata())


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", type=Path)
    parser.add_argument("later", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, default=0.5)
    asked = parser.parse_args()
    average(asked.earlier, asked.later, asked.out, asked.share)


if __name__ == "__main__":
    main()
