import pytest
import torch

from fourleaf.engine.engine import Engine
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.text.chat import ChatTemplate

TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"


@pytest.fixture(scope="session")
def random_engine(byte_tokenizer) -> Engine:
    """fp64, random weights; a head that ends an answer now and then, and that would love to say the mask id."""
    config = ModelConfig(
        vocab_size=byte_tokenizer.vocab_size,
        hidden_size=24,
        num_hidden_layers=3,
        full_attention_interval=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=12,
        rope_theta=10_000.0,
        partial_rotary_factor=0.5,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=6,
        intermediate_size=32,
        initializer_range=0.4,
        max_position_embeddings=300,
        block_size=8,
        mask_token_id=byte_tokenizer.mask_id,
        bd_edits=True,
    )
    torch.manual_seed(5)
    model = Transformer(config).to(torch.float64).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(4.0)
        model.lm_head.weight[byte_tokenizer.end_id] *= 2.0
        model.lm_head.weight[byte_tokenizer.mask_id] = model.lm_head.weight.abs().sum(0)
    return Engine("random", model, byte_tokenizer, ChatTemplate(TEMPLATE, byte_tokenizer))
