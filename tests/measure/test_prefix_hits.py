"""What is measured of shared prefixes, on a small model: rows and tokens are exact, times belong together."""

import shutil
import sys

import pytest
from script import load

from fourleaf.engine.engine import Engine
from fourleaf.errors import ConfigError
from fourleaf.measure import hits

PREFIX = 700


@pytest.fixture(scope="module")
def served(tiny) -> dict[tuple[str, str], hits.Served]:
    engine = Engine.load(tiny)
    return {(one.mode, one.role): one for one in hits.run(engine, PREFIX, 1)}


def test_the_third_request_prefills_its_suffix_and_a_page_at_most(served):
    for mode in hits.MODES:
        first, fork, hit = (served[mode, role] for role in hits.ROLES)
        assert first.rows == [PREFIX + first.suffix[0]]
        assert fork.rows == [PREFIX + fork.suffix[0] - 512]  # from the grid's snapshot
        assert 0 <= hit.rows_beyond_suffix <= 32


def test_answers_are_those_of_an_empty_cache(served):
    assert all(one.same == one.count == 1 for one in served.values())


def test_times_belong_together(served):
    for one in served.values():
        assert 0 < one.prefill[0] <= one.first[0]
        assert one.share == one.prefill[0] / one.cold_prefill[0]
    assert served["ar", "hit"].share < 1
    block = served["diffuse", "hit"]
    assert block.first[0] > block.prefill[0], "random weights need more than a pass"
    assert block.first_over_passes == (block.first[0] - block.prefill[0]) / block.passes[0]


def test_a_prefix_beyond_the_context_is_refused(tiny):
    with pytest.raises(ConfigError, match="a prefix has 1 to"):
        hits.run(Engine.load(tiny), 5000, 1)


def test_the_script_fills_the_page(tiny, tmp_path, monkeypatch, capsys, one_thread):
    script = load("prefix_hits")
    page = shutil.copy(script.PAGE, tmp_path / "page.md")
    words = ["--model", str(tiny), "--prefix", "100", "--n", "1", "--page", str(page), "--json", str(tmp_path / "f")]
    monkeypatch.setattr(sys, "argv", ["prefix_hits.py", *words])
    script.main()
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in text
    assert "| bytes of a page |" in text
    assert "answers with other tokens than cold | 0 | 0 of 6 | met" in text
