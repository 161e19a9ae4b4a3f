"""The page of the judgements: every table filled from what the commands write, and nothing mixed."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import script

from fourleaf.decide.decider import Decider
from fourleaf.engine.engine import Engine
from fourleaf.measure.judgements import evaluate
from fourleaf.measure.sudoku import Solver
from fourleaf.measure.sudoku import evaluate as solve

ROOT = Path(__file__).parents[2]
ABOUT = {"model": "cabin", "weights_sha256": "ab" * 32, "parameters": 2137188, "processor": "One", "torch": "2"}
JUDGED = ABOUT | {"draw": 3, "limit": 2, "calibration": {"answers": 96, "source": "somewhere"}}
WAYS = {
    "one alone": 0.010,
    "eight jointly, 1 pass": 0.011,
    "eight jointly, default": 0.012,
    "eight jointly, 8 passes": 0.018,
    "eight one by one": 0.030,
}


@pytest.fixture(scope="module")
def files(tiny, tmp_path_factory) -> dict[str, Path]:
    """As `--json` writes them, of a model that knows nothing."""
    engine = Engine.load(tiny)
    decider = Decider(engine)
    made = {
        "a": JUDGED
        | {"parts": {r.name: r.document() for r in evaluate(decider, ["coupled", "copy"], draw=3, limit=2)}},
        "b": JUDGED | {"parts": {r.name: r.document() for r in evaluate(decider, ["control"], draw=3, limit=2)}},
        "c": ABOUT | {"ways": {name: {"p50": seconds, "p95": 2 * seconds} for name, seconds in WAYS.items()}},
        "d": ABOUT
        | {
            "parts": {
                part: {arm: asdict(score) for arm, score in scores.items()}
                for part, scores in solve(Solver(engine), ["4x4"], draw=0, count=2).items()
            }
        },
    }
    folder = tmp_path_factory.mktemp("found")
    for name, document in made.items():
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return {name: folder / f"{name}.json" for name in made}


@pytest.fixture
def page(tmp_path) -> Path:
    made = tmp_path / "benchmark.md"
    made.write_text((ROOT / "docs" / "decisions-benchmark.md").read_text(encoding="utf-8"), encoding="utf-8")
    return made


@pytest.fixture
def fill(monkeypatch, page) -> Callable[..., None]:
    """Runs the script on the page."""

    def run(*words: object) -> None:
        monkeypatch.setattr("sys.argv", ["judgements_page.py", *map(str, words), "--page", str(page)])
        script.load("judgements_page").main()

    return run


def between(text: str, name: str) -> str:
    return text.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]


def test_every_table_is_filled_and_filling_again_changes_nothing(files, page, fill):
    before = page.read_text(encoding="utf-8")
    words = (files["a"], files["b"], "--latency", files["c"], "--sudoku", files["d"])
    fill(*words)
    text = page.read_text(encoding="utf-8")
    assert "Not measured" not in text
    assert "calibrated on 96 answers of somewhere" in between(text, "machine")
    assert "groups: 2 coupled, 2 copy, 2 control" in between(text, "machine")
    assert "| oracle | 100.0% (100.0-100.0) |" in between(text, "arms")
    for line in (
        "| p50 of eight jointly, default, of one alone | 2 | 1.20 | met |",
        "| p50 of eight jointly, 8 passes, of one alone | 2 | 1.80 | met |",
        "| p50 of eight jointly, 8 passes, of eight one by one | 0.5 | 0.60 | missed |",
    ):
        assert line in between(text, "goals")
    assert "| eight jointly, 8 passes | 18 | 36 | 1.80 | 0.60 |" in between(text, "latency")
    assert "| 4x4 | 2 | one cell a pass |" in between(text, "sudoku")
    heads = [line for line in before.splitlines() if line.startswith("#")]
    assert [line for line in text.splitlines() if line.startswith("#")] == heads
    for picture in ("judgements.svg", "judgements-reliability.svg"):
        assert (page.parent / "runs" / picture).read_text(encoding="utf-8").startswith("<svg")
    fill(*words)
    assert page.read_text(encoding="utf-8") == text
    (page.parent / "runs" / "calibration.svg").write_text("<svg", encoding="utf-8")
    fill(*words)
    assert "(runs/calibration.svg)" in between(page.read_text(encoding="utf-8"), "reliability")


def test_what_was_not_measured_stays(files, page, fill):
    before = page.read_text(encoding="utf-8")
    fill(files["b"])
    text = page.read_text(encoding="utf-8")
    for name in ("arms", "kinds", "orders", "reliability", "latency", "sudoku"):
        assert between(text, name) == between(before, name)
    assert "| control | alone |" in between(text, "parts")


@pytest.mark.parametrize(
    ("which", "field", "words"),
    [("b", "draw", ()), ("b", "weights_sha256", ()), ("c", "weights_sha256", ("--latency",))],
)
def test_figures_of_other_weights_or_groups_are_not_mixed(files, page, fill, tmp_path, which, field, words):
    document = json.loads(files[which].read_text(encoding="utf-8"))
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document | {field: "other"}), encoding="utf-8")
    before = page.read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match="other"):
        fill(files["a"], *words, other)
    assert page.read_text(encoding="utf-8") == before
