"""Rules over answers: what each kind means, what is refused, and that enforcing tries every tuple."""

from itertools import product

import numpy as np
import pytest

from fourleaf.decide import rules as rules_module
from fourleaf.decide.questions import InvalidDecisionError, parse_request
from fourleaf.decide.rules import MAX_CONDITIONS, best_tuple, parse_rules, tuples
from fourleaf.tasks.judgements import testsets
from fourleaf.tasks.judgements.group import columns, holding

QUESTIONS = parse_request(
    {
        "model": "m",
        "state": "s",
        "questions": {
            "n": {"type": "noul", "instructions": "?"},
            "m": {"type": "noul", "instructions": "?"},
            "c": {"type": "choice", "criteria": dict.fromkeys(("red", "green", "blue"))},
            "d": {"type": "choice", "criteria": dict.fromkeys(("blue", "red"))},
            "s": {"type": "score", "criteria": ["a", "b", "c", "d"]},
            "t": {"type": "score", "criteria": ["a", "b", "c"]},
        },
    }
).questions
SIZES = {question.id: len(question.options) for question in QUESTIONS}
NAMES = {question.id: [option.name for option in question.options] for question in QUESTIONS}


@pytest.mark.parametrize(
    ("rule", "meaning"),
    [
        ({"question": "n", "is": True}, lambda a: a["n"] == 1),
        ({"question": "c", "is": "green"}, lambda a: a["c"] == 1),
        ({"question": "s", "is": 3}, lambda a: a["s"] == 3),
        ({"question": "c", "in": ["red", "blue"]}, lambda a: a["c"] in (0, 2)),
        ({"question": "s", "at_least": 1, "at_most": 2}, lambda a: 1 <= a["s"] <= 2),
        ({"not": {"question": "n", "is": True}}, lambda a: a["n"] == 0),
        ({"all": [{"question": "n", "is": True}, {"question": "s", "is": 0}]}, lambda a: a["n"] == 1 and a["s"] == 0),
        ({"any": [{"question": "n", "is": True}, {"question": "s", "is": 0}]}, lambda a: a["n"] == 1 or a["s"] == 0),
        (
            {"if": {"question": "n", "is": True}, "then": {"question": "m", "is": False}},
            lambda a: not a["n"] or not a["m"],
        ),
        (
            {"if": [{"question": "n", "is": True}, {"question": "m", "is": True}], "then": {"question": "t", "is": 2}},
            lambda a: not (a["n"] and a["m"]) or a["t"] == 2,
        ),
        ({"iff": [{"question": "n", "is": True}, {"question": "m", "is": True}]}, lambda a: a["n"] == a["m"]),
        (
            {"exactly_one": [{"question": "n", "is": True}, {"question": "m", "is": True}, {"question": "s", "is": 0}]},
            lambda a: a["n"] + a["m"] + (a["s"] == 0) == 1,
        ),
        (
            {"at_most_one": [{"question": "n", "is": True}, {"question": "m", "is": True}, {"question": "s", "is": 0}]},
            lambda a: a["n"] + a["m"] + (a["s"] == 0) <= 1,
        ),
        ({"equal": ["c", "d"]}, lambda a: NAMES["c"][a["c"]] == NAMES["d"][a["d"]]),
        ({"different": ["c", "d"]}, lambda a: NAMES["c"][a["c"]] != NAMES["d"][a["d"]]),
        ({"equal": ["s", "t", "n"]}, lambda a: a["s"] == a["t"] == a["n"]),
        ({"different": ["s", "t", "n"]}, lambda a: len({a["s"], a["t"], a["n"]}) == 3),
        ({"ordered": ["s", "t"], "strict": True}, lambda a: a["s"] < a["t"]),
        ({"ordered": ["n", "s", "t"]}, lambda a: a["n"] <= a["s"] <= a["t"]),
        ({"sum": ["s", "t", "n"], "at_least": 4}, lambda a: a["s"] + a["t"] + a["n"] >= 4),
        ({"sum": ["s", "t"], "at_least": 2, "at_most": 2}, lambda a: a["s"] + a["t"] == 2),
    ],
    ids=str,
)  # fmt: skip
def test_a_rule_means_what_it_says_for_every_tuple(rule, meaning):
    (made,) = parse_rules([rule], QUESTIONS)
    grid = tuples(SIZES)
    expected = [meaning(dict(zip(SIZES, values, strict=True))) for values in product(*map(range, SIZES.values()))]
    assert made.holds(grid).tolist() == expected
    assert True in expected
    assert False in expected
    for at in (0, len(expected) // 2, len(expected) - 1):
        assert made.is_obeyed({name: int(grid[name][at]) for name in SIZES}) == expected[at]


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ("text", "x_rules.0"),
        ({}, "x_rules.0"),
        ({"question": "n", "is": True, "equal": ["n", "m"]}, "x_rules.0"),
        ({"question": "x", "is": True}, "x_rules.0.question"),
        ({"question": ["n"], "is": True}, "x_rules.0.question"),
        ({"question": "n"}, "x_rules.0"),
        ({"question": "n", "is": 1}, "x_rules.0.is"),
        ({"question": "n", "is": None}, "x_rules.0.is"),
        ({"question": "c", "is": "pink"}, "x_rules.0.is"),
        ({"question": "s", "is": 4}, "x_rules.0.is"),
        ({"question": "s", "is": True}, "x_rules.0.is"),
        ({"question": "s", "is": -1}, "x_rules.0.is"),
        ({"question": "c", "in": []}, "x_rules.0.in"),
        ({"question": "c", "in": ["red", 3]}, "x_rules.0.in.1"),
        ({"question": "c", "at_least": 1}, "x_rules.0"),
        ({"question": "s", "at_least": "1"}, "x_rules.0.at_least"),
        ({"if": {"question": "n", "is": True}}, "x_rules.0.then"),
        ({"iff": [{"question": "n", "is": True}]}, "x_rules.0.iff"),
        ({"exactly_one": []}, "x_rules.0.exactly_one"),
        ({"equal": ["n"]}, "x_rules.0.equal"),
        ({"equal": ["n", "x"]}, "x_rules.0.equal.1"),
        ({"equal": ["c", "s"]}, "x_rules.0.equal"),
        ({"ordered": ["s", "t"], "strict": 1}, "x_rules.0.strict"),
        ({"sum": ["s", "t"]}, "x_rules.0"),
        ({"all": [{"not": {"question": "n", "is": "yes"}}]}, "x_rules.0.all.0.not.is"),
        ({"question": "n", "is": True, "text": 3}, "x_rules.0.text"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_rule_is_named_with_its_place(rule, place):
    with pytest.raises(InvalidDecisionError) as caught:
        parse_rules([rule], QUESTIONS)
    assert ".".join(map(str, caught.value.faults[0].loc)) == place


def test_a_list_stands_for_all_of_it_and_text_is_kept():
    rule = {"if": [], "then": [{"question": "n", "is": True}, {"question": "m", "is": True}], "text": "Both."}
    (made,) = parse_rules([rule], QUESTIONS)
    assert made.text == "Both."
    assert made.is_obeyed({"n": 1, "m": 1})
    assert not made.is_obeyed({"n": 1, "m": 0})


def test_the_best_tuple_is_the_best_of_all_that_obey():
    rng = np.random.default_rng(3)
    rule = {"different": ["s", "t"]}
    other = {"if": {"question": "n", "is": True}, "then": {"question": "s", "at_least": 2}}
    made = parse_rules([rule, other], QUESTIONS)
    for _ in range(30):
        log_p = {name: np.log(rng.dirichlet(np.ones(size))) for name, size in SIZES.items()}
        found = best_tuple(log_p, made)
        every = [dict(zip(SIZES, values, strict=True)) for values in product(*map(range, SIZES.values()))]
        obeying = [a for a in every if all(rule.is_obeyed(a) for rule in made)]
        best = max(obeying, key=lambda a: sum(log_p[name][value] for name, value in a.items()))
        assert found == best


def test_an_impossible_option_may_still_be_forced():
    made = parse_rules([{"question": "n", "is": True}], QUESTIONS)
    log_p = {name: np.zeros(size) for name, size in SIZES.items()} | {"n": np.array([0.0, -np.inf])}
    assert best_tuple(log_p, made)["n"] == 1


def test_too_many_tuples_are_refused_before_memory_is_taken(monkeypatch):
    monkeypatch.setattr(rules_module, "MAX_TUPLES", 11)
    made = parse_rules([{"equal": ["s", "t"]}], QUESTIONS)
    log_p = {name: np.zeros(size) for name, size in SIZES.items()}
    with pytest.raises(InvalidDecisionError, match="4 x 3 = 12 tuples"):
        best_tuple(log_p, made)
    assert best_tuple(log_p, parse_rules([{"equal": ["n", "m"]}], QUESTIONS)) == dict.fromkeys(SIZES, 0)


def test_the_number_of_options_is_counted_without_overflow():
    with pytest.raises(InvalidDecisionError, match="tuples"):
        tuples({str(i): 255 for i in range(8)})


def test_conditions_are_counted_and_nesting_is_bounded():
    one = {"question": "n", "is": True}
    parse_rules([{"all": [one] * (MAX_CONDITIONS - 1)}], QUESTIONS)
    with pytest.raises(InvalidDecisionError, match="conditions"):
        parse_rules([{"all": [one] * MAX_CONDITIONS}], QUESTIONS)
    deep: dict = one
    for _ in range(200):
        deep = {"not": deep}
    with pytest.raises(InvalidDecisionError, match="deep"):
        parse_rules([deep], QUESTIONS)


@pytest.mark.parametrize("part", ["coupled", "ninth"])
def test_rules_of_the_judgements_say_on_the_wire_what_they_say_in_the_proof(part):
    """Two ways to the same: the generator's own terms, and `x_rules` read anew."""
    groups = testsets.build(part)
    shapes = {}
    for group in groups:
        shapes.setdefault((group.family, len(group.variables)), group)
    for group in shapes.values():
        document = group.document()
        questions = parse_request({"model": "m", "state": "s", "questions": document["questions"]}).questions
        made = parse_rules(document["x_rules"], questions)
        assert made
        grid = columns(group.variables)
        shown = {
            v.name: np.array([v.shown(value) for value in range(len(v.values))])[grid[v.name]] for v in group.variables
        }
        expected = holding(grid, group.rules)
        found = np.logical_and.reduce([np.broadcast_to(rule.holds(shown), expected.shape) for rule in made])
        np.testing.assert_array_equal(found, expected, err_msg=group.name)
        truth = dict(zip(document["questions"], group.answers, strict=True))
        assert all(rule.is_obeyed(truth) for rule in made)
