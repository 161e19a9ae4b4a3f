"""A hybrid model with its heads widened by zeros: the same function, in shapes that other engines take.

llama.cpp and vLLM want keys and values of linear attention to be of one size, and vLLM's attention on a CPU knows few
head sizes. A head of A numbers followed by zeros is a head of W numbers that computes the same, once three things are
put right:
  - an RMS norm over W numbers of which A count divides by sqrt(A/W) of what it should: its gain takes the factor;
  - attention divides by sqrt(W) where it did by sqrt(A): the gain of q takes sqrt(W/A), which undoes the former there;
  - positions turn the same numbers of a head, the first T as pairs (i, T/2 + i): their share of it is smaller. Where an
    engine turns only so many at a time, zeros behind either half make T' of them, and the base becomes base^(T'/T), so
    that the pair i goes on turning by base^(-2i/T).

The delta rule divides q by sqrt(W) where it did by sqrt(K), and the norm behind it takes any factor out again, were it
not for its epsilon, beside which a head at the beginning of a text is small. With keys K -> W and values V -> W that
norm sees mean squares KV/W² as large: its epsilon must shrink as much. A model has one epsilon, so all other norms'
inputs shrink along: whatever is added to the stream of hidden states by sqrt(KV)/W, and q and k of attention by
sqrt(KV)/W sqrt(W/A). That is exact; no epsilon of the l2 norms in linear attention is touched.

Shapes: A a head's size in attention, K and V a key's and a value's in linear attention, W the wider one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fourleaf.checkpoint.files import WEIGHTS, read_json, write_json
from fourleaf.errors import ConfigError

CONFIG = "config.json"
Raw = dict[str, Any]


def widen(source: Path, target: Path, *, attention: int, delta: int, turned: int | None = None) -> Raw:
    """Writes the hybrid model of the Hugging Face folder `source` to the new folder `target`, its heads as wide as
    said: `attention` numbers in attention, of which positions turn `turned`, an even number, by default as many as
    they do; `delta` in keys and in values of linear attention. Returns its config.json. Weights become fp32, since the
    factors are no powers of two.

    Raises ConfigError for a size below what the model has, and for a head tied to the embedding.
    """
    raw = read_json(source / CONFIG)
    widening = Widening(raw, attention, delta, turned_of(raw) if turned is None else turned)
    config = widening.config()
    target.mkdir(parents=True)
    tensors = {name: widening.tensor(name, x.float()) for name, x in load_file(source / WEIGHTS).items()}
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    write_json(target / CONFIG, config)
    return config


@dataclass(frozen=True)
class Widening:
    """From the model of a config.json, `raw`, to the wider one."""

    raw: Raw
    attention: int
    delta: int
    turned: int

    @property
    def shrunk(self) -> float:
        """What becomes of mean squares, and so of epsilon."""
        return self.raw["linear_key_head_dim"] * self.raw["linear_value_head_dim"] / self.delta**2

    def config(self) -> Raw:
        """The wider model's config.json. Raises ConfigError as `widen` does."""
        raw = self.raw
        wide = {"head_dim": self.attention, "linear_key_head_dim": self.delta, "linear_value_head_dim": self.delta}
        for key, size in wide.items():
            if size < raw[key]:
                raise ConfigError(f"{key} is {raw[key]}, which {size} numbers cannot hold; heads are only ever widened")
        if raw["tie_word_embeddings"]:
            raise ConfigError("tie_word_embeddings is true; the embedding shrinks and the head must not")
        have, rope = turned_of(raw), dict(raw["rope_parameters"])
        if self.turned < have or self.turned - have > self.attention - raw["head_dim"]:
            raise ConfigError(
                f"{self.turned} numbers of {self.attention} to turn, where {have} of {raw['head_dim']} are turned; "
                "neither these nor those behind them are ever cut"
            )
        rope["partial_rotary_factor"] = self.turned / self.attention
        assert int(self.attention * rope["partial_rotary_factor"]) == self.turned, "whoever reads it rounds it down"
        rope["rope_theta"] **= self.turned / have
        eps = raw["rms_norm_eps"] * self.shrunk
        return raw | wide | {"rope_parameters": rope, "rms_norm_eps": eps, "dtype": "float32"}

    def tensor(self, name: str, x: Tensor) -> Tensor:
        """What becomes of the tensor of this Hugging Face name."""
        last = name.removesuffix(".weight").rpartition(".")[2]
        if ".self_attn." in name:
            x = self._of_attention(last, x)
        elif ".linear_attn." in name:
            x = self._of_delta(last, x)
        is_added = last in ("embed_tokens", "o_proj", "out_proj", "down_proj")
        return x * self.shrunk**0.5 if is_added else x

    def _of_attention(self, last: str, x: Tensor) -> Tensor:
        raw, wide = self.raw, self.attention
        heads, groups, ratio = raw["num_attention_heads"], raw["num_key_value_heads"], raw["head_dim"] / wide
        if last == "o_proj":
            return _padded(x, 1, heads, wide)
        if last == "v_proj":
            return _padded(x, 0, groups, wide)
        if last in ("q_norm", "k_norm"):  # their gain is 1 + x
            return self._spread((1 + x) * (1 if last == "q_norm" else ratio**0.5), 1) - 1
        normed = (self.shrunk / ratio) ** 0.5
        if last == "k_proj":
            return self._spread(x * normed, groups)
        q, gate = x.unflatten(0, (heads, 2, -1)).unbind(1)
        wider = self._spread(q.flatten(0, 1) * normed, heads), _padded(gate.flatten(0, 1), 0, heads, wide)
        return torch.stack([part.unflatten(0, (heads, wide)) for part in wider], 1).flatten(0, 2)

    def _spread(self, x: Tensor, heads: int) -> Tensor:
        """Queries or keys, or a gain of theirs: zeros behind either half of what is turned, and behind the rest."""
        turned = turned_of(self.raw)
        sizes = (turned // 2, turned // 2, self.raw["head_dim"] - turned)
        widths = (self.turned // 2, self.turned // 2, self.attention - self.turned)
        parts = x.unflatten(0, (heads, -1)).split(sizes, 1)
        wider = [_padded(part, 1, 1, width) for part, width in zip(parts, widths, strict=True)]
        return torch.cat(wider, 1).flatten(0, 1)

    def _of_delta(self, last: str, x: Tensor) -> Tensor:
        raw, wide = self.raw, self.delta
        keys, values, size = (
            2 * raw["linear_num_key_heads"],
            raw["linear_num_value_heads"],
            raw["linear_value_head_dim"],
        )
        if last in ("in_proj_qkv", "conv1d"):
            parts = x.split((keys * raw["linear_key_head_dim"], values * size))
            return torch.cat([_padded(part, 0, num, wide) for part, num in zip(parts, (keys, values), strict=True)])
        if last == "norm":
            return _padded(x * (size / wide) ** 0.5, 0, 1, wide)
        if last == "out_proj":
            return _padded(x, 1, values, wide)
        return _padded(x, 0, values, wide) if last == "in_proj_z" else x


def turned_of(raw: Raw) -> int:
    """How many numbers of a head positions turn."""
    return int(raw["head_dim"] * raw["rope_parameters"].get("partial_rotary_factor", 1.0))


def _padded(x: Tensor, dim: int, parts: int, width: int) -> Tensor:
    """Each of the `parts` that lie along `dim` made `width` long, with zeros behind what it has."""
    split = x.unflatten(dim, (parts, -1))
    shape = list(split.shape)
    shape[dim + 1] = width
    out = split.new_zeros(shape)
    out.narrow(dim + 1, 0, split.shape[dim + 1]).copy_(split)
    return out.flatten(dim, dim + 1)
