"""AR trunk to block diffusion model."""

import math

import pytest
import torch
from torch import Tensor

from fourleaf.checkpoint.convert import convert
from fourleaf.errors import ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

DENSE = {"intermediate_size": 24}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
}
CLOVER = ("conv_right_weight", "bd_softmax_logit_scale", "bd_softmax_history_bias", "bd_softmax_history_c")
KINDS = pytest.mark.parametrize(
    "options", [DENSE, DENSE | {"tie_word_embeddings": True}, EXPERTS], ids=["dense", "tied", "experts"]
)


def trunk(shapes, **options) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**(shapes | options)))
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.2)
    return model


def new_tensors(shapes) -> dict[str, Tensor]:
    """The four tensors of a fresh conversion's first layer, by their last names."""
    named = convert(trunk(shapes, **DENSE), block_size=8, mask_token_id=1).named_tensors()
    return {name.rpartition(".")[2]: t for name, t in named if name.startswith("model.layers.0.linear_attn")}


def logits(model: Transformer) -> Tensor:
    tokens = torch.arange(13) % 11 + 2
    with torch.no_grad():
        hidden, _ = model(Work(tokens, Segments([9, 4]), [0, 0]))
        return model.head(hidden)


@KINDS
def test_the_ar_half_is_the_trunk_bit_for_bit(options, shapes):
    before = trunk(shapes, **options)
    after = convert(before, block_size=8, mask_token_id=1)
    assert torch.equal(logits(after), logits(before))
    assert after.config.is_block_diffusion
    assert (after.config.block_size, after.config.mask_token_id) == (8, 1)


@KINDS
def test_four_tensors_a_gdn_layer_are_new_and_all_others_the_trunks(options, shapes):
    before = trunk(shapes, **options)
    after = convert(before, block_size=8, mask_token_id=1)
    old, new = dict(before.named_tensors()), dict(after.named_tensors())
    assert set(new) - set(old) == {f"model.layers.0.linear_attn.{name}" for name in CLOVER}
    assert set(old) <= set(new)
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert all(old[name].data_ptr() != new[name].data_ptr() for name in old), "training goes on without the trunk"
    if before.config.tie_word_embeddings:
        assert after.lm_head.weight is after.model.embed_tokens.weight


def test_new_tensors_start_where_the_layer_says(shapes):
    new = new_tensors(shapes)
    assert new["conv_right_weight"].shape == (2 * 8 + 2 * 8, 3), "channels of q, k and v; taps to the right"
    assert not new["conv_right_weight"].any()
    assert new["bd_softmax_logit_scale"].tolist() == [8.0, 8.0]
    assert new["bd_softmax_history_bias"].tolist() == [8.0, 8.0]
    assert new["bd_softmax_history_c"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_at_the_start_history_weighs_as_one_row_that_matches_exactly(rows, shapes):
    """By the formula of the history slot, e^(b + c ln(n/N)), however many rows the canvas has: cosine 1 gives e^a."""
    new = new_tensors(shapes)
    slot = new["bd_softmax_history_bias"] + new["bd_softmax_history_c"] * math.log(rows / 8)
    assert torch.equal(slot, new["bd_softmax_logit_scale"] * 1.0)


def test_what_denoises_already_is_refused(shapes):
    with pytest.raises(ConfigError, match="blocks of 8"):
        convert(convert(trunk(shapes, **DENSE), block_size=8, mask_token_id=1), block_size=8, mask_token_id=1)


@pytest.mark.parametrize(("block_size", "mask"), [(0, 1), (8, 20), (8, -1)])
def test_a_block_or_mask_out_of_limits_is_refused(block_size, mask, shapes):
    with pytest.raises(ConfigError):
        convert(trunk(shapes, **DENSE), block_size=block_size, mask_token_id=mask)
