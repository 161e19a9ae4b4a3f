"""What one forward computes: flat rows of causal segments and of canvases, and where each row belongs.

Projections, MLPs and the head run on flat rows. Only attention, convolution and recurrence see segments; they pad
to a rectangle and come back, so that no row is spent on padding where it costs.

Shapes: R flat rows, B sequences, T rows of the longest segment, C canvases, N rows of the widest canvas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Segments:
    """Consecutive runs of flat rows: run b has `lengths[b]` rows. Zero-length runs are allowed."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.lengths = list(lengths)
        self.num = len(self.lengths)
        self.num_rows = sum(self.lengths)
        self.max_len = max(self.lengths, default=0)
        self.is_dense = self.num_rows == self.num * self.max_len
        self.device = device

    @cached_property
    def counts(self) -> Tensor:
        """[num] rows of each run."""
        return torch.tensor(self.lengths, dtype=torch.long, device=self.device)

    @cached_property
    def owner(self) -> Tensor:
        """[R] the run of each row."""
        owner = np.repeat(np.arange(self.num), self.lengths)
        return torch.from_numpy(owner).to(self.device)

    @cached_property
    def within(self) -> Tensor:
        """[R] each row's place in its run."""
        return torch.from_numpy(_ranges([0] * self.num, self.lengths)).to(self.device)

    @cached_property
    def _cells(self) -> Tensor:
        return self.owner * self.max_len + self.within

    def pad(self, x: Tensor) -> Tensor:
        """[R, ...] -> [num, max_len, ...], zeros behind each run's end."""
        shape = (self.num, self.max_len, *x.shape[1:])
        if self.is_dense:
            return x.view(shape)
        return x.new_zeros((self.num * self.max_len, *x.shape[1:])).index_copy(0, self._cells, x).view(shape)

    def unpad(self, x: Tensor) -> Tensor:
        """[num, max_len, ...] -> [R, ...]."""
        flat = x.reshape(self.num * self.max_len, *x.shape[2:])
        return flat if self.is_dense else flat.index_select(0, self._cells)

    @cached_property
    def valid(self) -> Tensor | None:
        """[num, max_len] bool, True on real rows; None where all are."""
        if self.is_dense:
            return None
        return torch.arange(self.max_len, device=self.counts.device) < self.counts[:, None]


@dataclass(frozen=True, eq=False)
class Run:
    """Consecutive sequences whose causal rows go through attention and recurrence as one rectangle.

    first: its first sequence. begin: that one's first flat row. starts: committed length of each sequence.
    is_held: these rows read the recurrent state and leave it as it was (`Recurrent.advance` moves it later).
    """

    first: int
    begin: int
    segments: Segments
    starts: list[int]
    is_held: bool = False

    @property
    def end(self) -> int:
        """Behind its last sequence."""
        return self.first + self.segments.num

    def rows(self, x: Tensor) -> Tensor:
        """Its rows of [R, ...]."""
        num = self.segments.num_rows
        return x if num == x.shape[0] else x.narrow(0, self.begin, num)

    def sequences(self, x: Tensor) -> Tensor:
        """Its entries of [B, ...]."""
        num = self.segments.num
        return x if num == x.shape[0] else x.narrow(0, self.first, num)

    @cached_property
    def num_keys(self) -> int:
        """The longest history behind this forward's rows."""
        return max(start + rows for start, rows in zip(self.starts, self.segments.lengths, strict=True))

    @property
    def is_fresh(self) -> bool:
        """Whether all of its sequences begin here: then plain causality needs no mask."""
        return not any(self.starts)

    @cached_property
    def mask(self) -> Tensor | None:
        """[B, 1, T, keys] bool: row t sees positions up to its own. None where plain causality or no mask will do."""
        if self.is_fresh or (self.segments.num == 1 and self.segments.max_len == 1):
            return None
        starts = torch.tensor(self.starts, device=self.segments.device)
        own = starts[:, None] + torch.arange(self.segments.max_len, device=starts.device)
        return torch.arange(self.num_keys, device=starts.device) <= own[:, None, :, None]


@dataclass(frozen=True, eq=False)
class Work:
    """The rows of one forward: causal rows first, then canvas rows.

    tokens: [R] ids. causal: one run of rows per sequence of the state (none where a sequence only denoises).
    starts: committed length of each sequence before this forward. canvas: one run per canvas, or None.
    canvas_seq: [C] the sequence that each canvas continues. canvas_start: [C] its first position = history length;
    at most the committed length plus this forward's causal rows (that is how commit and first pass fuse, and how
    training reads clean rows of the same forward).
    cuts: sequences at which another `Run` begins, so that one long chunk does not pad many single rows to its length.
    num_held: that many of the last sequences are only verified: their causal rows leave the recurrent state.
    """

    tokens: Tensor
    causal: Segments
    starts: list[int]
    canvas: Segments | None = None
    canvas_seq: list[int] | None = None
    canvas_start: list[int] | None = None
    cuts: tuple[int, ...] = ()
    num_held: int = 0

    def __post_init__(self) -> None:
        assert len(self.starts) == self.causal.num
        if self.canvas is not None:
            assert self.canvas_seq is not None and self.canvas_start is not None
            assert len(self.canvas_seq) == len(self.canvas_start) == self.canvas.num
            assert all(self.canvas.lengths), "a canvas has rows: the log of its fill is part of the model"
            for seq, start in zip(self.canvas_seq, self.canvas_start, strict=True):
                least, most = self.starts[seq], self.starts[seq] + self.causal.lengths[seq]
                assert least <= start <= most, f"canvas at {start} reads history outside {least}..{most}"
            assert not (self.reads_inside and len(self.runs) > 1), "only one run gives states between its rows"

    @property
    def num_causal(self) -> int:
        return self.causal.num_rows

    @cached_property
    def runs(self) -> list[Run]:
        """The causal rows as rectangles, those without rows left out."""
        lengths, starts, num = self.causal.lengths, self.starts, self.causal.num
        held = num - self.num_held
        if not self.cuts and not self.num_held:
            return [Run(0, 0, self.causal, starts)] if self.causal.num_rows else []
        runs, begin = [], 0
        edges = sorted({0, held, num, *self.cuts})
        for first, end in pairwise(edges):
            segments = Segments(lengths[first:end], self.causal.device)
            if segments.num_rows:
                runs.append(Run(first, begin, segments, starts[first:end], first >= held))
            begin += segments.num_rows
        return runs

    @cached_property
    def positions(self) -> Tensor:
        """[R] absolute positions."""
        starts, lengths = self.starts, self.causal.lengths
        if self.canvas is not None:
            assert self.canvas_start is not None
            starts, lengths = [*starts, *self.canvas_start], [*lengths, *self.canvas.lengths]
        return torch.from_numpy(_ranges(starts, lengths)).to(self.tokens.device)

    @property
    def end(self) -> int:
        """What every position of this forward lies below."""
        ends = [start + rows for start, rows in zip(self.starts, self.causal.lengths, strict=True)]
        if self.canvas is not None:
            assert self.canvas_start is not None
            ends += [start + rows for start, rows in zip(self.canvas_start, self.canvas.lengths, strict=True)]
        return max(ends)

    @cached_property
    def reads(self) -> tuple[Tensor, Tensor] | None:
        """(sequence [C], row of this forward's causal run [C]) where each canvas reads the recurrent state."""
        if self.canvas is None:
            return None
        assert self.canvas_seq is not None and self.canvas_start is not None
        offsets = [start - self.starts[seq] for seq, start in zip(self.canvas_seq, self.canvas_start, strict=True)]
        device = self.tokens.device
        return torch.tensor(self.canvas_seq, device=device), torch.tensor(offsets, device=device)

    @cached_property
    def reads_inside(self) -> bool:
        """Whether a canvas reads the recurrent state between causal rows of this forward, as in training."""
        if self.canvas is None:
            return False
        assert self.canvas_seq is not None and self.canvas_start is not None
        return any(
            start != self.starts[seq] + self.causal.lengths[seq]
            for seq, start in zip(self.canvas_seq, self.canvas_start, strict=True)
        )

    @cached_property
    def is_aligned(self) -> bool:
        """Whether canvas c continues sequence c: then nothing of a sequence need be looked up."""
        return self.canvas_seq == list(range(self.causal.num))

    @cached_property
    def num_history(self) -> int:
        """The longest history that a canvas of this forward reads."""
        return max(self.canvas_start or [0])

    @cached_property
    def canvas_mask(self) -> Tensor | None:
        """[C, 1, 1, num_history + N] bool: which keys a canvas sees. None where it sees them all."""
        assert self.canvas is not None and self.canvas_start is not None
        if self.canvas.is_dense and min(self.canvas_start) == self.num_history:
            return None
        start = torch.tensor(self.canvas_start, device=self.tokens.device)
        history = torch.arange(self.num_history, device=start.device) < start[:, None]
        inside = torch.arange(self.canvas.max_len, device=start.device) < self.canvas.counts[:, None]
        return torch.cat((history, inside), 1)[:, None, None]

    @cached_property
    def log_fill(self) -> Tensor:
        """[C] ln(valid rows) of each canvas; the layer subtracts ln(block_size)."""
        assert self.canvas is not None
        return self.canvas.counts.to(torch.float64).log()


def _ranges(starts: Sequence[int], lengths: Sequence[int]) -> NDArray[np.int64]:
    """start, start + 1, ... for each run, one after another."""
    return np.concatenate([np.arange(s, s + n, dtype=np.int64) for s, n in zip(starts, lengths, strict=True)])
