"""Sudoku of 4x4 and 9x9: grids and puzzles from a seed, each with one solution, which a solver proves; a checker.

About a fifth of all grids, by the hash of their text, is held out of training: 51 of the 288 grids of 4x4. The solver
and the checker share nothing, so that each is a test of the other.

    1.34        Cells are read row by row: 0 where blank, else a digit. In text a blank is a full stop, and rows are
    3412        lines, so a grid of side 4 has 16 cells and 3 line breaks.
    2143
    432.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isqrt
from random import Random

SIDES = (4, 9)
BANDS = {4: 1, 9: 3}  # canvases that a grid takes: what a block of 32 positions can see
BLANK = 0
HELD_OUT_OF = 5

Cells = tuple[int, ...]


@dataclass(frozen=True)
class Puzzle:
    """cells: the givens and the blanks. solution: the only grid that keeps the givens."""

    cells: Cells
    solution: Cells

    @property
    def side(self) -> int:
        return isqrt(len(self.cells))

    @property
    def blanks(self) -> list[int]:
        """The cells to be found, row by row."""
        return [at for at, digit in enumerate(self.cells) if digit == BLANK]


def grid_text(cells: Sequence[int]) -> str:
    """Rows as lines."""
    side = isqrt(len(cells))
    shown = "".join("." if digit == BLANK else str(digit) for digit in cells)
    return "\n".join(shown[begin : begin + side] for begin in range(0, len(shown), side))


def messages(side: int) -> list[dict[str, str]]:
    """How a model is asked for a grid. It answers with `grid_text`."""
    return [{"role": "user", "content": f"sudoku {side}"}]


def band_length(side: int) -> int:
    """Characters of a band, the line break behind it left out."""
    return side * (side + 1) // BANDS[side] - 1


def text_offset(at: int, side: int) -> int:
    """Where a cell stands in `grid_text`."""
    return at + at // side


@cache
def units(side: int) -> tuple[tuple[int, ...], ...]:
    """Rows, columns and boxes: the cells that hold each digit once."""
    box = isqrt(side)
    rows = [tuple(range(row * side, (row + 1) * side)) for row in range(side)]
    columns = [tuple(range(column, side * side, side)) for column in range(side)]
    boxes = [
        tuple((top + i) * side + left + j for i in range(box) for j in range(box))
        for top in range(0, side, box)
        for left in range(0, side, box)
    ]
    return (*rows, *columns, *boxes)


def is_solved(cells: Sequence[int]) -> bool:
    """Whether every row, column and box holds every digit."""
    digits = set(range(1, isqrt(len(cells)) + 1))
    return all({cells[at] for at in unit} == digits for unit in units(len(digits)))


def solves(cells: Sequence[int], puzzle: Puzzle) -> bool:
    """Whether the cells are a solved grid that keeps the givens."""
    kept = all(given in (BLANK, digit) for given, digit in zip(puzzle.cells, cells, strict=True))
    return kept and is_solved(cells)


def solutions(cells: Sequence[int], limit: int = 2, random: Random | None = None) -> list[Cells]:
    """Up to `limit` grids that keep the givens, by search from the cell with the fewest digits left.

    random: the order in which digits are tried.
    """
    search = _Search(cells, limit, random)
    if search.is_consistent:
        search.run()
    return search.found


class _Search:
    """Backtracking over bit sets: bit d of `used` is set where a row, column or box has digit d."""

    def __init__(self, cells: Sequence[int], limit: int, random: Random | None) -> None:
        self.found: list[Cells] = []
        self._limit, self._random = limit, random
        self._side = isqrt(len(cells))
        self._all = (1 << self._side + 1) - 2
        self._units = _units_of(self._side)
        self._cells = [BLANK] * len(cells)
        self._used = [0] * (3 * self._side)
        self.is_consistent = True
        for at, digit in enumerate(cells):
            if digit != BLANK:
                self.is_consistent &= bool(self._free(at) >> digit & 1)
                self._flip(at, digit)
                self._cells[at] = digit

    def run(self) -> None:
        at, free = self._next()
        if at is None:
            self.found.append(tuple(self._cells))
            return
        digits = [digit for digit in range(1, self._side + 1) if free >> digit & 1]
        if self._random is not None:
            self._random.shuffle(digits)
        for digit in digits:
            self._flip(at, digit)
            self._cells[at] = digit
            self.run()
            self._flip(at, digit)
            self._cells[at] = BLANK
            if len(self.found) >= self._limit:
                return

    def _next(self) -> tuple[int | None, int]:
        """The blank with the fewest digits left, and these as bits."""
        best, left, fewest = None, 0, self._side + 1
        for at, digit in enumerate(self._cells):
            if digit == BLANK:
                free = self._free(at)
                if free.bit_count() < fewest:
                    best, left, fewest = at, free, free.bit_count()
                    if fewest < 2:
                        break
        return best, left

    def _free(self, at: int) -> int:
        row, column, box = self._units[at]
        return self._all & ~(self._used[row] | self._used[column] | self._used[box])

    def _flip(self, at: int, digit: int) -> None:
        for unit in self._units[at]:
            self._used[unit] ^= 1 << digit


@cache
def _units_of(side: int) -> tuple[tuple[int, ...], ...]:
    """For each cell, which units it is in."""
    return tuple(tuple(i for i, unit in enumerate(units(side)) if at in unit) for at in range(side * side))


@cache
def small_grids() -> tuple[Cells, ...]:
    """All grids of 4x4."""
    return tuple(solutions((BLANK,) * 16, limit=1000))


def is_held_out(grid: Sequence[int]) -> bool:
    """Whether training never sees this solved grid."""
    digest = hashlib.sha256(grid_text(grid).encode()).digest()
    return int.from_bytes(digest) % HELD_OUT_OF == 0


def draw_grid(side: int, random: Random, *, held_out: bool) -> Cells:
    """A solved grid, of those that training sees or of the others. Of 4x4 each is as likely as any other."""
    while True:
        empty = (BLANK,) * side**2
        grid = random.choice(small_grids()) if side == 4 else solutions(empty, limit=1, random=random)[0]
        if is_held_out(grid) == held_out:
            return grid


def draw_puzzle(grid: Cells, blanks: int, random: Random) -> Puzzle:
    """Cells blanked in random order, up to `blanks` of them, as long as one solution is left."""
    cells = list(grid)
    for at in random.sample(range(len(cells)), len(cells)):
        if cells.count(BLANK) == blanks:
            break
        cells[at] = BLANK
        if len(solutions(cells)) > 1:
            cells[at] = grid[at]
    return Puzzle(tuple(cells), grid)


def draw_easy(grid: Cells, blanks: int, random: Random) -> Puzzle:
    """Up to `blanks` blanks, each the only one of its row or of its box, so that one look at that settles it."""
    side = isqrt(len(grid))
    near = [unit for i, unit in enumerate(units(side)) if not side <= i < 2 * side]
    cells = list(grid)
    for at in random.sample(range(len(cells)), len(cells)):
        if cells.count(BLANK) == blanks:
            break
        cells[at] = BLANK
        left = [unit for unit in near if sum(cells[i] == BLANK for i in unit) == 1]
        alone = {i for unit in left for i in unit}
        if any(digit == BLANK and i not in alone for i, digit in enumerate(cells)):
            cells[at] = grid[at]
    assert len(solutions(cells)) == 1, "a blank alone in a unit has one digit"
    return Puzzle(tuple(cells), grid)
