import pytest


@pytest.fixture(scope="session")
def shapes() -> dict:
    """A small AR trunk's, without its MLPs."""
    return {
        "vocab_size": 20,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "partial_rotary_factor": 0.5,
    }
