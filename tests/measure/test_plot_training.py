import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "plot_training.py"

pytest.importorskip("matplotlib")


def plot(*words: Path | str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=120)


def test_a_log_becomes_a_picture(log, tmp_path):
    for name, start in (("found.svg", b"<?xml"), ("found.png", b"\x89PNG")):
        done = plot(log, tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert "3 evaluations, 0.0 million tokens" in done.stdout
        assert (tmp_path / name).read_bytes().startswith(start)


def test_logs_follow_each_other(log, tmp_path):
    second = tmp_path / "second.jsonl"
    second.write_text(json.dumps({"evaluation": "joint", "step": 5, "tokens": 2_000_000, "ar": 0.9}) + "\n")
    done = plot(log, second, tmp_path / "found.png")
    assert "4 evaluations, 2.0 million tokens" in done.stdout


@pytest.mark.parametrize("case", ["nothing evaluated", "no log", "no picture"])
def test_a_mistake_is_said(case, log, tmp_path):
    out = tmp_path / ("found.txt" if case == "no picture" else "found.png")
    source = tmp_path / "missing.jsonl" if case == "no log" else log
    if case == "nothing evaluated":
        log.write_text('{"stage": 0, "step": 20, "tokens": 1000}\n', encoding="utf-8")
    done = plot(source, out)
    assert done.returncode == 2
    assert not out.exists()
    assert str(out if case == "no picture" else source) in done.stderr
