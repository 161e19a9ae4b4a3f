"""Checkpoint folders whose linears and experts are INT4: written tensor by tensor, run from the mapped file.

A quantised parameter `NAME` is stored as `NAME.packed`, `NAME.scales` and, unless symmetric, `NAME.zeros`
(`quant.int4.Packed`); all others are as in the source, under our names. config.json says how, under
`quantization_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fourleaf.checkpoint.disk import read_json
from fourleaf.checkpoint.files import load_model
from fourleaf.checkpoint.folder import CheckpointFolder
from fourleaf.checkpoint.footprint import stored_bytes
from fourleaf.checkpoint.heap import trim
from fourleaf.checkpoint.shards import CONFIG, INDEX, SHARD_BYTES, Shards, ShardWriter, refuse_taken
from fourleaf.errors import CheckpointError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.quant.backends import chosen
from fourleaf.quant.int4 import Int4Config, Packed, num_groups, quantise
from fourleaf.quant.linear import Choose, install, is_quantised

KEY = "quantization_config"
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tmp"}

# A model in fp32 -> its packed weights by name.
Calibrate = Callable[[Transformer, Int4Config], Mapping[str, Packed]]


@dataclass(frozen=True)
class Sizes:
    """What quantising changed. Bytes of tensors in the files; weights counted by what became of them.

    bits: of a quantised weight, with its share of scales and zero points.
    """

    bytes_before: int
    bytes_after: int
    num_quantised: int
    num_kept: int
    bits: float


def load_checkpoint(folder: Path, dtype: torch.dtype = torch.float32, choose: Choose = chosen) -> Transformer:
    """Reads a checkpoint folder, quantised or not, into a model that computes in `dtype`.

    `choose` picks what computes a quantised product. Packed weights stay mapped from the file: memory that the system
    can take back. Raises CheckpointError and ConfigError as `load_model` does, and ConfigError for a quantisation that
    is not known here.
    """
    raw = read_json(folder / CONFIG)
    if KEY not in raw:
        return load_model(folder, dtype)
    scheme, config = Int4Config.from_dict(raw[KEY]), ModelConfig.from_dict(raw)
    with torch.device("meta"):
        model = Transformer(config).to(dtype)
    stored = _Stored(folder)
    packed, rest = {}, {}
    for name, parameter in model.named_tensors():
        if is_quantised(name, scheme.plain_layers):
            packed[name] = stored.take_packed(name, parameter.shape, scheme)
        else:
            rest[name] = stored.take(name, parameter.shape).to(dtype)
    stored.close()
    install(model, packed, choose)
    trim()
    model.load_state_dict(rest, strict=False, assign=True)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    assert not any(p.is_meta for p in model.parameters())
    return model.requires_grad_(False).eval()


def quantise_checkpoint(
    source: Path,
    target: Path,
    config: Int4Config,
    calibrate: Calibrate | None = None,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Sizes:
    """Writes `source`, of any known architecture, quantised, to the folder `target`, with all that lies beside it.

    Rounded to nearest, a tensor at a time, in memory for one file of weights and not for the model; with `calibrate`
    the whole model is read. `target` becomes a checkpoint in the last step. Raises CheckpointError where `source` is
    broken or quantised already or the disk is full, ConfigError where `target` is taken (`refuse_taken`).
    """
    refuse_taken(target)
    if KEY in read_json(source / CONFIG):
        raise CheckpointError(f"{source} is quantised already; quantise the original that it was made from")
    given = calibrate(load_model(source), config) if calibrate is not None else None
    bytes_before = bytes_packed = bytes_kept = num_quantised = num_kept = 0
    with CheckpointFolder(source) as opened, ShardWriter(target, shard_bytes=shard_bytes) as out:
        shapes = opened.own_shapes
        out.needs(sum(stored_bytes(name, shape, opened.dtype(name), config) for name, shape in shapes.items()))
        for name in shapes:
            tensor = opened.tensor(name)
            bytes_before += tensor.nbytes
            if not is_quantised(name, config.plain_layers):
                out.add(name, tensor)
                num_kept, bytes_kept = num_kept + tensor.numel(), bytes_kept + tensor.nbytes
                continue
            packed = _rounded(name, tensor, config) if given is None else given[name]
            num_quantised, bytes_packed = num_quantised + tensor.numel(), bytes_packed + packed.num_bytes
            for suffix, part in packed.tensors().items():
                out.add(f"{name}.{suffix}", part)
        for file in sorted(source.iterdir()):  # tokenizer, template, tools, card
            if file.is_file() and file.suffix not in _WEIGHT_SUFFIXES and file.name not in (CONFIG, INDEX):
                out.add_file(file)
        out.finish({**opened.config.to_dict(), KEY: config.to_dict()})
        out.publish()
    bits = 8 * bytes_packed / max(1, num_quantised)
    return Sizes(bytes_before, bytes_packed + bytes_kept, num_quantised, num_kept, bits)


def _rounded(name: str, tensor: Tensor, config: Int4Config) -> Packed:
    try:
        return quantise(tensor, config)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from error


class _Stored:
    """The tensors of a quantised folder, each taken once. Raises CheckpointError for one that is missing or does not
    fit, and, when it is closed, for one that nobody took."""

    def __init__(self, folder: Path) -> None:
        self._shards = Shards(folder)
        self._left = set(self._shards.shapes)

    def take(self, name: str, shape: torch.Size) -> Tensor:
        found = self._shards.shapes.get(name)
        if found is None:
            raise CheckpointError(f"{self._shards.origin} lacks {name}, expected with shape {tuple(shape)}")
        if found != tuple(shape):
            raise CheckpointError(f"{name} has shape {found}, expected {tuple(shape)}, in {self._shards.origin}")
        self._left.discard(name)
        return self._shards.get(name)

    def take_packed(self, name: str, shape: torch.Size, config: Int4Config) -> Packed:
        *outer, width = shape
        per_group = torch.Size((*outer, num_groups(width, config.group_size)))
        wanted = {"packed": (torch.Size((*outer, -(-width // 2))), torch.uint8), "scales": (per_group, config.dtype)}
        if not config.symmetric:
            wanted["zeros"] = per_group, config.dtype
        found = {}
        for suffix, (part_shape, dtype) in wanted.items():
            found[suffix] = part = self.take(f"{name}.{suffix}", part_shape)
            if part.dtype != dtype:
                raise CheckpointError(f"{name}.{suffix} is {part.dtype}, expected {dtype}, in {self._shards.origin}")
        return Packed(found["packed"], found["scales"], found.get("zeros"), width, config.group_size)

    def close(self) -> None:
        self._shards.close()
        if self._left:
            extra = f"{min(self._left)} ({len(self._left)} in all)"
            raise CheckpointError(f"{self._shards.origin} holds {extra}, unknown to its configuration")
