"""A grown model computes what the narrow one did, and everything that is new learns."""

import dataclasses

import pytest
import torch
from tiny import DENSE, EXPERTS, FOUR

from fourleaf.errors import ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work
from fourleaf.train.grow import grow

BLOCKS = {"block_size": 8, "mask_token_id": 1, "rms_norm_eps": 1e-14}  # it does not grow with the width
WIDER = {
    "hidden_size": 52,
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
}


def narrow(**changes: object) -> Transformer:
    torch.manual_seed(4)
    model = Transformer(ModelConfig(**(FOUR | DENSE | BLOCKS | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double()


def logits(model: Transformer) -> torch.Tensor:
    """Of two sequences and three canvases over them."""
    ids = torch.randint(2, 61, (23 + 21,), generator=torch.Generator().manual_seed(9))
    work = Work(ids, Segments([11, 12]), [0, 0], Segments([8, 8, 5]), [0, 1, 1], [8, 0, 8])
    hidden, _ = model(work)
    return model.head(hidden)


@pytest.mark.parametrize("tied", [False, True])
def test_a_grown_model_has_the_logits_of_the_narrow_one(tied: bool) -> None:
    model = narrow(tie_word_embeddings=tied)
    wide = grow(model, dataclasses.replace(model.config, **WIDER), seed=1)
    assert sum(p.numel() for p in wide.parameters()) > 1.5 * sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(logits(wide), logits(model), rtol=1e-9, atol=1e-9)


def test_all_that_is_new_gets_gradients_within_two_steps() -> None:
    model = narrow()
    wide = grow(model, dataclasses.replace(model.config, **WIDER), seed=1)
    moved = {name: torch.zeros_like(p) for name, p in wide.named_parameters()}
    for _ in range(2):  # what reads a new channel moves once something is written there
        logits(wide).square().mean().backward()
        for name, p in wide.named_parameters():
            assert p.grad is not None
            moved[name] += p.grad.abs()
            with torch.no_grad():
                p -= 0.1 * p.grad
            p.grad = None
    still = [name for name, total in moved.items() if "embed" not in name and bool((total == 0).any())]
    assert not still


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 24}, "growing cannot shrink hidden_size 32 to 24"),
        ({"num_hidden_layers": 6, "layer_types": ()}, "growing cannot change num_hidden_layers 4 to 6"),
        ({"num_attention_heads": 8}, "num_attention_heads 8 over num_key_value_heads 2 is not 4 over 2"),
        ({"linear_num_value_heads": 8}, "linear_num_value_heads 8 over linear_num_key_heads 2 is not 4 over 2"),
        ({"head_dim": 24}, "growing cannot change head_dim 16 to 24"),
        (EXPERTS, "experts"),
    ],
)
def test_what_cannot_be_grown_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    model = narrow()
    with pytest.raises(ConfigError, match=message):
        grow(model, dataclasses.replace(model.config, **changes), seed=1)
