import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fourleaf.measure.bootstrap import Interval
from fourleaf.measure.equality import Difference, Equality
from fourleaf.measure.goodput import Goodput, Load
from fourleaf.measure.profile import Profile
from fourleaf.measure.speed import Benchmark, Speed, SpeedUp
from fourleaf.measure.timing import Cost

ROOT = Path(__file__).parents[2]


def interval(value: float) -> Interval:
    return Interval(value, value - 0.1, value + 0.1, 5)


@pytest.fixture
def document():
    """What `fourleaf bench --json` writes, as its own classes give it."""
    ar = Speed(100, 1.0, interval(100), interval(120), 5.0, 5.0, interval(0.8), None, 5, 1.0, 1.0, 2.0, 1.0)
    arms = {"ar": ar, "diffuse": replace(ar, tpf=5.0, break_even_tpf=2.5, same_as_ar=3)}
    ups = {
        "diffuse against ar": SpeedUp(interval(2.9), interval(3.4)),
        "ar against transformers": SpeedUp(interval(3.1), interval(3.3)),
        "diffuse against transformers": SpeedUp(interval(11.0), interval(12.0)),
    }
    speeds = Benchmark(arms, ups, {"ar step": Cost(2.0, 1.9, 1.5, 90, 1.0)}, {3: 4}, {})
    few = {"ar": Load(2.0, 200, 200, [0.1], 100, 100, 1.8), "diffuse": Load(2.0, 500, 500, [0.1], 100, 3200, 1.9)}
    many = {"ar": Load(2.0, 900, 900, [0.2], 90, 1400, 1.8), "diffuse": Load(2.0, 900, 800, [0.2, 2.5], 80, 9000, 1.6)}
    loads = Goodput(True, {1: few, 16: many})
    equal = Equality("draft", 10, 8, 4000, [Difference(1, 2, 1e-5, 3, 4), Difference(2, 2, 0.5, 3, 4)])
    one = {"prompts": 5, "speed": speeds.document(), "goodput": loads.document(), "equality": [equal.document()]}
    about = {"model": "cabin", "weights_sha256": "ab" * 32, "parameters": 2137188, "dtype": "float32", "threads": 1}
    about |= {"processor": "One", "torch": "2", "load": [0.25, 0.5, 0.5], "threshold": 0.95}
    part = Profile("ar step", 1.9, 2.5, [("aten::mm", 1.0, 20), ("aten::add", 0.5, 40)])
    return {**about, "sets": {"patterns": one}, "profile": [part.document()]}


def fill(document, page: Path, tmp_path: Path) -> subprocess.CompletedProcess:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    words = [sys.executable, ROOT / "scripts" / "performance.py", file, "--page", page]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


@pytest.fixture
def page(tmp_path) -> Path:
    made = tmp_path / "performance.md"
    made.write_text((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"), encoding="utf-8")
    return made


def test_every_table_of_the_page_is_filled(document, page, tmp_path):
    before = page.read_text(encoding="utf-8")
    done = fill(document, page, tmp_path)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "Not measured" not in text
    for line in (
        "| ar step | 2.00 | 1.90 | 1.00 | 75% | 1 | 90 |",
        "| ar step | 1.90 | 60 | 40% | 20% | 40% | mm 67%, add 33% |",
        "| patterns | 16 | diffuse | 400 | 0.89 | 1.60 | 1350 | 2385 | 112.5 | 80% |",
        "| patterns | draft | 8 of 10 | 1 | 1 | 4,000 |",
        "| diffuse against ar | patterns | 3 | 2.90 | missed |",
        "| ar against transformers | patterns | 3 | 3.10 | met |",
        "| ar, 16 at once against 1 | patterns | 4 | 4.50 | met |",
        "| diffuse, 16 at once, share of the model | patterns | 0.85 | 0.80 | missed |",
    ):
        assert line in text, line
    heads = [line for line in before.splitlines() if line.startswith("#")]
    assert [line for line in text.splitlines() if line.startswith("#")] == heads
    assert fill(document, page, tmp_path).returncode == 0
    assert page.read_text(encoding="utf-8") == text, "filling again changes nothing"


def test_what_was_not_measured_stays(document, page, tmp_path):
    del document["profile"], document["sets"]["patterns"]["equality"]
    before = page.read_text(encoding="utf-8")
    assert fill(document, page, tmp_path).returncode == 0
    text = page.read_text(encoding="utf-8")
    for name in ("profiles", "losses"):
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        assert text.partition(begin)[2].partition(end)[0] == before.partition(begin)[2].partition(end)[0]


def test_a_page_without_a_marker_is_left_alone(document, tmp_path):
    page = tmp_path / "other.md"
    page.write_text("nothing to fill", encoding="utf-8")
    done = fill(document, page, tmp_path)
    assert done.returncode != 0
    assert "<!-- machine -->" in done.stderr
    assert page.read_text(encoding="utf-8") == "nothing to fill"
