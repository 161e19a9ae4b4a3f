"""One forward of what several requests need: rows gathered, run, and logits handed back.

Shapes: B requests, R rows, W rows whose logits are wanted, Y vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fourleaf.engine.cache import Cache
from fourleaf.engine.scheduler import Entry
from fourleaf.engine.sequence import Need
from fourleaf.model.state import Recurrent, State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

# Causal rows of requests that share a rectangle: none, single ones, up to a block, more.
_CLASSES = (0, 1, 32)


@dataclass(frozen=True)
class Part:
    """One request's share of a forward."""

    entry: Entry
    need: Need

    @property
    def size(self) -> tuple[bool, int]:
        """By what requests are sorted: verified ones last, the others by their class of causal rows."""
        rows = len(self.need.causal)
        return self.need.is_held, sum(rows > most for most in _CLASSES)


def arrange(chosen: List[tuple[Entry, Need]]) -> list[Part]:
    """The order in which requests lie in a forward: those of a class side by side, otherwise by age, so that a steady
    batch keeps its order."""
    return sorted((Part(*one) for one in chosen), key=lambda part: (part.size, part.entry.key))


def work_of(parts: List[Part], device: torch.device | str = "cpu") -> Work:
    """The rows of a forward."""
    causal = [part.need.causal for part in parts]
    canvases = [(i, canvas) for i, part in enumerate(parts) if (canvas := part.need.canvas) is not None]
    starts = [part.entry.sequence.num_cached for part in parts]
    flat = [np.array(rows, dtype=np.int64) for rows in causal if rows] + [canvas for _, canvas in canvases]
    sizes = [part.size for part in parts]
    return Work(
        torch.from_numpy(np.concatenate(flat)).to(device),
        Segments([len(rows) for rows in causal], device),
        starts,
        Segments([len(canvas) for _, canvas in canvases], device) if canvases else None,
        [i for i, _ in canvases] if canvases else None,
        [starts[i] + len(causal[i]) for i, _ in canvases] if canvases else None,
        cuts=tuple(i for i in range(1, len(sizes)) if sizes[i] != sizes[i - 1]),
        num_held=sum(part.need.is_held for part in parts),
    )


def wanted_rows(parts: List[Part], work: Work) -> list[int]:
    """Flat rows whose logits are wanted, request by request: [W]."""
    rows: list[int] = []
    begin, canvas_begin = 0, work.num_causal
    for part in parts:
        num = len(part.need.causal)
        rows += [begin + row if row < num else canvas_begin + row - num for row in part.need.wanted]
        begin += num
        canvas_begin += 0 if part.need.canvas is None else len(part.need.canvas)
    return rows


@torch.inference_mode()
def forward(model: Transformer, cache: Cache, parts: List[Part]) -> tuple[State, Tensor]:
    """Runs the rows of `parts`. -> (state, to be moved on by what verification accepts; logits [W, Y], in their order).

    Where the model fails, the states are what they were.
    """
    keys = [part.entry.key for part in parts]
    lengths = [part.entry.sequence.num_cached for part in parts]
    state = cache.memory.batch(keys, [cache.table(key) for key in keys], lengths)
    work = work_of(parts, model.lm_head.weight.device)
    before = [(layer, layer.matrix, layer.tail) for layer in state.layers if isinstance(layer, Recurrent)]
    rows = wanted_rows(parts, work)
    try:
        hidden, _ = model(work, state)
        logits = model.head(hidden if len(rows) == len(hidden) and rows == sorted(rows) else hidden[rows])
    except BaseException:
        for layer, matrix, tail in before:
            layer.matrix, layer.tail, layer.held = matrix, tail, []
        raise
    return state, logits
