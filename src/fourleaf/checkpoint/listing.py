"""Checkpoint folders on this machine: where they are, and what their small files say. No weights are read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fourleaf.checkpoint.families import read_config
from fourleaf.checkpoint.quantised import KEY
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.text.calls import markup_of
from fourleaf.text.tokenizer import THINK

CONFIG, TEMPLATE, TOOLS = "config.json", "chat_template.jinja", "tools.json"


def find(folders: Iterable[Path]) -> list[Path]:
    """Folders that hold a checkpoint, among those given and right inside them. Each once, in order."""
    found: dict[Path, Path] = {}
    for folder in folders:
        inside = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        for path in (folder, *inside):
            if (path / CONFIG).is_file():
                found.setdefault(path.resolve(), path)
    return list(found.values())


def describe(folder: Path) -> dict[str, Any]:
    """What a checkpoint is, as JSON data; `problem` says why it cannot be loaded, where that is known already.

    Raises CheckpointError where there is no checkpoint.
    """
    try:
        raw = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"there is no {folder / CONFIG}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{folder / CONFIG} is no JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{folder / CONFIG} holds no JSON object")
    files = [path for path in folder.rglob("*") if path.is_file()]
    told: dict[str, Any] = {
        "name": folder.resolve().name,
        "path": str(folder),
        "family": raw.get("model_type"),
        "bytes": sum(path.stat().st_size for path in files),
        "quantised": KEY in raw,
        "problem": None,
    }
    try:
        config = read_config({key: value for key, value in raw.items() if key != KEY})
    except (ConfigError, CheckpointError) as error:
        return told | {"problem": str(error)}
    template = folder / TEMPLATE
    source = template.read_text(encoding="utf-8") if template.is_file() else ""
    if not template.is_file():
        told["problem"] = f"there is no {TEMPLATE}, so it cannot chat"
    return told | {
        "block_diffusion": config.is_block_diffusion,
        "block_size": config.block_size,
        "context": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "hidden": config.hidden_size,
        "layers": config.num_hidden_layers,
        "attention_layers": sum(kind == "full_attention" for kind in config.layer_types),
        "experts": config.num_experts or None,
        "tool_markup": markup_of(source).syntax if "<tool_call>" in source else None,
        "thinks": THINK in source,
        "fixed_tools": (folder / TOOLS).is_file(),
    }
