"""What a model remembers of the committed text: keys and values of attention layers, recurrent states of GDN layers.

Only causal rows write it. Shapes: B sequences, G key-value heads, P positions of capacity, A head dim, H value heads,
K key dim, V value dim, W conv kernel, D conv channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fourleaf.kernels.delta import delta_state
from fourleaf.model.config import ModelConfig
from fourleaf.model.work import Run, Work

GROWTH = 256


class AttentionCache(Protocol):
    """What an attention layer asks of its memory, contiguous (`KeyValues`) or in pages (the engine's)."""

    def extend(self, keys: Tensor, values: Tensor, work: Work) -> None:
        """Writes the causal rows, [R, G, A] each, behind each sequence's committed ones."""

    def of_run(self, run: Run) -> tuple[Tensor, Tensor]:
        """Keys and values of a run's sequences, this forward's rows among them: [B, G, num_keys, A] each."""
        ...

    def of_canvases(self, work: Work) -> tuple[Tensor, Tensor]:
        """The history of each canvas: [C, G, num_history, A] each."""
        ...


@dataclass
class KeyValues:
    """One attention layer's keys and values, [B, G, P, A] each; positions past a sequence's length are unwritten."""

    keys: Tensor
    values: Tensor

    def extend(self, keys: Tensor, values: Tensor, work: Work) -> None:
        """Writes the causal rows, [R, G, A] each, behind each sequence's committed ones."""
        self._reserve(max(start + rows for start, rows in zip(work.starts, work.causal.lengths, strict=True)))
        begin = 0
        for b, (start, rows) in enumerate(zip(work.starts, work.causal.lengths, strict=True)):
            if rows:
                self.keys[b].narrow(1, start, rows).copy_(keys.narrow(0, begin, rows).transpose(0, 1))
                self.values[b].narrow(1, start, rows).copy_(values.narrow(0, begin, rows).transpose(0, 1))
                begin += rows

    def of_run(self, run: Run) -> tuple[Tensor, Tensor]:
        """Keys and values of a run's sequences, this forward's rows among them: [B, G, num_keys, A] each."""
        return run.sequences(self.keys).narrow(2, 0, run.num_keys), run.sequences(self.values).narrow(
            2, 0, run.num_keys
        )

    def of_canvases(self, work: Work) -> tuple[Tensor, Tensor]:
        """The history of each canvas: [C, G, num_history, A] each."""
        return of_canvases(self.keys, work), of_canvases(self.values, work)

    def _reserve(self, needed: int) -> None:
        have = self.keys.shape[2]
        if needed > have:
            more = max(needed - have, have, GROWTH)
            pad = (0, 0, 0, more)
            self.keys, self.values = (torch.nn.functional.pad(x, pad) for x in (self.keys, self.values))


def of_canvases(x: Tensor, work: Work) -> Tensor:
    """History rows for each canvas: [B, G, P, A] -> [C, G, num_history, A]."""
    assert work.reads is not None
    x = x[:, :, : work.num_history]
    return x if work.is_aligned else x.index_select(0, work.reads[0])


@dataclass(frozen=True)
class Held:
    """What a run's rows would write into a GDN layer, kept until it is known how many of them stand.

    first: the run's first sequence. k: [B, T, H, K], v: [B, T, H, V], decay and beta: [B, T, H] (0 behind each
    sequence's rows). extended: [B, W-1+T, D]. matrix: [B, H, K, V], the state behind all rows.
    """

    first: int
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor
    extended: Tensor
    matrix: Tensor


@dataclass
class Recurrent:
    """One GDN layer's matrix [B, H, K, V] (at least fp32) and its last W-1 pre-convolution rows [B, W-1, D].

    held: what the last forward's verified rows would write, by run.
    """

    matrix: Tensor
    tail: Tensor
    held: list[Held] = field(default_factory=list)

    def advance(self, accepted: Sequence[int]) -> None:
        """Moves verified sequences on by the first `accepted[b]` of their held rows: the recurrence alone, no
        projections. accepted: one count for each of the state's sequences (0 where nothing is held)."""
        matrix, tail, width = [], [], self.tail.shape[1]
        done = 0
        for held in self.held:
            num, rows = held.k.shape[:2]
            counts = torch.tensor(accepted[held.first : held.first + num], device=held.k.device)
            stands = torch.arange(rows, device=counts.device) < counts[:, None]
            decay, beta = held.decay * stands[..., None], held.beta * stands[..., None]
            old = self.matrix.narrow(0, held.first, num)
            matrix += [self.matrix[done : held.first], delta_state(held.k, held.v, decay, beta, old)]
            index = counts[:, None] + torch.arange(width, device=counts.device)
            index = index[..., None].expand(-1, -1, held.extended.shape[2])
            tail += [self.tail[done : held.first], held.extended.gather(1, index)]
            done = held.first + num
        self.matrix = torch.cat((*matrix, self.matrix[done:]))
        self.tail = torch.cat((*tail, self.tail[done:]))
        self.held = []


class State:
    """The committed memory of B sequences. `lengths` are committed positions; `Transformer.forward` moves them on."""

    def __init__(self, layers: Sequence[AttentionCache | Recurrent], lengths: list[int]) -> None:
        self.layers = layers
        self.lengths = lengths

    @classmethod
    def empty(
        cls,
        config: ModelConfig,
        num_sequences: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> State:
        """Nothing committed yet."""
        layers: list[KeyValues | Recurrent] = []
        for kind in config.layer_types:
            if kind == "full_attention":
                shape = (num_sequences, config.num_key_value_heads, GROWTH, config.head_dim)
                keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
                layers.append(KeyValues(keys, values))
            else:
                layers.append(fresh_recurrent(config, num_sequences, dtype, device))
        return cls(layers, [0] * num_sequences)

    def clone(self) -> State:
        """A copy that shares nothing."""
        copies: list[KeyValues | Recurrent] = []
        for layer in self.layers:
            first, second = (tensor.clone() for tensor in _tensors(layer))
            copies.append(KeyValues(first, second) if isinstance(layer, KeyValues) else Recurrent(first, second))
        return State(copies, list(self.lengths))

    def advance(self, accepted: Sequence[int]) -> None:
        """Moves verified sequences on by the first `accepted[b]` of the last forward's held rows; keys and values
        behind them are written over later. 0 for every sequence that held none."""
        for layer in self.layers:
            if isinstance(layer, Recurrent):
                layer.advance(accepted)
        self.lengths = [length + rows for length, rows in zip(self.lengths, accepted, strict=True)]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for layer in self.layers for tensor in _tensors(layer))


def _tensors(layer: AttentionCache | Recurrent) -> tuple[Tensor, Tensor]:
    """Of a contiguous state's layer; pages have an owner of their own."""
    if isinstance(layer, KeyValues):
        return layer.keys, layer.values
    assert isinstance(layer, Recurrent)
    return layer.matrix, layer.tail


def fresh_recurrent(
    config: ModelConfig, num_sequences: int, dtype: torch.dtype, device: torch.device | str | None = None
) -> Recurrent:
    """The state before any text: zeros."""
    wide = torch.promote_types(dtype, torch.float32)
    heads, key, value = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
    matrix = torch.zeros(num_sequences, heads, key, value, dtype=wide, device=device)
    tail = torch.zeros(num_sequences, config.linear_conv_kernel_dim - 1, config.conv_dim, dtype=dtype, device=device)
    return Recurrent(matrix, tail)
