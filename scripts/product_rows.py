"""Times all products of a model's forward, as torch's own and as serving runs them (decision 038).

    python scripts/product_rows.py [CHECKPOINT] [--threads 1] [--seconds 1]

A forward reads each weight once, so all products of a model run in turn, for each number of rows. Both kinds take
turns; printed is the median of each, in milliseconds a forward, head included.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from fourleaf.checkpoint.quantised import load_checkpoint
from fourleaf.engine.engine import bundled_path
from fourleaf.kernels.products import FILLED, Product, warm
from fourleaf.measure.circumstances import processor
from fourleaf.measure.tables import table

ROWS = (1, 2, 3, 4, 5, 8, 9, 12, 16, 17, 24, 25, 32, 33, 64, 512)


def once(products: list[Product], inputs: list[torch.Tensor], is_plain: bool) -> float:
    """Seconds of a forward's products."""
    begin = time.perf_counter()
    for product, rows in zip(products, inputs, strict=True):
        if is_plain:
            torch.mm(rows, product.weight)
        else:
            product(rows)
    return time.perf_counter() - begin


def timed(products: list[Product], rows: int, seconds: float) -> tuple[float, float]:
    """Milliseconds: torch's own, and as served."""
    inputs = [torch.randn(rows, product.weight.shape[0]) for product in products]
    plain, served = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(plain) < 5:
        plain.append(once(products, inputs, True))
        served.append(once(products, inputs, False))
    return 1e3 * statistics.median(plain), 1e3 * statistics.median(served)


@torch.inference_mode()
def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?", default=bundled_path())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    products = load_checkpoint(given.checkpoint, torch.float32).products()
    warm(products)
    lines = [["rows", "torch.mm, ms", "as served, ms", "of it"]]
    for rows in ROWS:
        plain, served = timed(products, rows, given.seconds)
        lines.append([f"{rows}", f"{plain:.2f}", f"{served:.2f}", f"{served / plain:.2f}"])
    print("\n".join(table(lines)))
    print(f"{len(products)} products, filled up to {FILLED} rows; {processor()}, {given.threads} threads")


if __name__ == "__main__":
    main()
