"""GGUF files, written as llama.cpp's converter writes them, read back to the model that they were made from."""

import json
import shutil

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

from fourleaf.checkpoint import gguf as reading
from fourleaf.checkpoint.families import read_config
from fourleaf.checkpoint.gguf import ARCHITECTURES, GgufFile
from fourleaf.errors import CheckpointError
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

SHAPES = {
    "vocab_size": 70,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 9000,
    "initializer_range": 0.2,
    "eos_token_id": 3,
}
GDN = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "num_hidden_layers": 4,
}
EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
ROPE = {"rope_type": "default", "rope_theta": 50_000.0, "partial_rotary_factor": 0.25}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "llama, stretched": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": LLAMA3, "attention_bias": True}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32}),
    "qwen35": (Qwen3_5ForCausalLM, Qwen3_5TextConfig, GDN | {"rope_parameters": ROPE}),
    "qwen35moe": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, GDN | EXPERTS | {"rope_parameters": ROPE}),
}
KINDS = pytest.mark.parametrize("kind", MODELS)
HYBRIDS = pytest.mark.parametrize("kind", ["qwen35", "qwen35moe"])


def oracle(kind: str):
    model_class, config_class, own = MODELS[kind]
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    config = config_class(**SHAPES | own | eager)
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if any(part in name for part in ("norm", "bias", "A_log", "conv1d")):
                tensor.add_(0.2 * torch.randn_like(tensor))
    return model


def tiled(x: np.ndarray, axis: int, config, width: int) -> np.ndarray:
    """Value heads one by one into llama.cpp's order: the first of each key head, then the second of each."""
    groups, heads = config.linear_num_key_heads, config.linear_num_value_heads
    copies = heads // groups
    blocks = np.split(x, heads, axis)
    assert blocks[0].shape[axis] == width
    return np.concatenate([blocks[group * copies + copy] for copy in range(copies) for group in range(groups)], axis)


def interleaved(x: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head as llama.cpp's rotary positions want them: row i and row i + half a head side by side."""
    return np.concatenate([np.stack(np.split(head, 2), 1).reshape(head.shape) for head in np.split(x, heads)])


def converted(name: str, x: np.ndarray, config, arch: str) -> np.ndarray:
    """What the converter makes of a tensor."""
    if arch == "llama" and ".q_proj." in name:
        return interleaved(x, config.num_attention_heads)
    if arch == "llama" and ".k_proj." in name:
        return interleaved(x, config.num_key_value_heads)
    if "linear_attn." in name:
        keys = 2 * config.linear_num_key_heads * config.linear_key_head_dim
        width = config.linear_value_head_dim
        if "in_proj_qkv" in name or "conv1d" in name:
            x = x.squeeze(1) if "conv1d" in name else x
            return np.concatenate((x[:keys], tiled(x[keys:], 0, config, width)))
        if "out_proj" in name:
            return tiled(x, 1, config, width)
        if "in_proj_z" in name:
            return tiled(x, 0, config, width)
        if "norm" in name:
            return x
        return tiled(-np.exp(x) if "A_log" in name else x, 0, config, 1)
    return x + 1 if arch.startswith("qwen35") and name.endswith("norm.weight") else x


def fields(writer: gguf.GGUFWriter, config, arch: str, extra_layers: int = 0) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers + extra_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(config.eos_token_id)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    if arch != "qwen35moe":
        writer.add_feed_forward_length(config.intermediate_size)
    if arch.startswith("qwen35"):
        writer.add_rope_dimension_count(head_dim // 4)
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
        writer.add_full_attention_interval(4)
    if arch == "qwen35moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def pieces(model, arch: str, *, fused: bool = True) -> dict[str, np.ndarray]:
    """The file's tensors by name: the package's own table says which name is which."""
    config, found = model.config, {}

    def there(name: str) -> str:
        known = table.get_name(name)
        assert known is not None, name
        return known

    table = gguf.get_tensor_name_map(
        next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), config.num_hidden_layers
    )
    for name, tensor in model.named_parameters():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        x = converted(name, tensor.detach().numpy(), config, arch)
        name = name.replace("dt_bias", "dt_proj.bias")
        if name.endswith("gate_up_proj") and not fused:
            for part, half in zip(("gate_proj", "up_proj"), np.split(x, 2, 1), strict=True):
                found[there(name.replace("gate_up_proj", part)) + ".weight"] = half
            continue
        stem, _, last = name.rpartition(".")
        if last in ("weight", "bias"):
            found[f"{there(stem)}.{last}"] = x
        else:
            found[there(name) + ("" if last == "A_log" else ".weight")] = x
    return found


def write(path, kind: str, model, *, change=lambda found: None, types=None, fused=True, extra_layers=0, more=None):
    """Writes `model`; `change` may change its tensors, `more` add fields, `types` quantise."""
    arch = kind.partition(",")[0]
    writer = gguf.GGUFWriter(path, arch)
    fields(writer, model.config, arch, extra_layers)
    if more:
        more(writer)
    found = pieces(model, arch, fused=fused)
    if kind == "llama, stretched":
        once = model.model.rotary_emb.inv_freq
        plain = 1 / 10_000.0 ** (torch.arange(0, 16, 2) / 16)
        found["rope_freqs.weight"] = (plain / once).numpy()
    change(found)
    for name, x in found.items():
        how = (types or {}).get(name)
        x = np.ascontiguousarray(x)
        data = x if how is None else gguf.quants.quantize(x, how)
        writer.add_tensor(name, data, raw_dtype=how)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def loaded(path) -> Transformer:
    file = GgufFile(path)
    model = Transformer(read_config(file.config())).eval()
    model.load_state_dict(dict(file.tensors(model.config)), strict=not model.config.tie_word_embeddings)
    return model


def logits(model: Transformer) -> Tensor:
    with torch.no_grad():
        hidden, _ = model(Work(tokens(), Segments([len(tokens())]), [0]))
        return model.head(hidden)


def tokens() -> Tensor:
    return torch.arange(40) * 7 % 69


@KINDS
def test_a_file_becomes_the_model_that_it_was_made_from(kind, tmp_path):
    model = oracle(kind)
    found = logits(loaded(write(tmp_path / "m.gguf", kind, model)))
    with torch.no_grad():
        wanted = model(tokens()[None]).logits[0]
    assert wanted.std() > 0.3
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@KINDS
def test_each_tensor_gets_its_name_order_and_value_back(kind, tmp_path):
    model = oracle(kind)
    file = GgufFile(write(tmp_path / "m.gguf", kind, model))
    found = dict(file.tensors(read_config(file.config())))
    wanted = {name: p.detach() for name, p in model.named_parameters()}
    assert set(found) == set(wanted)
    for name, tensor in found.items():
        assert file.dtype(name) == tensor.dtype == torch.float32
        if file.architecture in reading.HYBRID and name.endswith(("norm.weight", "A_log")):
            torch.testing.assert_close(tensor, wanted[name], rtol=1e-6, atol=1e-6)  # 1 was added, or exp taken
        else:
            assert torch.equal(tensor, wanted[name]), name


def test_the_configuration_has_the_originals_values(tmp_path):
    model = oracle("qwen35moe")
    config = read_config(GgufFile(write(tmp_path / "m.gguf", "qwen35moe", model)).config())
    assert config.trunk == "qwen3_5_moe_text"
    assert (config.rms_norm_eps, config.rope_theta, config.partial_rotary_factor) == (1e-6, 50_000.0, 0.25)
    assert config.layer_types == ("linear_attention",) * 3 + ("full_attention",)
    for field in (*GDN, *EXPERTS, *(set(SHAPES) - {"initializer_range", "intermediate_size"} - set(GDN))):
        assert getattr(config, field) == getattr(model.config, field), field


def test_experts_in_two_tensors_are_put_together(tmp_path):
    model = oracle("qwen35moe")
    one, two = (loaded(write(tmp_path / f"{fused}.gguf", "qwen35moe", model, fused=fused)) for fused in (True, False))
    assert torch.equal(logits(one), logits(two))


@pytest.mark.parametrize("at_once", [1, 1000, 1 << 22])
def test_quantised_tensors_are_what_the_package_says_in_bf16(at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_AT_ONCE", at_once)
    types = {
        "token_embd.weight": gguf.GGMLQuantizationType.Q8_0,
        "blk.0.ffn_down.weight": gguf.GGMLQuantizationType.Q4_1,
        "blk.1.ffn_up.weight": gguf.GGMLQuantizationType.BF16,
        "blk.1.ffn_down.weight": gguf.GGMLQuantizationType.F16,
    }
    model = oracle("qwen2")
    file = GgufFile(write(tmp_path / "m.gguf", "qwen2", model, types=types))
    found, stored = dict(file.tensors(read_config(file.config()))), pieces(model, "qwen2")
    for name, own in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ("blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight"),
        ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
    ):
        kind = types[name]
        means = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(stored[name], kind), kind))
        dtype = torch.float16 if kind == gguf.GGMLQuantizationType.F16 else torch.bfloat16
        assert torch.equal(found[own], means.to(dtype))
        assert file.dtype(own) == dtype


@HYBRIDS
def test_layers_that_draft_ahead_are_left_out_and_counted(kind, tmp_path):
    def draft(found):
        found["blk.4.nextn.eh_proj.weight"] = np.ones((64, 128), np.float32)
        found["blk.4.attn_norm.weight"] = np.ones(64, np.float32)

    model = oracle(kind)
    plain = logits(loaded(write(tmp_path / "plain.gguf", kind, model)))
    path = write(
        tmp_path / "m.gguf", kind, model, change=draft, extra_layers=1, more=lambda w: w.add_nextn_predict_layers(1)
    )
    assert torch.equal(logits(loaded(path)), plain)
    assert GgufFile(path).num_drafting_tensors == 2


def test_a_split_file_is_read_whole_and_a_missing_part_named(tmp_path):
    model = oracle("llama")
    plain = logits(loaded(write(tmp_path / "plain.gguf", "llama", model)))
    names = list(pieces(model, "llama"))

    def part(first: bool):
        def keep(found):
            for name in names[: len(names) // 2] if first else names[len(names) // 2 :]:
                del found[name]

        return keep

    second = write(tmp_path / "m-00002-of-00002.gguf", "llama", model, change=part(True))
    path = write(tmp_path / "m-00001-of-00002.gguf", "llama", model, change=part(False))
    assert torch.equal(logits(loaded(path)), plain)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"there is no .*m-00002-of-00002"):
        GgufFile(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("blk.1.ffn_up.weight"), r"lacks blk\.1\.ffn_up\.weight, expected with shape \(96, 64\)"),
        (lambda f: f.update({"output_norm.weight": np.ones(63, np.float32)}), r"has shape \(63,\), expected \(64,\)"),
        (lambda f: f.update({"blk.0.ffn_up.weight": np.ones((64, 96), np.float32)}), r"\(64, 96\), expected \(96, 64"),
        (lambda f: f.update({"blk.0.more.weight": np.ones(2, np.float32)}), r"holds blk\.0\.more\.weight"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        loaded(write(tmp_path / "m.gguf", "qwen2", oracle("qwen2"), change=change))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "stretches positions by 'yarn'"),
        (lambda w: w.add_expert_count(4), "mixture of experts of architecture 'qwen2'"),
    ],
)
def test_what_the_model_cannot_do_is_refused(more, message, tmp_path):
    path = write(tmp_path / "m.gguf", "qwen2", oracle("qwen2"), more=more)
    with pytest.raises(CheckpointError, match=message):
        GgufFile(path).config()


def test_another_stretch_than_llamas_is_refused(tmp_path):
    def bend(found):
        found["rope_freqs.weight"][2] *= 1.01

    path = write(tmp_path / "m.gguf", "llama, stretched", oracle("llama, stretched"), change=bend)
    with pytest.raises(CheckpointError, match="otherwise than Llama"):
        GgufFile(path).config()


def test_an_unknown_architecture_lists_the_known(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="'mamba'") as raised:
        GgufFile(tmp_path / "m.gguf")
    assert all(name in str(raised.value) for name in ARCHITECTURES)


@pytest.mark.parametrize("keep", [0, 3, 20, 400, -40])
def test_a_truncated_file_is_named(keep, tmp_path):
    path = write(tmp_path / "m.gguf", "qwen2", oracle("qwen2"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"m\.gguf is no GGUF file, or broken or truncated"):
        GgufFile(path)


def test_a_file_that_is_missing_or_of_another_kind_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no"):
        GgufFile(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text(json.dumps({"a": 1}) * 100)
    with pytest.raises(CheckpointError, match="is no GGUF file"):
        GgufFile(tmp_path / "text.gguf")
    shutil.copy(tmp_path / "text.gguf", tmp_path / "x-00001-of-00001.gguf")
    with pytest.raises(CheckpointError, match="is no GGUF file"):
        GgufFile(tmp_path / "x-00001-of-00001.gguf")
