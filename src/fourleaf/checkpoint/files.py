"""Checkpoint files: safetensors and JSON, written so that a reader never sees half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fourleaf.errors import CheckpointError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

CONFIG, WEIGHTS = "config.json", "model.safetensors"


@contextmanager
def _replacing(path: Path) -> Generator[Path]:
    """A new file beside `path` to write; it takes the place of `path` once it is whole and on disk, or is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # as the user's umask says; safetensors alone would bar all other users
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes one safetensors file; `path` holds the old one or the new one at any moment."""
    with _replacing(path) as file:
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, file, metadata or {"format": "pt"})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors by name, metadata). Raises CheckpointError where the file is missing or broken."""
    if not path.is_file():
        raise CheckpointError(f"there is no {path}")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is broken or truncated: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Writes JSON; `path` holds the old text or the new one at any moment."""
    with _replacing(path) as file:
        file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save_model(model: Transformer, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Writes config.json and model.safetensors; floating tensors in `dtype` where one is given."""
    tensors = {name: t if dtype is None else t.to(dtype) for name, t in model.named_tensors()}
    write_tensors(folder / WEIGHTS, tensors)
    write_json(folder / CONFIG, model.config.to_dict())


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """Reads a checkpoint folder into a model in `dtype`.

    Raises CheckpointError naming a tensor that is missing, unknown or of another shape, with both shapes, and
    ConfigError where config.json is missing or out of limits.
    """
    config = ModelConfig.from_file(folder / CONFIG)
    tensors, _ = read_tensors(folder / WEIGHTS)
    model = Transformer(config)
    fill_model(model, tensors, folder / WEIGHTS)
    model.to(dtype)
    model.refresh()
    return model.eval()


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
