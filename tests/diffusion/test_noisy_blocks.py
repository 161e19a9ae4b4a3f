"""Which blocks of an answer get a noisy copy, and what is masked in them."""

from itertools import chain, pairwise

import numpy as np
import pytest

from fourleaf.diffusion.noise import NoiseConfig, NoisyBlock, block_lengths, draw_mask, noisy_blocks

END, BLOCK = 0, 32


def draw_blocks(answer_len: int, count: int, *, prompt: int = 10, **options) -> list[list[NoisyBlock]]:
    """`count` draws for one example of `prompt` and `answer_len` ids, the end token included."""
    ids = np.arange(1, prompt + answer_len + 1)
    ids[-1] = END
    rng = np.random.default_rng(0)
    return [noisy_blocks(ids, prompt, END, BLOCK, NoiseConfig(**options), rng) for _ in range(count)]


def test_blocks_cover_the_answer_in_order_with_the_true_ids():
    for blocks in draw_blocks(75, 200):
        assert blocks[0].start == 10
        for block, after in pairwise(blocks):
            assert after.start == block.start + len(block.target)
        target = np.concatenate([block.target for block in blocks])
        assert (target[:75] == [*range(11, 85), END]).all()
        assert blocks[-1].start < 85 <= blocks[-1].start + len(blocks[-1].target)


def test_fill_is_all_that_stands_behind_the_end_token():
    for blocks in draw_blocks(40, 200):
        target = np.concatenate([block.target for block in blocks])
        fill = np.concatenate([block.is_fill for block in blocks])
        assert (np.flatnonzero(fill) == np.arange(40, len(fill))).all()
        assert (target[fill] == END).all()


@pytest.mark.parametrize(
    ("answer", "first", "wanted"),
    [(1, 32, [32]), (32, 32, [32]), (33, 32, [32, 32]), (33, 1, [1, 32]), (5, 7, [7]), (70, 6, [6, 32, 32])],
)
def test_only_the_first_block_may_be_short(answer, first, wanted):
    assert block_lengths(answer, BLOCK, first) == wanted


def test_half_of_the_examples_start_with_a_block_of_any_length():
    firsts = np.array([len(blocks[0].target) for blocks in draw_blocks(40, 8000)])
    counts = np.bincount(firsts, minlength=BLOCK + 1)
    assert counts[0] == 0
    assert (counts[1:] > 0).all()
    assert counts[BLOCK] / 8000 == pytest.approx(0.5 + 0.5 / BLOCK, abs=0.02)
    assert counts[1:BLOCK].max() / 8000 < 0.03  # 0.5 / 32 each


@pytest.mark.parametrize(("shifted", "lengths"), [(0.0, {32}), (1.0, set(range(1, 33)))])
def test_share_of_shifted_examples_is_a_setting(shifted, lengths):
    assert {len(blocks[0].target) for blocks in draw_blocks(40, 2000, shifted=shifted)} == lengths


def masks(count: int, num_rows: int = BLOCK, **options) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.stack([draw_mask(num_rows, NoiseConfig(**options), rng) for _ in range(count)])


def test_shares_of_full_and_anchored_blocks():
    drawn = masks(20_000)
    full = drawn.all(1)
    anchored = ~drawn[:, 0] & drawn[:, 1:].all(1)
    # The other kinds hit either by chance, too: settled rows one time in 32, uniform ratios E[t^32] and E[(1-t) t^31].
    assert full.mean() == pytest.approx(0.15 + 0.25 / 32 + 0.5 / 0.9 / 33, abs=0.01)
    assert anchored.mean() == pytest.approx(0.1 + 0.25 / 32 + 0.5 / 0.9 / (32 * 33), abs=0.01)


def test_settled_blocks_are_masked_from_a_uniform_row_on():
    drawn = masks(20_000, full=0.0, anchored=0.0, settled=1.0)
    first = drawn.argmax(1)
    assert (drawn == (np.arange(BLOCK) >= first[:, None])).all()
    assert np.bincount(first, minlength=BLOCK) / len(drawn) == pytest.approx(1 / BLOCK, abs=0.008)


def test_a_block_weighs_as_its_rows_of_the_answer_do_however_few_are_masked():
    for block in chain(*draw_blocks(50, 200)):
        masked = block.masked & ~block.is_fill
        assert block.row_weight * masked.sum() == pytest.approx(block.num_targets)
    assert {block.num_targets for block in chain(*draw_blocks(50, 50, shifted=0.0))} == {32, 18}


def test_other_blocks_have_a_ratio_of_their_own_uniform_from_the_least():
    ratios = masks(20_000, full=0.0, anchored=0.0, settled=0.0).mean(1)
    assert ratios.mean() == pytest.approx(0.55, abs=0.01)
    # Spread of a uniform draw from 0.1 to 1 plus that of 32 coins at this ratio.
    t = np.linspace(0.1, 1.0, 10_001)
    assert ratios.var() == pytest.approx(0.9**2 / 12 + (t * (1 - t)).mean() / BLOCK, rel=0.05)
    assert masks(5000, full=0.0, anchored=0.0, settled=0.0, least=0.9).mean() == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize("num_rows", [1, 2, 32])
def test_at_least_one_position_is_masked(num_rows):
    assert masks(3000, num_rows, least=0.0).any(1).all()


@pytest.mark.parametrize("answer", [1, 2, 33, 34, 65])
def test_at_least_one_masked_position_is_no_fill(answer):
    """Also where the last block holds the end token alone, and drafting's noise would leave only fill masked."""
    for blocks in draw_blocks(answer, 1000):
        assert all((block.masked & ~block.is_fill).any() for block in blocks)


def test_the_same_seed_draws_the_same_noise():
    first, second = draw_blocks(50, 5), draw_blocks(50, 5)
    for ours, theirs in zip(chain(*first), chain(*second), strict=True):
        assert ours.start == theirs.start
        assert (ours.masked == theirs.masked).all()


def test_an_answer_without_its_end_is_refused():
    with pytest.raises(AssertionError, match="ends with the end token"):
        noisy_blocks(np.array([5, 6, 7]), 1, END, BLOCK, NoiseConfig(), np.random.default_rng(0))
