"""Checkpoint files: safetensors and JSON, written so that a reader never sees half a file."""

from __future__ import annotations

import json
import os
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


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes one safetensors file by way of a temporary one beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    save_file({name: t.detach().contiguous() for name, t in tensors.items()}, temporary, metadata or {"format": "pt"})
    os.replace(temporary, path)


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
    """Writes JSON by way of a temporary file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def save_model(model: Transformer, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Writes config.json and model.safetensors; floating tensors in `dtype` where one is given."""
    tensors = {name: t if dtype is None else t.to(dtype) for name, t in model.named_tensors()}
    write_tensors(folder / WEIGHTS, tensors)
    write_json(folder / CONFIG, model.config.to_dict())


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """Reads a checkpoint folder into a model in `dtype`.

    Raises CheckpointError naming a tensor that is missing, unknown or of another shape, with both shapes.
    """
    config = ModelConfig.from_file(folder / CONFIG)
    tensors, _ = read_tensors(folder / WEIGHTS)
    model = Transformer(config)
    expected = dict(model.named_tensors())
    for name, parameter in expected.items():
        if name not in tensors:
            raise CheckpointError(f"{folder / WEIGHTS} lacks {name}, expected with shape {tuple(parameter.shape)}")
        if tensors[name].shape != parameter.shape:
            found = tuple(tensors[name].shape)
            raise CheckpointError(f"{name} has shape {found}, expected {tuple(parameter.shape)}, in {folder / WEIGHTS}")
    if extra := sorted(set(tensors) - set(expected)):
        raise CheckpointError(f"{folder / WEIGHTS} holds {extra[0]} ({len(extra)} in all), unknown to its config.json")
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(tensors[name])
    model.to(dtype)
    model.refresh()
    return model.eval()
