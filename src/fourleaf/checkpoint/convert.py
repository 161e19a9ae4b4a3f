"""AR trunk to block diffusion model, in memory or from folder to folder, and back to an AR folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourleaf.checkpoint.disk import num_bytes, read_json
from fourleaf.checkpoint.families import ar_family
from fourleaf.checkpoint.folder import CheckpointFolder, arrange
from fourleaf.checkpoint.mask import MaskToken, choose_mask_token
from fourleaf.checkpoint.names import CLOVER_TENSORS, Layout, Stored, table
from fourleaf.checkpoint.proof import prove_equal_ar
from fourleaf.checkpoint.shards import SHARD_BYTES, ShardWriter, refuse_taken
from fourleaf.errors import ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.deltanet import block_softmax_start
from fourleaf.model.transformer import Transformer

BLOCK_SIZE = 32
# What goes along as it is: what turns text into ids and back, and how the model is meant to be used.
_COMPANIONS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json", "tools.json", "LICENSE",
)  # fmt: skip


def convert(trunk: Transformer, *, block_size: int, mask_token_id: int) -> Transformer:
    """A block diffusion model whose clean path is `trunk`, exactly.

    The new tensors start as `block_softmax_start` says. Raises ConfigError where the trunk is a block diffusion model
    already.
    """
    model = Transformer(_with_blocks(trunk.config, block_size, mask_token_id))
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in trunk.state_dict().items():
            own[name].copy_(tensor)
    return model


def _with_blocks(config: ModelConfig, block_size: int, mask_token_id: int) -> ModelConfig:
    if config.is_block_diffusion:
        raise ConfigError(f"the model already denoises blocks of {config.block_size}; nothing to convert")
    return dataclasses.replace(config, block_size=block_size, mask_token_id=mask_token_id)


@dataclass(frozen=True)
class Converted:
    """What a conversion did. mask: None where it went back to AR. num_new, num_dropped: tensors. num_rows: whose `ar`
    logits were found the same before and after."""

    config: ModelConfig
    mask: MaskToken | None
    num_new: int
    num_dropped: int
    num_rows: int
    architecture: str


def convert_folder(
    source: Path,
    target: Path,
    *,
    block_size: int = BLOCK_SIZE,
    mask_token: str | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Converted:
    """Writes the block diffusion model of an AR checkpoint to the folder `target`, in our names.

    Every tensor keeps its bits and its type; the four new ones of each GDN layer are fp32. Tokenizer, chat template and
    generation settings go along as they are. `target` becomes a checkpoint in the last step, after the proof that the
    `ar` logits are the same; before it, nothing that could be loaded is there. Memory: `shard_bytes`, or a layer.
    Raises CheckpointError and ConfigError as `CheckpointFolder` does, CheckpointError for a full disk, ConfigError for
    a target that is taken (`refuse_taken`) and for a source that is no AR model.
    """
    refuse_taken(target)
    with CheckpointFolder(source) as opened:
        if opened.config.is_block_diffusion:
            _with_blocks(opened.config, block_size, 0)
        mask = choose_mask_token(source, opened.config.vocab_size, mask_token)
        config = _with_blocks(opened.config, block_size, mask.id)
        start = block_softmax_start(config) if config.has_gdn else {}

        def own(name: str) -> Tensor:
            last = name.rpartition(".")[2]
            return start[last].clone() if last in start else opened.tensor(name)

        tensors = table(config, Layout())
        num_rows = _write(opened, target, arrange(own, tensors), _size(opened, tensors), config.to_dict(), shard_bytes)
        num_new = len(tensors) - len(opened.own_shapes)
    return Converted(config, mask, num_new, 0, num_rows, "fourleaf")


def export_folder(source: Path, target: Path, *, shard_bytes: int = SHARD_BYTES) -> Converted:
    """Writes the AR half of a checkpoint to the folder `target` as `transformers` reads it; otherwise as above."""
    refuse_taken(target)
    with CheckpointFolder(source) as opened:
        config = dataclasses.replace(opened.config, block_size=None, mask_token_id=None)
        family = ar_family(config)
        tensors = table(config, family.layout)
        raw = family.raw(config) | {"dtype": str(opened.dtype("model.embed_tokens.weight")).removeprefix("torch.")}
        size = _size(opened, tensors)
        num_rows = _write(opened, target, arrange(opened.tensor, tensors), size, raw, shard_bytes)
        num_dropped = sum(name.endswith(CLOVER_TENSORS) for name in opened.own_shapes)
    return Converted(config, None, 0, num_dropped, num_rows, family.architecture)


def _write(
    source: CheckpointFolder,
    target: Path,
    tensors: Iterator[tuple[str, Tensor]],
    size: int,
    config: dict[str, Any],
    shard_bytes: int,
) -> int:
    """Writes, proves, publishes; returns the rows of the proof."""
    with ShardWriter(target, shard_bytes=shard_bytes) as out:
        out.needs(size)
        for name, tensor in tensors:
            out.add(name, tensor)
        for name in _COMPANIONS:
            if (source.folder / name).is_file():
                out.add_file(source.folder / name)
        if template := _template_in_settings(source.folder):
            out.add_text("chat_template.jinja", template)
        with CheckpointFolder(out.finish(config)) as written:
            num_rows = prove_equal_ar(source, written)
        out.publish()
    return num_rows


def _size(source: CheckpointFolder, tensors: dict[str, Stored]) -> int:
    """Bytes of a file of these tensors, each in its source's type."""
    shapes = source.own_shapes
    return sum(
        num_bytes(stored.shape, source.dtype(stored.places[0].own) if stored.places[0].own in shapes else torch.float32)
        for stored in tensors.values()
    )


def _template_in_settings(folder: Path) -> str | None:
    """The chat template of a checkpoint that keeps it in tokenizer_config.json instead of a file of its own."""
    path = folder / "tokenizer_config.json"
    if (folder / "chat_template.jinja").is_file() or not path.is_file():
        return None
    template = read_json(path).get("chat_template")
    return template if isinstance(template, str) else None
