"""A checkpoint's tensors in one safetensors file or several: read one at a time, written so that all or none is there.

A folder is whole when it holds a config and either one file of weights or an index and every file that it names.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourleaf.checkpoint.disk import (
    disk_full_named,
    free_bytes,
    num_bytes,
    opened,
    read_json,
    replacing,
    write_json,
    write_tensors,
)
from fourleaf.errors import CheckpointError, ConfigError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
STAGE = ".unfinished"
SHARD_BYTES = 2_000_000_000
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


class Shards:
    """The tensors of a folder by the names that its files give them. Files are mapped and opened when first needed.

    Raises CheckpointError for a file that is missing, broken or truncated, or that lacks what the index says of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = _files(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._opened: dict[str, Any] = {}
        self._stack = ExitStack()
        for file in sorted(set(self.files.values())) or [WEIGHTS]:
            self._read_header(file)
        for name, file in self.files.items():
            if name not in self.shapes:
                raise CheckpointError(f"{folder / file} lacks {name}, which {INDEX} expects there")

    def _read_header(self, file: str) -> None:
        path = self.folder / file
        with opened(path) as held:
            for name in held.keys():  # noqa: SIM118
                if self.files.setdefault(name, file) != file:
                    raise CheckpointError(f"{path} holds {name}, which {INDEX} expects in {self.files[name]}")
                piece = held.get_slice(name)
                if piece.get_dtype() not in _DTYPES:
                    raise CheckpointError(f"{name} in {path} has type {piece.get_dtype()}, which is not known here")
                self.shapes[name], self.dtypes[name] = tuple(piece.get_shape()), _DTYPES[piece.get_dtype()]

    def get(self, name: str) -> Tensor:
        """One tensor, mapped: the file's own pages, to be read and never written."""
        return self._file(self.files[name]).get_tensor(name)

    def by_file(self) -> Iterator[tuple[str, Iterator[str]]]:
        """(file, names in it): reading in this order keeps one file open at a time."""
        for file in sorted(set(self.files.values())):
            yield file, (name for name, there in self.files.items() if there == file)

    def _file(self, file: str) -> Any:
        if file not in self._opened:
            self._opened[file] = self._stack.enter_context(opened(self.folder / file))
        return self._opened[file]

    def close(self) -> None:
        """Lets go of the files; tensors that were read stay valid."""
        self._stack.close()
        self._opened.clear()

    @property
    def origin(self) -> Path:
        """The file that says what the folder holds."""
        return self.folder / (INDEX if set(self.files.values()) - {WEIGHTS} else WEIGHTS)

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes(self.shapes[name], self.dtypes[name]) for name in self.shapes)


def _files(folder: Path) -> dict[str, str]:
    """The file of each tensor, as the index says; empty for a single file, whose header will say."""
    if not (folder / WEIGHTS).is_file() and not (folder / INDEX).is_file():
        if pickled := sorted(path.name for path in folder.glob("*.bin")):
            raise CheckpointError(
                f"{folder} holds pickled weights ({pickled[0]}), which are never opened; it needs {WEIGHTS}"
            )
        raise CheckpointError(f"there is no {folder / WEIGHTS}, nor {INDEX}")
    if (folder / WEIGHTS).is_file():
        return {}
    raw = read_json(folder / INDEX)
    files = raw.get("weight_map")
    if not isinstance(files, dict) or not files:
        raise CheckpointError(f"{folder / INDEX} has no weight_map: is it a safetensors index?")
    for file in sorted(set(files.values())):
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{folder / INDEX} names the file {file!r}, which does not lie beside it")
        if not (folder / file).is_file():
            num = sum(there == file for there in files.values())
            raise CheckpointError(f"there is no {folder / file}, which holds {num} of the {len(files)} tensors")
    return files


class ShardWriter(AbstractContextManager["ShardWriter"]):
    """Writes a checkpoint folder, one file of weights at a time, and makes it whole at the very end.

    Everything goes to a hidden folder inside `folder` first; `publish` moves it out, config.json last. Whatever ends
    the work before that leaves `folder` as it was, or, after a kill, with the hidden folder that the next run removes.
    A file holds up to `shard_bytes` of tensors, and that much memory is what writing takes.
    Raises CheckpointError where the disk is full or, by `needs`, will be.
    """

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder, self.stage = folder, folder / STAGE
        self._limit = shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._shards: list[list[str]] = []
        self._bytes = self._pending_bytes = 0
        self._made = not folder.exists()
        self._moved: list[Path] = []

    def __enter__(self) -> ShardWriter:
        shutil.rmtree(self.stage, ignore_errors=True)
        try:
            self.stage.mkdir(parents=True)
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.folder}: {error.strerror}") from error
        return self

    def __exit__(self, *fault: object) -> None:
        shutil.rmtree(self.stage, ignore_errors=True)
        if not (self.folder / CONFIG).is_file():
            for path in self._moved:
                path.unlink(missing_ok=True)
        if self._made and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def needs(self, num: int) -> None:
        """Refuses before the first byte where `num` bytes will not fit."""
        if (free := free_bytes(self.folder)) < num:
            raise CheckpointError(
                f"{self.folder} needs {num / 1e9:.2f} GB and its disk has {free / 1e9:.2f} GB free. "
                "Free some space or write elsewhere."
            )

    def add(self, name: str, tensor: Tensor) -> None:
        """Takes one tensor; it reaches the disk when its file is full. It must not change until then."""
        size = tensor.nbytes
        if self._pending and self._pending_bytes + size > self._limit:
            self._flush()
        self._pending[name] = tensor
        self._pending_bytes += size

    def _flush(self) -> None:
        write_tensors(self.stage / f"{len(self._shards)}.part", self._pending)
        self._shards.append(list(self._pending))
        self._bytes += self._pending_bytes
        self._pending, self._pending_bytes = {}, 0

    def add_file(self, path: Path) -> None:
        """Takes a file of the source as it is."""
        with replacing(self.stage / path.name) as file:
            shutil.copyfile(path, file)

    def add_text(self, name: str, text: str) -> None:
        """Takes a file by its text."""
        with replacing(self.stage / name) as file:
            file.write_text(text, encoding="utf-8")

    def finish(self, config: dict[str, Any]) -> Path:
        """Completes the hidden folder, which can then be read like any other; returns it. `publish` comes next."""
        if self._pending:
            self._flush()
        num = len(self._shards)
        names = [WEIGHTS] if num == 1 else [f"model-{i + 1:05}-of-{num:05}.safetensors" for i in range(num)]
        with disk_full_named(self.folder):
            for i, name in enumerate(names):
                (self.stage / f"{i}.part").rename(self.stage / name)
        if num > 1:
            files = {tensor: names[i] for i, shard in enumerate(self._shards) for tensor in shard}
            write_json(self.stage / INDEX, {"metadata": {"total_size": self._bytes}, "weight_map": files})
        write_json(self.stage / CONFIG, config)
        return self.stage

    def publish(self) -> None:
        """Moves everything out of the hidden folder; at each moment the old checkpoint, none, or the new is there."""
        assert (self.stage / CONFIG).is_file(), "publish comes after finish"
        fresh = {path.name for path in self.stage.iterdir()}
        stale = weight_files(self.folder)
        with disk_full_named(self.folder):
            if fresh != {WEIGHTS, CONFIG} or stale - {WEIGHTS}:
                (self.folder / CONFIG).unlink(missing_ok=True)  # from here on no load takes old and new for one
            for name in sorted(stale - fresh):
                (self.folder / name).unlink()
            for name in sorted(fresh, key=lambda name: (name == CONFIG, name == INDEX, name)):
                self._moved.append(self.folder / name)
                (self.stage / name).replace(self.folder / name)


def refuse_taken(folder: Path) -> None:
    """Raises ConfigError unless a new checkpoint may be written to `folder`: one that is not there yet, that is empty
    (hidden files aside), or that holds what a run that was killed had begun. Nothing else is ever written over.
    """
    remedy = "name a new folder, or remove it first"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; {remedy}")
    is_begun = (folder / STAGE).exists()
    if (folder / CONFIG).exists() or (weight_files(folder) and not is_begun):
        raise ConfigError(f"{folder} holds a checkpoint already; {remedy}")
    if not is_begun and folder.exists():
        others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        if others:
            raise ConfigError(f"{folder} is not empty (it holds {others[0]}); {remedy}")


def weight_files(folder: Path) -> set[str]:
    """Names of the files of weights and of their index in a folder; none where there is no folder."""
    if not folder.is_dir():
        return set()
    return {p.name for p in folder.iterdir() if p.name in (WEIGHTS, INDEX) or _SHARD.fullmatch(p.name)}
