import dataclasses
import json

import pytest
import torch

from fourleaf.checkpoint.disk import read_json
from fourleaf.errors import ConfigError
from fourleaf.kernels.rotary import Llama3Scaling
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

DENSE = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "partial_rotary_factor": 0.5,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "intermediate_size": 24,
}
BLOCKS = {"block_size": 32, "mask_token_id": 1}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 12,
    "coreset_top_p": 0.6,
    "coreset_min": 3,
}


def test_every_fourth_layer_is_attention_unless_the_config_lists_them():
    kinds = ModelConfig(**DENSE).layer_types
    assert [i for i, kind in enumerate(kinds) if kind == "full_attention"] == [3, 7]
    kinds = ModelConfig(**DENSE | {"num_hidden_layers": 4, "full_attention_interval": 2}).layer_types
    assert [kind[:4] for kind in kinds] == ["line", "full", "line", "full"]
    listed = ("full_attention", "linear_attention")
    assert ModelConfig(**DENSE | {"num_hidden_layers": 2, "layer_types": listed}).layer_types == listed


@pytest.mark.parametrize(
    ("changes", "field", "value", "limit"),
    [
        ({"vocab_size": 0}, "vocab_size", "0", "at least 1"),
        ({"hidden_size": -3}, "hidden_size", "-3", "at least 1"),
        ({"num_key_value_heads": 0}, "num_key_value_heads", "0", "at least 1"),
        ({"head_dim": "8"}, "head_dim", "'8'", "whole number"),
        ({"layer_types": ("full_attention",)}, "layer_types", "1", "one a layer"),
        ({"layer_types": ("sliding",) * 8}, "layer_types", "'sliding'", "linear_attention or full_attention"),
        ({"num_attention_heads": 3}, "num_attention_heads", "3", "num_key_value_heads 2"),
        ({"linear_num_value_heads": 5}, "linear_num_value_heads", "5", "linear_num_key_heads 2"),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor", "0.4", "even number of the 8 dims"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor", "2.0", "even number of the 8 dims"),
        ({"intermediate_size": 0}, "intermediate_size", "0", "above 0"),
        ({"block_size": 32}, "block_size", "32", "together with mask_token_id"),
        ({"mask_token_id": 1}, "block_size", "None", "together with mask_token_id"),
        (BLOCKS | {"mask_token_id": 64}, "mask_token_id", "64", "0..63"),
        (BLOCKS | {"block_size": 0}, "block_size", "0", "at least 1"),
        (EXPERTS | {"num_experts_per_tok": 9}, "num_experts_per_tok", "9", "1..8"),
        (EXPERTS | {"num_experts_per_tok": 0}, "num_experts_per_tok", "0", "1..8"),
        (EXPERTS | {"moe_intermediate_size": 0}, "moe_intermediate_size", "0", "above 0"),
        (EXPERTS | {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size", "0", "above 0"),
        (EXPERTS | {"coreset_top_p": 0.0}, "coreset_top_p", "0.0", "(0, 1]"),
        (EXPERTS | {"coreset_top_p": 1.5}, "coreset_top_p", "1.5", "(0, 1]"),
        (EXPERTS | {"coreset_min": 1}, "coreset_min", "1", "2..8"),
        (EXPERTS | {"coreset_min": 9}, "coreset_min", "9", "2..8"),
        (BLOCKS | {"bd_readout_scale": "value_dim"}, "bd_readout_scale", "'value_dim'", "key_dim or none"),
        (BLOCKS | {"bd_history_decay": "all"}, "bd_history_decay", "'all'", "none or row"),
        (BLOCKS | {"bd_value_beta": ""}, "bd_value_beta", "''", "none or row"),
        (BLOCKS | {"bd_right_taps": "outside"}, "bd_right_taps", "'outside'", "inside"),
        (BLOCKS | {"bd_edits": "yes"}, "bd_edits", "'yes'", "true or false"),
    ],
    ids=str,
)
def test_a_value_outside_its_limits_is_named_with_both(changes, field, value, limit):
    with pytest.raises(ConfigError) as caught:
        ModelConfig(**DENSE | changes)
    message = str(caught.value)
    assert message.startswith(field)
    assert value in message
    assert limit in message


@pytest.mark.parametrize("own", [{}, BLOCKS, BLOCKS | EXPERTS | {"bd_value_beta": "row", "eos_token_id": 0}], ids=len)
def test_config_json_round_trip(own, tmp_path):
    config = ModelConfig(**DENSE | own, rope_theta=123.0, tie_word_embeddings=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    assert ModelConfig.from_dict(read_json(path)) == config


def test_config_json_nests_rope_as_transformers_does():
    raw = ModelConfig(**DENSE, rope_theta=123.0).to_dict()
    assert raw["rope_parameters"] == {"rope_type": "default", "rope_theta": 123.0, "partial_rotary_factor": 0.5}
    assert "rope_theta" not in raw


def test_unknown_keys_are_ignored_and_missing_ones_are_named():
    raw = ModelConfig(**DENSE).to_dict()
    assert ModelConfig.from_dict(raw | {"transformers_version": "5.24.0", "head_count": 3}) == ModelConfig(**DENSE)
    del raw["hidden_size"], raw["head_dim"]
    with pytest.raises(ConfigError, match="lacks hidden_size, head_dim"):
        ModelConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ],
)
def test_what_the_model_cannot_do_is_refused_rather_than_ignored(change, message):
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_dict(ModelConfig(**DENSE).to_dict() | change)


@pytest.mark.parametrize(
    ("text", "reason"), [("{", "cannot read"), ("[1]", "must be an object"), (None, "there is no")]
)
def test_a_file_that_is_no_config_is_named(text, reason, tmp_path):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=reason) as caught:
        ModelConfig.from_dict(read_json(path))
    assert str(path) in str(caught.value)


def test_clovers_four_tensors_are_there_with_blocks_alone():
    trunk, model = (dict(Transformer(ModelConfig(**DENSE | own)).named_tensors()) for own in ({}, BLOCKS))
    added = {name.removeprefix("model.layers.0.linear_attn.") for name in model.keys() - trunk.keys() if ".0." in name}
    assert added == {
        "conv_right_weight",
        "bd_softmax_logit_scale",
        "bd_softmax_history_bias",
        "bd_softmax_history_c",
    }
    assert len(model) - len(trunk) == 4 * 6
    assert model["model.layers.0.linear_attn.conv_right_weight"].shape == (2 * 8 + 24, 3)
    assert all(torch.isfinite(t).all() for t in model.values())


def test_parameters_are_counted_once_when_the_head_is_tied():
    config = ModelConfig(**DENSE)
    free, tied = Transformer(config), Transformer(dataclasses.replace(config, tie_word_embeddings=True))
    assert free.num_parameters - tied.num_parameters == 64 * 16
    assert "lm_head.weight" not in dict(tied.named_tensors())


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
ATTENTION_ONLY = {name: value for name, value in DENSE.items() if not name.startswith("linear_")}


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_llama3_scaling_is_read_under_either_key_and_written_back(key):
    raw = DENSE | {key: LLAMA3}
    config = ModelConfig.from_dict(raw)
    assert config.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert config.rope_theta == 500_000.0
    assert config.to_dict()["rope_parameters"] == LLAMA3 | {"partial_rotary_factor": 0.5}
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_llama3_scaling_without_its_numbers_is_refused():
    with pytest.raises(ConfigError, match="low_freq_factor is missing"):
        ModelConfig.from_dict(DENSE | {"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}})


def test_shapes_of_gdn_are_asked_for_where_a_layer_has_them():
    layers = ("full_attention",) * 8
    config = ModelConfig.from_dict(ATTENTION_ONLY | {"layer_types": list(layers)})
    assert config.layer_types == layers
    assert not config.has_gdn
    with pytest.raises(ConfigError, match="lacks linear_key_head_dim, linear_value_head_dim"):
        ModelConfig.from_dict(ATTENTION_ONLY)
    with pytest.raises(ConfigError, match="linear_key_head_dim is 0"):
        ModelConfig(**ATTENTION_ONLY)


def test_an_attention_only_model_can_denoise_and_has_nothing_of_clover():
    options = {"layer_types": ("full_attention",) * 8}
    trunk, model = (Transformer(ModelConfig(**ATTENTION_ONLY, **options, **own)) for own in ({}, BLOCKS))
    assert [name for name, _ in trunk.named_tensors()] == [name for name, _ in model.named_tensors()]
