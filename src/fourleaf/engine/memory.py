"""The tensors behind the engine's numbers: keys and values in pages, recurrent states by request, snapshots by handle.

Shapes: B sequences of a forward, C canvases, S slots (32 to a page), G key-value heads, A head dim, R causal rows.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourleaf.engine.pages import PAGE_SIZE
from fourleaf.model.config import ModelConfig
from fourleaf.model.state import Recurrent, State, fresh_recurrent
from fourleaf.model.work import Run, Work


@dataclass(frozen=True, eq=False)
class Tables:
    """The pages of a forward's sequences, and where in the pools their rows lie. One for all layers of the forward.

    pages: page ids of each sequence, at least as many as its rows need.
    """

    pages: list[list[int]]
    _gathers: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    _slots: list[Tensor] = field(default_factory=list)

    @cached_property
    def _consecutive(self) -> list[bool]:
        return [pages[-1] - pages[0] == len(pages) - 1 and _rises(pages) for pages in self.pages]

    def rows(self, work: Work) -> tuple[int, int] | Tensor:
        """Slots of the causal rows: (first, number) where they are consecutive, else [R] ids."""
        if len(self.pages) == 1 and self._consecutive[0]:
            return self.pages[0][0] * PAGE_SIZE + work.starts[0], work.num_causal
        if not self._slots:
            parts = [
                _slots(pages, start, rows)
                for pages, start, rows in zip(self.pages, work.starts, work.causal.lengths, strict=True)
                if rows
            ]
            self._slots.append(torch.from_numpy(np.concatenate(parts)).to(work.tokens.device))
        return self._slots[0]

    def read(self, pool: Tensor, sequences: Sequence[int], num_keys: int) -> Tensor:
        """The first `num_keys` positions of some sequences: [len(sequences), G, num_keys, A]; what lies behind a
        sequence's own rows is some row of its own pages. In place where one sequence's pages are consecutive."""
        if len(sequences) == 1 and self._consecutive[sequences[0]]:
            num_groups, head_dim = pool.shape[1:]
            row = num_groups * head_dim
            begin = self.pages[sequences[0]][0] * PAGE_SIZE * row
            shape, strides = (1, num_groups, num_keys, head_dim), (num_keys * row, head_dim, row, 1)
            return pool.as_strided(shape, strides, pool.storage_offset() + begin)  # three views in one operation
        num = -(-num_keys // PAGE_SIZE)
        key = (num, *sequences)
        index = self._gathers.get(key)
        if index is None:
            # A short sequence's table is filled up with its own last page: nothing of another's is ever read.
            rows = [(pages[:num] + pages[-1:] * num)[:num] for pages in (self.pages[seq] for seq in sequences)]
            index = self._gathers[key] = torch.tensor(rows, device=pool.device).view(-1)
        whole = pool.view(-1, PAGE_SIZE, *pool.shape[1:]).index_select(0, index)
        return whole.view(len(sequences), num * PAGE_SIZE, *pool.shape[1:])[:, :num_keys].transpose(1, 2)


class PagedKeyValues:
    """One attention layer's pools, [S, G, A] each. `tables` is set for each forward."""

    def __init__(self, num_pages: int, num_groups: int, head_dim: int, dtype: torch.dtype, device: str) -> None:
        shape = num_pages * PAGE_SIZE, num_groups, head_dim
        # Zeros that are never touched take no memory; and what masks hide must be finite.
        self.keys, self.values = (_untouched(shape, dtype, device) for _ in range(2))
        self.tables = Tables([])

    def extend(self, keys: Tensor, values: Tensor, work: Work) -> None:
        """Writes the causal rows, [R, G, A] each, behind each sequence's committed ones."""
        slots = self.tables.rows(work)
        for pool, rows in ((self.keys, keys), (self.values, values)):
            if isinstance(slots, tuple):
                pool.narrow(0, *slots).copy_(rows)
            else:
                pool.index_copy_(0, slots, rows)

    def of_run(self, run: Run) -> tuple[Tensor, Tensor]:
        """Keys and values of a run's sequences, this forward's rows among them: [B, G, num_keys, A] each."""
        sequences = range(run.first, run.end)
        keys = self.tables.read(self.keys, sequences, run.num_keys)
        return keys, self.tables.read(self.values, sequences, run.num_keys)

    def of_canvases(self, work: Work) -> tuple[Tensor, Tensor]:
        """The history of each canvas: [C, G, num_history, A] each."""
        assert work.canvas_seq is not None
        keys = self.tables.read(self.keys, work.canvas_seq, work.num_history)
        return keys, self.tables.read(self.values, work.canvas_seq, work.num_history)


States = list[tuple[Tensor, Tensor]]  # of each GDN layer: matrix [1, H, K, V], tail [1, W-1, D]


class Memory:
    """All tensors that outlive a forward.

    The recurrent states of the last forward's sequences stay side by side as that forward left them, and are taken
    apart only when another set of sequences comes: a steady batch copies nothing.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, num_pages: int, device: str = "cpu") -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self._attention: list[PagedKeyValues | None] = [
            PagedKeyValues(num_pages, config.num_key_value_heads, config.head_dim, dtype, device)
            if kind == "full_attention"
            else None
            for kind in config.layer_types
        ]
        self._alone: dict[int, States] = {}
        self._together: tuple[int, ...] = ()
        self._batch: list[Recurrent] = []
        self._snapshots: dict[int, States] = {}

    @staticmethod
    def page_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
        """Of one page, in all attention layers."""
        num_attention = config.layer_types.count("full_attention")
        return 2 * num_attention * PAGE_SIZE * config.num_key_value_heads * config.head_dim * dtype.itemsize

    @staticmethod
    def state_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
        """Of one request's recurrent states, or of one snapshot; 0 for a model without GDN layers."""
        layer = fresh_recurrent(config, 1, dtype, "meta")
        num_recurrent = len(config.layer_types) - config.layer_types.count("full_attention")
        return num_recurrent * (layer.matrix.nbytes + layer.tail.nbytes)

    @property
    def pool_bytes(self) -> int:
        """Of all pages, used or not."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self._attention if layer is not None)

    def open(self, key: int, snapshot: int | None = None) -> None:
        """Recurrent states for a request: those of a snapshot, or of a text that begins."""
        assert key not in self._alone
        assert key not in self._together
        if snapshot is not None:
            self._alone[key] = self._snapshots[snapshot]  # forwards put new tensors in the place of old ones
            return
        fresh = (
            fresh_recurrent(self.config, 1, self.dtype, self.device)
            for kind in self.config.layer_types
            if kind != "full_attention"
        )
        self._alone[key] = [(layer.matrix, layer.tail) for layer in fresh]

    def close(self, key: int) -> None:
        """Forgets a request's states."""
        if key in self._together:
            self._take_apart()
        self._alone.pop(key, None)

    def store(self, handle: int, key: int) -> None:
        """A snapshot of a request's states as they are now."""
        if key in self._together:
            i = self._together.index(key)
            states = [(layer.matrix[i : i + 1], layer.tail[i : i + 1]) for layer in self._batch]
        else:
            states = self._alone[key]
        self._snapshots[handle] = [(matrix.clone(), tail.clone()) for matrix, tail in states]

    def free(self, handle: int) -> None:
        """Forgets a snapshot."""
        self._snapshots.pop(handle, None)  # one that was taken and not stored has no tensors

    def scrub(self, pages: Iterable[int]) -> None:
        """Clears pages that a faulty request wrote: a mask hides numbers, but not NaN."""
        for layer in self._attention:
            if layer is not None:
                for page in pages:
                    for pool in (layer.keys, layer.values):
                        pool.narrow(0, page * PAGE_SIZE, PAGE_SIZE).zero_()

    def batch(self, keys: Sequence[int], pages: list[list[int]], lengths: list[int]) -> State:
        """The state of some requests, for one forward: their keys, pages and committed positions."""
        self._put_together(tuple(keys))
        tables, recurrent = Tables(pages), iter(self._batch)
        layers: list[PagedKeyValues | Recurrent] = []
        for layer in self._attention:
            if layer is None:
                layers.append(next(recurrent))
            else:
                layer.tables = tables
                layers.append(layer)
        return State(layers, lengths)

    @property
    def num_snapshots(self) -> int:
        return len(self._snapshots)

    @property
    def num_open(self) -> int:
        """Requests that have recurrent states here."""
        return len(set(self._alone) | set(self._together))

    def _put_together(self, keys: tuple[int, ...]) -> None:
        if keys == self._together:
            return
        self._take_apart()
        own = [self._alone.pop(key) for key in keys]
        for layer in zip(*own, strict=True):
            matrix, tail = (part[0] if len(part) == 1 else torch.cat(part) for part in zip(*layer, strict=True))
            self._batch.append(Recurrent(matrix, tail))
        self._together = keys

    def _take_apart(self) -> None:
        for i, key in enumerate(self._together):
            self._alone[key] = [(layer.matrix[i : i + 1], layer.tail[i : i + 1]) for layer in self._batch]
        self._together, self._batch = (), []


def _untouched(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Zeros that take memory where they are written. torch writes its own; a CPU's are mapped instead, in small pages,
    for a request's few positions lie in each of many pools."""
    size = math.prod(shape) * dtype.itemsize
    if device != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    mapped = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            mapped.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(mapped, dtype=dtype).view(shape)


def _rises(pages: list[int]) -> bool:
    return all(b - a == 1 for a, b in pairwise(pages))


def _slots(pages: list[int], start: int, rows: int) -> NDArray[np.int64]:
    """Slots of positions start..start+rows-1."""
    positions = np.arange(start, start + rows)
    return np.asarray(pages, dtype=np.int64)[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
