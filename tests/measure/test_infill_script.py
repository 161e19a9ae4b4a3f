"""The program behind docs/infill.md: its templates are the right answers with holes, and it counts what it says."""

import itertools
import random
from pathlib import Path

import pytest
from script import load

from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.template import Gap, check_template
from fourleaf.errors import ConfigError
from fourleaf.measure.evaluate import examples_of
from fourleaf.measure.marks import filled

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program():
    return load("infill")


@pytest.fixture(scope="module")
def engine():
    return Engine.load(bundled_path())


def test_templates_are_answers_with_holes_at_values_names_and_calls(program, engine):
    examples = [example for example in examples_of("patterns", 120) if example.calls]
    cases = program.cases_of(engine, examples, seed=3)
    kinds = set()
    for example, case in zip(examples, cases, strict=True):
        template = case.template(case.holes)
        check_template(template)
        limits = [part.limit for part in template if isinstance(part, Gap)]
        assert limits == [hole.limit for hole in case.holes]
        whole = [
            token
            for part, hole in zip_parts(template, case.holes)
            for token in (case.right(hole) if isinstance(part, Gap) else part)
        ]
        assert whole == case.answer
        for hole in case.holes:
            kinds.add(hole.kind)
            text = engine.tokenizer.decode(case.right(hole))
            assert len(case.right(hole)) <= hole.limit
            if hole.kind == "call":
                assert text.startswith("<tool_call>{")
                assert text.endswith("}</tool_call>")
            elif hole.kind == "name":
                assert text in [call.name for call in example.calls]
            else:
                assert text.strip() in [
                    str(value).lower() if isinstance(value, bool) else str(value)
                    for call in example.calls
                    for value in call.arguments.values()
                ]
    assert kinds == set(program.KINDS)


def zip_parts(template, holes):
    """Each part with its hole, where it is a gap."""
    coming = iter(holes)
    return [(part, next(coming) if isinstance(part, Gap) else None) for part in template]


def test_right_answers_count_as_right_and_others_do_not(program, engine):
    cases = program.cases_of(engine, examples_of("patterns", 12), seed=1)

    def perfect(case, holes):
        tokens, gaps = [], []
        for part, hole in zip_parts(case.template(holes), holes):
            own = case.right(hole) if isinstance(part, Gap) else list(part)
            tokens += own
            gaps += [holes.index(hole) if isinstance(part, Gap) else None] * len(own)
        return program.Said(tokens, gaps, 1, 2)

    def going_on(case):
        hole = case.chosen
        tokens = [*case.answer[: hole.begin], *case.answer[hole.begin : hole.end + 1]]
        own = len(tokens) - hole.begin
        return program.Said(tokens, [None] * hole.begin + [0] * own, own, 1)

    said = {
        "whole": [perfect(case, case.holes) for case in cases],
        "pinned": [perfect(case, [case.chosen]) for case in cases],
        "withheld": [going_on(case) for case in cases],
    }
    found = program.figures(engine, cases, said, seed=0)
    assert found["pins_kept"] == found["templates"] == len(cases)
    assert found["within_limits"] == found["gaps"]
    assert found["exact"]["value"] == found["valid"]["value"] == 1
    assert found["kinds"]["all"]["pinned"]["value"] == found["kinds"]["all"]["withheld"]["value"] == 1
    said["withheld"] = [program.Said([20], [0], 1, 1)] * len(cases)
    said["pinned"][0] = program.Said([20], [0], 1, 1)
    found = program.figures(engine, cases, said, seed=0)
    assert found["kinds"]["all"]["withheld"]["value"] == 0
    assert found["kinds"]["all"]["gain"]["only_second"] == len(cases) - 1


def test_a_short_run_writes_its_page(program, tmp_path, monkeypatch):
    page = tmp_path / "infill.md"
    page.write_text("# Before\n<!-- infill -->\nold\n<!-- /infill -->\nbehind\n", encoding="utf-8")
    monkeypatch.setattr(program, "AT_ONCE", 2)
    program.main(["--n", "2", "--page", str(page), "--json", str(tmp_path / "run.json")])
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "| diffuse | 2 of 2 |" in text
    assert "| ar | 2 of 2 |" in text
    assert text.startswith("# Before")
    assert text.endswith("behind\n")
    assert (tmp_path / "run.json").is_file()


def test_the_page_has_the_marks(program):
    page = (ROOT / "docs" / "infill.md").read_text(encoding="utf-8")
    assert "figure" in filled(page, {"infill": "figure"})
    with pytest.raises(ConfigError, match="no <!-- speeds -->"):
        filled(page, {"speeds": ""})


def test_holes_never_touch(program, engine):
    examples = [example for example in examples_of("patterns", 60) if len(example.calls) > 1]
    for example in examples:
        answer = engine.tokenizer.encode_markup(program.answer_text(example))
        for seed in range(5):
            holes = program.holes_of(engine, example, answer, random.Random(seed))
            for one, other in itertools.pairwise(holes):
                assert one.end < other.begin
