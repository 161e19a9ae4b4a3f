"""What a request may hold, and that everything else is named."""

import pytest

from fourleaf.decide.questions import InvalidDecisionError, parse_request

NOUL = {"type": "noul", "instructions": "Is it night?"}
BASE = {"model": "m", "state": "s", "questions": {"q": NOUL}}


def _faults(**fields) -> list[tuple[str, str]]:
    document = {name: value for name, value in (BASE | fields).items() if value is not ...}
    with pytest.raises(InvalidDecisionError) as caught:
        parse_request(document)
    return [(".".join(map(str, fault.loc)), fault.kind) for fault in caught.value.faults]


def _asked(question, **fields):
    return parse_request(BASE | {"questions": {"q": question}} | fields).questions[0]


@pytest.mark.parametrize(
    ("state", "expected"),
    [("", ""), ("plain", "plain"), ({"speed": 96}, '{"speed": 96}'), (["a", {"b": None}], '["a", {"b": null}]')],
)
def test_a_state_is_text_object_or_array(state, expected):
    assert parse_request(BASE | {"state": state}).state == expected


def test_unicode_in_structured_text_stays_readable():
    assert _asked({"type": "noul", "instructions": {"frage": "Nacht? 🙂"}}).text == '{"frage": "Nacht? 🙂"}'


@pytest.mark.parametrize("criteria", [..., None, {}, {"true": "dark"}, {"false": ["x"], "true": None}])
def test_criteria_of_a_noul_may_be_absent_null_or_one_sided(criteria):
    question = dict(NOUL) if criteria is ... else NOUL | {"criteria": criteria}
    made = _asked(question)
    assert [option.name for option in made.options] == ["no", "yes"]
    if criteria == {"true": "dark"}:
        assert [option.text for option in made.options] == ["no", "yes (dark)"]


def test_a_noul_without_instructions_needs_criteria():
    assert _asked({"type": "noul", "criteria": {"true": "dark"}}).text == ""
    assert _faults(questions={"q": {"type": "noul"}}) == [("questions.q.noul.instructions", "missing")]


def test_options_keep_their_names_and_show_their_descriptions():
    made = _asked({"type": "choice", "criteria": {"환불": "money back", "b": None, "c": {"k": 1}}})
    assert [(option.name, option.text) for option in made.options] == [
        ("환불", "환불 (money back)"),
        ("b", "b"),
        ("c", 'c ({"k": 1})'),
    ]


def test_levels_of_a_score_are_counted_from_nought():
    made = _asked({"type": "score", "criteria": ["low", {"is": "high"}]})
    assert [option.name for option in made.options] == ["0", "1"]
    assert made.legend == ("low", {"is": "high"})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": ...}, [("state", "missing")]),
        ({"state": None}, [("state", "string_type")]),
        ({"state": 3}, [("state", "string_type")]),
        ({"model": ...}, [("model", "missing")]),
        ({"model": 1}, [("model", "string_type")]),
        ({"questions": ...}, [("questions", "missing")]),
        ({"questions": {}}, [("questions", "too_short")]),
        ({"questions": [NOUL]}, [("questions", "dict_type")]),
        ({"questions": {"": NOUL}}, [("questions.", "string_too_short")]),
        ({"questions": {"q": 1}}, [("questions.q", "dict_type")]),
        ({"questions": {"q": {"instructions": "x"}}}, [("questions.q.type", "missing")]),
        ({"questions": {"q": NOUL | {"type": "boolean"}}}, [("questions.q.type", "union_tag_invalid")]),
        ({"questions": {"q": NOUL | {"type": ["noul"]}}}, [("questions.q.type", "union_tag_invalid")]),
        ({"questions": {"q": NOUL | {"instructions": 7}}}, [("questions.q.noul.instructions", "string_type")]),
        ({"questions": {"q": NOUL | {"criteria": ["a"]}}}, [("questions.q.noul.criteria", "dict_type")]),
        ({"questions": {"q": NOUL | {"criteria": {"true": 1}}}}, [("questions.q.noul.criteria.true", "string_type")]),
        ({"questions": {"q": {"type": "choice"}}}, [("questions.q.choice.criteria", "missing")]),
        ({"questions": {"q": {"type": "choice", "criteria": {}}}}, [("questions.q.choice.criteria", "too_short")]),
        ({"questions": {"q": {"type": "choice", "criteria": ["a"]}}}, [("questions.q.choice.criteria", "dict_type")]),
        (
            {"questions": {"q": {"type": "choice", "criteria": {"a": 1}}}},
            [("questions.q.choice.criteria.a", "string_type")],
        ),
        (
            {"questions": {"q": {"type": "choice", "criteria": dict.fromkeys(map(str, range(256)))}}},
            [("questions.q.choice.criteria", "too_long")],
        ),
        (
            {"questions": {"q": {"type": "score", "criteria": {"0": "a"}}}},
            [("questions.q.score.criteria", "list_type")],
        ),
        ({"questions": {"q": {"type": "score", "criteria": []}}}, [("questions.q.score.criteria", "too_short")]),
        ({"questions": {"q": {"type": "score", "criteria": ["a"] * 11}}}, [("questions.q.score.criteria", "too_long")]),
        (
            {"questions": {"q": {"type": "score", "criteria": ["a", None]}}},
            [("questions.q.score.criteria.1", "string_type")],
        ),
        ({"assets": {"a": {}}}, [("assets", "unsupported")]),
        ({"x_joint": 1}, [("x_joint", "bool_type")]),
        ({"x_joint": True, "x_passes": 9}, [("x_passes", "int_range")]),
        ({"x_passes": 2}, [("x_passes", "unsupported")]),
        ({"x_rotations": 0}, [("x_rotations", "int_range")]),
        ({"x_rotations": True}, [("x_rotations", "int_range")]),
        ({"x_threshold": float("nan")}, [("x_threshold", "float_range")]),
        ({"x_rules": {}}, [("x_rules", "list_type")]),
        ({"x_enforce": True}, [("x_enforce", "missing")]),
        ({"x_joint": True, "questions": {str(i): NOUL for i in range(9)}}, [("questions", "too_long")]),
    ],
)  # fmt: skip
def test_faults_are_named_with_their_place(fields, expected):
    assert _faults(**fields) == expected


def test_all_faults_of_a_request_come_at_once():
    found = _faults(state=None, questions={"a": {"type": "box"}, "b": {"type": "score"}})
    assert [loc for loc, _ in found] == ["state", "questions.a.type", "questions.b.score.criteria"]


def test_what_is_no_object_is_refused():
    for document in ([], "x", None, 3):
        with pytest.raises(InvalidDecisionError):
            parse_request(document)


def test_unknown_fields_are_ignored_and_null_extensions_are_as_if_left_out():
    plain = parse_request(BASE)
    assert (
        parse_request(BASE | {"x_trace_id": 1, "seed": 7, "x_joint": None, "x_rules": None, "x_passes": None}) == plain
    )


def test_more_than_eight_questions_are_fine_one_by_one():
    assert len(parse_request(BASE | {"questions": {str(i): NOUL for i in range(100)}}).questions) == 100
