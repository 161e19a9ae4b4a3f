"""The model's configuration: Hugging Face's keys of `qwen3_5_text` and `qwen3_5_moe_text`, plus choices of our own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from fourleaf.errors import ConfigError
from fourleaf.kernels.rotary import Llama3Scaling

LayerType = Literal["linear_attention", "full_attention"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shapes and choices of one model. Keys that Hugging Face also has keep its names and meanings.

    A config with `block_size` and `mask_token_id` is a block diffusion model; without them it is an AR trunk,
    whose GDN layers lack the four Clover tensors. `num_experts` 0 means dense MLPs. `trunk` is the Hugging Face
    `model_type` whose AR model this one's clean path is, where it came from one.

    Choices of an attention layer and of the norms, for trunks other than Qwen3.5:
      attn_output_gate   a sigmoid gate on each head's output, from the other half of q_proj's rows.
      qk_norm            RMS norm of each head's q and k.
      qkv_bias           biases on q, k and v alone; attention_bias puts them on the output, too.
      norm_weights       "zero_centred": an RMS norm multiplies by 1 + weight; "plain": by the weight.
      rope_scaling       None, or how positions are stretched.

    The last group names what Clover's public record leaves open, one choice each:
      bd_readout_scale   "key_dim": q is scaled by key_dim^-1/2 before it reads the state; "none": it is not.
      bd_history_decay   "none": every row reads the committed state as it is; "row": decayed by that row's gate.
      bd_value_beta      "none": values enter the block softmax as they are; "row": scaled by that row's beta.
      bd_right_taps      "inside": taps that reach past the block's end read zero.

    bd_edits says whether the canvases of training held wrong revealed tokens to mend: only then do the logits of a
    revealed row mean anything, and only then is the policy `edit` allowed (docs/decisions/013-edit.md).
    Raises ConfigError where a value is outside its limits.
    """

    model_type: str = "clover"
    trunk: str | None = None
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    layer_types: tuple[LayerType, ...] = ()
    full_attention_interval: int = 4
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 32768
    eos_token_id: int | tuple[int, ...] | None = None
    norm_weights: Literal["zero_centred", "plain"] = "zero_centred"

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    attention_bias: bool = False
    qkv_bias: bool = False
    attn_output_gate: bool = True
    qk_norm: bool = True
    rope_theta: float = 10_000_000.0
    partial_rotary_factor: float = 0.25
    rope_scaling: Llama3Scaling | None = None

    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0

    intermediate_size: int = 0
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    router_aux_loss_coef: float = 0.001

    block_size: int | None = None
    mask_token_id: int | None = None
    coreset_top_p: float | None = None
    coreset_min: int | None = None
    bd_readout_scale: Literal["key_dim", "none"] = "key_dim"
    bd_history_decay: Literal["none", "row"] = "none"
    bd_value_beta: Literal["none", "row"] = "none"
    bd_right_taps: Literal["inside"] = "inside"
    bd_edits: bool = False

    def __post_init__(self) -> None:
        if not self.layer_types:
            every = self.full_attention_interval
            kinds: tuple[LayerType, ...] = tuple(
                "full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(self.num_hidden_layers)
            )
            object.__setattr__(self, "layer_types", kinds)
        self._check_shapes()
        self._check_block_diffusion()

    def _check_shapes(self) -> None:
        unknown = set(self.layer_types) - {"linear_attention", "full_attention"}
        _require(not unknown, "layer_types", sorted(unknown), "linear_attention or full_attention")
        for field in (*_COUNTS, *(_GDN_COUNTS if self.has_gdn else ())):
            count = getattr(self, field)
            _require(isinstance(count, int) and count >= 1, field, count, "a whole number of at least 1")
        _require(len(self.layer_types) == self.num_hidden_layers, "layer_types", len(self.layer_types), "one a layer")
        _require(
            self.num_attention_heads % self.num_key_value_heads == 0,
            "num_attention_heads",
            self.num_attention_heads,
            f"a multiple of num_key_value_heads {self.num_key_value_heads}",
        )
        _require(
            not self.has_gdn or self.linear_num_value_heads % self.linear_num_key_heads == 0,
            "linear_num_value_heads",
            self.linear_num_value_heads,
            f"a multiple of linear_num_key_heads {self.linear_num_key_heads}",
        )
        even = self.rotary_dim % 2 == 0 and 0 < self.rotary_dim <= self.head_dim
        limit = f"such that an even number of the {self.head_dim} dims of a head turns, not {self.rotary_dim}"
        _require(even, "partial_rotary_factor", self.partial_rotary_factor, limit)
        if self.num_experts:
            ok = 0 < self.num_experts_per_tok <= self.num_experts
            _require(ok, "num_experts_per_tok", self.num_experts_per_tok, f"in 1..{self.num_experts}")
            for field in ("moe_intermediate_size", "shared_expert_intermediate_size"):
                _require(getattr(self, field) > 0, field, getattr(self, field), "above 0 where there are experts")
        else:
            _require(self.intermediate_size > 0, "intermediate_size", self.intermediate_size, "above 0 without experts")

    def _check_block_diffusion(self) -> None:
        both = (self.block_size is None) == (self.mask_token_id is None)
        _require(both, "block_size", self.block_size, "given together with mask_token_id")
        if self.mask_token_id is not None:
            limit = f"in 0..{self.vocab_size - 1}, a token of the vocabulary"
            _require(0 <= self.mask_token_id < self.vocab_size, "mask_token_id", self.mask_token_id, limit)
            _require((self.block_size or 0) >= 1, "block_size", self.block_size, "at least 1")
        if self.coreset_top_p is not None:
            _require(0 < self.coreset_top_p <= 1, "coreset_top_p", self.coreset_top_p, "in (0, 1]")
            least = self.coreset_min if self.coreset_min is not None else self.num_experts_per_tok
            ok = self.num_experts_per_tok <= least <= self.num_experts
            _require(
                ok, "coreset_min", least, f"in {self.num_experts_per_tok}..{self.num_experts}: top-k to all experts"
            )
        _require(isinstance(self.bd_edits, bool), "bd_edits", self.bd_edits, "true or false")
        for field, allowed in _CHOICES.items():
            _require(getattr(self, field) in allowed, field, getattr(self, field), " or ".join(allowed))

    @property
    def is_block_diffusion(self) -> bool:
        return self.block_size is not None

    @property
    def has_gdn(self) -> bool:
        return "linear_attention" in self.layer_types

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def key_dim(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_dim + self.value_dim

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ModelConfig:
        """Reads a config.json. Keys that this model has no use for are ignored; missing ones raise ConfigError."""
        known = {field.name for field in dataclasses.fields(cls)}
        rope = _rope(raw)
        if raw.get("hidden_act", "silu") != "silu":
            raise ConfigError(f"hidden_act is {raw['hidden_act']!r}; only 'silu' is supported")
        given = {k: v for k, v in {**raw, **rope}.items() if k in known and v is not None}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        needed = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
        if "linear_attention" in values.get("layer_types", ["linear_attention"]):
            needed += [name for name in _GDN_COUNTS if name != "linear_conv_kernel_dim"]
        if missing := [name for name in needed if name not in values]:
            raise ConfigError(f"config lacks {', '.join(missing)}: is this a Qwen3.5-style text model?")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The config.json of this model, in Hugging Face's shape (`rope_parameters` nested)."""
        raw = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        scaling = raw.pop("rope_scaling", {})
        raw["rope_parameters"] = {
            "rope_type": "llama3" if scaling else "default",
            "rope_theta": raw.pop("rope_theta"),
            "partial_rotary_factor": raw.pop("partial_rotary_factor"),
            **scaling,
        }
        return raw


_COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
_GDN_COUNTS = (
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
_CHOICES = {
    "norm_weights": ("zero_centred", "plain"),
    "bd_readout_scale": ("key_dim", "none"),
    "bd_history_decay": ("none", "row"),
    "bd_value_beta": ("none", "row"),
    "bd_right_taps": ("inside",),
}


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """A config.json's rotary settings under our fields' names. Raises ConfigError for a scaling we do not compute."""
    rope: dict[str, Any] = {**(raw.get("rope_parameters") or raw.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    rope = {"rope_theta": raw.get("rope_theta"), "partial_rotary_factor": raw.get("partial_rotary_factor"), **rope}
    if kind == "default":
        return rope | {"rope_scaling": None}
    if kind != "llama3":
        raise ConfigError(f"rope_type is {kind!r}; only 'default' and 'llama3' are supported")
    rope.setdefault("original_max_position_embeddings", raw.get("max_position_embeddings"))
    names = [field.name for field in dataclasses.fields(Llama3Scaling)]
    if missing := [name for name in names if rope.get(name) is None]:
        raise ConfigError(f"rope_type is 'llama3', but {', '.join(missing)} is missing beside it")
    return rope | {"rope_scaling": Llama3Scaling(**{name: rope[name] for name in names})}


def _require(holds: bool, field: str, value: object, limit: str) -> None:
    if not holds:
        raise ConfigError(f"{field} is {value!r}; it must be {limit}")
