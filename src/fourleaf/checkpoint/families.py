"""The architectures whose checkpoints load here: how each one's config.json says what our `ModelConfig` says.

A family is found by `model_type`. Reading refuses, by name, what its model can do and ours cannot; writing is the way
back, to what `transformers` reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fourleaf.checkpoint.names import Layout
from fourleaf.errors import ConfigError
from fourleaf.model.config import ModelConfig

Raw = dict[str, Any]

_SPLIT, _GROUPED = Layout(), Layout(experts="each", projections="grouped")
OWN, CLOVER = "clover", "clover_moe"
# Models that were trained with blocks which see themselves both ways when they are finished, too (docs/checkpoints.md).
BLOCK_CAUSAL = "a2d-"
# model_type of the multimodal wrapper -> that of the text model in its text_config.
WRAPPERS = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}

_SHAPES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "initializer_range", "tie_word_embeddings", "max_position_embeddings", "eos_token_id",
    "attention_bias",
)  # fmt: skip
_GDN = (
    "layer_types", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
    "linear_num_value_heads",
)  # fmt: skip
_DENSE = ("intermediate_size",)
_EXPERTS = (
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
    "router_aux_loss_coef",
)  # fmt: skip
_BLOCKS = (
    "block_size", "mask_token_id", "coreset_top_p", "coreset_min", "bd_readout_scale", "bd_history_decay",
    "bd_value_beta", "bd_right_taps", "bd_edits",
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One architecture.

    model_type, architecture: Hugging Face's names. read: config.json to ours; ConfigError for what we cannot do.
    keys: what of our config its config.json holds under the same name. extra: what else it needs. choices: what its
    models have in common that ours may choose. layout: how its files arrange tensors; other layouts are read, too.
    """

    model_type: str
    architecture: str
    read: Callable[[Raw], Raw]
    keys: tuple[str, ...]
    extra: Raw
    choices: Raw
    layout: Layout = _SPLIT

    def config(self, raw: Raw) -> ModelConfig:
        """The model that a config.json of this family describes. Raises ConfigError for one that we cannot run."""
        if raw.get("quantization_config"):
            method = raw["quantization_config"].get("quant_method", "an unnamed method")
            raise ConfigError(f"quantization_config says {method!r}; weights must be fp32, fp16 or bf16 here")
        kept = {k: v for k, v in self.read(raw).items() if k not in ("model_type", "trunk", *self.choices)}
        return ModelConfig.from_dict(kept | self.choices | {"model_type": OWN, "trunk": self.model_type})

    def holds(self, config: ModelConfig) -> bool:
        """Whether this family's AR models include the AR half of `config`."""
        same = all(getattr(config, key) == value for key, value in self.choices.items())
        return (
            same and config.has_gdn == ("layer_types" in self.keys) and bool(config.num_experts) == _has_experts(self)
        )

    def raw(self, config: ModelConfig) -> Raw:
        """The config.json of `config` as this family writes it, block diffusion's keys left out unless they are its."""
        ours = config.to_dict()
        kept = {key: ours[key] for key in self.keys if key in ours}
        names = {"architectures": [self.architecture], "model_type": self.model_type, "hidden_act": "silu"}
        return names | kept | {"rope_parameters": ours["rope_parameters"]} | self.extra


def _has_experts(family: Family) -> bool:
    return "num_experts" in family.keys


def _refuse(raw: Raw, **neutral: Any) -> None:
    """ConfigError for a key whose value is neither absent nor the one that our model has."""
    for key, value in neutral.items():
        if raw.get(key) not in (None, value):
            raise ConfigError(f"{key} is {raw[key]!r}; only {value!r} is supported")


def _hybrid(raw: Raw) -> Raw:
    """Qwen3-Next and its heirs."""
    _refuse(raw, attn_output_gate=True, mlp_only_layers=[], norm_topk_prob=True, decoder_sparse_step=1)
    _refuse(raw, num_shared_experts=1)
    # What is unused says something of layers of the other kind, of which there are none.
    unused = "intermediate_size" if raw.get("num_experts") else "num_experts"
    return {"rope_theta": 10_000.0} | {k: v for k, v in raw.items() if v is not None and k != unused}


def _ar_hybrid(raw: Raw) -> Raw:
    """Without block diffusion's keys, which only our own files and Clover's give a meaning."""
    return {k: v for k, v in _hybrid(raw).items() if k not in _BLOCKS}


def _attention_only(raw: Raw) -> Raw:
    """Llama and those that followed it. What its config.json may leave out has Llama's defaults."""
    _refuse(raw, mlp_bias=False, use_sliding_window=False, partial_rotary_factor=1.0)
    for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"):
        if not isinstance(raw.get(key), int) or raw[key] < 1:
            raise ConfigError(f"{key} is {raw.get(key)!r}; it must be a whole number of at least 1")
    heads, layers = raw["num_attention_heads"], ("full_attention",) * raw["num_hidden_layers"]
    if set(raw.get("layer_types") or layers) != {"full_attention"}:
        raise ConfigError(f"layer_types holds {sorted(set(raw['layer_types']))}; only full_attention is supported")
    defaults = {"num_key_value_heads": heads, "head_dim": raw["hidden_size"] // heads, "rope_theta": 10_000.0}
    given = {k: v for k, v in raw.items() if v is not None and k not in _BLOCKS}
    return defaults | given | {"layer_types": layers, "num_experts": 0}


_HYBRID = {"attn_output_gate": True, "qk_norm": True, "qkv_bias": False, "norm_weights": "zero_centred"}
_PLAIN = {"attn_output_gate": False, "norm_weights": "plain", "partial_rotary_factor": 1.0}
_LLAMA = _PLAIN | {"qk_norm": False, "qkv_bias": False}
_QWEN2 = _PLAIN | {"qk_norm": False, "qkv_bias": True, "attention_bias": False}
_QWEN3 = _PLAIN | {"qk_norm": True, "qkv_bias": False}
_NEXT = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}

FAMILIES = {
    family.model_type: family
    for family in (
        Family("qwen3_5_text", "Qwen3_5ForCausalLM", _ar_hybrid, _SHAPES + _GDN + _DENSE, {}, _HYBRID),
        Family("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", _ar_hybrid, _SHAPES + _GDN + _EXPERTS, {}, _HYBRID),
        Family("qwen3_next", "Qwen3NextForCausalLM", _ar_hybrid, _SHAPES + _GDN + _EXPERTS, _NEXT, _HYBRID, _GROUPED),
        Family(
            CLOVER, "CloverMoeModelLM", _hybrid, _SHAPES + _GDN + _EXPERTS + _BLOCKS, {"num_shared_experts": 1}, _HYBRID
        ),
        Family("llama", "LlamaForCausalLM", _attention_only, _SHAPES + _DENSE, {}, _LLAMA),
        Family("qwen2", "Qwen2ForCausalLM", _attention_only, _SHAPES + _DENSE, {}, _QWEN2),
        Family("qwen3", "Qwen3ForCausalLM", _attention_only, _SHAPES + _DENSE, {}, _QWEN3),
    )
}


def read_config(raw: Raw) -> ModelConfig:
    """The model that a config.json describes. Raises ConfigError for an architecture that is not known here."""
    kind = raw.get("model_type", OWN)
    if kind == OWN:
        return ModelConfig.from_dict(raw)
    if kind in WRAPPERS:
        inner = dict(raw.get("text_config") or {})
        kind = WRAPPERS[kind]
        # The wrapper's own word on tied embeddings is the one that `transformers` goes by.
        raw = inner | {k: raw[k] for k in ("tie_word_embeddings",) if k in raw}
    if str(kind).startswith(BLOCK_CAUSAL):
        raise ConfigError(
            f"model_type is {kind!r}: a model whose finished blocks see themselves both ways. Finished text is read "
            "token by token here, so its weights would give other logits. The AR checkpoint that it was made from loads"
        )
    if kind not in FAMILIES:
        known = ", ".join(sorted([*FAMILIES, *WRAPPERS, OWN]))
        named = f" ({', '.join(raw['architectures'])})" if raw.get("architectures") else ""
        raise ConfigError(f"model_type is {kind!r}{named}, an architecture unknown here. Known: {known}")
    return FAMILIES[kind].config(raw)


def ar_family(config: ModelConfig) -> Family:
    """The family that writes the AR half of `config`: the one it came from, or the first that has its shapes.

    Raises ConfigError where none has.
    """
    trunk = dataclasses.replace(config, block_size=None, mask_token_id=None)
    order = [FAMILIES[config.trunk]] if config.trunk in FAMILIES else []
    for family in [*order, *FAMILIES.values()]:
        if family.model_type != CLOVER and family.holds(trunk):
            return family
    raise ConfigError(
        f"no Hugging Face architecture known here has this trunk: attn_output_gate {config.attn_output_gate}, "
        f"qk_norm {config.qk_norm}, qkv_bias {config.qkv_bias}, norm_weights {config.norm_weights}"
    )
