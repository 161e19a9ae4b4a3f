"""The losses as sums over rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fourleaf.diffusion.objective import cross_entropy_sum, masked_cross_entropy_sum

VOCAB, MASK = 11, 4


def rows(count: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets that are never the mask, weights."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(count, VOCAB, generator=random, dtype=torch.float64).requires_grad_()
    target = torch.randint(5, VOCAB, (count,), generator=random)
    return logits, target, torch.rand(count, generator=random, dtype=torch.float64)


def test_sum_is_minus_the_weighted_log_probability_of_each_target():
    logits, target, weight = rows()
    chosen = logits.softmax(-1)[torch.arange(len(target)), target]
    torch.testing.assert_close(cross_entropy_sum(logits, target), -chosen.log().sum())
    torch.testing.assert_close(cross_entropy_sum(logits, target, weight), -(weight * chosen.log()).sum())


def both_sums(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    return cross_entropy_sum(logits, target, weight) + masked_cross_entropy_sum(logits, target, weight, MASK)


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_no_split_of_a_batch_changes_loss_or_gradient(cut):
    logits, target, weight = rows()
    whole = both_sums(logits, target, weight)
    split = both_sums(logits[:cut], target[:cut], weight[:cut]) + both_sums(logits[cut:], target[cut:], weight[cut:])
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad(loss, logits)[0] for loss in (split, whole))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_the_mask_is_never_predicted():
    logits, target, weight = rows()
    loss = masked_cross_entropy_sum(logits, target, weight, MASK)
    others = [i for i in range(VOCAB) if i != MASK]
    losses = F.cross_entropy(logits[:, others], target - 1, reduction="none")  # ids above the mask move down by one
    torch.testing.assert_close(loss, (losses * weight).sum())
    (gradient,) = torch.autograd.grad(loss, logits)
    assert (gradient[:, MASK] == 0).all()
    assert (gradient[:, others] != 0).all()


def test_the_mask_is_found_in_a_great_vocabulary_at_low_precision():
    """bf16 has no number 999: an id must never pass through the logits' dtype."""
    logits = torch.zeros(1, 1024, dtype=torch.bfloat16)
    logits[0, 999] = 50.0
    loss = masked_cross_entropy_sum(logits, torch.tensor([7]), torch.ones(1), 999)
    assert float(loss) == pytest.approx(float(torch.tensor(1023.0).log()), rel=0.01)
