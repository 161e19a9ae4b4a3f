"""Intervals from resampling, and differences and ratios of two arms that saw the same prompts.

Percentile bootstrap (Efron, 1979): 95% of resamples lie inside. Where every value is the same the interval has no
width: it says nothing about what was not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 10_000
LEVEL = 0.95
_AT_ONCE = 500

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate from `n` prompts, with the interval that holds 95% of its resamples."""

    value: float
    low: float
    high: float
    n: int

    def document(self) -> dict[str, float | int]:
        return asdict(self)


@dataclass(frozen=True)
class Paired:
    """How two arms differ on the same prompts. `difference`: share right of the second minus that of the first."""

    difference: Interval
    both: int
    only_first: int
    only_second: int
    neither: int

    def document(self) -> dict[str, object]:
        return asdict(self)


def mean(values: ArrayLike, seed: int, resamples: int = RESAMPLES) -> Interval:
    """The mean of `values` [n], n at least 1."""
    return _interval([values], lambda sums: sums[0] / np.shape(values)[0], seed, resamples)


def ratio(numerators: ArrayLike, denominators: ArrayLike, seed: int, resamples: int = RESAMPLES) -> Interval:
    """Sum over sum, prompts resampled: tokens a second, tokens a forward. Each [n]."""
    return _interval([numerators, denominators], lambda sums: sums[0] / sums[1], seed, resamples)


def ratio_of_ratios(
    first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike], seed: int, resamples: int = RESAMPLES
) -> Interval:
    """(sum/sum of the second) / (sum/sum of the first), each prompt resampled in both arms at once: a speed-up."""
    columns = [*first, *second]
    return _interval(columns, lambda s: (s[2] / s[3]) / (s[0] / s[1]), seed, resamples)


def paired(first: Sequence[bool], second: Sequence[bool], seed: int, resamples: int = RESAMPLES) -> Paired:
    """first[i] and second[i]: whether each arm was right on prompt i."""
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    assert a.shape == b.shape, "paired arms see the same prompts"
    difference = mean(b.astype(float) - a, seed, resamples)
    return Paired(difference, int((a & b).sum()), int((a & ~b).sum()), int((b & ~a).sum()), int((~a & ~b).sum()))


def _interval(
    columns: Sequence[ArrayLike], statistic: Callable[[list[Floats]], Floats], seed: int, resamples: int
) -> Interval:
    """`statistic` of the columns' sums over prompts: of all prompts once, and of resamples with replacement."""
    table = np.stack([np.asarray(column, dtype=np.float64) for column in columns])
    size = table.shape[1]
    assert size, "an estimate needs at least one prompt"
    rng = np.random.default_rng(seed)
    drawn = []
    for begin in range(0, resamples, _AT_ONCE):
        chosen = rng.integers(0, size, (min(_AT_ONCE, resamples - begin), size))
        with np.errstate(divide="ignore"):
            drawn.append(statistic([column[chosen].sum(1) for column in table]))
    values = np.concatenate(drawn)
    values = values[np.isfinite(values)]  # a resample may hold only answers that needed no forward: no ratio
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = statistic([column.sum(keepdims=True) for column in table])[0]
    return Interval(float(value), float(low), float(high), size)
