"""A sample of the soak: every answer that ended on its own parses and validates, in every mode, however hot."""

from collections import Counter

import pytest
import script

SHARE, MAX_TOKENS = 0.01, 96


@pytest.fixture(scope="module")
def soak():
    return script.load("soak_grammar")


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse", "auto"])
def test_every_answer_that_ended_on_its_own_parses_and_validates(soak, tokenizer, mode):
    answer = soak.random_answers(tokenizer, max_tokens=MAX_TOKENS)
    arms, faults, refused = soak.soak(SHARE, 7, tokenizer, answer, (mode,))
    assert faults == []
    assert refused == Counter(), "the generator keeps to what is supported and can be met"
    assert all(soak.cost(counts)["µs"] > soak.cost(counts)["mask µs"] > 0 for _, _, counts in arms)
    ended = sum(counts["answers"] - counts["length"] for _, _, counts in arms)
    assert ended >= 0.8 * sum(counts["answers"] for _, _, counts in arms)


def test_greedy_drafting_gives_the_answers_of_ar(soak, tokenizer):
    """Endings near the limit included: `draft` gives way where `ar` does."""
    answer = soak.random_answers(tokenizer, max_tokens=MAX_TOKENS)
    for index, constraint in enumerate(soak.constraints(0.008, 11)):
        grammar = soak.compile_constraint(constraint, tokenizer)
        for seed in (index * 2, index * 2 + 1):
            drafted, alone = (answer(constraint, grammar, mode, 0.0, seed)[0] for mode in ("draft", "ar"))
            assert drafted == alone, constraint.value


def test_the_judge_can_say_no(soak):
    schema = soak.Constraint("json_schema", '{"type": "integer"}')
    assert soak.verdict(schema, "7") is None
    assert "validate" in soak.verdict(schema, '"a"')
    assert "JSON" in soak.verdict(schema, "7,")
    assert soak.verdict(soak.Constraint("regex", "a+"), "ab") is not None
