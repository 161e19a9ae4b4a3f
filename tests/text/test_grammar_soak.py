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


def test_a_judge_that_cannot_say_is_no_verdict(soak, tokenizer, monkeypatch):
    """A text over which `re` would try 10^30 ways does not stop the soak, and is not counted as right."""
    monkeypatch.setattr(soak, "PATIENCE", 0.05)
    hopeless = soak.Constraint("regex", "(a|aa)+b")
    tokens = [*tokenizer.encode("a" * 60), tokenizer.end_id]
    assert soak.judged(hopeless, tokens, tokenizer) == ("unjudged", None)
    assert soak.judged(hopeless, [*tokenizer.encode("aab"), tokenizer.end_id], tokenizer) == ("right", None)
    assert soak.judged(hopeless, tokens[:-1], tokenizer) == ("length", None)


def test_parts_share_the_constraints(soak, tokenizer):
    """Four constraints: two runs of two."""
    seen = []

    def answer(constraint, *_):
        seen.append(constraint.value)
        return [tokenizer.end_id - 1], 1

    for part in ((1, 1), (1, 2), (2, 2)):
        soak.soak(0.003, 3, tokenizer, answer, ("ar",), part)
    whole, parts = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert sorted(whole) == sorted(parts)
    assert whole != parts
