import math

import pytest
import torch

from fourleaf.diffusion.policy import Noise
from fourleaf.diffusion.sampling import Sampling, adjust, choose
from fourleaf.engine.logprobs import token_logprobs

MASK = 1


def adjusted_of(rows: int, **options) -> torch.Tensor:
    raw = torch.randn(rows, 12, generator=torch.Generator().manual_seed(rows), dtype=torch.float64) * 3
    return adjust(raw, Sampling(), MASK, **options)


def test_a_logprob_is_the_logarithm_of_the_confidence_whatever_is_cut_and_tempered():
    adjusted, sampling = adjusted_of(5), Sampling(1.7, top_p=0.8, top_k=6)
    tokens, sure = choose(adjusted, sampling, list(range(5)), 0, Noise(3))
    found = token_logprobs(adjusted, tokens, 4, 0)
    assert [entry.logprob for entry in found] == pytest.approx([math.log(value) for value in sure])
    assert {(entry.pass_index, entry.top) for entry in found} == {(4, ())}


def test_alternatives_are_the_most_probable_tokens_in_falling_order():
    adjusted = adjusted_of(3)
    shares = torch.softmax(adjusted, -1)
    for row, entry in enumerate(token_logprobs(adjusted, [2, 3, 4], 0, 4)):
        ids = sorted(range(12), key=lambda token: -float(shares[row, token]))[:4]
        assert [token for token, _ in entry.top] == ids
        assert [value for _, value in entry.top] == pytest.approx([math.log(float(shares[row, i])) for i in ids])
        assert entry.logprob == pytest.approx(math.log(float(shares[row, row + 2])))


def test_what_is_ruled_out_is_no_alternative():
    allowed = torch.zeros(12, dtype=torch.bool)
    allowed[[MASK, 5, 7]] = True
    (entry,) = token_logprobs(adjusted_of(1, allowed=allowed), [5], 0, 20)
    assert {token for token, _ in entry.top} == {5, 7}
    assert math.exp(entry.top[0][1]) + math.exp(entry.top[1][1]) == pytest.approx(1)


def test_kind_55_each_row_has_its_own_logprobs_in_the_order_of_the_tokens():
    adjusted = adjusted_of(4)
    together = token_logprobs(adjusted, [2, 3, 4, 5], 1, 3)
    alone = [token_logprobs(adjusted[row : row + 1], [row + 2], 1, 3)[0] for row in range(4)]
    assert list(together) == alone
    assert len({entry.logprob for entry in together}) == 4
