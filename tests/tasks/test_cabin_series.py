"""Requests that share words: what each says is what it calls, and the test sets know nothing of them."""

from collections import Counter
from itertools import islice
from random import Random

import pytest

from fourleaf.errors import LabelError
from fourleaf.tasks.cabin import generator, phrases, schema, series
from fourleaf.tasks.cabin.schema import Example


def _drawn(number: int) -> list:
    random = Random(4)
    found = []
    while len(found) < number:
        piece = series.draw(random.randint(2, 8), random)
        if piece:
            found.append(piece)
    return found


def test_every_series_keeps_the_schema_and_calls_nothing_twice():
    for piece in _drawn(2000):
        schema.check(Example(piece.text, piece.calls, ""))
        assert 2 <= len(piece.calls) <= 5
        assert len({(c.name, *list(c.arguments.values())[:-1]) for c in piece.calls}) == len(piece.calls), piece


def test_a_series_has_at_most_the_calls_that_are_wanted():
    random = Random(5)
    drawn = [series.draw(2, random) for _ in range(300)]
    assert {len(piece.calls) for piece in drawn if piece} == {2}


def test_what_is_named_first_is_called_first():
    seen = 0
    for piece in _drawn(3000):
        names = [call.name for call in piece.calls]
        if "set_wipers" in names and "set_sunroof" in names:
            wipers_first = piece.text.find("wipers") < piece.text.find("roof")
            assert wipers_first == (names.index("set_wipers") < names.index("set_sunroof")), piece.text
            seen += 1
    assert seen > 20


def test_linked_templates_are_used_in_training_and_unknown_to_the_test_sets():
    assert phrases.corpus(additions=False).linked == []
    side = generator.training_composer().side
    assert len(side.linked) > 20
    random = Random(6)
    counts = Counter()
    for pattern in side.linked:
        for _ in range(20):
            piece = series.linked(pattern, side.requests.fillers, random)
            schema.check(Example(piece.text, piece.calls, ""))
            counts[len(piece.calls)] += 1
    assert counts[2] > 100
    assert all(example.calls is not None for example in islice(generator.stream(9), 50))


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [("play {query} loud", "must be the copied"), ("call {name} (now", "never closed")],
)
def test_a_linked_template_whose_slots_do_not_fit_is_refused(tmp_path, pattern, complaint):
    path = tmp_path / "more.jsonl"
    calls = '[{"name": "call_contact", "arguments": {"name": "{name}"}}]'
    path.write_text(f'{{"kind": "linked", "pattern": "{pattern}", "calls": {calls}}}\n')
    with pytest.raises(LabelError, match=complaint):
        phrases.load(path, phrases.Corpus())
