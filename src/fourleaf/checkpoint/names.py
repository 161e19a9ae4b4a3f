"""Which tensor of a file is which of ours: one table, read in both directions.

A table lists the tensors of a file. Each is made of places: a part of it that is, number for number, a part of one of
our tensors. Reading copies from the file's part to ours, writing from ours to the file's; nothing is computed, so a
round trip gives the same bits.

Shapes: E experts, F expert width, D hidden, G key heads, H value heads, K key dim, V value dim.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

View = Callable[[Tensor], Tensor]
CLOVER_TENSORS = ("conv_right_weight", "bd_softmax_logit_scale", "bd_softmax_history_bias", "bd_softmax_history_c")
_WRAPPED = "model.language_model."
_EACH = re.compile(r"\.experts\.\d+\.")
# What a text model has no use for, by what to call it.
_SKIPPED = {
    "vision": re.compile(r"(model\.)?(visual|vision_tower)\."),
    "MTP": re.compile(r"(model\.)?mtp\."),
    "rotary table": re.compile(r".*\.rotary_emb\.inv_freq$"),
}


class Place(NamedTuple):
    """A part of a file's tensor and the same part of ours: two views of one shape."""

    own: str
    of_own: View
    of_stored: View


class Stored(NamedTuple):
    """A tensor of a file: its shape, and where its parts lie in ours."""

    shape: tuple[int, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Layout:
    """How a file arranges what the model has, where files differ.

    prefix: what stands in place of our "model."; in the multimodal wrapper "model.language_model.".
    experts: "fused", two tensors [E, ...] a layer as ours, or "each", three tensors an expert.
    projections: "split", in_proj_qkv, z, b and a as ours, or "grouped", in_proj_qkvz and in_proj_ba by key heads.
    """

    prefix: str = "model."
    experts: Literal["fused", "each"] = "fused"
    projections: Literal["split", "grouped"] = "split"

    @classmethod
    def of(cls, names: Iterable[str]) -> Layout:
        """The layout of a file with these tensors."""
        names = list(names)
        return cls(
            prefix=_WRAPPED if any(name.startswith(_WRAPPED) for name in names) else "model.",
            experts="each" if any(_EACH.search(name) for name in names) else "fused",
            projections="grouped" if any(name.endswith(".in_proj_qkvz.weight") for name in names) else "split",
        )


def skipped(names: Iterable[str]) -> dict[str, str]:
    """Those names that a text model leaves out, each with its kind."""
    kinds = {name: kind for name in names for kind, rule in _SKIPPED.items() if rule.match(name)}
    return kinds


def count_by_kind(kinds: Iterable[str]) -> str:
    """ "12 vision and 3 MTP tensors"."""
    counts = Counter(kinds)
    return " and ".join(f"{num} {kind}" for kind, num in counts.items()) + " tensors"


def own_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Our tensors' shapes by name, in order."""
    with torch.device("meta"):
        return {name: tuple(t.shape) for name, t in Transformer(config).named_tensors()}


def table(config: ModelConfig, layout: Layout) -> dict[str, Stored]:
    """The tensors of a file of this model in this layout."""
    found: dict[str, Stored] = {}
    for name, shape in own_shapes(config).items():
        found.update((_renamed(there, layout), stored) for there, stored in _stored(name, shape, config, layout))
    return found


def _renamed(name: str, layout: Layout) -> str:
    return layout.prefix + name.removeprefix("model.") if name.startswith("model.") else name


def _stored(name: str, shape: tuple[int, ...], config: ModelConfig, layout: Layout) -> Iterator[tuple[str, Stored]]:
    """The file's tensors that begin with our tensor `name`."""
    stem, _, last = name.removesuffix(".weight").rpartition(".")
    if layout.experts == "each" and stem.endswith(".experts"):
        yield from _each(stem, last, shape)
    elif layout.projections == "grouped" and last == "in_proj_qkv":
        yield f"{stem}.in_proj_qkvz.weight", _grouped_qkvz(stem, config)
        yield f"{stem}.in_proj_ba.weight", _grouped_ba(stem, config)
    elif layout.projections == "split" or last not in ("in_proj_z", "in_proj_b", "in_proj_a"):
        yield name, Stored(shape, (Place(name, whole, whole),))


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor: the view of those that files hold as we do."""
    return tensor


def _each(stem: str, last: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Stored]]:
    """gate_up_proj [E, 2F, D] as gate_proj and up_proj [F, D] of each expert; down_proj [E, D, F] as E matrices."""
    parts = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
    rows = shape[1] // len(parts)
    for expert in range(shape[0]):
        for i, part in enumerate(parts):

            def of_own(tensor: Tensor, expert: int = expert, start: int = i * rows) -> Tensor:
                return tensor[expert, start : start + rows]

            place = Place(f"{stem}.{last}", of_own, whole)
            yield f"{stem}.{expert}.{part}.weight", Stored((rows, shape[2]), (place,))


def _grouped_qkvz(stem: str, config: ModelConfig) -> Stored:
    """Rows of qkvz: for each key head its q [K], k [K], then v and z [H/G * V] of the value heads that it serves.

    Ours are q, k and v of all heads one after another, and z of its own.
    """
    heads, key, dim = config.linear_num_key_heads, config.linear_key_head_dim, config.hidden_size
    value = config.value_dim // heads
    ends = (0, key, 2 * key, 2 * key + value, 2 * (key + value))

    def part(i: int) -> View:
        return lambda stored: stored.view(heads, -1, dim)[:, ends[i] : ends[i + 1]]

    def rows(start: int, num: int) -> View:
        return lambda own: own[start : start + heads * num].view(heads, num, dim)

    qkv, z = f"{stem}.in_proj_qkv.weight", f"{stem}.in_proj_z.weight"
    places = (
        Place(qkv, rows(0, key), part(0)),
        Place(qkv, rows(config.key_dim, key), part(1)),
        Place(qkv, rows(2 * config.key_dim, value), part(2)),
        Place(z, rows(0, value), part(3)),
    )
    return Stored((heads * ends[-1], dim), places)


def _grouped_ba(stem: str, config: ModelConfig) -> Stored:
    """Rows of ba: for each key head b, then a, of the H/G value heads that it serves. Ours are b and a apart."""
    heads, dim, each = config.linear_num_key_heads, config.hidden_size, config.linear_num_value_heads
    each //= heads

    def rows(own: Tensor) -> Tensor:
        return own.view(heads, each, dim)

    places = (
        Place(f"{stem}.in_proj_b.weight", rows, lambda stored: stored.view(heads, -1, dim)[:, :each]),
        Place(f"{stem}.in_proj_a.weight", rows, lambda stored: stored.view(heads, -1, dim)[:, each:]),
    )
    return Stored((2 * heads * each, dim), places)


def lacks_clover(config: ModelConfig, names: Iterable[str]) -> bool:
    """Whether a block diffusion model's file has none of the four tensors that its GDN layers add to the AR trunk."""
    return config.is_block_diffusion and config.has_gdn and not any(n.endswith(CLOVER_TENSORS) for n in names)
