"""Tiny checkpoints of every family, written by `transformers` as it writes real ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny
import torch
import transformers
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeForConditionalGeneration,
)
from transformers.utils import logging

from fourleaf.checkpoint.files import write_json
from fourleaf.model.state import State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

logging.disable_progress_bar()

VOCAB = 97
ATTENTION = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.05,
    "eos_token_id": [3, 5],
}
GDN = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}
DENSE = {"intermediate_size": 64}
EXPERTS = tiny.EXPERTS
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 48}
TIED = {"tie_word_embeddings": True}

_KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen3_5_text": (transformers.Qwen3_5TextConfig, Qwen3_5ForCausalLM, ATTENTION | GDN | DENSE),
    "qwen3_5_moe_text": (transformers.Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM, ATTENTION | GDN | EXPERTS),
    "qwen3_next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM, ATTENTION | GDN | EXPERTS),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, ATTENTION | DENSE),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, ATTENTION | DENSE),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, ATTENTION | DENSE | {"head_dim": 16}),
    "qwen3_5": (transformers.Qwen3_5Config, Qwen3_5ForConditionalGeneration, {}),
    "qwen3_5_moe": (transformers.Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration, {}),
}
# A name for each checkpoint of the tests: the kind, and what is special about it.
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5_text": ("qwen3_5_text", {}),
    "qwen3_5_text tied": ("qwen3_5_text", TIED),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", {}),
    "qwen3_5_moe_text tied": ("qwen3_5_moe_text", TIED),
    "qwen3_next": ("qwen3_next", {}),
    "llama": ("llama", {}),
    "llama tied, scaled, biased": ("llama", TIED | {"rope_parameters": LLAMA3, "attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", TIED),
    "qwen3": ("qwen3", {}),
    "qwen3 tied, biased": ("qwen3", TIED | {"attention_bias": True}),
    "qwen3_5": ("qwen3_5", {"text_config": ATTENTION | GDN | DENSE, "vision_config": VISION}),
    "qwen3_5_moe": (
        "qwen3_5_moe",
        {"text_config": ATTENTION | GDN | EXPERTS | TIED, "vision_config": VISION} | TIED,
    ),
}

TOKENIZER = {
    "added_tokens": [
        {"id": 90, "content": "<|endoftext|>", "special": True},
        {"id": 91, "content": "<|im_start|>", "special": True},
        {"id": 92, "content": "<think>", "special": False},
        {"id": 93, "content": "<|vision_start|>", "special": True},
        {"id": 94, "content": "<|fim_pad|>", "special": True},
    ],
    "model": {"type": "BPE", "vocab": {chr(33 + i): i for i in range(90)}},
}
TEMPLATE = "{{ '<|im_start|>' + messages[0].content }}"


class Oracle(NamedTuple):
    """A folder that `transformers` wrote, and its model."""

    folder: Path
    model: Any
    kind: str


def _model(kind: str, options: dict[str, Any]) -> Any:
    """Random weights as a trained model might have: norms, biases, gates and decays too."""
    make_config, make_model, shapes = _KINDS[kind]
    config = make_config(**shapes | options)
    for part in (config, getattr(config, "text_config", config)):
        part._attn_implementation = "eager"
        part._experts_implementation = "eager"
    torch.manual_seed(0)
    model = make_model(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if any(part in name for part in ("norm", "bias", "gate.weight", "A_log", "conv1d")):
                tensor.add_(0.3 * torch.randn_like(tensor))
    return model


@pytest.fixture(scope="session")
def oracle(tmp_path_factory) -> Callable[..., Oracle]:
    """Writes one of CHECKPOINTS, once for each way: in files of up to `shard`, in `dtype`."""
    made: dict[tuple[Any, ...], Oracle] = {}

    def write(name: str, shard: str = "60KB", dtype: torch.dtype = torch.float32) -> Oracle:
        if (name, shard, dtype) not in made:
            kind, options = CHECKPOINTS[name]
            folder = tmp_path_factory.mktemp(name.replace(" ", "_").replace(",", ""))
            model = _model(kind, options)
            for tensor in model.parameters():  # not its buffers: the rotary table stays fp32
                tensor.data = tensor.data.to(dtype)
            model.save_pretrained(folder, max_shard_size=shard)
            for tensor in model.parameters():
                tensor.data = tensor.data.float()
            made[name, shard, dtype] = Oracle(folder, model, kind)
        return made[name, shard, dtype]

    return write


@pytest.fixture
def source(oracle, tmp_path):
    """A family's checkpoint as it is published: with tokenizer, template and settings."""

    def make(name: str, dtype: torch.dtype = torch.bfloat16):
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        for path in oracle(name, dtype=dtype).folder.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        write_json(folder / "tokenizer.json", TOKENIZER)
        write_json(folder / "tokenizer_config.json", {"eos_token": {"content": "<|endoftext|>"}})
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        return folder

    return make


@pytest.fixture(scope="session")
def ids() -> Tensor:
    """A text: past Llama 3's original context, past one chunk of the delta rule."""
    return torch.randint(0, VOCAB, (70,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def logits() -> Callable[..., Tensor]:
    """Our logits of a text: a prefill of `prefill` rows, then one row a forward."""

    @torch.inference_mode()
    def run(model: Transformer, ids: Tensor, prefill: int) -> Tensor:
        state = State.empty(model.config, dtype=model.lm_head.weight.dtype)
        found, start = [], 0
        for part in (ids[:prefill], *ids[prefill:, None]):
            hidden, _ = model(Work(part, Segments([len(part)]), [start]), state)
            found.append(model.head(hidden))
            start += len(part)
        return torch.cat(found)

    return run


@pytest.fixture(scope="session")
def shapes() -> dict:
    """A small AR trunk's, without its MLPs."""
    return {k: v for k, v in tiny.TWO.items() if k != "rope_theta"}
