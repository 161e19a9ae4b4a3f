"""Whether probabilities mean what they say: expected calibration error, its noise floor, Brier score.

Shapes: N answered questions, O options of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 15
_FLOOR_DRAWS = 200

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bin:
    """Answers of like confidence: how sure they were on average, what share was right, how many there are."""

    confidence: float
    right: float
    n: int


@dataclass(frozen=True)
class Reliability:
    """ece: mean |right - confidence| over bins of equal mass, by the likeliest option. floor: the ECE that perfectly
    calibrated answers of these confidences would show by chance. brier: mean squared distance of the probabilities
    from the truth, 0 to 2."""

    ece: float
    floor: float
    brier: float
    n: int
    bins: tuple[Bin, ...]

    @classmethod
    def of(cls, p: Sequence[Floats], right: Sequence[int], seed: int = 0) -> Reliability:
        """p: [O] of each answer; right: the true option. At least one answer."""
        sure = np.array([values.max() for values in p])
        hit = np.array([int(values.argmax()) == truth for values, truth in zip(p, right, strict=True)], dtype=float)
        order = np.argsort(sure, kind="stable")
        parts = [part for part in np.array_split(order, min(BINS, len(order))) if len(part)]
        rng = np.random.default_rng(seed)
        lucky = [_ece(parts, sure, (rng.random(len(sure)) < sure).astype(float)) for _ in range(_FLOOR_DRAWS)]
        return cls(
            ece=_ece(parts, sure, hit),
            floor=float(np.mean(lucky)),
            brier=float(np.mean([_brier(values, truth) for values, truth in zip(p, right, strict=True)])),
            n=len(sure),
            bins=tuple(Bin(float(sure[part].mean()), float(hit[part].mean()), len(part)) for part in parts),
        )

    def document(self) -> dict[str, object]:
        return asdict(self)


def _ece(parts: Sequence[NDArray[np.int64]], sure: Floats, hit: Floats) -> float:
    return float(sum(abs(hit[part].mean() - sure[part].mean()) * len(part) for part in parts) / len(sure))


def _brier(p: Floats, truth: int) -> float:
    target = np.zeros(len(p))
    target[truth] = 1.0
    return float(((p - target) ** 2).sum())
