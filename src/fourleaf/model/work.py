"""What one forward computes: flat rows of causal segments and of canvases, and where each row belongs.

Projections, MLPs and the head run on flat rows. Only attention, convolution and recurrence see segments; they pad
to a rectangle and come back, so that no row is spent on padding where it costs.

Shapes: R flat rows, B sequences, T rows of the longest segment, C canvases, N rows of the widest canvas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
class Work:
    """The rows of one forward: causal rows first, then canvas rows.

    tokens: [R] ids. causal: one run per sequence of the state (zero rows where a sequence only denoises).
    starts: committed length of each sequence before this forward. canvas: one run per canvas, or None.
    canvas_seq: [C] the sequence that each canvas continues. canvas_start: [C] its first position = history length;
    at most the committed length plus this forward's causal rows (that is how commit and first pass fuse, and how
    training reads clean rows of the same forward).
    """

    tokens: Tensor
    causal: Segments
    starts: list[int]
    canvas: Segments | None = None
    canvas_seq: list[int] | None = None
    canvas_start: list[int] | None = None

    def __post_init__(self) -> None:
        assert len(self.starts) == self.causal.num
        if self.canvas is not None:
            assert self.canvas_seq is not None and self.canvas_start is not None
            assert len(self.canvas_seq) == len(self.canvas_start) == self.canvas.num
            assert all(self.canvas.lengths), "a canvas has rows: the log of its fill is part of the model"
            for seq, start in zip(self.canvas_seq, self.canvas_start, strict=True):
                least, most = self.starts[seq], self.starts[seq] + self.causal.lengths[seq]
                assert least <= start <= most, f"canvas at {start} reads history outside {least}..{most}"

    @property
    def num_causal(self) -> int:
        return self.causal.num_rows

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
    def reads_at_end(self) -> bool:
        """Whether canvas c continues sequence c at the end of its causal rows: then no inner state is needed."""
        if self.canvas is None or self.canvas_seq != list(range(self.causal.num)):
            return False
        ends = [start + rows for start, rows in zip(self.starts, self.causal.lengths, strict=True)]
        return self.canvas_start == ends

    @cached_property
    def causal_mask(self) -> Tensor | None:
        """[B, 1, T, keys] bool: row t sees positions up to its own. None where plain causality or no mask will do."""
        if not any(self.starts) or (self.causal.num == 1 and self.causal.max_len == 1):
            return None
        starts = torch.tensor(self.starts, device=self.tokens.device)
        keys = max(s + n for s, n in zip(self.starts, self.causal.lengths, strict=True))
        own = starts[:, None] + torch.arange(self.causal.max_len, device=starts.device)
        return torch.arange(keys, device=starts.device) <= own[:, None, :, None]

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
