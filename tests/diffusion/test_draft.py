from itertools import product

import numpy as np
import pytest
import torch

from fourleaf.diffusion.draft import Draws, accept, one_hot, residual
from fourleaf.diffusion.policy import Noise, Purpose
from fourleaf.diffusion.sampling import Sampling, adjust, choose, draw, probabilities
from fourleaf.errors import NumericError

SIZE, MASK, END = 5, 4, 3
WARM = Sampling(temperature=1.0)
GREEDY = Sampling()


def draws(seed=0, pass_index=1, start=11):
    return Draws(start, pass_index, Noise(seed))


def random_logits(*shape, seed=0, scale=2.0, dtype=torch.float64):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def run(logits, proposals, q=None, row=None, sampling=GREEDY, at=None, end=None):
    return accept(logits.clone(), proposals, q, row, sampling, **vars(at or draws()), mask_id=MASK, end_id=end)


def plainly(logits, sampling, counts=None, allowed=None):
    """The general path's `row`, where nothing depends on the prefix unless counts say so."""
    return lambda i, raw: adjust(raw[None].clone(), sampling, MASK, counts, allowed)[0]


# What stands, greedily


def test_the_longest_prefix_that_equals_the_argmax_stands_and_one_token_more():
    logits = torch.tensor([[0, 9, 0, 0, 0], [9, 0, 0, 0, 0], [0, 0, 9, 0, 0], [0, 9, 0, 0, 0.0]])
    for proposals, tokens, after in [
        ([1, 0, 2], [1, 0, 2], 1),
        ([1, 0, 1], [1, 0], 2),
        ([1, 2, 2], [1], 0),
        ([0, 0, 2], [], 1),
    ]:
        found = run(logits, proposals)
        assert (found.tokens, found.next_token) == (tokens, after)
        assert found.decided == [*tokens, after]
        assert torch.equal(found.adjusted[:, :MASK], logits[: len(tokens) + 1, :MASK])


def test_one_row_decides_one_token():
    for sampling in (GREEDY, WARM):
        found = run(torch.tensor([[0, 0, 90.0, 0, 0]]), [], sampling=sampling)
        assert (found.tokens, found.next_token) == ([], 2)


def test_behind_an_accepted_end_token_nothing_is_decided():
    logits = torch.tensor([[0, 90, 0, 0, 0], [0, 0, 0, 90, 0], [90, 0, 0, 0, 0.0]])
    for sampling, row in product((GREEDY, WARM), (None, plainly(logits, GREEDY))):
        found = run(logits, [1, END], row=row, sampling=sampling, end=END)
        assert (found.tokens, found.next_token, len(found.adjusted)) == ([1, END], None, 2)
        assert run(logits, [1, END], row=row, sampling=sampling).decided == [1, END, 0]  # no end token here


def test_an_end_token_that_does_not_stand_ends_nothing_and_one_in_its_place_is_the_next_token():
    logits = torch.tensor([[0, 9, 0, 0, 0], [0, 0, 0, 9, 0], [9, 0, 0, 0, 0.0]])
    found = run(logits, [END, 2], end=END)
    assert (found.tokens, found.next_token) == ([], 1)
    found = run(logits, [1, 2], end=END)
    assert (found.tokens, found.next_token) == ([1], END)


def test_the_mask_id_is_never_decided_although_it_is_the_most_probable():
    logits = torch.zeros(2, SIZE)
    logits[:, MASK] = 50.0
    logits[:, 2] = 1.0
    for sampling in (GREEDY, WARM):
        assert MASK not in run(logits, [2], sampling=sampling).decided
    assert run(logits, [2]).decided == [2, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_comparison_and_row_by_row_agree(dtype):
    sampling = Sampling(logit_bias=((1, 0.7), (0, -100.0)))
    rng = np.random.default_rng(0)
    stood = 0
    for seed in range(200):
        logits = random_logits(6, SIZE, seed=seed, dtype=dtype)
        best = adjust(logits.clone(), sampling, MASK).argmax(-1).tolist()
        proposals = [t if rng.random() < 0.8 else int(rng.integers(MASK)) for t in best[:-1]]
        fast = run(logits, proposals, sampling=sampling, end=END)
        slow = run(logits, proposals, row=plainly(logits, sampling), sampling=sampling, end=END)
        assert (fast.tokens, fast.next_token) == (slow.tokens, slow.next_token)
        assert torch.equal(fast.adjusted, slow.adjusted)
        stood += len(fast.tokens)
    assert stood > 200


def test_sampling_at_once_and_row_by_row_agree():
    sampling = Sampling(temperature=0.7, top_p=0.9, min_p=0.02)
    for seed in range(100):
        logits, q = random_logits(5, SIZE, seed=seed), torch.softmax(random_logits(4, SIZE, seed=seed + 1), -1)
        proposals = draw(q, Noise(seed).keys([11, 12, 13, 14], 0, Purpose.PROPOSE)).tolist()
        fast = run(logits, proposals, q, None, sampling, draws(seed))
        slow = run(logits, proposals, q, plainly(logits, sampling), sampling, draws(seed))
        assert (fast.tokens, fast.next_token) == (slow.tokens, slow.next_token)


def test_ties_fall_as_in_ar():
    logits = torch.zeros(3, SIZE)
    token = choose(adjust(logits[:1].clone(), GREEDY, MASK), GREEDY, [11], 0, Noise(0))[0][0]
    assert run(logits, [token, token]).decided == [token] * 3


def test_rows_that_depend_on_the_prefix_are_asked_for_in_turn_and_never_behind_the_end_of_a_round():
    logits = torch.tensor([[0, 9, 0, 0, 0], [0, 9, 0, 0, 0], [0, 9, 0, 0, 0], [9, 0, 0, 0, 0.0]])
    asked = []

    def row(i, raw):
        asked.append(i)
        return raw

    assert run(logits, [1, 2, 1], row=row).decided == [1, 1]
    assert asked == [0, 1]


def test_penalties_count_the_accepted_prefix():
    """`ar` would say 1, then, penalised, 2, then 0: so must a draft, whatever it proposed."""
    sampling = Sampling(presence_penalty=2.0)
    logits = torch.tensor([[0.0, 3, 2, 0, 0]]).repeat(4, 1)
    counts = torch.zeros(SIZE, dtype=torch.long)
    expected = []
    for i in range(4):
        expected.append(int(adjust(logits[i : i + 1].clone(), sampling, MASK, counts)[0].argmax()))
        counts[expected[-1]] += 1
    assert len(set(expected[:3])) == 2
    for proposals in product(range(3), repeat=3):
        before = torch.zeros(SIZE, dtype=torch.long)

        def row(i, raw, before=before, proposals=proposals):
            if i > 0:
                before[proposals[i - 1]] += 1
            return adjust(raw[None].clone(), sampling, MASK, before)[0]

        found = run(logits, list(proposals), row=row, sampling=sampling)
        assert found.decided == expected[: len(found.decided)]


# Faults


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_nan_in_a_row_that_decides_is_an_error_and_behind_it_is_none(sampling, fault):
    logits = torch.tensor([[0, 90, 0, 0, 0], [90, 0, 0, 0, 0], [0, 0, 90, 0, 0.0]])
    logits[1, 2] = fault
    with pytest.raises(NumericError, match="no numbers"):
        run(logits, [1, 0], sampling=sampling)
    assert run(logits, [0, 0], sampling=sampling).decided == [1]


def test_a_grammar_that_allows_no_token_is_an_error():
    nothing = torch.zeros(SIZE, dtype=torch.bool)
    logits = torch.zeros(1, SIZE)
    with pytest.raises(NumericError, match="grammar"):
        run(logits, [], row=plainly(logits, GREEDY, allowed=nothing))


def test_a_proposal_that_its_q_cannot_have_given_is_our_fault():
    q = torch.tensor([[1.0, 0, 0, 0, 0]])
    with pytest.raises(AssertionError, match="cannot have been drawn"):
        run(torch.zeros(2, SIZE), [1], q, sampling=WARM)


# The rule, exactly


def exact_output(p, q):
    """Distribution of the token that the rule gives, by its two ways to come about."""
    stands = torch.minimum(p, q)
    left = residual(p, q)
    return stands + (1 - stands.sum()) * left / left.sum()


@pytest.mark.parametrize("seed", range(20))
def test_the_rule_gives_p_whatever_q(seed):
    p = probabilities(random_logits(1, SIZE, seed=seed), Sampling(temperature=1.0, top_p=0.9))[0]
    q = probabilities(random_logits(1, SIZE, seed=seed + 100), Sampling(temperature=1.0, top_k=3))[0]
    for given in (q, p, one_hot(int(q.argmax()), p)):
        assert torch.allclose(exact_output(p, given), p, atol=1e-12)


def test_q_zero_where_p_is_positive_comes_from_the_residual_alone():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([1.0, 0.0, 0.0])
    assert residual(p, q).tolist() == [0.0, 0.5, 0.0]
    logits = torch.tensor([[0.0, 0, -90, -90, 0]]).repeat(2, 1)
    both = {tuple(run(logits, [0], one_hot(0, logits[0])[None], None, WARM, draws(s)).decided[:1]) for s in range(40)}
    assert both == {(0,), (1,)}


def test_p_zero_where_q_is_positive_never_stands():
    logits = torch.tensor([[9.0, -9, 8, -9, 0]]).repeat(2, 1)
    cut = Sampling(temperature=1.0, top_k=2)
    q = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.0]])
    for seed in range(40):
        assert run(logits, [1], q, None, cut, draws(seed)).decided[0] in (0, 2)


def test_where_rounding_leaves_no_residual_p_is_drawn_from():
    p = torch.tensor([0.25, 0.75])
    assert residual(p, p).tolist() == p.tolist()
    assert residual(p, p + 1e-7).tolist() == p.tolist()


def test_equal_p_and_q_always_stand():
    logits = random_logits(4, SIZE)
    q = probabilities(adjust(logits.clone(), WARM, MASK), WARM)[:3]
    for seed in range(50):
        proposals = draw(q, Noise(seed).keys([11, 12, 13], 0, Purpose.PROPOSE)).tolist()
        assert run(logits, proposals, q, None, WARM, draws(seed)).tokens == proposals


def test_randomness_is_that_of_the_position_and_the_pass():
    logits, q = random_logits(4, SIZE, scale=0.5), torch.full((3, SIZE), 0.2)
    q[:, MASK] = 0.0
    same = [run(logits, [0, 1, 2], q, None, WARM, draws(3)).decided for _ in range(2)]
    assert same[0] == same[1]
    others = [run(logits, [0, 1, 2], q, None, WARM, draws(3, pass_index=i)).decided for i in range(20)]
    moved = [run(logits, [0, 1, 2], q, None, WARM, draws(3, start=11 + i)).decided for i in range(20)]
    assert len({tuple(o) for o in others}) > 3
    assert len({tuple(m) for m in moved}) > 3
