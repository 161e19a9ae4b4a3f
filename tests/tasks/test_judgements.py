"""The public sets: one answer each, proved by enumeration; several without the facts or without the rules."""

from collections import Counter
from itertools import islice
from random import Random

import numpy as np
import pytest

from fourleaf.tasks.judgements import difficulty, testsets
from fourleaf.tasks.judgements.difficulty import CONTROL_SIZES, SIZES
from fourleaf.tasks.judgements.generator import FAMILIES, HELD_OUT, draw, stream
from fourleaf.tasks.judgements.group import columns, holding
from fourleaf.tasks.judgements.wording import TEST, TRAINING


@pytest.fixture(scope="module")
def coupled():
    return testsets.build("coupled")


def _fits(group, statements):
    return holding(columns(group.variables), statements)


def test_there_are_500_groups_and_2420_questions(coupled):
    assert Counter(len(group.variables) for group in coupled) == SIZES
    assert len(coupled) == 500
    assert sum(len(group.variables) for group in coupled) == 2420
    assert {round(n, -1) for n in Counter(group.family for group in coupled).values()} == {60}


def test_each_coupled_group_has_exactly_one_answer_and_facts_and_rules_alone_leave_several(coupled):
    for group in coupled:
        fits = _fits(group, [*group.facts, *group.rules])
        assert fits.sum() == 1, group.name
        at = int(np.flatnonzero(fits)[0])
        grid = columns(group.variables)
        assert group.answers == tuple(v.shown(int(grid[v.name][at])) for v in group.variables)
        by_facts = _fits(group, group.facts)
        open_questions = [v.name for v in group.variables if len(np.unique(grid[v.name][by_facts])) > 1]
        assert open_questions, group.name  # these are answerable through others alone
        assert _fits(group, group.rules).sum() > 1, group.name


def test_controls_are_answered_by_their_facts_one_by_one():
    controls = testsets.build("control")
    assert len(controls) == 100 == sum(CONTROL_SIZES.values())
    for group in controls:
        assert group.rules == ()
        assert {fact.variable for fact in group.facts} == {v.name for v in group.variables}
        assert _fits(group, group.facts).sum() == 1


def test_twins_look_alike_and_have_another_answer(coupled):
    by_name = {group.name.replace("coupled", "twin"): group for group in coupled}
    twins = testsets.build("twin")
    assert len(twins) > 400
    assert {group.family for group in twins} == set(FAMILIES)
    for twin in twins:
        original = by_name[twin.name]
        assert twin.questions == original.questions
        assert twin.answers != original.answers
        assert _fits(twin, [*twin.facts, *twin.rules]).sum() == 1
        sentences = [fact.text for fact in original.facts] + [rule.text for rule in original.rules]
        changed = [fact.text for fact in twin.facts] + [rule.text for rule in twin.rules]
        assert sum(a != b for a, b in zip(sentences, changed, strict=True)) == 1


def test_copies_have_the_same_answers_by_name(coupled):
    copies = testsets.build("copy")
    moved = 0
    for group, copy in zip(coupled, copies, strict=True):
        assert group.document()["answers"] == copy.document()["answers"]
        moved += [*group.questions] != [*copy.questions]
    assert moved > 400


def test_unknowable_groups_say_what_remains_possible():
    groups = testsets.build("unknowable")
    assert len(groups) == difficulty.NUM_UNKNOWABLE == 100
    for group in groups:
        assert any(len(left) > 1 for left in group.possible)
        assert all(left for left in group.possible)


def test_labels_are_balanced(coupled):
    shown = Counter((v.kind, len(v.options), v.shown(v.truth)) for group in coupled for v in group.variables)
    for kind, size in {(kind, size) for kind, size, _ in shown}:
        counts = [shown[kind, size, value] for value in range(size)]
        if sum(counts) >= 100:
            assert max(counts) / sum(counts) < 1 / size + 0.06, (kind, size, counts)


def test_states_and_names_are_unique(coupled):
    assert len({group.state for group in coupled}) == len({group.name for group in coupled}) == 500


def test_training_shares_no_state_and_no_name_with_the_test_sets(coupled):
    trained = list(islice(stream(0), 300))
    assert not {group.state for group in trained} & {group.state for group in coupled}
    assert {group.family for group in trained} == set(FAMILIES)
    assert not set(HELD_OUT) & set(FAMILIES)
    random = Random(0)
    assert not set(TRAINING.names(random, 12)) & set(TEST.names(random, 12))
    assert not set(TRAINING.places(random, 12)) & set(TEST.places(random, 10))


def test_training_leaves_out_the_last_of_three_wordings():
    random = Random(0)
    assert {TRAINING.pick(random, ("a", "b", "c")) for _ in range(50)} == {"a", "b"}
    assert {TEST.pick(random, ("a", "b", "c")) for _ in range(50)} == {"a", "b", "c"}
    assert {TRAINING.pick(random, ("a", "b")) for _ in range(50)} == {"a", "b"}


def test_same_seed_same_groups():
    first, second = ([group.document() for group in islice(stream(7), 20)] for _ in range(2))
    other = [group.document() for group in islice(stream(8), 20)]
    assert first == second
    assert first != other


def test_the_curriculum_limits_the_size():
    assert max(len(group.variables) for group in islice(stream(3, max_questions=4), 60)) == 4
    assert max(len(group.variables) for group in islice(stream(3, max_questions=1), 20)) == 3


@pytest.mark.parametrize("family", [*FAMILIES, *HELD_OUT])
def test_every_family_makes_every_size(family):
    random = Random(family)
    for size in SIZES:
        group = draw(family, size, random, TEST)
        assert len(group.variables) == size
        assert 1 < max(len(v.options) for v in group.variables) <= 7


@pytest.mark.parametrize("part", testsets.PARTS)
def test_public_sets_are_what_they_were(part):
    assert testsets.digest(part) == testsets.recorded()[part]


def test_the_public_set_is_as_hard_as_its_difficulty_file_says(coupled):
    found = difficulty.measured(coupled)
    assert found == difficulty.recorded()
    assert found["all"]["groups"] == 500
    for family in FAMILIES:
        assert found[family]["open"] >= 1
        assert found[family]["lucky"] < 0.4
    control = difficulty.measured(testsets.build("control"))["all"]
    assert (control["open"], control["fitting"], control["lucky"]) == (0, 1, 1)


def test_another_seed_is_another_set():
    assert testsets.build("control", 1)[0].document() != testsets.build("control")[0].document()
