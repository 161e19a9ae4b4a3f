"""What is fitted on held-out answers and stored with a checkpoint: temperatures, and how many passes are worth it.

One temperature for each mode, type and bucket of option counts: one that is right for two options is wrong for twenty.
A joint canvas has two modes: its first pass, and later ones, which take what was revealed for true and are too sure
where it is not. A temperature never changes which option is likeliest.

Shapes: O options.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourleaf.checkpoint.files import read_json, write_json
from fourleaf.decide.questions import MAX_JOINT, TYPES
from fourleaf.errors import CheckpointError

FILE = "decisions.json"
INDEPENDENT, JOINT, REVEALED = "independent", "joint", "revealed"
MODES = (INDEPENDENT, JOINT, REVEALED)
_NEXT_BEST = {REVEALED: JOINT}  # whose temperature a mode takes where too few answers were there to fit its own
BUCKETS = (2, 3, 4, 8, 26, 255)  # each holds the counts up to its own
MIN_ANSWERS = 30
LOWEST, HIGHEST = 0.05, 20.0
_FLOOR = -1e4

Floats = NDArray[np.float64]
Key = tuple[str, str, int]


def bucket(num_options: int) -> int:
    """The bucket of a question with so many options."""
    return next(limit for limit in BUCKETS if num_options <= limit)


@dataclass(frozen=True)
class Temperatures:
    """By mode, type and bucket; 1 where nothing was fitted. about: what they were fitted on. passes: of a joint request
    that does not say how many; None: as many as it has questions."""

    values: Mapping[Key, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    passes: int | None = None

    def applied(self, mode: str, kind: str, log_p: Floats) -> Floats:
        """[O] log probabilities, normalised -> the same at the question's temperature."""
        size = bucket(len(log_p))
        value = self.values.get((mode, kind, size)) or self.values.get((_NEXT_BEST.get(mode, mode), kind, size), 1.0)
        return log_p if value == 1.0 else tempered(log_p, value)

    @classmethod
    def load(cls, folder: Path) -> Temperatures:
        """Those of a checkpoint; none where it has none. Raises CheckpointError where the file is broken."""
        path = folder / FILE
        if not path.is_file():
            return cls()
        document = read_json(path)
        values: dict[Key, float] = {}
        try:
            for mode, kinds in document["temperatures"].items():
                for kind, limits in kinds.items():
                    for limit, value in limits.items():
                        if mode not in MODES or kind not in TYPES or int(limit) not in BUCKETS:
                            raise ValueError(f"there is no {mode} {kind} of up to {limit} options")
                        if not LOWEST <= float(value) <= HIGHEST:
                            raise ValueError(f"a temperature of {value} is outside {LOWEST} to {HIGHEST}")
                        values[mode, kind, int(limit)] = float(value)
            passes = document.get("passes")
            if passes is not None and (type(passes) is not int or not 1 <= passes <= MAX_JOINT):
                raise ValueError(f"{passes!r} passes are outside 1 to {MAX_JOINT}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is not a file of temperatures: {error}; run `fourleaf calibrate`") from error
        return cls(values, document.get("about") or {}, passes)

    def save(self, folder: Path) -> Path:
        """Writes them into a checkpoint's folder."""
        nested: dict[str, dict[str, dict[str, float]]] = {}
        for (mode, kind, limit), value in sorted(self.values.items()):
            nested.setdefault(mode, {}).setdefault(kind, {})[str(limit)] = round(value, 4)
        passes = {} if self.passes is None else {"passes": self.passes}
        write_json(folder / FILE, {"about": dict(self.about), **passes, "temperatures": nested})
        return folder / FILE


def tempered(log_p: Floats, temperature: float) -> Floats:
    """p^(1/T), renormalised, in logarithms."""
    scaled = np.maximum(log_p, _FLOOR) / temperature
    return scaled - log_total(scaled)


def log_total(log_p: Floats) -> float:
    """The logarithm of the sum of [O] probabilities, the same to the bit in whatever order they are."""
    return float(np.logaddexp.reduce(np.sort(log_p)))


def fit(answers: Sequence[tuple[str, str, Floats, int]], about: Mapping[str, Any] | None = None) -> Temperatures:
    """answers: (mode, type, [O] uncalibrated log probabilities, the right option). Under MIN_ANSWERS of a kind: 1."""
    groups: dict[Key, list[tuple[Floats, int]]] = {}
    for mode, kind, log_p, right in answers:
        if len(log_p) > 1:
            groups.setdefault((mode, kind, bucket(len(log_p))), []).append((log_p, right))
    values = {key: fit_one(found) for key, found in sorted(groups.items()) if len(found) >= MIN_ANSWERS}
    return Temperatures(values, about or {})


def fit_one(answers: Sequence[tuple[Floats, int]]) -> float:
    """The temperature with the least negative log-likelihood; golden-section search over its logarithm."""
    wide = max(len(log_p) for log_p, _ in answers)
    table = np.full((len(answers), wide), -np.inf)
    for i, (log_p, _) in enumerate(answers):
        table[i, : len(log_p)] = np.maximum(log_p, _FLOOR)
    right = np.array([at for _, at in answers])

    def loss(log_t: float) -> float:
        scaled = table / math.exp(log_t)
        return float((np.logaddexp.reduce(scaled, axis=1) - scaled[np.arange(len(right)), right]).mean())

    low, high = math.log(LOWEST), math.log(HIGHEST)
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if loss(a) <= loss(b) else (a, high)
    return min(HIGHEST, max(LOWEST, math.exp((low + high) / 2)))
