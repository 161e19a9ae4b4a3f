"""`fourleaf ls`, `show` and `doctor`."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fourleaf import cli
from fourleaf.checkpoint.listing import describe, find
from fourleaf.engine import bundled_path
from fourleaf.errors import CheckpointError
from fourleaf.measure import doctor


def run(*words: str):
    return CliRunner().invoke(cli.app, list(words))


@pytest.fixture
def folders(tmp_path):
    for name, text in (("good", (bundled_path() / "config.json").read_text()), ("odd", '{"model_type": "bert"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_checkpoints_are_found_once(folders):
    names = [path.name for path in find([folders, folders / "good", folders / "missing"])]
    assert names == ["broken", "good", "odd"]


def test_where_no_checkpoint_is_a_line_says_so(tmp_path):
    found = run("ls", str(tmp_path))
    assert found.exit_code == 0
    assert found.stdout == ""
    assert found.stderr == f"no checkpoint in {tmp_path}\n"


def test_a_listing_names_what_is_no_good(folders):
    done = run("ls", str(folders), "--json")
    assert done.exit_code == 0, done.output
    listed = {one["name"]: one for one in json.loads(done.output)}
    assert listed["good"]["block_diffusion"] is True
    assert "chat_template" in listed["good"]["problem"]
    assert "bert" in listed["odd"]["problem"]
    assert "no JSON" in listed["broken"]["problem"]
    lines = run("ls", str(folders)).output.splitlines()
    assert len(lines) == 3
    assert any(line.startswith("good") and "diffusion" in line for line in lines)


def test_the_bundled_model_is_listed_and_shown():
    told = describe(bundled_path())
    assert (told["name"], told["block_size"], told["fixed_tools"], told["problem"]) == ("cabin", 32, True, None)
    assert told["layers"] > told["attention_layers"] > 0
    assert json.loads(run("show", "--json").output) == told
    assert "tool_markup      json" in run("show").output
    assert "cabin" in run("ls").output


def test_showing_nothing_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match="there is no"):
        describe(tmp_path)
    words = [sys.executable, "-m", "fourleaf.cli", "show", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_the_doctor_finds_this_machine_well():
    done = run("doctor", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["extras"]["serve"] is True
    assert len(told["checks"]) == len(doctor.CHECKS)
    assert all(one["ok"] and one["difference"] <= 1e-9 for one in told["checks"])


def test_the_doctor_says_what_fails(monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", (("two is one", lambda engine: 1.0), ("one is one", lambda engine: 0.0)))
    done = run("doctor")
    assert done.exit_code == 1
    assert "FAILED     two is one" in done.output
    assert "ok         one is one" in done.output
