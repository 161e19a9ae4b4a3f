"""Models to checkpoint folders and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fourleaf.checkpoint.disk import read_json, read_metadata, read_tensors, write_json, write_tensors
from fourleaf.checkpoint.families import Family
from fourleaf.checkpoint.folder import CheckpointFolder, arrange
from fourleaf.checkpoint.names import Layout, table
from fourleaf.checkpoint.shards import CONFIG, INDEX, SHARD_BYTES, WEIGHTS, ShardWriter
from fourleaf.errors import CheckpointError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

__all__ = [
    "CONFIG",
    "INDEX",
    "WEIGHTS",
    "empty_model",
    "fill_model",
    "load_model",
    "read_json",
    "read_metadata",
    "read_tensors",
    "save_model",
    "write_json",
    "write_tensors",
]


@torch.no_grad()
def save_model(
    model: Transformer,
    folder: Path,
    dtype: torch.dtype | None = None,
    *,
    family: Family | None = None,
    layout: Layout | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a checkpoint folder: config.json, and weights in files of up to `shard_bytes`.

    Floating tensors in `dtype` where one is given. Names and config are ours, or those of `family`; `layout` says how
    its tensors are arranged, the family's usual way by default. Raises CheckpointError where the disk is full.
    """
    layout = layout or (family.layout if family else Layout())
    config = family.raw(model.config) if family else model.config.to_dict()
    tensors = dict(model.named_tensors())

    def own(name: str) -> Tensor:
        return tensors[name] if dtype is None else tensors[name].to(dtype)

    with ShardWriter(folder, shard_bytes=shard_bytes) as out:
        for name, tensor in arrange(own, table(model.config, layout)):
            out.add(name, tensor)
        out.finish(config)
        out.publish()


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """Reads a checkpoint folder of any known architecture into a model in `dtype`, file by file.

    Raises CheckpointError naming a file that is missing or broken, or a tensor that is missing, unknown or of another
    shape, with both shapes; ConfigError where config.json is missing, out of limits, or of an unknown architecture.
    """
    with CheckpointFolder(folder) as source:
        model = empty_model(source.config, dtype)
        source.fill(model)
    return model.eval()


def empty_model(config: ModelConfig, dtype: torch.dtype) -> Transformer:
    """A model whose parameters have memory but no values yet: what fills them touches each page once."""
    with torch.device("meta"):
        model = Transformer(config)
    made: dict[int, nn.Parameter] = {}  # a tied head stays one tensor with the embedding
    for module in model.modules():
        for name, tensor in module.named_parameters(recurse=False):
            if id(tensor) not in made:
                made[id(tensor)] = nn.Parameter(torch.empty(tensor.shape, dtype=dtype))
            setattr(module, name, made[id(tensor)])
    return model


@torch.no_grad()
def fill_model(model: Transformer, tensors: Mapping[str, Tensor], origin: Path) -> None:
    """Copies `tensors` into the model's parameters, all or none.

    Raises CheckpointError, which names `origin` and the tensor, unless names and shapes are the model's own.
    """
    expected = dict(model.named_tensors())
    for name, parameter in expected.items():
        if name not in tensors:
            raise CheckpointError(f"{origin} lacks {name}, expected with shape {tuple(parameter.shape)}")
        if tensors[name].shape != parameter.shape:
            found = tuple(tensors[name].shape)
            raise CheckpointError(f"{name} has shape {found}, expected {tuple(parameter.shape)}, in {origin}")
    if extra := sorted(set(tensors) - set(expected)):
        raise CheckpointError(f"{origin} holds {extra[0]} ({len(extra)} in all), unknown to its configuration")
    for name, parameter in expected.items():
        parameter.copy_(tensors[name])
