"""`fourleaf calibrate`: labelled data in, temperatures in the checkpoint's folder out."""

import json

import numpy as np
import pytest

from fourleaf.decide.calibration import FILE, Temperatures
from fourleaf.engine.engine import Engine
from fourleaf.errors import ConfigError
from fourleaf.measure.temperatures import PASSES, from_file, from_judgements, main_calibrate, records, told, worth_it
from fourleaf.tasks.judgements import testsets

LINE = {
    "state": "dark",
    "questions": {
        "n": {"type": "noul", "instructions": "?"},
        "c": {"type": "choice", "criteria": {"a": None, "b": None}},
        "s": {"type": "score", "criteria": ["x", "y", "z"]},
    },
    "answers": {"n": True, "c": "b", "s": 2},
}


def test_labelled_requests_are_read_from_json_lines(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(LINE) + "\n\n" + json.dumps(LINE) + "\n", encoding="utf-8")
    found = from_file(path)
    assert [one.right for one in found] == [(1, 1, 2)] * 2


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        json.dumps(LINE | {"answers": {"n": True}}),
        json.dumps(LINE | {"answers": LINE["answers"] | {"n": "yes"}}),
        json.dumps(LINE | {"answers": LINE["answers"] | {"c": "x"}}),
        json.dumps(LINE | {"answers": LINE["answers"] | {"s": 3}}),
        json.dumps(LINE | {"questions": {}}),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line):
    path = tmp_path / "data.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2"):
        from_file(path)


def test_an_empty_or_missing_file_is_refused(tmp_path):
    (tmp_path / "empty").write_text("", encoding="utf-8")
    for name in ("empty", "missing"):
        with pytest.raises(ConfigError):
            from_file(tmp_path / name)


def test_groups_to_fit_on_are_of_no_other_set():
    fitted = {one.request.state for one in from_judgements(500)}
    assert not fitted & {group.state for group in testsets.build("coupled")}


def test_a_fit_lowers_the_error_and_is_used_from_then_on(checkpoint, tmp_path, quiet):
    folder, picture = checkpoint(), tmp_path / "reliability.svg"
    main_calibrate(
        folder, data=None, groups=40, picture=picture, num_threads=None, out=quiet.out, progress=quiet.progress
    )
    made = Temperatures.load(folder)
    assert {mode for mode, *_ in made.values} == {"independent", "joint", "revealed"}
    assert made.about["requests"] == 40
    assert str(folder / FILE) in quiet.out.getvalue()
    assert made.passes in PASSES
    assert f"passes by default: {made.passes}" in quiet.out.getvalue()
    assert "calibrated" in picture.read_text(encoding="utf-8")
    engine, labelled = Engine.load(folder), from_judgements(20)
    before, after = (told(records(engine, t, labelled, ["independent"])) for t in (Temperatures(), made))
    assert after["independent"].ece < before["independent"].ece


def test_passes_that_answer_no_more_are_not_taken():
    rng = np.random.default_rng(0)
    few = rng.integers(0, 4, 200)
    assert worth_it({2: few, 4: few, 8: few}) == 2
    assert worth_it({2: few, 4: few + (rng.random(200) < 0.3), 8: few + (rng.random(200) < 0.3)}) == 4
    assert worth_it({2: few, 4: few, 8: few + 1}) == 8
    assert worth_it({2: few, 4: few - 1, 8: few - 1}) == 2
    assert worth_it({2: few[:1], 4: few[:1], 8: few[:1]}) is None
