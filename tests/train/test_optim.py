"""Who moves how fast."""

import torch

from fourleaf.checkpoint.convert import convert
from fourleaf.model.transformer import Transformer
from fourleaf.train.optim import Optimizer


def test_the_block_softmaxs_scalars_move_ten_times_as_far_and_only_matrices_decay(tiny_trunk):
    model = convert(Transformer(tiny_trunk()), block_size=8, mask_token_id=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(2.0)
            parameter.grad = torch.ones_like(parameter)
    optimizer = Optimizer(model, weight_decay=0.5)
    optimizer.set_rate(1e-3)
    optimizer.step()
    seen = set()
    for name, parameter in model.named_parameters():
        kind = "logit" if "bd_softmax" in name else "matrix" if parameter.ndim > 1 else "vector"
        # Adam's first step is the rate itself, against the gradient's sign.
        wanted = {"logit": 2 - 1e-2, "matrix": 2 * (1 - 0.5e-3) - 1e-3, "vector": 2 - 1e-3}[kind]
        torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, wanted), rtol=0, atol=1e-6)
        seen.add(kind)
    assert seen == {"logit", "matrix", "vector"}
