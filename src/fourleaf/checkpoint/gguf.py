"""GGUF files, read as checkpoints of the families that they were made from: configuration and weights.

The package `gguf` parses the file and knows the block formats; here its tensors get back the names, the order and the
values of the Hugging Face checkpoint. What llama.cpp's converter changed is undone:
  - llama: rows of q and k, which it interleaves for its own rotary positions. The other architectures keep them.
  - qwen35, qwen35moe: value heads, tiled over key heads there and grouped by them here, wherever they appear; 1 added
    to zero-centred norms; A_log stored as -exp(A_log); gate and up of the experts in two tensors or in one.
Inferred, because no field says it: a head tied to the embedding where `output.weight` is missing; biases where their
tensors are there; Llama 3.1's stretch of positions from `rope_freqs.weight`.

Shapes: R rows, I inputs of a row, H heads, A head dim, E experts, F expert width, D hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourleaf.checkpoint.names import own_shapes
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.kernels.rotary import Llama3Scaling, frequencies
from fourleaf.model.config import ModelConfig

# Architectures of GGUF and the model_type that each has in a config.json.
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
}
HYBRID = ("qwen35", "qwen35moe")

# Hugging Face's names -> GGUF's. Inside a layer, those behind `model.layers.N.` and `blk.N.`.
OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.bias": "attn_output.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
}
HYBRID_NAMES = {"post_attention_layernorm.weight": "post_attention_norm.weight"}
EXPERT_HALVES = ("ffn_gate_exps.weight", "ffn_up_exps.weight")

# Weights that are unpacked at a time, so that what is needed beside a tensor stays small however large it is.
_AT_ONCE = 1 << 22
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class GgufFile:
    """A GGUF file, or all parts of one that was split, mapped and not read.

    Raises CheckpointError for a file that is missing, broken, truncated or of an architecture that is not known here,
    and ConfigError where the package `gguf` is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        readers = [_open(part) for part in _parts(path)]
        self._fields = readers[0].fields
        self._tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
        self.architecture = self.value("general.architecture")
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise CheckpointError(f"{path} holds a model of architecture {self.architecture!r}; known are {known}")

    def value(self, key: str, default: Any = None) -> Any:
        """A field of the file. Raises CheckpointError where it is missing and no default is given."""
        if key in self._fields:
            return self._fields[key].contents()
        if default is None:
            raise CheckpointError(f"{self.path} lacks the field {key}")
        return default

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._tensors

    def _own(self, key: str, default: Any = None) -> Any:
        """A field of the architecture. Where it is a list, one for each layer, all must be alike."""
        found = self.value(f"{self.architecture}.{key}", default)
        if not isinstance(found, list):
            return found
        if len(set(found)) != 1:
            raise CheckpointError(f"{key} differs between the layers of {self.path}; that is not supported")
        return found[0]

    def config(self) -> dict[str, Any]:
        """What the family's config.json says. Raises CheckpointError for what the file lacks or asks beyond it."""
        hidden, heads = self._own("embedding_length"), self._own("attention.head_count")
        head_dim = self._own("attention.key_length", hidden // heads)
        raw: dict[str, Any] = {
            "model_type": ARCHITECTURES[self.architecture],
            "vocab_size": self._tensor_shape("token_embd.weight")[0],
            "hidden_size": hidden,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": heads,
            "num_key_value_heads": self._own("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": _shortest(self._own("attention.layer_norm_rms_epsilon")),
            "max_position_embeddings": self._own("context_length"),
            "tie_word_embeddings": "output.weight" not in self,
            "attention_bias": "blk.0.attn_output.bias" in self,
            "rope_parameters": self._rope(head_dim),
        }
        ends = [self.value(f"tokenizer.ggml.{kind}_token_id", -1) for kind in ("eos", "eot")]
        ends = sorted({end for end in ends if end >= 0})
        if ends:
            raw["eos_token_id"] = ends[0] if len(ends) == 1 else ends
        return raw | (self._expert_config() if self.architecture == "qwen35moe" else self._dense_config()) | self._gdn()

    @property
    def num_layers(self) -> int:
        """Those of the model itself: layers that draft several tokens ahead (MTP) come behind them."""
        return self._own("block_count") - self._own("nextn_predict_layers", 0)

    def _dense_config(self) -> dict[str, Any]:
        if self._own("expert_count", 0):
            raise CheckpointError(f"{self.path} is a mixture of experts of architecture {self.architecture!r}; "
                                  "of those only 'qwen35moe' is known")  # fmt: skip
        return {"intermediate_size": self._own("feed_forward_length")}

    def _expert_config(self) -> dict[str, Any]:
        return {
            "num_experts": self._own("expert_count"),
            "num_experts_per_tok": self._own("expert_used_count"),
            "moe_intermediate_size": self._own("expert_feed_forward_length"),
            "shared_expert_intermediate_size": self._own("expert_shared_feed_forward_length"),
        }

    def _gdn(self) -> dict[str, Any]:
        if self.architecture not in HYBRID:
            return {}
        heads = self._own("ssm.time_step_rank")
        every = self._own("full_attention_interval", 4)
        kinds = ("linear_attention", "full_attention")
        return {
            "linear_conv_kernel_dim": self._own("ssm.conv_kernel"),
            "linear_key_head_dim": self._own("ssm.state_size"),
            "linear_num_key_heads": self._own("ssm.group_count"),
            "linear_num_value_heads": heads,
            "linear_value_head_dim": self._own("ssm.inner_size") // heads,
            "full_attention_interval": every,
            "layer_types": [kinds[(i + 1) % every == 0] for i in range(self.num_layers)],
        }

    def _rope(self, head_dim: int) -> dict[str, Any]:
        kind = self._own("rope.scaling.type", "none")
        if kind != "none":
            raise CheckpointError(f"{self.path} stretches positions by {kind!r}; that is not supported")
        turned = self._own("rope.dimension_count", head_dim)
        theta = _shortest(self._own("rope.freq_base", 10_000.0))
        rope = {"rope_type": "default", "rope_theta": theta}
        if turned != head_dim:
            rope["partial_rotary_factor"] = turned / head_dim
        if "rope_freqs.weight" in self:
            scaling = self._llama3(theta, turned)
            rope |= {"rope_type": "llama3", **vars(scaling)}
        return rope

    def _llama3(self, theta: float, dims: int) -> Llama3Scaling:
        """Llama 3.1's stretch: the file has how much slower each pair turns, not the four numbers that say so. The
        greatest is the factor; for the others Meta's own are taken, and held against the file."""
        found = self._read("rope_freqs.weight", torch.Size((dims // 2,)))
        scaling = Llama3Scaling(_shortest(found.max().item()), 1.0, 4.0, 8192)
        wide = torch.float32
        slower = frequencies(theta, dims, None, wide) / frequencies(theta, dims, scaling, wide)
        if not torch.allclose(found, slower, rtol=1e-4, atol=0):
            raise CheckpointError(f"rope_freqs.weight in {self.path} stretches positions otherwise than Llama 3.1 does")
        return scaling

    def tensors(self, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) of everything that a model of `config` needs, one at a time.

        What the file holds unpacked keeps its dtype; quantised tensors become bf16. Raises CheckpointError for a tensor
        that is missing, has another shape, or is unknown to the configuration.
        """
        expected = {name: torch.Size(shape) for name, shape in own_shapes(config).items()}
        names = {name: self._sources(name) for name in expected}
        used = {source for sources in names.values() for source in sources} | {"rope_freqs.weight"}
        if unknown := [name for name in self._tensors if name not in used and not self._is_drafting(name)]:
            raise CheckpointError(
                f"{self.path} holds {unknown[0]} ({len(unknown)} in all), unknown to its architecture"
            )
        for name, shape in expected.items():
            parts = names[name]
            if len(parts) == 2:
                half = torch.Size((shape[0], shape[1] // 2, shape[2]))
                yield name, torch.cat([self._read(part, half) for part in parts], 1)
            else:
                yield name, self._restored(name, self._read(parts[0], shape), config)

    def dtype(self, name: str) -> torch.dtype:
        """What a Hugging Face tensor of `tensors` comes in."""
        source = self._sources(name)[0]
        return _dtype(self._tensors[source]) if source in self else torch.bfloat16

    @property
    def num_drafting_tensors(self) -> int:
        """Tensors of multi-token prediction (MTP), which Fourleaf has no use for."""
        return sum(map(self._is_drafting, self._tensors))

    def _is_drafting(self, name: str) -> bool:
        head, _, rest = name.partition(".")
        return head == "blk" and int(rest.partition(".")[0]) >= self.num_layers

    def _sources(self, name: str) -> tuple[str, ...]:
        """The tensor, or the two, of which `name` is made."""
        if name in OUTER_NAMES:
            return (OUTER_NAMES[name],)
        _, _, index, last = name.split(".", 3)
        table = LAYER_NAMES | HYBRID_NAMES if self.architecture in HYBRID else LAYER_NAMES
        source = f"blk.{index}.{table[last]}"
        if last == "mlp.experts.gate_up_proj" and source not in self:
            return tuple(f"blk.{index}.{half}" for half in EXPERT_HALVES)
        return (source,)

    def _tensor_shape(self, name: str) -> tuple[int, ...]:
        if name not in self:
            raise CheckpointError(f"{self.path} lacks {name}")
        return tuple(reversed([int(size) for size in self._tensors[name].shape]))

    def _read(self, name: str, shape: torch.Size) -> Tensor:
        """A tensor as it lies in the file, unpacked. Sizes of 1 may be written or left out."""
        if name not in self:
            raise CheckpointError(f"{self.path} lacks {name}, expected with shape {tuple(shape)}")
        found = self._tensor_shape(name)
        if [size for size in found if size != 1] != [size for size in shape if size != 1] or found[-1] != shape[-1]:
            raise CheckpointError(f"{name} has shape {found}, expected {tuple(shape)}, in {self.path}")
        try:
            return _unpacked(self._tensors[name], shape)
        except NotImplementedError as error:
            kind = self._tensors[name].tensor_type.name
            raise CheckpointError(f"{name} in {self.path} is {kind}, which gguf cannot dequantise") from error

    def _restored(self, name: str, found: Tensor, config: ModelConfig) -> Tensor:
        """Undoes what the converter did to the tensor of this Hugging Face name."""
        last = name.partition(".layers.")[2].partition(".")[2] or name
        if self.architecture == "llama" and last.startswith(("self_attn.q_proj", "self_attn.k_proj")):
            heads = config.num_attention_heads if "q_proj" in last else config.num_key_value_heads
            return halves_of_heads(found, heads)
        if self.architecture not in HYBRID:
            return found
        if last.startswith("linear_attn."):
            found = _grouped_value_heads(last.removeprefix("linear_attn."), found, config)
        elif last.endswith("norm.weight"):
            found = found - 1
        return found


def halves_of_heads(x: Tensor, heads: int) -> Tensor:
    """Rows of q or k in GGUF's order for llama, pairs side by side, back to pairs half a head apart. [H*A, ..]."""
    return x.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def _grouped_value_heads(last: str, x: Tensor, config: ModelConfig) -> Tensor:
    """A GDN layer's tensor with its value heads in the order of their key heads, and A_log as a logarithm."""
    groups, dim = config.linear_num_key_heads, config.linear_value_head_dim
    copies = config.linear_num_value_heads // groups

    def grouped(part: Tensor, width: int) -> Tensor:
        return part.unflatten(0, (copies, groups, width)).transpose(0, 1).flatten(0, 2)

    if last in ("in_proj_qkv.weight", "conv1d.weight"):
        keys, values = x.split((2 * config.key_dim, config.value_dim))
        return torch.cat((keys, grouped(values, dim)))
    if last == "in_proj_z.weight":
        return grouped(x, dim)
    if last == "out_proj.weight":
        return grouped(x.t(), dim).t().contiguous()
    if last == "A_log":
        return grouped((-x).log(), 1)
    return x if last == "norm.weight" else grouped(x, 1)


def _unpacked(tensor: Any, shape: torch.Size) -> Tensor:
    """A tensor of the file in memory, some rows at a time."""
    from gguf.quants import dequantize

    out = torch.empty(shape, dtype=_dtype(tensor))
    into, rows = out.view(-1, shape[-1]), tensor.data.reshape(-1, tensor.data.shape[-1])
    step = max(1, _AT_ONCE // shape[-1])
    for first in range(0, len(rows), step):
        part = dequantize(rows[first : first + step], tensor.tensor_type)
        into[first : first + step] = torch.from_numpy(np.array(part))  # a copy: the file is mapped to be read only
    return out


def _dtype(tensor: Any) -> torch.dtype:
    return {"F32": torch.float32, "F16": torch.float16}.get(tensor.tensor_type.name, torch.bfloat16)


def _shortest(value: float) -> float:
    """The number with the fewest digits that fp32 rounds to `value`: 1e-5, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _parts(path: Path) -> list[Path]:
    """The files of a model that was split (`NAME-00001-of-00003.gguf`), or the one file."""
    found = _PART.search(path.name)
    if found is None:
        return [path]
    start, total = path.name[: found.start()], int(found.group(2))
    return [path.with_name(f"{start}-{part:05d}-of-{total:05d}.gguf") for part in range(1, total + 1)]


def _open(path: Path) -> Any:
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ConfigError("reading GGUF needs the package gguf: pip install 'fourleaf[gguf]'") from error
    if not path.is_file():
        raise CheckpointError(f"there is no {path}")
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError, OverflowError) as error:
        raise CheckpointError(f"{path} is no GGUF file, or broken or truncated: {error}") from error
