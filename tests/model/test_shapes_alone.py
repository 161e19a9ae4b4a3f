"""A model without values, on the meta device: what planning and loading begin with."""

import subprocess
import sys

import tiny
import torch

from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

SHAPES = tiny.TWO | {"intermediate_size": 24, "block_size": 8, "mask_token_id": 1}
BUILD = f"""
import sys, torch
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
with torch.device("meta"):
    Transformer(ModelConfig(**{SHAPES}))
print("sympy" in sys.modules)
"""


def test_it_has_the_models_names_and_shapes():
    with torch.device("meta"):
        empty = Transformer(ModelConfig(**SHAPES))
    whole = Transformer(ModelConfig(**SHAPES))
    assert all(tensor.is_meta for tensor in empty.parameters())
    found = {name: tensor.shape for name, tensor in empty.named_tensors()}
    assert found == {name: tensor.shape for name, tensor in whole.named_tensors()}


def test_it_makes_torch_load_no_tables_of_arithmetic():
    """Which takes seconds and 70 MB; sympy comes with them."""
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
