"""The arms on groups of judgements: what each one may know, and what the numbers count."""

import json

import numpy as np
import pytest

from fourleaf.decide.decider import Decider
from fourleaf.engine.engine import Engine
from fourleaf.errors import ConfigError
from fourleaf.measure.judged import FREE_ARMS, MODEL_ARMS, ORDER_ARM, RULED_ARMS, Judged, arms_of, free, judge, ruled
from fourleaf.measure.judgements import Score, evaluate, flip_rate, lines, main_judgements
from fourleaf.measure.pictures import bars, reliability
from fourleaf.measure.reliability import Reliability
from fourleaf.tasks.judgements import testsets
from fourleaf.tasks.judgements.group import CHOICE


@pytest.fixture(scope="module")
def decider(tiny) -> Decider:
    return Decider(Engine.load(tiny))


@pytest.fixture(scope="module")
def groups():
    return testsets.build("coupled")[:40]


def _sure(group, chosen):
    p = tuple(np.eye(len(v.options))[option] for v, option in zip(group.variables, chosen, strict=True))
    return Judged(group, tuple(chosen), p, broken=0)


def test_the_oracle_is_right_everywhere_and_breaks_nothing(groups):
    found = free(groups, "oracle", 0)
    assert all(judged.is_right for judged in found)
    assert not any(judged.broken for judged in found)


def test_rules_make_any_answers_obey_and_right_ones_stay_right(groups):
    wrong = free(groups, "uniform", 0)
    assert any(judged.broken for judged in wrong)
    assert not any(judged.broken for judged in ruled(wrong))
    assert all(judged.is_right for judged in ruled(free(groups, "oracle", 0)))


def test_rules_repair_what_one_wrong_answer_contradicts(groups):
    """Sure and right everywhere but in one question that the others decide: the rules win."""
    repaired = 0
    for group in groups:
        for i, v in enumerate(group.variables):
            p = [np.full(len(w.options), 0.01) for w in group.variables]
            for j, answer in enumerate(group.answers):
                p[j][answer] = 0.9
            p[i][:] = 0.3
            p[i][(group.answers[i] + 1) % len(v.options)] = 0.31
            chosen = tuple(int(values.argmax()) for values in p)
            judged = Judged(group, chosen, tuple(p), broken=0)
            repaired += ruled([judged])[0].is_right
    assert repaired > len(groups)


def test_majority_answers_one_option_a_kind(groups):
    found = free(groups, "majority", 0)
    kinds = {(v.kind, len(v.options), c) for j in found for v, c in zip(j.group.variables, j.chosen, strict=True)}
    assert len(kinds) == len({(kind, size) for kind, size, _ in kinds})


def test_every_arm_answers_every_question_and_counts_its_forwards(decider, groups):
    few = groups[:3]
    for arm in MODEL_ARMS:
        for judged, group in zip(judge(decider, few, arm), few, strict=True):
            size = len(group.variables)
            assert len(judged.chosen) == len(judged.p) == size
            assert judged.seconds > 0
            expected = {"alone": {size + 1}, "joint, 1 pass": {1}, "joint, denoised": set(range(1, size + 1))}
            assert arm not in expected or judged.forwards in expected[arm]


def test_scores_count_groups_questions_and_contradictions(groups):
    first, second = groups[:2]
    off = [(second.answers[0] + 1) % len(second.variables[0].options), *second.answers[1:]]
    found = [_sure(first, first.answers), Judged(second, tuple(off), _sure(second, off).p, broken=2)]
    score = Score.of(found, seed=0)
    total = len(first.variables) + len(second.variables)
    assert score.groups.value == 0.5
    assert score.questions is not None
    assert score.questions.value == pytest.approx((total - 1) / total)
    assert score.contradictory.value == 0.5
    assert score.reliability is not None
    assert score.reliability.brier == pytest.approx(2 / total)
    assert set(score.by_family) == {first.family, second.family}


def test_what_cannot_be_known_counts_for_confidence_alone():
    group = testsets.build("unknowable")[0]
    left = [len(values) for values in group.possible]
    judged = _sure(group, group.answers)
    score = Score.of([judged], seed=0)
    assert score.open_confidence == 1.0
    assert score.groups.value == 1.0
    assert len(judged.hits) == left.count(1)
    assert (
        Score.of([_sure(testsets.build("control")[0], testsets.build("control")[0].answers)], 0).open_confidence is None
    )


def test_flips_are_counted_by_name():
    originals = testsets.build("coupled")[:5]
    copies = testsets.build("copy")[:5]
    right = [_sure(group, group.answers) for group in originals], [_sure(group, group.answers) for group in copies]
    assert flip_rate(right[1], right[0]) == 0
    wrong = [(copies[0].answers[0] + 1) % len(copies[0].variables[0].options), *copies[0].answers[1:]]
    moved = [_sure(copies[0], wrong), *right[1][1:]]
    assert flip_rate(moved, right[0]) == pytest.approx(1 / sum(len(group.variables) for group in originals))


def test_only_a_choice_s_options_are_listed_backwards():
    for group in testsets.build("coupled")[:20]:
        other = testsets.listed_backwards(group)
        assert other.state == group.state
        for v, w, answer, moved in zip(group.variables, other.variables, group.answers, other.answers, strict=True):
            assert (w.name, w.ask) == (v.name, v.ask)
            assert list(w.options) == (list(v.options)[::-1] if v.kind == CHOICE else list(v.options))
            assert w.options[moved] == v.options[answer]


def test_an_evaluation_has_all_arms_and_compares_them_with_alone(decider):
    reports = evaluate(decider, ["coupled", "copy", "unknowable"], limit=2)
    for report in reports:
        assert set(report.scores) == {*arms_of(report.name), *RULED_ARMS, *FREE_ARMS}
        assert set(report.paired) == set(report.scores) - {"alone"}
        assert report.scores["oracle"].groups.value == 1.0
    assert [set(report.flips) for report in reports] == [set(MODEL_ARMS), set(MODEL_ARMS), set()]
    assert reports[0].flips[ORDER_ARM] == 0  # sheets of every listing are the same
    assert [ORDER_ARM in report.scores for report in reports] == [True, True, False]
    text = "\n".join(line for report in reports for line in lines(report))
    assert "joint, denoised - alone" in text
    assert "nothing can be known" in text
    json.dumps([report.document() for report in reports])


def test_the_command_writes_table_json_and_picture(tiny, tmp_path, quiet):
    json_file, picture = tmp_path / "found.json", tmp_path / "found.svg"
    main_judgements(
        "ninth, control",
        model=tiny,
        draw=5,
        limit=1,
        seed=0,
        num_threads=None,
        json_file=json_file,
        picture=picture,
        out=quiet.out,
        progress=quiet.progress,
    )
    shown = quiet.out.getvalue()
    assert 0 <= shown.index("control (n 1)") < shown.index("ninth (n 1)")
    document = json.loads(json_file.read_text(encoding="utf-8"))
    assert (document["task"], document["draw"], document["calibration"]) == ("judgements", 5, {})
    assert picture.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize("part", ["cabin", "public", "coupled,public", ""])
def test_an_unknown_part_is_refused_before_anything_is_loaded(part, quiet, tmp_path):
    with pytest.raises(ConfigError, match="coupled"):
        main_judgements(
            part,
            model=tmp_path / "nowhere",
            draw=None,
            limit=None,
            seed=0,
            num_threads=None,
            json_file=None,
            picture=None,
            out=quiet.out,
            progress=quiet.progress,
        )


def test_reliability_of_calibrated_answers_is_near_its_floor():
    rng = np.random.default_rng(0)
    p = [rng.dirichlet(np.ones(3)) for _ in range(4000)]
    right = [rng.choice(3, p=values) for values in p]
    honest = Reliability.of(p, right)
    assert honest.ece < 2.5 * honest.floor < 0.06
    sharp = [values**4 / (values**4).sum() for values in p]
    assert Reliability.of(sharp, right).ece > 5 * honest.ece
    assert sum(b.n for b in honest.bins) == 4000
    assert len(honest.bins) == 15


def test_reliability_counts_what_it_says():
    made = Reliability.of([np.array([0.8, 0.2]), np.array([0.4, 0.6])], [0, 0])
    assert made.ece == pytest.approx((0.2 + 0.6) / 2)
    assert made.brier == pytest.approx((2 * 0.2**2 + 2 * 0.6**2) / 2)


def test_pictures_hold_their_numbers_and_escape_names():
    made = Reliability.of([np.array([0.8, 0.2])] * 20, [0] * 20)
    assert "a &lt; b: ECE 0.200" in reliability("Decisions", [("a < b", made)])
    assert "37.5%" in bars("Groups", [("alone", 0.375, 0.3, 0.4)])
