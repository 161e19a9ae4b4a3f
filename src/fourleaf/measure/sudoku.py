"""How well a model solves Sudoku on a canvas: givens pinned, blanks denoised.

A blank is a slot of a sheet whose options are the digits, so that a grid is read as decisions are. 4x4 puzzles are of
grids that training never sees. 9x9 is three canvases, band by band, and easy: each blank is alone in its row or box.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, TextIO

import numpy as np

from fourleaf.checkpoint.files import write_json
from fourleaf.decide.canvas import Reader, Reading, denoise
from fourleaf.decide.labels import Letters
from fourleaf.decide.questions import CHOICE, Option, Question
from fourleaf.decide.sheet import Sheet, Slot
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.measure import bootstrap
from fourleaf.measure.bootstrap import Interval
from fourleaf.measure.circumstances import Ticker, circumstances
from fourleaf.measure.evaluate import check_writable
from fourleaf.measure.tables import percent, table
from fourleaf.tasks.sudoku import (
    BANDS,
    BLANK,
    Cells,
    Puzzle,
    band_length,
    draw_easy,
    draw_grid,
    draw_puzzle,
    grid_text,
    messages,
    solves,
    text_offset,
)

SETS = {"4x4": 4, "9x9": 9}
ALL = "all"
DEFAULT_COUNT = 200
_LARGE_SHARE = 4  # of 9x9 a quarter as many
_SMALL_BLANKS, _LARGE_BLANKS = (4, 12), 9
_BUCKETS = ((4, 6), (7, 9), (10, 12))
_DIGITS = "123456789"

# Arm -> what a pass reveals: every cell surer than this, and always the surest. Of ar there is one order.
AR = "ar, left to right"
ARMS: dict[str, float | None] = {"one cell a pass": 1.0, "surer than 0.95": 0.95, AR: None}

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Attempt:
    """A puzzle as one arm filled it. passes: of all its canvases; of ar, its steps."""

    puzzle: Puzzle
    cells: Cells
    passes: int
    forwards: int
    seconds: float

    @property
    def is_right(self) -> bool:
        return solves(self.cells, self.puzzle)

    @property
    def num_hits(self) -> int:
        """Blanks filled as in the solution."""
        return sum(self.cells[at] == self.puzzle.solution[at] for at in self.puzzle.blanks)


class Solver:
    """Fills puzzles with an engine's model. Raises CheckpointError where its tokenizer joins digits."""

    def __init__(self, engine: Engine) -> None:
        tokenizer = engine.tokenizer
        digits, line = tokenizer.encode(_DIGITS), tokenizer.encode("1\n2")
        if len(digits) != len(_DIGITS) or len(line) != 3:
            raise CheckpointError(f"{engine.name} has no token of its own for each digit, which grids need")
        self._digits, self._line = digits, line[1]
        self._engine = engine
        self._prompts = {side: engine.chat.render(messages(side)) for side in BANDS}
        self._letters = Letters(tuple(_DIGITS), tuple(digits))

    def solve(self, puzzle: Puzzle, threshold: float | None) -> Attempt:
        """threshold: of the passes; None is left to right by next-token logits."""
        reader = Reader(self._engine.model, self._letters, self._engine.mask_id)
        begin = time.perf_counter()
        if threshold is None:
            cells, passes = self._step(reader, puzzle), len(puzzle.blanks)
        else:
            cells, passes = self._denoise(reader, puzzle, threshold), reader.cost.passes
        return Attempt(puzzle, cells, passes, reader.cost.forwards, time.perf_counter() - begin)

    def _denoise(self, reader: Reader, puzzle: Puzzle, threshold: float) -> Cells:
        """Band by band; a finished band is committed with the first pass on the next."""
        cells = list(puzzle.cells)
        state, waiting = reader.prefill(()), list(self._prompts[puzzle.side])
        size = len(cells) // BANDS[puzzle.side]
        for first in range(0, len(cells), size):
            blanks = [at for at in range(first, first + size) if cells[at] == BLANK]
            begin = text_offset(first, puzzle.side)
            rows = [text_offset(at, puzzle.side) - begin for at in blanks]
            canvas = self._ids(cells)[begin : begin + band_length(puzzle.side)]
            sheet = Sheet((), tuple(canvas), tuple(_slot(row, puzzle.side) for row in rows))

            def read(known: Mapping[int, int], wanted: Sequence[int], sheet: Sheet = sheet) -> list[Reading]:
                found = reader.read(state, waiting, sheet, known, wanted)
                waiting.clear()
                return found

            path = denoise(read, len(blanks), max(1, len(blanks)), threshold)
            for slot, option in path.known.items():
                cells[blanks[slot]] = option + 1
            waiting.extend([*self._ids(cells)[begin : begin + len(canvas)], self._line])
        return tuple(cells)

    def _step(self, reader: Reader, puzzle: Puzzle) -> Cells:
        """One blank a forward, which sees what stands before it alone; givens are walked over."""
        cells = list(puzzle.cells)
        state, waiting, behind = reader.prefill(()), list(self._prompts[puzzle.side]), 0
        for at in puzzle.blanks:
            offset = text_offset(at, puzzle.side)
            sheet = Sheet((), tuple(self._ids(cells)[behind:offset]), (_slot(offset - behind, puzzle.side),))
            reading = reader.read_causal(state, waiting, sheet)
            cells[at] = int(np.argmax(reading.log_p)) + 1
            waiting, behind = [self._digits[cells[at] - 1]], offset + 1
        return tuple(cells)

    def _ids(self, cells: Sequence[int]) -> list[int]:
        """The grid's tokens, with anything where a blank is."""
        return [self._line if char in "\n." else self._digits[int(char) - 1] for char in grid_text(cells)]


def _slot(row: int, side: int) -> Slot:
    options = tuple(Option(digit, digit) for digit in _DIGITS[:side])
    return Slot(Question("", CHOICE, "", options), tuple(range(side)), (row,), tuple((i,) for i in range(side)))


@dataclass(frozen=True)
class Score:
    """An arm on some puzzles. solved: wholly. cells: blanks filled right, puzzles resampled. passes, forwards: means.
    p50: seconds of a puzzle."""

    solved: Interval
    cells: Interval
    passes: float
    forwards: float
    p50: float

    @classmethod
    def of(cls, attempts: Sequence[Attempt], seed: int) -> Score:
        hits, blanks = ([a.num_hits for a in attempts], [len(a.puzzle.blanks) for a in attempts])
        return cls(
            bootstrap.mean([float(a.is_right) for a in attempts], seed),
            bootstrap.ratio(hits, blanks, seed),
            float(np.mean([a.passes for a in attempts])),
            float(np.mean([a.forwards for a in attempts])),
            float(np.median([a.seconds for a in attempts])),
        )


def puzzles(name: str, draw: int, count: int) -> list[Puzzle]:
    """The first of a seed's held-out puzzles. 4x4 have 4 to 12 blanks, as many as one solution allows; 9x9 have 9."""
    random, side = Random(f"sudoku test {name} {draw}"), SETS[name]
    made = []
    for _ in range(count):
        grid = draw_grid(side, random, held_out=True)
        if side == 4:
            made.append(draw_puzzle(grid, random.randint(*_SMALL_BLANKS), random))
        else:
            made.append(draw_easy(grid, _LARGE_BLANKS, random))
    return made


def evaluate(
    solver: Solver, names: Sequence[str], *, draw: int, count: int, seed: int = 0, progress: Progress | None = None
) -> dict[str, dict[str, Score]]:
    """Arm by arm, for each set and, of 4x4, for each bucket of blanks. draw: the puzzles' seed."""
    found: dict[str, dict[str, Score]] = {}
    for name in names:
        asked = puzzles(name, draw, count if SETS[name] == 4 else max(1, count // _LARGE_SHARE))
        for arm, threshold in ARMS.items():
            attempts = []
            for done, puzzle in enumerate(asked, 1):
                attempts.append(solver.solve(puzzle, threshold))
                if progress is not None:
                    progress(done, len(asked), f"{name}, {arm}")
            for part, chosen in _parts(name, attempts).items():
                found.setdefault(part, {})[arm] = Score.of(chosen, seed)
    return found


def _parts(name: str, attempts: Sequence[Attempt]) -> dict[str, list[Attempt]]:
    """All, and those with few, more and most blanks; parts without puzzles are left out."""
    parts = {name: list(attempts)}
    for low, high in _BUCKETS if SETS[name] == 4 else ():
        parts[f"{name}, {low}-{high} blanks"] = [a for a in attempts if low <= len(a.puzzle.blanks) <= high]
    return {part: chosen for part, chosen in parts.items() if chosen}


def lines(found: Mapping[str, Mapping[str, Score]]) -> list[str]:
    """A table for each part."""
    shown = []
    for part, scores in found.items():
        rows = [[f"{part} (n {next(iter(scores.values())).solved.n})", "solved", "cells", "passes", "forwards", "ms"]]
        for arm, score in scores.items():
            cost = f"{score.passes:.1f}", f"{score.forwards:.1f}", f"{1000 * score.p50:.0f}"
            rows.append([arm, percent(score.solved), f"{100 * score.cells.value:.1f}%", *cost])
        shown += [*table(rows), ""]
    return shown


def main_sudoku(
    name: str,
    *,
    model: Path | None,
    draw: int | None,
    count: int | None,
    seed: int,
    num_threads: int | None,
    json_file: Path | None,
    out: TextIO,
    progress: TextIO,
) -> None:
    """`fourleaf eval sudoku`. Raises ConfigError for an unknown set, before it loads, and for an AR model."""
    if name not in (*SETS, ALL):
        raise ConfigError(f"there is no set {name!r}; choose {', '.join(SETS)} or {ALL}")
    check_writable(json_file)
    path = model or bundled_path()
    engine = Engine.load(path, num_threads=num_threads)
    if not engine.model.config.is_block_diffusion:
        raise ConfigError(f"{path} is an AR model: without a canvas it sees no given behind a blank")
    about: dict[str, Any] = circumstances(engine, path)
    settings = {"draw": draw or 0, "count": count or DEFAULT_COUNT, "seed": seed}
    ticker = Ticker(progress)
    try:
        found = evaluate(Solver(engine), [name] if name in SETS else list(SETS), **settings, progress=ticker)
    finally:
        ticker.close()
    print("\n".join(lines(found)), file=out)
    print(f"95% bootstrap intervals over puzzles ({bootstrap.RESAMPLES:,} resamples, seed {seed})", file=out)
    if json_file is not None:
        document = {part: {arm: asdict(score) for arm, score in scores.items()} for part, scores in found.items()}
        write_json(json_file, {**about, "task": "sudoku", **settings, "parts": document})
