"""Each family's checkpoints as `transformers` writes them: the same logits, and the same bits on the way back."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from fourleaf.checkpoint.families import FAMILIES, WRAPPERS, read_config
from fourleaf.checkpoint.files import load_model, save_model
from fourleaf.checkpoint.folder import CheckpointFolder
from fourleaf.checkpoint.names import Layout, skipped
from fourleaf.checkpoint.shards import INDEX, WEIGHTS, Shards
from fourleaf.errors import ConfigError

NAMES = [
    "qwen3_5_text", "qwen3_5_text tied", "qwen3_5_moe_text", "qwen3_5_moe_text tied", "qwen3_next", "llama",
    "llama tied, scaled, biased", "qwen2", "qwen2 tied", "qwen3", "qwen3 tied, biased",
]  # fmt: skip
WRAPPED = ["qwen3_5", "qwen3_5_moe"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def tensors(folder) -> dict:
    with_names = Shards(folder)
    return {name: with_names.get(name) for name in with_names.shapes}


def load_theirs(folder) -> tuple:
    """As `transformers` loads it, computed as the oracle is; and its report of keys."""
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )


def assert_same_bits(found, wanted) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def test_transformers_has_every_family_but_clover():
    """Nothing is left out of these tests for want of an oracle; Clover's is our own writer (test_clover.py)."""
    assert {name.partition(" ")[0] for name in NAMES} == set(FAMILIES) - {"clover_moe"}
    assert set(WRAPPED) == set(WRAPPERS)


@pytest.mark.parametrize("name", NAMES + WRAPPED)
@torch.no_grad()
def test_logits_equal_transformers_in_one_prefill_and_step_by_step(name, oracle, ids, logits):
    there = oracle(name)
    assert (there.folder / INDEX).is_file()
    wanted = there.model(input_ids=ids[None]).logits[0]
    assert wanted.abs().max() > 0.5
    model = load_model(there.folder)
    for prefill in (len(ids), 40, 1):
        torch.testing.assert_close(logits(model, ids, prefill), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["qwen3_5_text tied", "qwen3_next", "qwen2"])
@torch.no_grad()
def test_one_file_in_any_type_gives_the_same_logits(name, dtype, oracle, ids, logits):
    there = oracle(name, shard="1GB", dtype=dtype)
    assert (there.folder / WEIGHTS).is_file()
    wanted = there.model(input_ids=ids[None]).logits[0]
    torch.testing.assert_close(logits(load_model(there.folder), ids, 40), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_round_trip_gives_back_every_bit(name, dtype, oracle, tmp_path):
    there = oracle(name, dtype=dtype)
    with CheckpointFolder(there.folder) as source:
        layout = source.layout
    save_model(
        load_model(there.folder), tmp_path, dtype, family=FAMILIES[there.kind], layout=layout, shard_bytes=50_000
    )
    assert_same_bits(tensors(tmp_path), tensors(there.folder))


@pytest.mark.parametrize("name", NAMES)
def test_a_written_config_is_transformers_own_and_read_back_the_same(name, oracle):
    there = oracle(name)
    theirs = json.loads((there.folder / "config.json").read_text())
    config = read_config(theirs)
    written = json.loads(json.dumps(FAMILIES[there.kind].raw(config)))
    for key, value in written.items():
        if key == "rope_parameters":
            value = {k: v for k, v in value.items() if k in theirs[key]}
        assert key not in theirs or value == theirs[key], key
    assert written.keys() >= {"architectures", "model_type", "vocab_size", "rope_parameters", "tie_word_embeddings"}
    assert read_config(written) == config
    assert config.trunk == there.kind


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_transformers_loads_what_is_written_in_the_familys_own_layout(name, oracle, ids, tmp_path):
    there = oracle(name)
    save_model(load_model(there.folder), tmp_path, family=FAMILIES[there.kind], shard_bytes=50_000)
    loaded, report = load_theirs(tmp_path)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert_same_bits(loaded.state_dict(), there.model.state_dict())
    found, wanted = (model(input_ids=ids[None]).logits for model in (loaded, there.model))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("experts", ["fused", "each"])
@pytest.mark.parametrize("projections", ["split", "grouped"])
def test_every_layout_is_recognised_and_read_to_the_same_bits(experts, projections, oracle, tmp_path):
    model = load_model(oracle("qwen3_next").folder)
    layout = Layout("model.language_model.", experts, projections)
    save_model(model, tmp_path, family=FAMILIES["qwen3_next"], layout=layout, shard_bytes=50_000)
    with CheckpointFolder(tmp_path) as source:
        assert source.layout == layout
    found = load_model(tmp_path)
    assert_same_bits(dict(found.named_tensors()), dict(model.named_tensors()))


@pytest.mark.parametrize("name", WRAPPED)
def test_vision_and_mtp_are_left_out_and_one_line_says_so(name, oracle, caplog, tmp_path):
    there = oracle(name)
    stored = tensors(there.folder)
    num_vision = sum(".visual." in key for key in stored)
    save_with_mtp(there.folder, tmp_path, stored)
    assert num_vision > 5
    caplog.clear()
    with CheckpointFolder(tmp_path) as source:
        assert source.layout.prefix == "model.language_model."
    (line,) = (record.getMessage() for record in caplog.records)
    assert f"{num_vision} vision and 2 MTP tensors left out" in line
    assert set(skipped(stored).values()) == {"vision"}


def save_with_mtp(source, folder, stored) -> None:
    """As real checkpoints come, which `transformers` does not write: with tensors for predicting a token further."""
    from fourleaf.checkpoint.files import write_tensors

    more = {"mtp.norm.weight": torch.ones(48), "mtp.layers.0.mlp.up_proj.weight": torch.ones(8, 48)}
    write_tensors(folder / WEIGHTS, stored | more)
    (folder / "config.json").write_text((source / "config.json").read_text())


def test_a_tied_head_in_the_file_must_be_the_embedding(oracle, tmp_path):
    from fourleaf.checkpoint.files import write_tensors
    from fourleaf.errors import CheckpointError

    there = oracle("llama tied, scaled, biased")
    (tmp_path / "config.json").write_text((there.folder / "config.json").read_text())
    stored = tensors(there.folder)
    embedding = stored["model.embed_tokens.weight"]
    write_tensors(tmp_path / WEIGHTS, stored | {"lm_head.weight": embedding.clone()})
    model = load_model(tmp_path)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    write_tensors(tmp_path / WEIGHTS, stored | {"lm_head.weight": embedding + 1})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        load_model(tmp_path)


def raw(oracle, name, **changes) -> dict:
    return json.loads((oracle(name).folder / "config.json").read_text()) | changes


@pytest.mark.parametrize("kind", ["a2d-qwen3", "a2d-qwen2", "a2d-llama"])
def test_a_model_whose_clean_path_is_block_causal_is_refused_with_the_reason(kind, oracle):
    """Its tensors are those of the AR family, name for name: taken for one, it would load and answer nonsense."""
    config = raw(oracle, kind.removeprefix("a2d-"), model_type=kind, architectures=["A2DLMHeadModel"])
    with pytest.raises(ConfigError, match=rf"'{kind}'.*see themselves both ways.*token by token.*AR checkpoint"):
        read_config(config)


def test_an_unknown_architecture_lists_the_known_ones(oracle):
    with pytest.raises(ConfigError, match=r"'mamba' \(MambaForCausalLM\).*Known: .*llama.*qwen3_5_moe_text") as caught:
        read_config({"model_type": "mamba", "architectures": ["MambaForCausalLM"]})
    assert all(kind in str(caught.value) for kind in (*FAMILIES, *WRAPPERS))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'"),
        (
            "llama",
            {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_type is 'linear'",
        ),
        ("llama", {"mlp_bias": True}, "mlp_bias is True"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads is 0"),
        ("llama", {"hidden_size": None}, "hidden_size is None"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window is True"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types holds"),
        ("qwen3_next", {"norm_topk_prob": False}, "norm_topk_prob is False"),
        ("qwen3_next", {"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ("qwen3_next", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate is False"),
        ("qwen3_5_text", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config says 'fp8'"),
        ("qwen3_5_text", {"linear_key_head_dim": None}, "config lacks linear_key_head_dim"),
    ],
)
def test_what_our_model_cannot_do_is_refused_by_name(name, changes, message, oracle):
    with pytest.raises(ConfigError, match=message):
        read_config(raw(oracle, name, **changes))


def test_what_a_config_may_leave_out_has_llamas_defaults(oracle):
    full = raw(oracle, "llama", num_key_value_heads=4)
    bare = {k: v for k, v in full.items() if k not in ("head_dim", "num_key_value_heads", "rope_parameters")}
    assert read_config(bare) == read_config(full)
