"""The clean path of a checkpoint, layer by layer from its files: what a conversion must not change."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fourleaf.checkpoint.folder import CheckpointFolder
from fourleaf.errors import CheckpointError
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

NUM_ROWS = 12
_EMBEDDING = "model.embed_tokens.weight"


def prove_equal_ar(before: CheckpointFolder, after: CheckpointFolder) -> int:
    """Runs the same rows through the clean path of both and returns how many.

    Raises CheckpointError unless all their logits have the same bits.
    """
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, before.config.vocab_size, (NUM_ROWS,), generator=random)
    if not torch.equal(ar_logits(before, tokens), ar_logits(after, tokens)):
        raise CheckpointError(
            f"the ar logits of {after.folder} are not those of {before.folder}; nothing is kept of it"
        )
    return NUM_ROWS


@torch.no_grad()
def ar_logits(source: CheckpointFolder, tokens: Tensor) -> Tensor:
    """Logits of a text, [T] -> [T, Y], in the type of the checkpoint's embedding (fp16: in fp32).

    One layer is in memory at a time, or the head.
    """
    with torch.device("meta"):
        model = Transformer(source.config).eval()
    dtype = source.dtype(_EMBEDDING)
    dtype = torch.float32 if dtype is torch.float16 else dtype
    _fill(model.model.embed_tokens, "model.embed_tokens", source, dtype)
    _fill(model.model.norm, "model.norm", source, dtype)
    if source.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    else:
        _fill(model.lm_head, "lm_head", source, dtype)
    for index, layer in enumerate(model.model.layers):

        def fill(layer: nn.Module, _: object, index: int = index) -> None:
            _fill(layer, f"model.layers.{index}", source, dtype)

        def drop(layer: nn.Module, *_: object) -> None:
            model.refresh()
            for module in layer.modules():
                module._parameters.clear()

        layer.register_forward_pre_hook(fill)
        layer.register_forward_hook(drop)
    hidden, _ = model(Work(tokens, Segments([len(tokens)]), [0]))
    return model.head(hidden)


def _fill(part: nn.Module, prefix: str, source: CheckpointFolder, dtype: torch.dtype) -> None:
    """Gives the parameters of a part of a model without memory their values."""
    for name in [name for name, _ in part.named_parameters()]:
        owner, _, last = name.rpartition(".")
        # A copy, as loading makes: how a product rounds may depend on where in a file's page its matrix begins.
        value = source.tensor(f"{prefix}.{name}").to(dtype, copy=True)
        setattr(part.get_submodule(owner), last, nn.Parameter(value, requires_grad=False))
