"""What a model remembers of the committed text: keys and values of attention layers, recurrent states of GDN layers.

Only causal rows write it. Shapes: B sequences, G key-value heads, P positions of capacity, A head dim, H value heads,
K key dim, V value dim, W conv kernel, D conv channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fourleaf.model.config import ModelConfig
from fourleaf.model.work import Work

GROWTH = 256


@dataclass
class KeyValues:
    """One attention layer's keys and values, [B, G, P, A] each; positions past a sequence's length are unwritten."""

    keys: Tensor
    values: Tensor

    def extend(self, keys: Tensor, values: Tensor, work: Work) -> tuple[Tensor, Tensor]:
        """Writes [B, G, T, A] rows behind each sequence's committed ones and returns all of them, [B, G, keys, A]."""
        ends = [start + rows for start, rows in zip(work.starts, work.causal.lengths, strict=True)]
        longest = max(ends)
        self._reserve(longest)
        if len(ends) == 1:
            start = work.starts[0]
            self.keys.narrow(2, start, longest - start).copy_(keys)
            self.values.narrow(2, start, longest - start).copy_(values)
        else:
            for b, (start, end) in enumerate(zip(work.starts, ends, strict=True)):
                self.keys[b, :, start:end] = keys[b, :, : end - start]
                self.values[b, :, start:end] = values[b, :, : end - start]
        return self.keys.narrow(2, 0, longest), self.values.narrow(2, 0, longest)

    def _reserve(self, needed: int) -> None:
        have = self.keys.shape[2]
        if needed > have:
            more = max(needed - have, have, GROWTH)
            pad = (0, 0, 0, more)
            self.keys, self.values = (torch.nn.functional.pad(x, pad) for x in (self.keys, self.values))


@dataclass
class Recurrent:
    """One GDN layer's matrix [B, H, K, V] (at least fp32) and its last W-1 pre-convolution rows [B, W-1, D]."""

    matrix: Tensor
    tail: Tensor


class State:
    """The committed memory of B sequences. `lengths` are committed positions; `Transformer.forward` moves them on."""

    def __init__(self, layers: list[KeyValues | Recurrent], lengths: list[int]) -> None:
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
        copies: list[KeyValues | Recurrent] = [
            KeyValues(x.keys.clone(), x.values.clone())
            if isinstance(x, KeyValues)
            else Recurrent(x.matrix.clone(), x.tail.clone())
            for x in self.layers
        ]
        return State(copies, list(self.lengths))

    @property
    def num_bytes(self) -> int:
        pairs = ((x.keys, x.values) if isinstance(x, KeyValues) else (x.matrix, x.tail) for x in self.layers)
        return sum(t.nbytes for pair in pairs for t in pair)


def fresh_recurrent(
    config: ModelConfig, num_sequences: int, dtype: torch.dtype, device: torch.device | str | None = None
) -> Recurrent:
    """The state before any text: zeros."""
    wide = torch.promote_types(dtype, torch.float32)
    heads, key, value = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
    matrix = torch.zeros(num_sequences, heads, key, value, dtype=wide, device=device)
    tail = torch.zeros(num_sequences, config.linear_conv_kernel_dim - 1, config.conv_dim, dtype=dtype, device=device)
    return Recurrent(matrix, tail)
