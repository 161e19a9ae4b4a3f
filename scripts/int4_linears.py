"""Times what can compute a product with INT4 weights, beside fp32, for 1, 8 and 32 rows: decision 007 rests on it.

    python scripts/int4_linears.py [--threads 1] [--group 64] [--matrices 32] [--seconds 0.5] [--json times.json]

Each shape has several matrices that are used in turn, as a model uses its layers', so that a matrix comes from where it
would then come from. Backends take turns, too; what is printed is the median over rounds, in microseconds a product,
and the speed beside fp32 in the same run. `fp32` is what serving runs.
torchao is timed where it is installed; it is no dependency.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourleaf.kernels.products import Product as Served
from fourleaf.measure.circumstances import processor
from fourleaf.measure.tables import table
from fourleaf.quant.backends import BACKENDS, Product
from fourleaf.quant.int4 import Int4Config, dequantise, quantise

# (outputs, inputs): the bundled model's MLP, two sizes between, SmolLM2-135M's MLP, and an expert of Clover-35B-A3B.
SHAPES = ((416, 160), (160, 416), (256, 384), (384, 512), (1536, 576), (576, 1536), (1024, 2048), (2048, 512))
ROWS = (1, 8, 32)


@dataclass(frozen=True)
class Cell:
    """Microseconds of a product, by what computed it."""

    outputs: int
    inputs: int
    rows: int
    microseconds: dict[str, float]


def torchao(weight: Tensor, group: int) -> Product:
    """torchao's weight-only INT4 for CPUs (0.18 has no packed one). Raises whatever torchao does where it cannot."""
    import torchao.quantization as ao  # pyrefly: ignore

    if weight.shape[1] % group:
        raise ValueError(f"takes no short group: {weight.shape[1]} inputs in groups of {group}")
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    int4 = getattr(torch, "int4")  # noqa: B009 - torch's stubs lack it
    ao.quantize_(linear, ao.IntxWeightOnlyConfig(weight_dtype=int4, granularity=ao.PerGroup(group)))
    return linear


def dense(weight: Tensor) -> Product:
    """The same weights, not packed."""
    return lambda x: F.linear(x.to(weight.dtype), weight).to(x.dtype)


def products(shape: tuple[int, int], config: Int4Config, num: int, notes: set[str]) -> dict[str, list[Product]]:
    """`num` products of each kind; a note for each kind that is not here."""
    packed = [quantise(torch.randn(shape), config) for _ in range(num)]
    weights = [dequantise(p) for p in packed]
    kinds: dict[str, Callable[[int], Product]] = {
        "fp32": lambda i: Served(weights[i], by_columns=True),
        "bf16": lambda i: dense(weights[i].bfloat16()),
        "torchao": lambda i: torchao(weights[i], config.group_size),
    }
    for name, backend in BACKENDS.items():
        if (reason := backend.missing()) is not None:
            notes.add(f"{name}: {reason}")
            continue
        kinds[name] = lambda i, make=backend.make: make(packed[i])
    found = {}
    for name, make in kinds.items():
        try:
            made = [make(i) for i in range(num)]
            made[0](torch.randn(1, shape[1]))
        except (ImportError, RuntimeError, AssertionError, ValueError) as error:
            notes.add(f"{name}: {' '.join(str(error).split())[:150]}")
            continue
        found[name] = made
    return found


def timed(found: dict[str, list[Product]], rows: int, width: int, seconds: float) -> dict[str, float]:
    """Median over rounds of the microseconds that a product of each kind takes."""
    x = torch.randn(rows, width)
    rounds: dict[str, list[float]] = {name: [] for name in found}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds["fp32"]) < 3:
        for name, made in found.items():
            begin = time.perf_counter()
            for product in made:
                product(x)
            rounds[name].append(1e6 * (time.perf_counter() - begin) / len(made))
    return {name: statistics.median(times) for name, times in rounds.items()}


def shown(measured: list[Cell]) -> list[str]:
    """A line for each shape and number of rows, a column for each kind."""
    names = list(dict.fromkeys(name for cell in measured for name in cell.microseconds))
    lines = [["outputs x inputs", "rows", *names]]
    for cell in measured:
        times = cell.microseconds
        found = [f"{times[n]:,.0f} ({times['fp32'] / times[n]:.2f}x)" if n in times else "-" for n in names]
        lines.append([f"{cell.outputs} x {cell.inputs}", f"{cell.rows}", *found])
    return table(lines)


@torch.inference_mode()
def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--symmetric", action="store_true")
    parser.add_argument("--matrices", type=int, default=32, help="of each shape, used in turn")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each shape and number of rows")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    config = Int4Config(group_size=given.group, symmetric=given.symmetric)
    notes: set[str] = set()
    measured: list[Cell] = []
    for outputs, width in SHAPES:
        found = products((outputs, width), config, given.matrices, notes)
        for rows in ROWS:
            measured.append(Cell(outputs, width, rows, timed(found, rows, width, given.seconds)))
    print("\n".join(shown(measured)))
    about = {"processor": processor(), "torch": torch.__version__, "threads": given.threads}
    about |= {"load": [round(load, 2) for load in os.getloadavg()], "scheme": config.to_dict()}
    print(f"microseconds a product (speed beside fp32); {given.matrices} matrices in turn; {about}")
    print("\n".join(sorted(notes)))
    if given.json is not None:
        given.json.write_text(
            json.dumps({**about, "measured": [asdict(cell) for cell in measured]}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
