"""Philox4x64-10 (Salmon et al., SC 2011) of many counters at once. `numpy.random.Philox`, which takes one at a time, is
its plain twin.

Shapes: M counters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Up to this many counters numpy's generator, one after another, is as fast.
FEW = 24

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)

Words = NDArray[np.uint64]


def first_words(key: tuple[Words, Words], counter: tuple[Words, Words, Words, Words]) -> Words:
    """The first 64 bits of each stream: key and counter word by word, [M] each. -> [M]."""
    one, two, three, four = counter
    for index in range(_ROUNDS):
        first, second = (word + np.uint64(index * step % 2**64) for word, step in zip(key, _WEYL, strict=True))
        above_one, above_three = _high(one, _MULTIPLIERS[0]), _high(three, _MULTIPLIERS[1])
        one, two, three, four = (
            above_three ^ two ^ first,
            three * _MULTIPLIERS[1],
            above_one ^ four ^ second,
            one * _MULTIPLIERS[0],
        )
    return one


def _high(word: Words, by: np.uint64) -> Words:
    """The upper 64 bits of products of 128, by halves."""
    low, high, by_low, by_high = word & _LOW, word >> _HALF, by & _LOW, by >> _HALF
    across = (low * by_low >> _HALF) + high * by_low
    middle = low * by_high + (across & _LOW)
    return high * by_high + (across >> _HALF) + (middle >> _HALF)
