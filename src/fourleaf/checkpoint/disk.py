"""Single files on disk: a reader sees the old one or the new one, never half of one. Faults of the disk are named."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fourleaf.errors import CheckpointError, ConfigError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A new file beside `path` to write; it takes the place of `path` once it is whole and on disk, or is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with disk_full_named(path):
            temporary.touch()
            mode = temporary.stat().st_mode  # as the user's umask says; safetensors alone would bar all other users
            yield temporary
            temporary.chmod(mode)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def disk_full_named(path: Path) -> Generator[None]:
    """Turns "no space left" into a CheckpointError that names `path`, what is free, and what became of the file."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        # safetensors has no error type of its own for the system's; it spells the number out.
        found = error.errno if isinstance(error, OSError) else None
        if found in _FULL or any(f"os error {number})" in str(error) for number in _FULL):
            free = free_bytes(path)
            raise CheckpointError(
                f"no space left to write {path} ({free / 1e6:.0f} MB free); what was half written is removed. "
                "Free some space or write elsewhere."
            ) from error
        raise


def free_bytes(path: Path) -> int:
    """Free space where `path` lies or would lie."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes one safetensors file; `path` holds the old one or the new one at any moment.

    Raises CheckpointError where the disk is full.
    """
    with replacing(path) as file:
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, file, metadata or {"format": "pt"})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors by name, metadata). Raises CheckpointError where the file is missing or broken."""
    with opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def read_metadata(path: Path) -> dict[str, str]:
    """A file's metadata, without its tensors. Raises CheckpointError as above."""
    with opened(path) as file:
        return file.metadata() or {}


@contextmanager
def opened(path: Path) -> Generator[Any]:
    """A safetensors file, mapped: its tensors are read when they are used. Raises CheckpointError as above."""
    if not path.is_file():
        raise CheckpointError(f"there is no {path}")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is broken or truncated: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Writes JSON; `path` holds the old text or the new one at any moment. Raises CheckpointError as above."""
    with replacing(path) as file:
        file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ConfigError where the file is missing or holds something else."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds a JSON {type(raw).__name__}; it must be an object")
    return raw


def num_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes of a tensor in a file."""
    return torch.Size(shape).numel() * dtype.itemsize
