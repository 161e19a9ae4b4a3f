"""What a forward costs on this machine: measured once in two seconds, kept on disk, read between the measured points.

A cost is that of one forward of one kind with so many rows in all, whoever they belong to. `auto` compares modes by it.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import json
import logging
import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from fourleaf.checkpoint.disk import read_json, write_json
from fourleaf.errors import CheckpointError, ConfigError

# step: one causal row of each request. pass: canvases alone. fused: the commit of blocks with the first pass of the
# next, rows of both counted. verify: causal rows whose state is kept aside.
Kind = Literal["step", "pass", "fused", "verify"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Point = tuple[Kind, int]
Curve = tuple[tuple[int, float], ...]

ROWS = (1, 8, 32, 64, 128, 512)
BUDGET_S = 2.0
MOST_TIMINGS = 5
# What one request alone needs, each timed whatever it takes: a model may be too slow for the rest.
ESSENTIAL: tuple[Point, ...] = (("step", 1), ("pass", 32), ("verify", 32), ("fused", 64))
FORMAT = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CostTable:
    """curves: for each kind (rows, seconds) of a forward, rows rising, seconds never falling."""

    curves: Mapping[Kind, Curve]

    def __post_init__(self) -> None:
        assert all(is_curve(self.curves[kind]) for kind in KINDS), f"costs that fall or are no costs: {self.curves}"

    @classmethod
    def from_timings(cls, timings: Mapping[Point, list[float]]) -> CostTable:
        """Takes the least timing of each point, as whatever else runs can only add to it, and has more rows never cost
        less. Where a kind has one point, further rows cost what they cost between a step and a pass of 32."""
        least = {point: min(seconds) for point, seconds in timings.items()}
        slope = max(0.0, least["pass", 32] - least["step", 1]) / 31
        curves: dict[Kind, Curve] = {}
        for kind in KINDS:
            points = sorted((rows, s) for (k, rows), s in least.items() if k == kind)
            if len(points) == 1:
                rows, s = points[0]
                points.append((rows + ROWS[-1], s + ROWS[-1] * slope))
            level = never_falling([s for _, s in points])
            curves[kind] = tuple((rows, s) for (rows, _), s in zip(points, level, strict=True))
        return cls(curves)

    def seconds(self, kind: Kind, rows: int) -> float:
        """One forward of `kind` with `rows` >= 1 rows in all: linear between measured points, beyond the last one as
        between the last two, below the first one as there."""
        assert rows >= 1, f"a forward has rows, not {rows}"
        curve = self.curves[kind]
        if rows <= curve[0][0] or len(curve) == 1:
            return curve[0][1]
        right = min(bisect.bisect_left(curve, (rows,)), len(curve) - 1)
        (low, before), (high, after) = curve[right - 1], curve[right]
        return before + (after - before) * (rows - low) / (high - low)


def is_curve(curve: Curve) -> bool:
    """At least one point; rows rise from 1 or more; seconds are positive, finite and never fall."""
    rows, seconds = [r for r, _ in curve], [s for _, s in curve]
    return (
        bool(curve)
        and rows[0] >= 1
        and rows == sorted(set(rows))
        and seconds[0] > 0
        and all(math.isfinite(s) for s in seconds)
        and seconds == sorted(seconds)
    )


def never_falling(values: list[float]) -> list[float]:
    """The closest rising sequence in least squares: neighbours that fall become their mean (pool adjacent violators,
    Ayer et al. 1955)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            left, size = pools.pop()
            mean, count = (mean * count + left * size) / (count + size), count + size
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def measure(
    time_forward: Callable[[Kind, int], float],
    most_rows: Mapping[Kind, int] | None = None,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> CostTable:
    """Times forwards within `budget_s`, the essential ones first, then all points in turn, small ones before large.

    time_forward(kind, rows): runs one such forward and says how many seconds it took. most_rows: what the engine can
    hold of each kind (a step of 512 rows needs 512 states); points beyond are left out. A point that would not fit
    into what is left of the budget is left out too; only the essential ones, and one run of each to warm up, are taken
    whatever they cost.
    """
    began = clock()
    for point in ESSENTIAL:
        time_forward(*point)
    timings = {point: [time_forward(*point)] for point in ESSENTIAL}
    wanted = [
        (kind, rows)
        for rows in ROWS
        for kind in KINDS
        if rows <= (most_rows or {}).get(kind, ROWS[-1]) and not (kind == "fused" and rows == 1)
    ]
    for _ in range(MOST_TIMINGS):
        for point in wanted:
            if len(timings.get(point, ())) < MOST_TIMINGS and _forecast(point, timings) <= budget_s - clock() + began:
                timings.setdefault(point, []).append(time_forward(*point))
    return CostTable.from_timings(timings)


def _forecast(point: Point, timings: Mapping[Point, list[float]]) -> float:
    """At most how long a forward will take: as long as it did, or in proportion to one of fewer rows."""
    if point in timings:
        return max(timings[point])
    kind, rows = point
    fewer = [r for k, r in timings if k == kind and r < rows]
    if fewer:
        return max(timings[kind, max(fewer)]) * rows / max(fewer)
    return max(max(timings[k, r]) for k, r in timings if k == kind)


def checkpoint_fingerprint(folder: Path) -> str:
    """What a forward's cost depends on in a checkpoint: its config, and names and sizes of its tensor files. Not the
    weights' values: reading tens of gigabytes would take longer than measuring.

    Raises CheckpointError where config.json cannot be read.
    """
    try:
        digest = hashlib.sha256((folder / "config.json").read_bytes())
        for file in sorted(folder.glob("*.safetensors")):
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
    except OSError as error:
        raise CheckpointError(f"cannot read {folder}: {error}; is it a checkpoint folder?") from error
    return digest.hexdigest()


def machine_key(fingerprint: str, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What a table holds for: a table of another checkpoint, machine or release is never read."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "format": FORMAT,
        "fourleaf": version("fourleaf"),
        "checkpoint": fingerprint,
        "device": name,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def processor() -> str:
    """The processor's name; /proc says more than `platform` where it exists."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {torch.backends.cpu.get_cpu_capability()}"
    return platform.processor() or platform.machine()


def cache_folder() -> Path:
    """Where tables are kept: `fourleaf/costs` in the user's cache folder ($XDG_CACHE_HOME, or ~/.cache)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fourleaf" / "costs"


def recall(folder: Path, key: Mapping[str, Any], measure_now: Callable[[], CostTable]) -> CostTable:
    """The table kept in `folder` for this key, or else one measured now and kept. A file that is broken or of another
    key is measured again and replaced; a folder that cannot be written costs the next start two seconds, no more."""
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
    path = folder / f"{digest[:32]}.json"
    table = _read(path, key)
    if table is None:
        table = measure_now()
        _write(path, key, table)
    return table


def _read(path: Path, key: Mapping[str, Any]) -> CostTable | None:
    if not path.exists():
        return None
    try:
        raw = read_json(path)
        if raw["key"] != dict(key):
            raise ValueError("it is of another key")
        curves: dict[Kind, Curve] = {
            kind: tuple((int(rows), float(seconds)) for rows, seconds in raw["seconds"][kind]) for kind in KINDS
        }
        if not all(is_curve(curve) for curve in curves.values()):
            raise ValueError(f"it holds no costs: {curves}")
        return CostTable(curves)
    except (ConfigError, LookupError, TypeError, ValueError) as error:
        _log.warning("%s is broken and measured again: %s", path, error)
        return None


def _write(path: Path, key: Mapping[str, Any], table: CostTable) -> None:
    """Two processes that start together each write a file of their own; the last one to finish stays."""
    own = path.with_suffix(f".{os.getpid()}.json")
    try:
        write_json(own, {"key": dict(key), "seconds": {kind: table.curves[kind] for kind in KINDS}})
        own.replace(path)
    except (OSError, CheckpointError) as error:
        with contextlib.suppress(OSError):
            own.unlink()
        _log.warning("forward costs are not kept: %s", error)
