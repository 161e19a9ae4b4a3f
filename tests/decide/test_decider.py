"""Independent and joint answers, against the plain way to get each of them."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch

from fourleaf.decide.calibration import Temperatures
from fourleaf.decide.canvas import averaged
from fourleaf.decide.decider import Decider
from fourleaf.decide.questions import InvalidDecisionError, Option, Question, rotations_of
from fourleaf.errors import ContextLengthError, RequestError
from fourleaf.model.work import Segments, Work

NOUL = {"type": "noul", "instructions": "Is it night?"}


def _p(decision) -> dict[str, list[float]]:
    return {answer.question.id: answer.p.tolist() for answer in decision.answers}


def _plain(decider, sheet, revealed=()):
    """Logits of a canvas behind its prompt in one forward without any cache. revealed: (row, id)."""
    canvas, masked = list(sheet.canvas), list(sheet.masked)
    for row, token in revealed:
        canvas[row], masked[row] = token, False
    tokens = [*sheet.prompt, *(decider._mask_id if m else t for t, m in zip(canvas, masked, strict=True))]
    start = len(sheet.prompt)
    work = Work(torch.tensor(tokens), Segments([start]), [0], Segments([len(canvas)]), [0], [start])
    with torch.no_grad():
        logits = decider.model.head(decider.model(work)[0])[start:]
    logits[:, decider._mask_id] = -math.inf
    return logits


def _options(decider, slot, logits):
    ids = torch.tensor([decider._printer.letters.ids[place[0]] for place in slot.places])
    p = torch.softmax(logits[slot.rows[0]][ids], -1).numpy()
    found = np.empty(len(p))
    found[list(slot.order)] = p
    return found


def test_each_question_alone_is_one_canvas_behind_its_own_prompt(decider, asked):
    request = asked()
    decision = decider.decide(request)
    for answer in decision.answers:
        order = tuple(range(len(answer.question.options)))
        sheet = decider._printer.sheet(request.state, [answer.question], [order])
        expected = _options(decider, sheet.slots[0], _plain(decider, sheet))
        np.testing.assert_allclose(answer.p, expected, rtol=0, atol=1e-9)
        assert answer.chosen == int(expected.argmax())
        assert 0 < answer.mass < 1
    assert decision.passes == len(request.questions)
    assert decision.tuple_p is None


def test_other_questions_their_order_and_their_ids_change_no_bit(decider, asked):
    alone = _p(decider.decide(asked({"a": NOUL})))["a"]
    questions = {q.id: q for q in asked().questions}
    base = {
        "fast": {"type": "noul", "instructions": "Is the car fast?"},
        "rest": {"type": "choice", "instructions": "Rules: which?", "criteria": {"x": None, "y": None}},
    }
    assert questions
    for other in ({"a": NOUL, **base}, {**base, "a": NOUL}, {**base, "zz 🙂": NOUL}):
        found = _p(decider.decide(asked(other)))
        assert found["zz 🙂" if "zz 🙂" in found else "a"] == alone


def test_an_ar_checkpoint_answers_by_its_causal_logits(autoregressive, asked):
    decider = Decider(autoregressive)
    decision = decider.decide(asked())
    assert decision.passes == 0
    letters = decider._printer.letters
    for answer in decision.answers:
        sheet = decider._printer.sheet(asked().state, [answer.question], [tuple(range(len(answer.p)))])
        tokens = [*sheet.prompt, *sheet.canvas[:1]]
        with torch.inference_mode():
            logits = decider.model.head(decider.model(Work(torch.tensor(tokens), Segments([len(tokens)]), [0]))[0])[-1]
        expected = torch.softmax(logits[list(letters.ids[: len(answer.p)])], -1).numpy()
        np.testing.assert_allclose(answer.p, expected, rtol=0, atol=1e-9)


def test_an_ar_checkpoint_refuses_joint(autoregressive, asked):
    with pytest.raises(RequestError, match="AR model") as caught:
        Decider(autoregressive).decide(asked(x_joint=True))
    assert caught.value.param == "x_joint"


def test_one_pass_reads_every_slot_at_once_and_p_is_the_product_of_marginals(decider, asked):
    request = asked(x_joint=True, x_passes=1)
    decision = decider.decide(request)
    orders = [tuple(range(len(q.options))) for q in request.questions]
    sheet = decider._printer.sheet(request.state, request.questions, orders)
    logits = _plain(decider, sheet)
    for answer, slot in zip(decision.answers, sheet.slots, strict=True):
        np.testing.assert_allclose(answer.p, _options(decider, slot, logits), rtol=0, atol=1e-9)
    assert decision.passes == 1
    assert decision.order == (decision.order[0],)
    assert set(decision.order[0]) == {"fast", "mode", "warn"}
    assert decision.tuple_p == pytest.approx(math.prod(a.p[a.chosen] for a in decision.answers), abs=1e-12)


def test_denoised_each_slot_sees_those_revealed_before_it_and_p_is_the_chain_rule(decider, asked):
    request = asked(x_joint=True, x_threshold=1.0)
    decision = decider.decide(request)
    assert [len(ids) for ids in decision.order] == [1, 1, 1]
    orders = [tuple(range(len(q.options))) for q in request.questions]
    sheet = decider._printer.sheet(request.state, request.questions, orders)
    by_id = {answer.question.id: (answer, slot) for answer, slot in zip(decision.answers, sheet.slots, strict=True)}
    revealed, product = [], 1.0
    for (name,) in decision.order:
        logits = _plain(decider, sheet, revealed)
        for other, (_, slot) in by_id.items():  # the surest of those left is the one revealed
            if slot.rows[0] not in [row for row, _ in revealed]:
                best = _options(decider, slot, logits).max()
                assert best <= by_id[name][0].p.max() + 1e-9, other
        answer, slot = by_id[name]
        np.testing.assert_allclose(answer.p, _options(decider, slot, logits), rtol=0, atol=1e-9)
        product *= answer.p[answer.chosen]
        revealed.append((slot.rows[0], decider._printer.letters.ids[answer.chosen]))
    assert decision.tuple_p == pytest.approx(product, abs=1e-12)
    first = _plain(decider, sheet)
    for answer, slot in by_id.values():
        np.testing.assert_allclose(answer.first, _options(decider, slot, first), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("passes", "sizes"), [(1, [3]), (2, [2, 1]), (3, [1, 1, 1]), (8, [1, 1, 1])])
def test_passes_bound_how_often_the_canvas_is_read(decider, asked, passes, sizes):
    decision = decider.decide(asked(x_joint=True, x_passes=passes, x_threshold=1.0))
    assert [len(ids) for ids in decision.order] == sizes


def test_a_request_that_names_no_passes_takes_those_of_the_checkpoint(diffusing, asked):
    fitted = Decider(diffusing, Temperatures(passes=2))
    sure = {"x_joint": True, "x_threshold": 1.0}
    assert [len(ids) for ids in fitted.decide(asked(**sure)).order] == [2, 1]
    assert [len(ids) for ids in fitted.decide(asked(**sure, x_passes=3)).order] == [1, 1, 1]


def test_a_low_threshold_reveals_everything_at_once(decider, asked):
    assert decider.decide(asked(x_joint=True, x_threshold=0.0)).passes == 1


@pytest.mark.parametrize("num", [27, 40, 255])
def test_many_options_have_labels_of_two_letters(decider, asked, num):
    options = {f"queue {i}": None for i in range(num)}
    decision = decider.decide(asked({"q": {"type": "choice", "instructions": "Which?", "criteria": options}}))
    answer = decision.answers[0]
    assert answer.p.sum() == pytest.approx(1)
    assert len(answer.p) == num
    sheet = decider._printer.sheet(asked().state, [answer.question], [tuple(range(num))])
    (slot,) = sheet.slots
    assert len(set(slot.places)) == num
    ids = decider._printer.letters.ids
    side = sorted({place[0] for place in slot.places})
    first = torch.log_softmax(_plain(decider, sheet)[slot.rows[0]], -1)
    expected = np.empty(num)
    for letter in side:
        second = _plain(decider, sheet, [(slot.rows[0], ids[letter])])[slot.rows[1]]
        within = torch.log_softmax(second[list(ids)], -1)
        for i, place in enumerate(slot.places):
            if place[0] == letter:
                expected[i] = float(first[ids[letter]] + within[place[1]])
    expected = np.exp(expected - np.logaddexp.reduce(expected))
    np.testing.assert_allclose(answer.p, expected, rtol=0, atol=1e-9)


def test_many_options_work_by_causal_logits_and_among_joint_slots(autoregressive, decider, asked):
    questions = {
        "q": {"type": "choice", "instructions": "Which?", "criteria": {f"o{i}": None for i in range(30)}},
        "a": NOUL,
    }
    for made in (Decider(autoregressive).decide(asked(questions)), decider.decide(asked(questions, x_joint=True))):
        assert [len(answer.p) for answer in made.answers] == [30, 2]
        assert all(answer.p.sum() == pytest.approx(1) for answer in made.answers)


def test_rotations_average_option_orders_geometrically(decider, asked):
    question = asked().questions[1]
    decision = decider.decide(asked(x_rotations=3))
    singles = []
    for order in rotations_of(question, 3):
        sheet = decider._printer.sheet(asked().state, [question], [order])
        singles.append(_options(decider, sheet.slots[0], _plain(decider, sheet)))
    expected = np.exp(np.mean(np.log(singles), axis=0))
    np.testing.assert_allclose(decision.answers[1].p, expected / expected.sum(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("rotations", [2, 3, 8])
def test_with_rotations_the_order_of_a_choices_options_changes_no_bit(decider, asked, joint, rotations):
    names = ["eco", "sport", "off"]
    found = []
    for order in permutations(names):
        questions = {"q": {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(order)}}
        (answer,) = decider.decide(asked(questions, x_rotations=rotations, x_joint=joint)).answers
        found.append({name: answer.p[order.index(name)] for name in names})
    assert all(p == found[0] for p in found)


def test_rotations_are_spread_evenly():
    def four(kind, names="dbca"):
        return Question("q", kind, "Which?", tuple(Option(name, name) for name in names))

    assert rotations_of(four("choice"), 1) == [(0, 1, 2, 3)]
    assert rotations_of(four("choice"), 2) == [(3, 1, 2, 0), (2, 0, 3, 1)]
    assert rotations_of(four("score"), 2) == [(0, 1, 2, 3), (2, 3, 0, 1)]
    assert {order[0] for order in rotations_of(four("choice"), 8)} == {0, 1, 2, 3}


def test_temperatures_change_probabilities_and_never_an_independent_answer(diffusing, asked):
    plain = Decider(diffusing).decide(asked())
    warm = Decider(diffusing, Temperatures({("independent", "choice", 3): 2.0})).decide(asked())
    assert plain.values == warm.values
    expected = np.sqrt(plain.answers[1].p)
    np.testing.assert_allclose(warm.answers[1].p, expected / expected.sum(), rtol=0, atol=1e-9)
    assert warm.answers[0].p.tolist() == plain.answers[0].p.tolist()


def test_what_is_read_with_others_revealed_has_a_temperature_of_its_own(diffusing, asked):
    two = {"fast": NOUL, "late": NOUL | {"instructions": "Is it late?"}}
    warm = Decider(diffusing, Temperatures({("revealed", "noul", 2): 3.0}))
    before, after = (d.decide(asked(two, x_joint=True, x_threshold=1)) for d in (Decider(diffusing), warm))
    assert before.order == after.order
    assert len(before.order) == 2
    for a, b in zip(before.answers, after.answers, strict=True):
        assert a.first is not None
        assert b.first is not None
        assert a.first.tolist() == b.first.tolist()
        expected = a.p if a.question.id in before.order[0] else a.p ** (1 / 3)
        np.testing.assert_allclose(b.p, expected / expected.sum(), rtol=0, atol=1e-9)


def test_enforced_answers_are_the_likeliest_that_obey(decider, asked):
    free = decider.decide(asked())
    for values in permutations(range(2)):
        rule = {"if": {"question": "fast", "is": bool(values[0])}, "then": {"question": "warn", "is": 2}}
        decision = decider.decide(asked(x_rules=[rule], x_enforce=True))
        assert decision.broken == ()
        p = [answer.p for answer in free.answers]
        tuples = [(f, w) for f in range(2) for w in range(3) if f != values[0] or w == 2]
        best = max(tuples, key=lambda t: p[0][t[0]] * p[2][t[1]])
        assert (decision.answers[0].chosen, decision.answers[2].chosen) == best
        assert decision.answers[1].chosen == free.answers[1].chosen
        np.testing.assert_array_equal(decision.answers[0].p, p[0])


def test_contradictions_are_reported_when_not_enforced(decider, asked):
    free = decider.decide(asked()).values
    rules = [{"question": "fast", "is": free["fast"]}, {"question": "fast", "is": not free["fast"]}]
    assert decider.decide(asked(x_rules=rules)).broken == (1,)
    assert decider.decide(asked(x_rules=rules, x_joint=True, x_passes=1)).broken is not None
    with pytest.raises(InvalidDecisionError, match="No answers obey"):
        decider.decide(asked(x_rules=rules, x_enforce=True))


def test_rule_texts_are_shown_to_a_joint_prompt_alone(decider, asked):
    rule = {"question": "fast", "is": True, "text": "Every car is fast."}
    plain, ruled = (decider.decide(asked(x_joint=True, x_rules=rules)) for rules in ([], [rule]))
    shown = len("\nRules: Every car is fast.")
    assert ruled.input_tokens == plain.input_tokens + shown
    assert decider.decide(asked(x_rules=[rule])).input_tokens == decider.decide(asked()).input_tokens


def test_a_state_that_does_not_fit_is_refused_with_both_numbers(decider, asked):
    with pytest.raises(ContextLengthError, match="6,000"):
        decider.decide(asked(state="x" * 7000))


def test_the_work_ends_at_the_next_forward_when_its_check_raises(decider, asked):
    calls = []

    def check():
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decider.decide(asked(), check)
    assert len(calls) == 2


def test_one_option_is_certain(decider, asked):
    decision = decider.decide(asked({"q": {"type": "choice", "instructions": "Which?", "criteria": {"only": None}}}))
    assert decision.answers[0].p.tolist() == [1.0]


def test_an_average_of_one_is_itself(decider, asked):
    reading = object()
    assert averaged([reading]) is reading
