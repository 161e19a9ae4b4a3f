"""Sudoku grids as training documents: solved grids of which the canvas holds the givens and misses the rest.

The prompt is `sudoku 4` or `sudoku 9`, the answer is the solved grid, a token for each cell. A puzzle's blanks are the
canvas's slots: all masked, or some revealed, as on the way to the solution; givens are pinned. A grid of 4x4 is one
canvas. One of 9x9 is three, a band of three rows each, behind the finished earlier ones: what 32 positions can see.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np

from fourleaf.errors import ConfigError
from fourleaf.tasks.sudoku import (
    BANDS,
    Puzzle,
    band_length,
    draw_easy,
    draw_grid,
    draw_puzzle,
    grid_text,
    messages,
    text_offset,
)
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer
from fourleaf.train.data import Document, Source, mixed

_SMALL_SHARE = 0.75  # of the tokens
_SMALL_BLANKS = (4, 12)
_LARGE_BLANKS = 12


def puzzle_source(tokenizer: Tokenizer, chat: ChatTemplate) -> Source:
    """The training stream of grids as documents. Raises ConfigError where a cell is not one token."""
    _check(tokenizer)

    def source_of(side: int) -> Source:
        def source(seed: int, max_calls: int) -> Iterator[Document]:
            random = Random(f"sudoku {side} {seed}")
            while True:
                grid = draw_grid(side, random, held_out=False)
                if side == 4:
                    puzzle = draw_puzzle(grid, random.randint(*_SMALL_BLANKS), random)
                else:
                    puzzle = draw_easy(grid, _LARGE_BLANKS, random)
                yield from documents(puzzle, tokenizer, chat)

        return source

    return mixed([(source_of(4), _SMALL_SHARE), (source_of(9), 1 - _SMALL_SHARE)])


def documents(puzzle: Puzzle, tokenizer: Tokenizer, chat: ChatTemplate) -> list[Document]:
    """One for each canvas with blanks. A band's last token, a line break or the end token, is only ever a target."""
    side, length = puzzle.side, band_length(puzzle.side)
    ids = [*chat.render(messages(side)), *tokenizer.encode(grid_text(puzzle.solution)), tokenizer.end_id]
    first = len(ids) - 1 - len(grid_text(puzzle.solution))
    is_blank = np.zeros(len(ids), dtype=bool)
    is_blank[[first + text_offset(at, side) for at in puzzle.blanks]] = True
    made = []
    for band in range(BANDS[side]):
        start = first + band * (length + 1)
        slots = is_blank[start : start + length]
        if slots.any():
            made.append(Document(np.array(ids[: start + length + 1], dtype=np.int64), start, slots))
    return made


def _check(tokenizer: Tokenizer) -> None:
    for text in ("123456789", "1\n2"):
        if len(tokenizer.encode(text)) != len(text):
            raise ConfigError("puzzles need a tokenizer with a token of its own for each digit and for a line break")
