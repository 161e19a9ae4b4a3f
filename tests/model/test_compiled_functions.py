"""What training compiles is what serving runs as written: same rows, same gradients."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fourleaf.kernels.fuse import use_compiled
from fourleaf.model.config import ModelConfig
from fourleaf.model.deltanet import _canvas_heads


@pytest.fixture
def _plain_again() -> Iterator[None]:
    yield
    use_compiled(False)
    torch.compiler.reset()


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


# The largest of the compiled functions stands for all: each costs the C++ compiler many seconds on a fresh machine.
@pytest.mark.filterwarnings("ignore")  # torch's own warnings to itself while it compiles
@pytest.mark.usefixtures("_plain_again")
def test_a_compiled_function_equals_the_plain_one_for_any_number_of_rows():
    config = ModelConfig(
        vocab_size=8,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=8,
        linear_key_head_dim=4,
        linear_value_head_dim=6,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
    )
    channels = config.conv_dim
    for rows in (7, 9):
        inputs = draw(3, rows + 3, channels), draw(3, rows, channels), draw(channels, 4), draw(channels, 3)
        found = {}
        for on in (True, False):
            use_compiled(on)
            outs = _canvas_heads(*inputs, config)
            loss = torch.stack([x.square().sum() for x in outs]).sum()
            found[on] = [*outs, *torch.autograd.grad(loss, inputs)]
        for ours, plain in zip(found[True], found[False], strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
