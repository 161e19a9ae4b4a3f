"""Grids and puzzles: what the rules allow, one solution each, and the side of the hash that they are on."""

from itertools import permutations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourleaf.tasks.sudoku import (
    BLANK,
    SIDES,
    Puzzle,
    draw_easy,
    draw_grid,
    draw_puzzle,
    grid_text,
    is_held_out,
    is_solved,
    small_grids,
    solutions,
    solves,
    text_offset,
    units,
)

GRID = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)


def test_there_are_288_small_grids_as_trying_all_rows_finds():
    """The plain twin: every four permutations of a row whose boxes may be right, by the checker alone."""
    rows = list(permutations(range(1, 5)))
    halves = [a + b for a, b in product(rows, rows) if not {*a[:2]} & {*b[:2]}]
    assert {a + b for a, b in product(halves, halves) if is_solved(a + b)} == set(small_grids())
    assert len(small_grids()) == len(set(small_grids())) == 288


def test_about_a_fifth_is_held_out_and_neither_side_draws_from_the_other():
    kept = {grid for grid in small_grids() if not is_held_out(grid)}
    assert len(kept) == 288 - 51
    random = Random(0)
    assert {draw_grid(4, random, held_out=False) for _ in range(3000)} == kept
    assert {draw_grid(4, random, held_out=True) for _ in range(1000)} == set(small_grids()) - kept
    assert [is_held_out(draw_grid(9, random, held_out=side)) for side in (True, False)] == [True, False]


@pytest.mark.parametrize("side", SIDES)
def test_every_cell_is_in_one_row_one_column_and_one_box(side):
    assert len(units(side)) == 3 * side
    for kind in range(3):
        part = units(side)[kind * side : (kind + 1) * side]
        assert sorted(at for unit in part for at in unit) == list(range(side * side))
    box = units(side)[2 * side]
    assert max(at // side for at in box) == max(at % side for at in box) == round(side**0.5) - 1


def test_the_checker_sees_each_kind_of_fault():
    assert is_solved(GRID)
    for first, second in ((0, 1), (0, 4), (5, 6)):  # a swap in a row, in a column, across a box
        wrong = list(GRID)
        wrong[first], wrong[second] = wrong[second], wrong[first]
        assert not is_solved(wrong)
    # rows and columns are right, boxes are not
    assert not is_solved((1, 2, 3, 4, 2, 3, 4, 1, 3, 4, 1, 2, 4, 1, 2, 3))


def test_a_solved_grid_with_another_given_is_no_solution():
    puzzle = Puzzle((2, *(BLANK,) * 15), solutions((2, *(BLANK,) * 15))[0])
    assert solves(puzzle.solution, puzzle)
    assert is_solved(GRID)
    assert not solves(GRID, puzzle)


def test_givens_that_contradict_have_no_solution():
    assert solutions((1, 1, *(BLANK,) * 14)) == []
    assert solutions((1, 2, 3, BLANK, *(BLANK,) * 3, 4, *(BLANK,) * 8)) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_a_puzzle_has_its_grid_as_the_only_solution(seed, blanks):
    random = Random(seed)
    puzzle = draw_puzzle(draw_grid(4, random, held_out=False), blanks, random)
    fitting = [g for g in small_grids() if all(a in (BLANK, b) for a, b in zip(puzzle.cells, g, strict=True))]
    assert fitting == [puzzle.solution]
    assert 1 <= len(puzzle.blanks) <= blanks


@pytest.mark.parametrize("side", SIDES)
def test_an_easy_puzzle_is_settled_by_rows_and_boxes_alone(side):
    random = Random(side)
    for _ in range(5):
        puzzle = draw_easy(draw_grid(side, random, held_out=True), side, random)
        assert solutions(puzzle.cells) == [puzzle.solution]
        for at in puzzle.blanks:
            row, _, box = (unit for unit in units(side) if at in unit)
            assert any([puzzle.cells[i] for i in unit].count(BLANK) == 1 for unit in (row, box))


def test_text_has_a_line_a_row_and_cells_where_they_are_said_to_be():
    puzzle = draw_puzzle(GRID, 6, Random(3))
    text = grid_text(puzzle.cells)
    assert text.count("\n") == 3
    assert len(text) == 19
    for at, digit in enumerate(puzzle.cells):
        assert text[text_offset(at, 4)] == ("." if digit == BLANK else str(digit))


def test_same_seed_same_puzzles():
    def drawn(seed):
        random = Random(seed)
        return [draw_easy(draw_grid(9, random, held_out=False), 9, random) for _ in range(2)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
