"""How often a sampled token changes where its logits differ by rounding alone, and what a draw costs.

    python scripts/draw_rounding.py

Compares the draw of `diffusion.sampling` with a walk along cumulated probabilities, on random logits, of which the
second copy carries errors of the size that another batch's order of sums leaves in fp32.
"""

import time

import numpy as np
import torch

from fourleaf.diffusion.policy import Noise, Purpose
from fourleaf.diffusion.sampling import draw

ROWS = 64
DRAWS = 100
ERROR = 1e-5  # of a logit: fp32 sums of some hundred terms


def walked(shares: torch.Tensor, keys: np.ndarray) -> torch.Tensor:
    """Tokens by inverse cumulated distribution: one uniform number a row."""
    sums = shares.double().cumsum(-1)
    uniform = torch.from_numpy((keys >> np.uint64(11)) * 2.0**-53)
    return torch.searchsorted(sums, (uniform * sums[:, -1])[:, None], right=True)[:, 0]


def compare(size: int, spread: float) -> str:
    """One line of the table: changed tokens in a million, milliseconds a row."""
    generator = torch.Generator().manual_seed(0)
    changed, seconds = dict.fromkeys((draw, walked), 0), dict.fromkeys((draw, walked), 0.0)
    for index in range(DRAWS):
        logits = torch.randn(ROWS, size, generator=generator) * spread
        other = logits + torch.randn(ROWS, size, generator=generator) * ERROR
        keys = Noise(0).keys(list(range(ROWS)), index, Purpose.PROPOSE)
        for way in (draw, walked):
            begin = time.perf_counter()
            tokens = way(torch.softmax(logits, -1), keys)
            seconds[way] += time.perf_counter() - begin
            changed[way] += int((tokens != way(torch.softmax(other, -1), keys)).sum())
    rate = [f"{changed[way] / (ROWS * DRAWS) * 1e6:10.0f}" for way in (draw, walked)]
    cost = [f"{seconds[way] / (ROWS * DRAWS) * 1e3:8.3f}" for way in (draw, walked)]
    return f"{size:8} {spread:6} {' '.join(rate)} {' '.join(cost)}"


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    print(f"{'tokens':>8} {'spread':>6} {'race':>10} {'walk':>10} {'race ms':>8} {'walk ms':>8}")
    for size in (1024, 16384):
        for spread in (1.0, 4.0):
            print(compare(size, spread), flush=True)


if __name__ == "__main__":
    main()
