"""A Hugging Face folder written as a GGUF file for llama.cpp: what `fourleaf.checkpoint.gguf` undoes, done.

The file has no vocabulary, since token ids go in and come out. Weights are fp32.

Shapes: as in `fourleaf.checkpoint.gguf`.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from peers.widths import CONFIG, Raw
from safetensors.torch import load_file
from torch import Tensor

from fourleaf.checkpoint.files import WEIGHTS, read_json
from fourleaf.checkpoint.gguf import ARCHITECTURES, HYBRID, HYBRID_NAMES, LAYER_NAMES, OUTER_NAMES
from fourleaf.errors import ConfigError

# What the converter writes for any Qwen 3.5: which positions, of time, height and width, turn which pairs. In text all
# three are the same. llama.cpp wants the field.
_SECTIONS = [11, 11, 10, 0]


def write(source: Path, target: Path) -> None:
    """Writes the model of the folder `source` to the file `target`.

    Raises ConfigError for an architecture other than llama and the hybrids without experts.
    """
    raw = read_json(source / CONFIG)
    arch = next((arch for arch, kind in ARCHITECTURES.items() if kind == raw["model_type"]), None)
    if arch not in ("llama", "qwen35"):
        raise ConfigError(f"model_type is {raw['model_type']!r}; llama and qwen3_5_text can be written")
    writer = gguf.GGUFWriter(target, arch)
    _fields(writer, raw, arch)
    for name, x in load_file(source / WEIGHTS).items():
        writer.add_tensor(stored_name(name, arch), converted(name, x.float(), raw, arch).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _fields(writer: gguf.GGUFWriter, raw: Raw, arch: str) -> None:
    heads, rope = raw["num_attention_heads"], raw["rope_parameters"]
    size = raw.get("head_dim") or raw["hidden_size"] // heads
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(raw["vocab_size"])
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_embedding_length(raw["hidden_size"])
    writer.add_block_count(raw["num_hidden_layers"])
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(raw["num_key_value_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(size * rope.get("partial_rotary_factor", 1.0)))
    if arch in HYBRID:
        writer.add_ssm_conv_kernel(raw["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(raw["linear_key_head_dim"])
        writer.add_ssm_group_count(raw["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(raw["linear_num_value_heads"])
        writer.add_ssm_inner_size(raw["linear_value_head_dim"] * raw["linear_num_value_heads"])
        writer.add_full_attention_interval(_interval(raw["layer_types"]))
        writer.add_rope_dimension_sections(_SECTIONS)


def _interval(kinds: list[str]) -> int:
    """Every how many layers one of full attention comes. Raises ConfigError where they come otherwise."""
    every = kinds.index("full_attention") + 1
    if any((kind == "full_attention") != ((i + 1) % every == 0) for i, kind in enumerate(kinds)):
        raise ConfigError(f"layer_types is {kinds}; full attention must come every so many layers")
    return every


def stored_name(name: str, arch: str) -> str:
    """The name of a Hugging Face tensor in the file."""
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    _, _, index, last = name.split(".", 3)
    return f"blk.{index}.{(LAYER_NAMES | HYBRID_NAMES if arch in HYBRID else LAYER_NAMES)[last]}"


def converted(name: str, x: Tensor, raw: Raw, arch: str) -> Tensor:
    """What llama.cpp's converter makes of the tensor of this Hugging Face name."""
    if arch == "llama":
        turned = {"q_proj": raw["num_attention_heads"], "k_proj": raw["num_key_value_heads"]}
        heads = turned.get(name.removesuffix(".weight").rpartition(".")[2])
        return x if heads is None else x.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    if ".linear_attn." in name:
        return _of_delta(name.partition(".linear_attn.")[2].removesuffix(".weight"), x, raw)
    return x + 1 if name.endswith("norm.weight") else x


def _of_delta(last: str, x: Tensor, raw: Raw) -> Tensor:
    """Value heads, grouped by key heads, in turns: the first of each, then the second of each; A_log as -exp(A_log)."""
    groups, heads = raw["linear_num_key_heads"], raw["linear_num_value_heads"]
    if last == "norm":
        return x
    if last == "out_proj":
        return _in_turns(x.t(), groups, heads).t()
    if last in ("in_proj_qkv", "conv1d"):
        keys = 2 * groups * raw["linear_key_head_dim"]
        x = x.squeeze(1) if last == "conv1d" else x
        return torch.cat((x[:keys], _in_turns(x[keys:], groups, heads)))
    return _in_turns(-x.exp() if last == "A_log" else x, groups, heads)


def _in_turns(x: Tensor, groups: int, heads: int) -> Tensor:
    return x.unflatten(0, (groups, heads // groups, -1)).transpose(0, 1).flatten(0, 2)
