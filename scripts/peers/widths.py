"""A hybrid model with its heads widened by zeros: the same function, in shapes that other engines take.

llama.cpp and vLLM want keys and values of linear attention to be of one size, and vLLM's attention on a CPU knows few
head sizes. A head of A numbers followed by zeros is a head of W numbers that computes the same, once three things are
put right:
  - an RMS norm over W numbers of which A count divides by sqrt(A/W) of what it should: its gain takes the factor;
  - attention divides by sqrt(W) where it did by sqrt(A): the gain of q takes sqrt(W/A), which undoes the former there;
  - positions turn the same first numbers of a head: their share of it is smaller.

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


def widen(source: Path, target: Path, *, attention: int, delta: int) -> Raw:
    """Writes the hybrid model of the Hugging Face folder `source` to the new folder `target`, its heads as wide as
    said: `attention` numbers in attention, `delta` in keys and in values of linear attention. Returns its config.json.
    Weights become fp32, since the factors are no powers of two.

    Raises ConfigError for a size below what the model has, and for a head tied to the embedding.
    """
    widening = Widening(read_json(source / CONFIG), attention, delta)
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

    @property
    def shrunk(self) -> float:
        """What becomes of mean squares, and so of epsilon."""
        return self.raw["linear_key_head_dim"] * self.raw["linear_value_head_dim"] / self.delta**2

    def config(self) -> Raw:
        """The wider model's config.json. Raises ConfigError as `widen` does."""
        raw = self.raw
        have = {"head_dim": self.attention, "linear_key_head_dim": self.delta, "linear_value_head_dim": self.delta}
        for key, size in have.items():
            if size < raw[key]:
                raise ConfigError(f"{key} is {raw[key]}, which {size} numbers cannot hold; heads are only ever widened")
        if raw["tie_word_embeddings"]:
            raise ConfigError("tie_word_embeddings is true; the embedding shrinks and the head must not")
        rope = dict(raw["rope_parameters"])
        turned = int(raw["head_dim"] * rope.get("partial_rotary_factor", 1.0))
        rope["partial_rotary_factor"] = turned / self.attention
        assert int(self.attention * rope["partial_rotary_factor"]) == turned, "whoever reads the share rounds it down"
        eps = raw["rms_norm_eps"] * self.shrunk
        return raw | have | {"rope_parameters": rope, "rms_norm_eps": eps, "dtype": "float32"}

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
        if last in ("q_norm", "k_norm"):  # their gain is 1 + x
            return _padded((1 + x) * (1 if last == "q_norm" else ratio**0.5), 0, 1, wide) - 1
        if last == "o_proj":
            return _padded(x, 1, heads, wide)
        if last == "v_proj":
            return _padded(x, 0, groups, wide)
        normed = (self.shrunk / ratio) ** 0.5
        if last == "k_proj":
            return _padded(x * normed, 0, groups, wide)
        q, gate = x.unflatten(0, (heads, 2, -1)).unbind(1)
        return _padded(torch.stack((q * normed, gate), 1).flatten(0, 2), 0, 2 * heads, wide)

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


def _padded(x: Tensor, dim: int, parts: int, width: int) -> Tensor:
    """Each of the `parts` that lie along `dim` made `width` long, with zeros behind what it has."""
    split = x.unflatten(dim, (parts, -1))
    shape = list(split.shape)
    shape[dim + 1] = width
    out = split.new_zeros(shape)
    out.narrow(dim + 1, 0, split.shape[dim + 1]).copy_(split)
    return out.flatten(dim, dim + 1)
