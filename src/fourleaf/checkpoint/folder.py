"""A checkpoint folder of any known architecture, read under our names."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fourleaf.checkpoint.disk import read_json
from fourleaf.checkpoint.families import OWN, read_config
from fourleaf.checkpoint.names import (
    CLOVER_TENSORS,
    Layout,
    Place,
    Stored,
    count_by_kind,
    lacks_clover,
    own_shapes,
    skipped,
    table,
    whole,
)
from fourleaf.checkpoint.shards import CONFIG, Shards
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

log = logging.getLogger(__name__)

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class CheckpointFolder(AbstractContextManager["CheckpointFolder"]):
    """Names and shapes are held against the config when it is opened; tensors are read when they are asked for.

    Raises ConfigError for an architecture or a setting that is not known here, CheckpointError for a tensor that is
    missing, unknown or of another shape, with both shapes. Says in one line of the log what a text model leaves out.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        raw = read_json(folder / CONFIG)
        if raw.get("model_type", OWN) == OWN and raw.get("quantization_config"):
            raise ConfigError(f"{folder} holds quantised weights; name the folder that it was made from")
        self.config: ModelConfig = read_config(raw)
        self.shards = Shards(folder)
        names = self.shards.shapes
        if lacks_clover(self.config, names):
            log.warning(
                "%s lacks the block diffusion tensors (%s) that its configuration speaks of: it loads as an AR model; "
                "mode 'ar' works, 'diffuse' does not",
                folder,
                ", ".join(CLOVER_TENSORS),
            )
            self.config = dataclasses.replace(self.config, block_size=None, mask_token_id=None)
        if not self.config.is_block_diffusion and any(name.endswith(CLOVER_TENSORS) for name in names):
            raise ConfigError(
                f"{folder / CONFIG} lacks block_size and mask_token_id, which the block diffusion tensors beside it "
                "need; add them"
            )
        self.layout = Layout.of(names)
        self.table = table(self.config, self.layout)
        self._skip()
        self._check()
        self._places = _by_own(self.table)

    def __exit__(self, *fault: object) -> None:
        self.shards.close()

    def _skip(self) -> None:
        self._ignored = skipped(self.shards.shapes)
        if kinds := [kind for kind in self._ignored.values() if kind != "rotary table"]:
            log.warning("%s: %s left out; this is the text model alone", self.folder, count_by_kind(kinds))
        if self.config.tie_word_embeddings and _HEAD in self.shards.shapes:
            embedding = next(name for name, stored in self.table.items() if stored.places[0].own == _EMBEDDING)
            if embedding in self.shards.shapes and not torch.equal(self.shards.get(_HEAD), self.shards.get(embedding)):
                raise CheckpointError(f"{_HEAD} differs from {embedding}, but tie_word_embeddings says they are one")
            self._ignored[_HEAD] = "tied head"

    def _check(self) -> None:
        shapes, origin = self.shards.shapes, self.shards.origin
        for name, stored in self.table.items():
            if name not in shapes:
                raise CheckpointError(f"{origin} lacks {name}, expected with shape {stored.shape}")
            if shapes[name] != stored.shape:
                where = self.folder / self.shards.files[name]
                raise CheckpointError(f"{name} has shape {shapes[name]}, expected {stored.shape}, in {where}")
        if extra := sorted(set(shapes) - set(self.table) - set(self._ignored)):
            raise CheckpointError(f"{origin} holds {extra[0]} ({len(extra)} in all), unknown to its configuration")

    def tensor(self, own: str) -> Tensor:
        """One of our tensors in the file's type; the file's own pages where the file holds it as we do."""
        places = self._places[own]
        if len(places) == 1 and places[0][1].of_own is whole and places[0][1].of_stored is whole:
            return self.shards.get(places[0][0])
        dtypes = {self.shards.dtypes[name] for name, _ in places}
        if len(dtypes) > 1:
            raise CheckpointError(f"parts of {own} in {self.folder} differ in type: {sorted(map(str, dtypes))}")
        made = torch.empty(self.own_shapes[own], dtype=dtypes.pop())
        for name, place in places:
            place.of_own(made).copy_(place.of_stored(self.shards.get(name)))
        return made

    @cached_property
    def own_shapes(self) -> dict[str, tuple[int, ...]]:
        """Our tensors' shapes by name."""
        return own_shapes(self.config)

    def dtype(self, own: str) -> torch.dtype:
        """The type that the file has for one of our tensors."""
        return self.shards.dtypes[self._places[own][0][0]]

    @torch.no_grad()
    def fill(self, model: Transformer) -> None:
        """Copies everything into a model of this config, file by file: nothing is held twice."""
        parameters = dict(model.named_tensors())
        for _, names in self.shards.by_file():
            for name in names:
                stored = self.table.get(name)
                for place in stored.places if stored else ():
                    place.of_own(parameters[place.own]).copy_(place.of_stored(self.shards.get(name)))
            self.shards.close()


def _by_own(stored: dict[str, Stored]) -> dict[str, list[tuple[str, Place]]]:
    """The table seen from our side: for each of our tensors, the file's parts of it."""
    found: dict[str, list[tuple[str, Place]]] = {}
    for name, entry in stored.items():
        for place in entry.places:
            found.setdefault(place.own, []).append((name, place))
    return found


def arrange(own: Callable[[str], Tensor], stored: dict[str, Stored]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file as `stored` lays them out, one after another; `own` gives ours by name.

    Memory: two of our tensors and one of the file's, beyond what the caller keeps.
    """
    recent: dict[str, Tensor] = {}
    for name, entry in stored.items():
        for place in entry.places:
            if place.own not in recent:
                while len(recent) > 1:
                    recent.pop(next(iter(recent)))
                recent[place.own] = own(place.own)
        if len(entry.places) == 1 and entry.places[0].of_stored is whole:
            yield name, entry.places[0].of_own(recent[entry.places[0].own])
            continue
        made = torch.empty(entry.shape, dtype=recent[entry.places[0].own].dtype)
        for place in entry.places:
            place.of_stored(made).copy_(place.of_own(recent[place.own]))
        yield name, made
