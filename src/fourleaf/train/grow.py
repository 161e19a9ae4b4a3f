"""A wider model that computes what a narrower one does: where more capacity is to go on from trained weights.

Function-preserving growth in the manner of Net2Net (Chen et al. 2016, arXiv:1511.05641), by zeros instead of copies:
new channels of the residual stream are zero until training writes to them, and nothing reads new heads and MLP units.
"""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor

from fourleaf.errors import ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.train.start import start_weights

_GROWS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "linear_num_key_heads",
    "linear_num_value_heads",
)  # fmt: skip
_SHARED = (
    ("num_attention_heads", "num_key_value_heads"),
    ("linear_num_value_heads", "linear_num_key_heads"),
)
_BACK = ("out_proj.weight", "o_proj.weight", "down_proj.weight")
_STREAM_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight")
_BY_CHANNEL = ("in_proj_qkv.weight", "conv1d.weight", "conv_right_weight")


@torch.no_grad()
def grow(model: Transformer, config: ModelConfig, seed: int) -> Transformer:
    """A model of `config` with the logits of `model`, to rounding.

    Widths and numbers of heads may be larger; what is new is drawn from `seed`. A stream whose new channels are zero
    has an RMS smaller by (old / new width)^1/2, which the gains of its norms take back. Raises ConfigError where
    another setting differs, a width is smaller, heads share key-value heads in another ratio, or the model has experts.
    """
    old = model.config
    _check(old, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wide = Transformer(config)
        start_weights(wide)
    wide.to(next(model.parameters()).dtype)
    own = wide.state_dict()
    for name, tensor in model.state_dict().items():
        target = own[name]
        rows = _places(name, tensor, old, config)
        if name.endswith(_STREAM_NORMS):
            shrunk = (old.hidden_size / config.hidden_size) ** 0.5
            one = 0.0 if config.norm_weights == "plain" else 1.0
            target.fill_(shrunk - one)
            target[rows] = (one + tensor) * shrunk - one
            continue
        if name.endswith((*_BACK, "embed_tokens.weight")):
            target.zero_()
        if tensor.ndim == 2:
            target[rows[:, None], torch.arange(tensor.shape[1])] = tensor
        else:
            target[rows] = tensor
    return wide


def _places(name: str, tensor: Tensor, old: ModelConfig, new: ModelConfig) -> Tensor:
    """Where the rows of a tensor lie in the wider one: q, k and v channels of a GDN layer each begin anew."""
    if not name.endswith(_BY_CHANNEL):
        return torch.arange(tensor.shape[0])
    begins = (0, new.key_dim, 2 * new.key_dim)
    sizes = (old.key_dim, old.key_dim, old.value_dim)
    return torch.cat([begin + torch.arange(size) for begin, size in zip(begins, sizes, strict=True)])


def _check(old: ModelConfig, new: ModelConfig) -> None:
    theirs, ours = asdict(old), asdict(new)
    if old.num_experts or new.num_experts:
        raise ConfigError("a model with experts cannot be grown; only dense ones can")
    if different := [f"{n} {theirs[n]} to {ours[n]}" for n in ours if n not in _GROWS and theirs[n] != ours[n]]:
        raise ConfigError(f"growing cannot change {'; '.join(different)}")
    if smaller := [f"{n} {theirs[n]} to {ours[n]}" for n in _GROWS if ours[n] < theirs[n]]:
        raise ConfigError(f"growing cannot shrink {'; '.join(smaller)}")
    for queries, keys in _SHARED:
        if ours[queries] * theirs[keys] != theirs[queries] * ours[keys]:
            raise ConfigError(
                f"{queries} {ours[queries]} over {keys} {ours[keys]} is not {theirs[queries]} over {theirs[keys]}; "
                "heads would read other keys"
            )
