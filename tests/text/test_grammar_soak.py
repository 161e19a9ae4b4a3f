"""A sample of the soak: every answer that ended on its own parses and validates, in every mode, however hot."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak_grammar.py"
SHARE, MAX_TOKENS = 0.01, 96


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("soak_grammar", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_grammar"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
def test_every_answer_that_ended_on_its_own_parses_and_validates(script, tokenizer, mode):
    answer = script.random_answers(tokenizer, max_tokens=MAX_TOKENS)
    arms, faults, refused = script.soak(SHARE, 7, tokenizer, lambda _, *rest: answer(*rest), (mode,))
    assert faults == []
    assert refused == Counter(), "the generator keeps to what is supported and can be met"
    ended = sum(counts["answers"] - counts["length"] for _, _, counts in arms)
    assert ended >= 0.8 * sum(counts["answers"] for _, _, counts in arms)


def test_greedy_drafting_gives_the_answers_of_ar(script, tokenizer):
    """Endings near the limit included: `draft` gives way where `ar` does."""
    answer = script.random_answers(tokenizer, max_tokens=MAX_TOKENS)
    for index, constraint in enumerate(script.constraints(0.008, 11)):
        grammar = script.compile_constraint(constraint, tokenizer)
        for seed in (index * 2, index * 2 + 1):
            assert answer(grammar, "draft", 0.0, seed) == answer(grammar, "ar", 0.0, seed), constraint.value


def test_the_judge_can_say_no(script):
    schema = script.Constraint("json_schema", '{"type": "integer"}')
    assert script.verdict(schema, "7") is None
    assert "validate" in script.verdict(schema, '"a"')
    assert "JSON" in script.verdict(schema, "7,")
    assert script.verdict(script.Constraint("regex", "a+"), "ab") is not None
