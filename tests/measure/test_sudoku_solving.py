"""Puzzles on a canvas: what a model sees of them, what passes reveal, and what is counted."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from fourleaf.decide.canvas import Reader, Reading
from fourleaf.engine.engine import Engine
from fourleaf.errors import ConfigError
from fourleaf.measure.sudoku import ARMS, Attempt, Score, Solver, evaluate, lines, main_sudoku, puzzles
from fourleaf.model.state import State
from fourleaf.model.work import Segments, Work
from fourleaf.tasks.sudoku import BLANK, grid_text, is_held_out, messages, solutions, text_offset


@pytest.fixture(scope="module")
def engine(tiny) -> Engine:
    return Engine.load(tiny)


@pytest.fixture(scope="module")
def solver(engine) -> Solver:
    return Solver(engine)


@pytest.mark.parametrize(("name", "most"), [("4x4", 12), ("9x9", 9)])
def test_puzzles_are_held_out_and_have_one_solution(name, most):
    made = puzzles(name, 3, 6)
    assert made == puzzles(name, 3, 6)
    assert made != puzzles(name, 4, 6)
    for puzzle in made:
        assert solutions(puzzle.cells) == [puzzle.solution]
        assert is_held_out(puzzle.solution)
        assert 1 <= len(puzzle.blanks) <= most


@pytest.mark.parametrize("name", ["4x4", "9x9"])
def test_givens_stay_and_every_arm_fills_every_blank(solver, name):
    puzzle = puzzles(name, 0, 2)[1]
    for threshold in ARMS.values():
        attempt = solver.solve(puzzle, threshold)
        assert BLANK not in attempt.cells
        assert all(given in (BLANK, cell) for given, cell in zip(puzzle.cells, attempt.cells, strict=True))
        assert set(attempt.cells) <= set(range(1, puzzle.side + 1))
        assert attempt.passes <= len(puzzle.blanks)
    assert solver.solve(puzzle, 1.0).passes == len(puzzle.blanks)
    assert solver.solve(puzzle, 0.0).passes == (1 if name == "4x4" else sum(any(b) for b in _bands(puzzle)))


def _bands(puzzle):
    return [[cell == BLANK for cell in puzzle.cells[first : first + 27]] for first in (0, 27, 54)]


def test_the_first_pass_reads_the_givens_and_nothing_of_the_solution(engine, solver):
    """Against a forward written out here."""
    puzzle = puzzles("4x4", 1, 1)[0]
    prompt = engine.chat.render(messages(4))
    text = grid_text(puzzle.cells)
    hidden = [engine.mask_id if char == "." else engine.tokenizer.encode(char)[0] for char in text]
    state = State.empty(engine.model.config, 1, torch.float32, torch.device("cpu"))
    work = Work(
        torch.tensor(prompt + hidden), Segments([len(prompt)]), [0], Segments([len(hidden)]), [0], [len(prompt)]
    )
    with torch.inference_mode():
        logits = engine.model.head(engine.model(work, state)[0][len(prompt) :])
    digits = engine.tokenizer.encode("1234")
    at_once = solver.solve(puzzle, 0.0)
    for at in puzzle.blanks:
        best = int(logits[text_offset(at, 4)][digits].argmax()) + 1
        assert at_once.cells[at] == best


def test_left_to_right_reads_what_stands_before_a_blank(engine, solver):
    """Against a whole forward for each blank."""
    puzzle = puzzles("4x4", 2, 1)[0]
    cells, digits = list(puzzle.cells), engine.tokenizer.encode("1234")
    for at in puzzle.blanks:
        before = engine.tokenizer.encode(grid_text(cells)[: text_offset(at, 4)])
        ids = engine.chat.render(messages(4)) + before
        with torch.inference_mode():
            logits = engine.model.head(engine.model(Work(torch.tensor(ids), Segments([len(ids)]), [0]))[0][-1:])[0]
        cells[at] = int(logits[digits].argmax()) + 1
    assert solver.solve(puzzle, None).cells == tuple(cells)


class Oracle(Reader):
    """Knows the solution; surer of what stands later, so that it goes from right to left."""

    cells: tuple[int, ...] = ()

    def read(self, state, causal, sheet, known, wanted):
        found = super().read(state, causal, sheet, known, wanted)
        text = grid_text(self.cells)
        begin = [i for i in range(len(text)) if self._fits(text[i : i + len(sheet.canvas)], sheet)]
        assert begin, "what is shown must be the givens"
        made = []
        for slot in wanted:
            row = sheet.slots[slot].rows[0]
            p = np.full(len(found[0].log_p), 1e-3)
            p[int(text[begin[0] + row]) - 1] = 10 + row
            made.append(Reading(np.log(p / p.sum()), 1.0))
        return made

    def _fits(self, text, sheet):
        shown = zip(text, sheet.canvas, sheet.masked, strict=True) if len(text) == len(sheet.canvas) else ()
        symbols = {**dict(zip(self.letters.texts, self.letters.ids, strict=True))}
        return bool(text) and all(hidden or symbols.get(char, token) == token for char, token, hidden in shown)


@pytest.mark.parametrize("name", ["4x4", "9x9"])
def test_who_knows_the_solution_solves_every_puzzle(solver, monkeypatch, name):
    for puzzle in puzzles(name, 5, 2):
        monkeypatch.setattr(Oracle, "cells", puzzle.solution)
        monkeypatch.setattr("fourleaf.measure.sudoku.Reader", Oracle)
        attempt = solver.solve(puzzle, 1.0)
        assert attempt.cells == puzzle.solution
        assert attempt.is_right
        assert attempt.num_hits == attempt.passes == len(puzzle.blanks)


def test_scores_count_whole_puzzles_and_cells():
    first, second = puzzles("4x4", 6, 2)
    off = list(second.solution)
    at = second.blanks[0]
    off[at] = off[at] % 4 + 1
    score = Score.of([Attempt(first, first.solution, 2, 2, 0.1), Attempt(second, tuple(off), 4, 4, 0.3)], 0)
    total = len(first.blanks) + len(second.blanks)
    assert score.solved.value == 0.5
    assert score.cells.value == pytest.approx((total - 1) / total)
    assert (score.passes, score.p50) == (3, pytest.approx(0.2))


def test_parts_by_blanks_add_up_and_every_arm_is_in_them(solver):
    found = evaluate(solver, ["4x4"], draw=0, count=6)
    assert sum(scores["one cell a pass"].solved.n for part, scores in found.items() if part != "4x4") == 6
    assert all(set(scores) == set(ARMS) for scores in found.values())
    assert all(a != b for a, b in pairwise(lines(found)))


def test_the_command_writes_a_table_and_json(tiny, tmp_path, quiet):
    json_file = tmp_path / "found.json"
    options = {"model": tiny, "draw": 1, "count": 2, "seed": 0, "num_threads": None, "json_file": json_file}
    main_sudoku("all", **options, out=quiet.out, progress=quiet.progress)
    assert "4x4 (n 2)" in quiet.out.getvalue()
    assert "9x9 (n 1)" in quiet.out.getvalue()
    assert json.loads(json_file.read_text(encoding="utf-8"))["parts"]["4x4"].keys() == ARMS.keys()


def test_an_unknown_set_is_refused_before_anything_is_loaded(tmp_path, quiet):
    options = {"draw": None, "count": None, "seed": 0, "num_threads": None, "json_file": None}
    with pytest.raises(ConfigError, match="4x4"):
        main_sudoku("coupled", model=tmp_path / "nowhere", **options, out=quiet.out, progress=quiet.progress)
