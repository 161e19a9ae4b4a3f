from collections.abc import Callable

import pytest
import torch

from fourleaf.decide.decider import Decider
from fourleaf.decide.questions import DecisionRequest, parse_request
from fourleaf.engine.engine import Engine
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.text.chat import ChatTemplate

TEMPLATE = "{% for m in messages %}<|user|>{{ m.content | trim }}{% endfor %}<|assistant|>"


def _engine(tokenizer, **options) -> Engine:
    settings = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 6,
        "intermediate_size": 32,
        "initializer_range": 0.4,
        "max_position_embeddings": 6000,
        "block_size": 32,
        "mask_token_id": tokenizer.mask_id,
    }
    torch.manual_seed(11)
    model = Transformer(ModelConfig(**(settings | options))).to(torch.float64).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(3.0)
    return Engine("random", model, tokenizer, ChatTemplate(TEMPLATE, tokenizer))


@pytest.fixture(scope="session")
def diffusing(byte_tokenizer) -> Engine:
    """Random weights, fp64: answers mean nothing and must obey every rule all the same."""
    return _engine(byte_tokenizer)


@pytest.fixture(scope="session")
def autoregressive(byte_tokenizer) -> Engine:
    return _engine(byte_tokenizer, block_size=None, mask_token_id=None)


@pytest.fixture
def decider(diffusing) -> Decider:
    return Decider(diffusing)


@pytest.fixture(scope="session")
def asked() -> Callable[..., DecisionRequest]:
    """A request about a car, with fields put in or changed."""

    def make(questions=None, **fields) -> DecisionRequest:
        questions = questions or {
            "fast": {"type": "noul", "instructions": "Is the car fast?"},
            "mode": {
                "type": "choice",
                "instructions": "Which mode?",
                "criteria": dict.fromkeys(("eco", "sport", "off")),
            },
            "warn": {"type": "score", "instructions": "How loud?", "criteria": ["silent", "soft", "loud"]},
        }
        return parse_request({"model": "m", "state": "The car drives at 96 km/h.", "questions": questions, **fields})

    return make
