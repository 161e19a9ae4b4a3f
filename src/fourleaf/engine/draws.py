"""Tokens of many requests, chosen at once. Rows never see each other and random numbers belong to a row's request, so
each request's tokens are those that it would choose alone.

Shapes: M rows of a request, W rows of all, Y vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fourleaf.diffusion.policy import Noise, Purpose, keys_of
from fourleaf.diffusion.sampling import Sampling, adjust, pick


@dataclass(frozen=True)
class Draw:
    """How a request's rows become tokens, where nothing but their logits decides. positions: [M]."""

    sampling: Sampling
    mask: int | None
    noise: Noise
    positions: list[int]
    pass_index: int


@dataclass(frozen=True)
class Drawn:
    """A request's rows: adjusted logits [M, Y], a token and its confidence [M] each."""

    adjusted: Tensor
    tokens: list[int]
    confidence: list[float]


def draw_together(draws: Sequence[Draw | None], logits: Sequence[Tensor]) -> list[Drawn | None]:
    """What each request's rows become; None where it is to choose by itself: it wants that, it shares its sampling with
    nobody, or its company failed (rows that hold no numbers, no memory for all rows at once), and whose fault that is
    shows when each chooses alone.

    logits: [M, Y] of each request.
    """
    groups: dict[tuple[Sampling, int | None], list[int]] = {}
    for index, one in enumerate(draws):
        if one is not None:
            groups.setdefault((one.sampling, one.mask), []).append(index)
    found: list[Drawn | None] = [None] * len(draws)
    for (sampling, mask), members in groups.items():
        if len(members) > 1:
            alike = [one for index in members if (one := draws[index]) is not None]
            try:
                drawn = _draw(alike, torch.cat([logits[index] for index in members]), sampling, mask)
            except Exception:
                continue
            for index, one in zip(members, drawn, strict=True):
                found[index] = one
    return found


def _draw(draws: list[Draw], logits: Tensor, sampling: Sampling, mask: int | None) -> list[Drawn]:
    """Of requests that sample alike. logits: [W, Y]."""
    adjusted, keys = adjust(logits, sampling, mask), None
    if sampling.temperature > 0:
        keys = keys_of([(one.noise, one.positions, one.pass_index) for one in draws], Purpose.PROPOSE)
    tokens, confidence = pick(adjusted, sampling, keys)
    found, begin = [], 0
    for one in draws:
        end = begin + len(one.positions)
        found.append(Drawn(adjusted[begin:end], tokens[begin:end], confidence[begin:end]))
        begin = end
    return found
