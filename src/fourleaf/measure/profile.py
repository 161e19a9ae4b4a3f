"""Where the time of each kind of forward goes, operation by operation, by torch's own profiler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fourleaf.engine.engine import Engine
from fourleaf.measure.tables import table
from fourleaf.model.state import State
from fourleaf.model.work import Segments, Work

REPEATS = 30
TOP = 12
MATRIX_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "mkldnn::_linear_pointwise")


@dataclass(frozen=True)
class Profile:
    """One kind of forward. Times in ms a forward.

    alone_ms: without the profiler, the median. profiled_ms: with it, which costs something at every operation.
    operations: (name, ms spent in it and in nothing that it called, calls a forward), longest first.
    """

    kind: str
    alone_ms: float
    profiled_ms: float
    operations: list[tuple[str, float, float]]

    @property
    def in_operations_ms(self) -> float:
        return sum(ms for _, ms, _ in self.operations)

    @property
    def matrix_ms(self) -> float:
        return sum(ms for name, ms, _ in self.operations if name in MATRIX_PRODUCTS)

    @property
    def python_share(self) -> float:
        """The part of the profiled time that lies between operations: Python, and the clock itself."""
        return max(0.0, 1 - self.in_operations_ms / self.profiled_ms)

    def document(self) -> dict[str, Any]:
        shares = {"matrix_ms": self.matrix_ms, "in_operations_ms": self.in_operations_ms}
        return {**asdict(self), **shares, "python_share": self.python_share}


@torch.inference_mode()
def profiles(engine: Engine, prompt: list[int]) -> list[Profile]:
    """An `ar` step, and of a whole block a pass, a verification that accepts half, and a commit with the next pass, all
    behind `prompt`, heads of wanted rows included."""
    block = engine.model.config.block_size
    committed = State.empty(engine.model.config, dtype=engine.model.lm_head.weight.dtype)
    engine.model(Work(torch.tensor(prompt), Segments([len(prompt)]), [0]), committed)
    kinds = {"ar step": _forward(engine, committed, 1, 0)}
    if block is not None:
        kinds[f"pass of {block}"] = _forward(engine, committed, 0, block)
        kinds[f"verify of {block}"] = _forward(engine, committed, block, 0, is_held=True)
        kinds[f"commit of {block} + pass of {block}"] = _forward(engine, committed, block, block)
    return [_profile(kind, once) for kind, once in kinds.items()]


def _forward(
    engine: Engine, committed: State, causal: int, canvas: int, *, is_held: bool = False
) -> Callable[[], float]:
    """Runs one such forward behind a copy of `committed`, and says how many seconds it took."""
    filler = engine.mask_id if canvas else engine.end_id
    assert filler is not None
    model, (start,) = engine.model, committed.lengths
    ids = torch.full((causal + canvas,), filler)
    blocks = (Segments([canvas]), [0], [start + causal]) if canvas else (None, None, None)

    def once() -> float:
        state = committed.clone() if causal else committed
        begin = time.perf_counter()
        hidden, _ = model(Work(ids, Segments([causal]), [start], *blocks, num_held=int(is_held)), state)
        model.head(hidden[causal:] if canvas else hidden)
        if is_held:
            state.advance([causal // 2])
        return time.perf_counter() - begin

    return once


def _profile(kind: str, once: Callable[[], float]) -> Profile:
    alone = sorted(once() for _ in range(2 * REPEATS))
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        seconds = sum(once() for _ in range(REPEATS))
    operations = [
        (event.key, event.self_cpu_time_total / 1e3 / REPEATS, event.count / REPEATS)
        for event in recorded.key_averages()
    ]
    operations.sort(key=lambda item: -item[1])
    return Profile(kind, 1e3 * alone[REPEATS], 1e3 * seconds / REPEATS, operations)


def lines(found: Profile) -> list[str]:
    """A profile as text."""
    total = found.in_operations_ms
    calls = sum(count for _, _, count in found.operations)
    rows = [["operation", "ms", "share", "calls"]]
    for name, ms, count in found.operations[:TOP]:
        rows.append([f"  {name.removeprefix('aten::')}", f"{ms:.3f}", f"{100 * ms / total:.0f}%", f"{count:.0f}"])
    rows.append(["  (others)", f"{sum(ms for _, ms, _ in found.operations[TOP:]):.3f}", "", ""])
    shares = {
        "matrix products": found.matrix_ms / found.profiled_ms,
        "other operations": (total - found.matrix_ms) / found.profiled_ms,
        "between operations": found.python_share,
    }
    head = (
        f"{found.kind}: {found.alone_ms:.2f} ms, {found.profiled_ms:.2f} under the profiler, {calls:.0f} operations; "
    )
    head += ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares.items())
    return [head, *table(rows)]
