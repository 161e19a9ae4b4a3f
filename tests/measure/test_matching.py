"""A matcher that books time answers as the one inside does."""

import time

import pytest

from fourleaf.measure.matching import TimedMatcher, Watch
from fourleaf.text.constraint import Constraint

pytest.importorskip("llguidance")


def test_a_timed_matcher_answers_as_the_plain_one(byte_tokenizer):
    from fourleaf.text.grammar import compile_constraint

    grammar, watch = compile_constraint(Constraint("regex", "ab{2,4}c?"), byte_tokenizer), Watch()
    plain, timed = grammar.matcher(), TimedMatcher(grammar.matcher(), watch)
    for token in byte_tokenizer.encode("abbb"):
        assert timed.forced() == plain.forced()
        assert (timed.allowed() == plain.allowed()).all()
        assert [timed.allows(i) for i in range(300)] == [plain.allows(i) for i in range(300)]
        assert timed.accepts(token)
        twin = timed.copy()
        for one in (twin, plain):
            one.advance(token)
        timed.adopt(twin)
        assert (timed.is_accepting, timed.ending(9)) == (plain.is_accepting, plain.ending(9))
    timed.reserve = 3
    assert timed.reserve == timed.copy().reserve == 3
    assert {"mask", "advance", "forced", "copy", "ending"} == set(watch.seconds)
    assert watch.total > 0


def test_a_watch_books_the_processor_s_time_and_not_the_wall_s():
    watch = Watch()
    with watch.of("sleep"):
        time.sleep(0.2)
    with watch.of("work"):
        began = time.thread_time()
        while time.thread_time() < began + 0.05:
            pass
    assert watch.seconds["sleep"] < 0.1
    assert watch.seconds["work"] >= 0.05
