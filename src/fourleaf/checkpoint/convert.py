"""AR trunk to block diffusion model: four tensors in each GDN layer, at a documented start."""

from __future__ import annotations

import dataclasses

import torch

from fourleaf.errors import ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer


def convert(trunk: Transformer, *, block_size: int, mask_token_id: int) -> Transformer:
    """A block diffusion model whose clean path is `trunk`, exactly.

    The new tensors start as `DeltaNet.reset_block_softmax` says and right taps at zero. Raises ConfigError where the
    trunk is a block diffusion model already.
    """
    if trunk.config.is_block_diffusion:
        raise ConfigError(f"the model already denoises blocks of {trunk.config.block_size}; nothing to convert")
    config = _with_blocks(trunk.config, block_size, mask_token_id)
    model = Transformer(config)
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in trunk.state_dict().items():
            own[name].copy_(tensor)
    return model


def _with_blocks(config: ModelConfig, block_size: int, mask_token_id: int) -> ModelConfig:
    return dataclasses.replace(config, block_size=block_size, mask_token_id=mask_token_id)
