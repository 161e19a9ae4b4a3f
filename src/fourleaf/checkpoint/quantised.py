"""Checkpoint folders whose linears and experts are INT4: written tensor by tensor, run from the mapped file.

A quantised parameter `NAME` is stored as `NAME.packed`, `NAME.scales` and, unless symmetric, `NAME.zeros`
(`quant.int4.Packed`); all others are as in the source. config.json says how, under `quantization_config`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourleaf.checkpoint.files import CONFIG, WEIGHTS, load_model, read_json, read_tensors, write_json, write_tensors
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.quant.backends import plain
from fourleaf.quant.int4 import Int4Config, Packed, num_groups, quantise
from fourleaf.quant.linear import Choose, install, is_quantised

INDEX = "model.safetensors.index.json"
KEY = "quantization_config"
SHARD_BYTES = 512 * 1024 * 1024
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tmp"}


@dataclass(frozen=True)
class Sizes:
    """What quantising changed. Bytes of tensors in the files; weights counted by what became of them."""

    bytes_before: int
    bytes_after: int
    num_quantised: int
    num_kept: int
    bits: float


def load_checkpoint(folder: Path, dtype: torch.dtype = torch.float32, choose: Choose = plain) -> Transformer:
    """Reads a checkpoint folder, quantised or not, into a model that computes in `dtype`.

    `choose` picks what computes a quantised product. Packed weights stay mapped from the file: memory that the system
    can take back. Raises CheckpointError and ConfigError as `load_model` does, and ConfigError for a quantisation that
    is not known here.
    """
    raw = read_json(folder / CONFIG)
    if KEY not in raw:
        return load_model(folder, dtype)
    config = ModelConfig.from_dict(raw)
    scheme = Int4Config.from_dict(raw[KEY])
    tensors = {name: t for file in weight_files(folder) for name, t in read_tensors(file)[0].items()}
    model = _without_weights(config)
    packed, rest = {}, {}
    for name, parameter in model.named_tensors():
        if is_quantised(name):
            packed[name] = _take_packed(tensors, name, parameter.shape, scheme, folder)
        else:
            rest[name] = _take(tensors, name, parameter.shape, folder).to(dtype)
    if tensors:
        raise CheckpointError(f"{folder} holds {min(tensors)} ({len(tensors)} in all), unknown to its configuration")
    install(model, packed, choose)
    model.load_state_dict(rest, strict=False, assign=True)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    assert not any(p.is_meta for p in model.parameters())
    return model.requires_grad_(False).eval()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder: those that its index names, or the only one.

    Raises CheckpointError where the index is broken.
    """
    index = folder / INDEX
    if not index.is_file():
        return [folder / WEIGHTS]
    try:
        return [
            folder / name for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        ]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index} is broken: {error}") from error


def quantise_checkpoint(
    source: Path,
    target: Path,
    config: Int4Config,
    calibrate: Callable[[Transformer, Int4Config], Mapping[str, Packed]] | None = None,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Sizes:
    """Writes `source`, quantised, as the new folder `target`, with all that lies beside the weights.

    Rounded to nearest, a tensor at a time, in memory for one shard and not for the model; with `calibrate` (model in
    fp32 -> packed weights by name) the whole model is read. `target` appears once it is whole. Raises CheckpointError
    where `source` is broken or quantised already, ConfigError where `target` exists.
    """
    if target.exists():
        raise ConfigError(f"{target} exists; name a new folder, or remove it first")
    raw, model_config = _raw_config(source), ModelConfig.from_file(source / CONFIG)
    if KEY in raw:
        raise CheckpointError(f"{source} is quantised already; quantise the original that it was made from")
    given = calibrate(load_model(source), config) if calibrate is not None else {}
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    partial.mkdir(parents=True)
    try:
        written = _Shards(partial, shard_bytes)
        counts = {True: 0, False: 0}
        before = bytes_packed = 0
        for name, tensor in _checked(source, model_config):
            before += tensor.nbytes
            counts[is_quantised(name)] += tensor.numel()
            if not is_quantised(name):
                written.add(name, tensor)
                continue
            packed = given[name] if calibrate is not None else _quantised(name, tensor, config)
            bytes_packed += packed.num_bytes
            for suffix, part in packed.tensors().items():
                written.add(f"{name}.{suffix}", part)
        written.close()
        _copy_companions(source, partial)
        write_json(partial / CONFIG, {**raw, KEY: config.to_dict()})  # last: without it no load begins
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Sizes(before, written.num_bytes, counts[True], counts[False], 8 * bytes_packed / max(1, counts[True]))


class _Shards:
    """Tensors one after another into files of about `limit` bytes; one file keeps the usual name, more get an index."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.num_bytes = 0
        self._held: dict[str, Tensor] = {}
        self._where: dict[str, str] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        held = sum(t.nbytes for t in self._held.values())
        if self._held and held + tensor.nbytes > self.limit:
            self._flush()
        self._held[name] = tensor
        self.num_bytes += tensor.nbytes

    def _flush(self) -> None:
        file = f"model-{len(set(self._where.values())) + 1:05d}.safetensors"
        write_tensors(self.folder / file, self._held)
        self._where |= dict.fromkeys(self._held, file)
        self._held = {}

    def close(self) -> None:
        if not self._where:
            write_tensors(self.folder / WEIGHTS, self._held)
            return
        self._flush()
        write_json(self.folder / INDEX, {"metadata": {"total_size": self.num_bytes}, "weight_map": self._where})


def _raw_config(folder: Path) -> dict[str, Any]:
    ModelConfig.from_file(folder / CONFIG)  # names what is wrong with the file, if anything
    return json.loads((folder / CONFIG).read_text(encoding="utf-8"))


def _without_weights(config: ModelConfig) -> Transformer:
    with torch.device("meta"):
        return Transformer(config)


def _checked(folder: Path, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the model, file by file. Raises CheckpointError unless they are those that `config` says."""
    expected = {name: p.shape for name, p in _without_weights(config).named_tensors()}
    for file in weight_files(folder):
        tensors, _ = read_tensors(file)
        for name in sorted(tensors):
            if name not in expected:
                raise CheckpointError(f"{file} holds {name}, unknown to its configuration")
            yield name, _take(tensors, name, expected.pop(name), file)
    if expected:
        name, shape = next(iter(expected.items()))
        raise CheckpointError(f"{folder} lacks {name}, expected with shape {tuple(shape)}")


def _quantised(name: str, tensor: Tensor, config: Int4Config) -> Packed:
    try:
        return quantise(tensor, config)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from error


def _take(tensors: dict[str, Tensor], name: str, shape: torch.Size, origin: Path) -> Tensor:
    """Removes a tensor. Raises CheckpointError where it is missing or has another shape."""
    if name not in tensors:
        raise CheckpointError(f"{origin} lacks {name}, expected with shape {tuple(shape)}")
    tensor = tensors.pop(name)
    if tensor.shape != shape:
        raise CheckpointError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}, in {origin}")
    return tensor


def _take_packed(tensors: dict[str, Tensor], name: str, shape: torch.Size, config: Int4Config, origin: Path) -> Packed:
    *outer, width = shape
    per_group = torch.Size((*outer, num_groups(width, config.group_size)))
    wanted = {"packed": (torch.Size((*outer, -(-width // 2))), torch.uint8), "scales": (per_group, config.dtype)}
    if not config.symmetric:
        wanted["zeros"] = (per_group, config.dtype)
    found = {}
    for suffix, (part_shape, dtype) in wanted.items():
        part = _take(tensors, f"{name}.{suffix}", part_shape, origin)
        if part.dtype != dtype:
            raise CheckpointError(f"{name}.{suffix} is {part.dtype}, expected {dtype}, in {origin}")
        found[suffix] = part
    return Packed(found["packed"], found["scales"], found.get("zeros"), width, config.group_size)


def _copy_companions(source: Path, target: Path) -> None:
    """Tokenizer, template, tools, card: every plain file but weights, their index and the configuration."""
    for file in sorted(source.iterdir()):
        if file.is_file() and file.suffix not in _WEIGHT_SUFFIXES and file.name not in (CONFIG, INDEX):
            shutil.copyfile(file, target / file.name)
