"""Questions as they are typed."""

import pytest

from fourleaf.decide.questions import parse_request
from fourleaf.decide.shorthand import typed_questions
from fourleaf.errors import RequestError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Is it fast?", {"type": "noul", "instructions": "Is it fast?"}),
        ("It is fast: 96 km/h", {"type": "noul", "instructions": "It is fast: 96 km/h"}),
        ("  The light is on.  ", {"type": "noul", "instructions": "The light is on."}),
        (
            "Which mode? eco | sport|very fast",
            {"type": "choice", "instructions": "Which mode?", "criteria": dict.fromkeys(("eco", "sport", "very fast"))},
        ),
        ("Mode: a|b", {"type": "choice", "instructions": "Mode:", "criteria": dict.fromkeys("ab")}),
        ("How loud? low<high", {"type": "score", "instructions": "How loud?", "criteria": ["low", "high"]}),
        ("Really? Which? a | b", {"type": "choice", "instructions": "Really? Which?", "criteria": dict.fromkeys("ab")}),
    ],
)
def test_what_stands_behind_the_mark_are_options(text, expected):
    assert typed_questions([text]) == {"q1": expected}
    parse_request({"model": "", "state": "", "questions": typed_questions([text])})


@pytest.mark.parametrize("text", ["", "Which? a | b < c", "Which? a | | b", "Which? a | a", "How? a <"])
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(RequestError):
        typed_questions([text])
