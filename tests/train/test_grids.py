"""Sudoku grids as training documents: what is asked, what is given, what the canvas misses."""

from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
import pytest

from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.errors import ConfigError
from fourleaf.tasks.sudoku import BLANK, draw_easy, draw_grid, grid_text, is_held_out, is_solved, messages, solutions
from fourleaf.train import recipes
from fourleaf.train.config import TrainConfig
from fourleaf.train.data import Document, collate
from fourleaf.train.grids import documents, puzzle_source
from fourleaf.train.recipes import training_source


@pytest.fixture(scope="module")
def drawn(tokenizer, chat) -> list[Document]:
    return list(islice(puzzle_source(tokenizer, chat)(5, 8), 120))


def _of(side, drawn, tokenizer):
    return [d for d in drawn if tokenizer.decode(d.ids).startswith(f"<|user|>sudoku {side}<|assistant|>")]


def test_a_small_grid_is_one_canvas_of_a_puzzle_with_one_solution(drawn, tokenizer):
    found = _of(4, drawn, tokenizer)
    assert len(found) > 40
    for document in found:
        assert document.slots is not None
        assert len(document.slots) == 19
        assert document.ids[-1] == tokenizer.end_id
        rows = document.ids[document.answer_start : -1]
        text = tokenizer.decode(rows)
        grid = tuple(int(digit) for digit in text if digit != "\n")
        assert grid_text(grid) == text
        assert is_solved(grid)
        assert not is_held_out(grid)
        hidden = "".join("." if slot else char for char, slot in zip(text, document.slots, strict=True))
        cells = tuple(BLANK if char == "." else int(char) for char in hidden if char != "\n")
        assert solutions(cells) == [grid]
    assert {int(d.slots.sum()) for d in found if d.slots is not None} >= {5, 8, 11}


def test_a_large_grid_is_three_bands_each_behind_the_finished_ones(tokenizer, chat):
    grid = draw_grid(9, Random(1), held_out=False)
    puzzle = draw_easy(grid, 12, Random(1))
    made = documents(puzzle, tokenizer, chat)
    prompt, text = chat.render(messages(9)), grid_text(grid)
    ids = [*prompt, *tokenizer.encode(text), tokenizer.end_id]
    assert [d.answer_start - len(prompt) for d in made] == [0, 30, 60]
    for band, document in enumerate(made):
        assert document.ids.tolist() == ids[: document.answer_start + 30]
        assert document.slots is not None
        assert len(document.slots) == 29
        assert tokenizer.decode(document.ids[document.answer_start : -1]) == text[30 * band : 30 * band + 29]
    assert sum(int(d.slots.sum()) for d in made if d.slots is not None) == len(puzzle.blanks)


def test_a_band_without_blanks_teaches_nothing_and_is_left_out(tokenizer, chat):
    puzzle = draw_easy(draw_grid(9, Random(2), held_out=False), 9, Random(2))
    cells = (*puzzle.solution[:27], *puzzle.cells[27:])
    assert len(documents(replace(puzzle, cells=cells), tokenizer, chat)) == 2


def test_only_blanks_are_masked_and_they_alone_have_weight(drawn, tokenizer):
    few = drawn[:12]
    batch = collate(
        few,
        objective="joint",
        end_id=tokenizer.end_id,
        mask_id=tokenizer.mask_id,
        block_size=32,
        noise=NoiseConfig(full_slots=1.0),
        fill_weight=0.1,
        prompt_weight=0.0,
        rng=np.random.default_rng(0),
    )
    assert batch.num_masked == sum(int(d.slots.sum()) for d in few if d.slots is not None) == len(batch.masked_rows)
    assert batch.masked_weight.tolist() == [1.0] * batch.num_masked
    digits = set(tokenizer.encode("123456789"))
    assert set(batch.masked_target.tolist()) <= digits


def test_the_source_is_a_function_of_its_seed(tokenizer, chat):
    def ids(seed):
        return [document.ids.tolist() for document in islice(puzzle_source(tokenizer, chat)(seed, 1), 10)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_small_grids_have_three_quarters_of_the_tokens(drawn, tokenizer):
    small = sum(len(d.ids) for d in _of(4, drawn, tokenizer))
    assert small / sum(len(d.ids) for d in drawn) == pytest.approx(0.75, abs=0.05)


def test_training_mixes_three_tasks_by_their_shares(tokenizer, chat):
    source = training_source(tokenizer, chat, judgements=0.25, puzzles=0.25)
    tokens = {"grids": 0, "sheets": 0, "cabin": 0}
    for document in islice(source(3, 2), 150):
        text = tokenizer.decode(document.ids[: document.answer_start])
        kind = "grids" if "sudoku" in text else "sheets" if "Answer like" in text else "cabin"
        tokens[kind] += len(document.ids)
    assert tokens["grids"] / sum(tokens.values()) == pytest.approx(0.25, abs=0.05)
    assert tokens["sheets"] / sum(tokens.values()) == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("shares", [{"puzzles": -0.1}, {"puzzles": 1.0}, {"puzzles": 0.5, "judgements": 0.5}])
def test_shares_that_leave_nothing_are_refused(shares):
    with pytest.raises(ConfigError, match="puzzles"):
        TrainConfig(stages=recipes.CABIN_STAGES, steps=1, **shares)


def test_a_tokenizer_that_joins_digits_is_refused(tokenizer, chat, monkeypatch):
    monkeypatch.setattr(type(tokenizer), "encode", lambda self, text: [1])
    with pytest.raises(ConfigError, match="digit"):
        puzzle_source(tokenizer, chat)
