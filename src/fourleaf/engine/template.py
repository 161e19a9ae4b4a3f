"""What an infilling pins and what it leaves open. Plain data, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fourleaf.errors import RequestError

MAX_PARTS = 256


@dataclass(frozen=True)
class Gap:
    """A stretch that the model fills with at most `limit` tokens, perhaps with none."""

    limit: int


Part = Gap | tuple[int, ...]  # a gap, or pinned tokens


def check_template(parts: Sequence[Part]) -> None:
    """Raises RequestError for what is no template: gaps must not touch, and at least one must be there."""
    if len(parts) > MAX_PARTS:
        _refuse(f"has {len(parts)} parts; at most {MAX_PARTS} are taken")
    if not any(isinstance(part, Gap) for part in parts):
        _refuse("has no gap: there is nothing to fill")
    for index, part in enumerate(parts):
        if not isinstance(part, Gap):
            if not part:
                _refuse(f"has an empty text at {index}: leave it out")
            continue
        if isinstance(part.limit, bool) or not isinstance(part.limit, int) or part.limit < 1:
            _refuse(f"has a gap at {index} that may have {part.limit!r} tokens; it must be a whole number from 1 on")
        if index and isinstance(parts[index - 1], Gap):
            _refuse(f"has two gaps in a row at {index}: join them")


def num_pinned(parts: Sequence[Part]) -> int:
    """Tokens given from outside."""
    return sum(len(part) for part in parts if not isinstance(part, Gap))


def num_open(parts: Sequence[Part]) -> int:
    """Tokens that the gaps may have, all together."""
    return sum(part.limit for part in parts if isinstance(part, Gap))


def _refuse(why: str) -> None:
    raise RequestError(f"infill {why}.", param="infill", code="invalid_value")
