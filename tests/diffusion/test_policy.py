import dataclasses
import itertools

import numpy as np
import pytest

from fourleaf.diffusion import policy as module
from fourleaf.diffusion.policy import MAX_EDIT_PASSES, Canvas, Noise, Purpose, Reveal, is_done, num_final, wanted_rows
from fourleaf.engine.request import POLICIES, GenerateParams

END, MASK = 0, 1
PARAMS = {
    "threshold": GenerateParams(threshold=0.9),
    "fixed": GenerateParams(policy="fixed", tokens_per_pass=3),
    "entropy": GenerateParams(policy="entropy", entropy_bound=0.5),
    "edit": GenerateParams(policy="edit", threshold=0.9, edit_threshold=0.8),
}
assert set(PARAMS) == set(POLICIES)


def canvas_of(num_rows: int, revealed: dict[int, int] | None = None, pins: dict[int, int] | None = None) -> Canvas:
    canvas = Canvas.blank(10, num_rows, MASK, pins)
    canvas.reveal(list(revealed or {}), list((revealed or {}).values()))
    return canvas


def reveal(params, canvas, tokens, confidence, entropy=None) -> tuple[list[int], list[int]]:
    """tokens, confidence, entropy: one for each wanted row."""
    rows = wanted_rows(params, canvas, END)
    found = module.reveal(params, canvas, rows, tokens, confidence, entropy, END)
    return found.rows, found.tokens


def threshold(rows, tokens, confidence) -> tuple[list[int], list[int]]:
    """Of a canvas in which `rows` alone are masked."""
    others = {row: 50 for row in range(rows[-1]) if row not in rows}
    return reveal(PARAMS["threshold"], canvas_of(rows[-1] + 1, others), tokens, confidence)


def test_everything_above_the_threshold_is_revealed():
    assert threshold([0, 2, 5], [7, 8, 9], [0.95, 0.5, 0.91]) == ([0, 5], [7, 9])


def test_confidence_equal_to_the_threshold_is_not_above_it():
    assert threshold([0, 1], [7, 8], [0.9, 0.95]) == ([1], [8])


def test_kind_31_where_no_row_is_sure_the_first_is_revealed_however_sure_another():
    assert threshold([1, 2, 3], [7, 8, 9], [0.2, 0.6, 0.3]) == ([1], [7])


def test_an_end_token_waits_for_all_rows_left_of_it():
    assert threshold([0, 1, 2], [7, 8, END], [0.95, 0.5, 0.99]) == ([0], [7])


def test_an_end_token_is_revealed_with_the_rows_left_of_it_and_nothing_behind_it():
    assert threshold([0, 1, 2, 3], [7, 8, END, 9], [0.95, 0.93, 0.99, 0.99]) == ([0, 1, 2], [7, 8, END])


def test_an_unsure_end_token_is_revealed_only_as_the_first_masked_row():
    assert threshold([3, 4], [7, END], [0.2, 0.8]) == ([3], [7])
    assert threshold([3, 4], [END, 7], [0.8, 0.2]) == ([3], [END])
    assert threshold([3, 4], [END, END], [0.2, 0.8]) == ([3], [END])


def test_fixed_reveals_so_many_rows_the_surest_first_and_the_left_one_of_equals():
    sure = [0.2, 0.9, 0.5, 0.9, 0.5]
    for count, rows in ((1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (9, [0, 1, 2, 3, 4])):
        params = dataclasses.replace(PARAMS["fixed"], tokens_per_pass=count)
        assert reveal(params, canvas_of(5), [5, 6, 7, 8, 9], sure)[0] == rows


def test_kind_45_fixed_spends_nothing_on_end_tokens_behind_the_answer():
    tokens, sure = [5, 6, 7, END, END, END], [0.3, 0.5, 0.4, 0.99, 0.99, 0.99]
    params = dataclasses.replace(PARAMS["fixed"], tokens_per_pass=2)
    canvas = canvas_of(6)
    assert reveal(params, canvas, tokens, sure) == ([1, 2], [6, 7])
    canvas.apply(Reveal([1, 2], [6, 7]))
    assert reveal(params, canvas, [5, END, END, END], [0.3, 0.9, 0.9, 0.9]) == ([0, 3], [5, END])
    params = dataclasses.replace(params, tokens_per_pass=1)
    assert reveal(params, canvas, [5, END, END, END], [0.3, 0.9, 0.9, 0.9]) == ([0], [5])


def test_entropy_reveals_the_lowest_while_their_sum_stays_within_the_bound():
    entropies = [0.3, 0.1, 0.9, 0.15, 0.2]
    for bound, rows in ((0.05, [0]), (0.1, [1]), (0.46, [1, 3, 4]), (0.76, [0, 1, 3, 4]), (2.0, [0, 1, 2, 3, 4])):
        params = dataclasses.replace(PARAMS["entropy"], entropy_bound=bound)
        assert reveal(params, canvas_of(5), [5, 6, 7, 8, 9], [0.5] * 5, entropies)[0] == rows


def test_entropy_counts_the_end_token_and_not_what_is_behind_it():
    tokens, entropies = [5, 6, END, 7, END], [0.1, 0.1, 0.2, 0.05, 0.01]
    params = dataclasses.replace(PARAMS["entropy"], entropy_bound=0.41)
    assert reveal(params, canvas_of(5), tokens, [0.5] * 5, entropies) == ([0, 1, 2], [5, 6, END])
    params = dataclasses.replace(PARAMS["entropy"], entropy_bound=0.39)
    assert reveal(params, canvas_of(5), tokens, [0.5] * 5, entropies) == ([0, 1, 3], [5, 6, 7])


def test_edit_replaces_a_revealed_token_only_by_another_that_is_sure_enough():
    canvas = canvas_of(5, {0: 20, 1: 21, 2: 22})
    tokens, sure = [30, 31, 22, 33, 34], [0.81, 0.8, 0.99, 0.95, 0.85]
    assert reveal(PARAMS["edit"], canvas, tokens, sure) == ([0, 3], [30, 33])
    canvas.apply(Reveal([0, 3], [30, 33]))
    assert canvas.tokens[:4].tolist() == [30, 21, 22, 33]
    assert canvas.masked.tolist() == [False, False, False, False, True]


def test_edit_never_touches_a_pinned_row():
    canvas = canvas_of(4, {0: 20}, pins={1: 21})
    assert wanted_rows(PARAMS["edit"], canvas, END) == [0, 2, 3]
    assert reveal(PARAMS["edit"], canvas, [30, 32, 33], [0.99, 0.99, 0.99])[0] == [0, 2, 3]
    with pytest.raises(AssertionError):
        canvas.apply(Reveal([1], [31]))


def test_edit_goes_on_until_a_pass_changes_nothing():
    params, canvas = PARAMS["edit"], canvas_of(2)
    canvas.apply(Reveal(*reveal(params, canvas, [30, 31], [0.95, 0.95])))
    assert canvas.is_done(END)
    assert not is_done(params, canvas, END)
    assert num_final(params, canvas, END) == 0
    canvas.apply(Reveal(*reveal(params, canvas, [40, 31], [0.95, 0.95])))
    assert canvas.tokens.tolist() == [40, 31]
    assert not is_done(params, canvas, END)
    canvas.apply(Reveal(*reveal(params, canvas, [40, 31], [0.95, 0.95])))
    assert is_done(params, canvas, END)
    assert num_final(params, canvas, END) == 2


def test_kind_31_two_tokens_that_displace_each_other_end():
    params, canvas, passes = PARAMS["edit"], canvas_of(3), itertools.cycle(([30, 31, 32], [40, 41, 42]))
    while not is_done(params, canvas, END):
        tokens = next(passes)
        rows = wanted_rows(params, canvas, END)
        canvas.apply(Reveal(*reveal(params, canvas, [tokens[row] for row in rows], [0.99] * len(rows))))
    assert canvas.num_passes == MAX_EDIT_PASSES


def test_an_end_token_may_be_edited_away_and_the_block_goes_on_behind_it():
    params, canvas = PARAMS["edit"], canvas_of(4)
    canvas.apply(Reveal(*reveal(params, canvas, [30, END, 32, 33], [0.95] * 4)))
    assert canvas.end_row(END) == 1
    assert wanted_rows(params, canvas, END) == [0, 1]
    canvas.apply(Reveal(*reveal(params, canvas, [30, 31], [0.95] * 2)))
    assert canvas.end_row(END) is None
    assert wanted_rows(params, canvas, END) == [0, 1, 2, 3]


def test_an_edit_to_an_end_token_waits_for_the_rows_left_of_it_and_hides_those_behind():
    canvas = canvas_of(4, {1: 21, 2: 22})
    tokens = [30, END, 22, 33]
    assert reveal(PARAMS["edit"], canvas, tokens, [0.95, 0.5, 0.95, 0.95])[0] == [0, 3]
    assert reveal(PARAMS["edit"], canvas, tokens, [0.95, 0.95, 0.95, 0.95]) == ([0, 1], [30, END])
    canvas = canvas_of(4, {2: 22, 3: 23})
    assert reveal(PARAMS["edit"], canvas, [30, 31, END, 23], [0.95, 0.5, 0.95, 0.95]) == ([0], [30])


def test_what_is_final_grows_with_the_settled_rows_and_stops_at_the_end_token():
    params, canvas = PARAMS["threshold"], canvas_of(4, {1: 21})
    assert num_final(params, canvas, END) == 0
    canvas.apply(Reveal([0], [20]))
    assert num_final(params, canvas, END) == 2
    canvas.apply(Reveal([2], [END]))
    assert (num_final(params, canvas, END), is_done(params, canvas, END)) == (2, True)
    assert wanted_rows(params, canvas, END) == []


def test_a_pinned_end_token_ends_nothing_before_the_rows_left_of_it_are_revealed():
    params, canvas = PARAMS["threshold"], canvas_of(4, pins={2: END})
    assert canvas.end_row(END) is None
    assert not canvas.is_done(END)
    assert wanted_rows(params, canvas, END) == [0, 1, 3]
    canvas.apply(Reveal([0, 1], [20, 21]))
    assert canvas.end_row(END) == 2
    assert is_done(params, canvas, END)


def test_a_canvas_of_pins_alone_needs_no_pass():
    for params in PARAMS.values():
        canvas = canvas_of(2, pins={0: 5, 1: 6})
        assert wanted_rows(params, canvas, END) == []
        assert is_done(params, canvas, END)
        assert num_final(params, canvas, END) == 2


@pytest.mark.parametrize("name", POLICIES)
def test_kind_50_any_proposals_end_within_a_bound_with_nothing_masked_and_keep_the_rules(name):
    """Random proposals: at least one row a pass, pins kept, an end token only behind revealed rows."""
    rng = np.random.default_rng(3)
    for _ in range(400):
        params, size = PARAMS[name], int(rng.integers(1, 33))
        pins = {int(row): int(rng.integers(2, 6)) for row in rng.permutation(size)[: rng.integers(0, size + 1) // 2]}
        canvas, bound = canvas_of(size, pins=pins), size + (MAX_EDIT_PASSES if name == "edit" else 0)
        while not is_done(params, canvas, END):
            rows = wanted_rows(params, canvas, END)
            tokens = [END if rng.random() < 0.15 else int(rng.integers(2, 6)) for _ in rows]
            before, masked = canvas.tokens.copy(), canvas.masked.copy()
            change = module.reveal(
                params, canvas, rows, tokens, rng.random(len(rows)).tolist(), rng.random(len(rows)).tolist(), END
            )
            canvas.apply(change)
            assert change.rows == sorted(set(change.rows))
            assert set(change.rows) <= set(rows)
            assert len(change.rows) >= (not canvas.is_quiet)
            changed = np.flatnonzero((canvas.tokens != before) | (canvas.masked != masked))
            assert set(changed.tolist()) <= set(change.rows)
            assert all(canvas.tokens[row] == token and not canvas.masked[row] for row, token in pins.items())
            if name != "edit":
                assert masked[change.rows].all()
                assert change.rows
            if END in change.tokens:
                last = change.rows[-1]
                assert (change.tokens.index(END), canvas.end_row(END)) == (len(change.tokens) - 1, last)
        assert canvas.num_passes <= bound
        assert canvas.is_done(END)


def test_noise_is_a_function_of_its_counter_alone():
    base = Noise(3).uniform(5, 2, Purpose.PROPOSE, 4)
    assert (Noise(3).uniform(5, 2, Purpose.PROPOSE, 4) == base).all()
    others = [
        Noise(4).uniform(5, 2, Purpose.PROPOSE, 4),
        Noise(3, choice=1).uniform(5, 2, Purpose.PROPOSE, 4),
        Noise(3).uniform(6, 2, Purpose.PROPOSE, 4),
        Noise(3).uniform(5, 3, Purpose.PROPOSE, 4),
        Noise(3).uniform(5, 2, Purpose.ACCEPT, 4),
    ]
    assert all((other != base).all() for other in others)
    assert (Noise(2**63 - 1).uniform(10**6, 10**4, Purpose.TIE, 2) < 1).all()


def test_keys_are_the_first_bits_of_each_positions_stream():
    noise = Noise(2**63 - 1, choice=2**31 - 1)
    keys = noise.keys([7, 10**6, 7], 3, Purpose.RESIDUAL)
    assert keys.dtype == np.uint64
    assert keys[0] == keys[2] != keys[1]
    for position, key in zip((7, 10**6), keys, strict=False):
        assert (key >> np.uint64(11)) * 2.0**-53 == noise.uniform(position, 3, Purpose.RESIDUAL, 1)[0]


def test_streams_of_one_position_do_not_overlap_those_of_the_next():
    """A stream longer than one Philox block must not run into the next position's."""
    here, there = Noise(1).uniform(5, 0, Purpose.PROPOSE, 2000), Noise(1).uniform(6, 0, Purpose.PROPOSE, 2000)
    assert not set(here) & set(there)


def test_kind_1_a_canvas_is_masked_by_its_bitmap_whatever_its_tokens():
    canvas = Canvas.blank(10, 4, MASK)
    canvas.reveal([1], [MASK])
    assert canvas.masked.tolist() == [True, False, True, True]
    assert canvas.num_settled == 0
    canvas.reveal([0], [9])
    assert canvas.num_settled == 2
    assert not canvas.is_done(END)
    with pytest.raises(AssertionError):
        canvas.reveal([1], [5])
    canvas.reveal([2], [END])
    assert canvas.is_done(END)
    assert canvas.end_row(END) == 2
