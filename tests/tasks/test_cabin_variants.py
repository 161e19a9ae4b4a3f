"""Templates of wordings: every expansion can be drawn, slots hold, held-out wordings are never drawn."""

from random import Random

import pytest

from fourleaf.errors import LabelError
from fourleaf.tasks.cabin import variants
from fourleaf.tasks.cabin.phrases import Corpus, Phrase, corpus, held_out, load


def expansions(template: str) -> set[str]:
    random = Random(0)
    return {variants.draw(template, random) for _ in range(400)}


def test_each_alternative_nested_and_empty_is_drawn_and_spaces_are_tidied():
    drawn = expansions("(could you |)(crack|(roll|wind) down) {window}( , please|)")
    heads = ("crack {window}", "roll down {window}", "wind down {window}")
    assert drawn == {start + head + end for start in ("could you ", "") for head in heads for end in (", please", "")}
    assert variants.parse("(could you |)(crack|(roll|wind) down)").num_expansions == 6


def test_a_short_alternative_does_not_vanish_beside_a_wide_one():
    wide = "".join(f"(a{i}|b{i})" for i in range(12))
    random = Random(1)
    short = sum(variants.draw(f"({wide}|plain)", random) == "plain" for _ in range(4000))
    assert 10 < short < 100  # one in 101


@pytest.mark.parametrize(
    ("template", "what"),
    [("(a|b", "never closed"), ("a)", "never opened"), ("a|b", "outside"), ("(set {level}|mute) it", "same slots")],
)
def test_a_broken_template_is_named(template: str, what: str):
    with pytest.raises(LabelError, match=what):
        variants.slots(template)


def test_slots_inside_every_alternative_count_once():
    assert variants.slots("(warm {zone} by {delta}|by {delta} for {zone})") == ["delta", "zone"]


def test_a_file_with_a_template_whose_slots_vary_is_refused(tmp_path):
    path = tmp_path / "more.jsonl"
    path.write_text('{"kind": "variants", "tool": "set_fan", "pattern": "fan (to {level}|up)", "args": {}}\n')
    with pytest.raises(LabelError, match=r"more\.jsonl line 1.*same slots"):
        load(path, Corpus())


def test_held_out_wordings_are_never_drawn():
    phrase = Phrase("lock_doors", "(a|b|c|d|e)(f|g|h|i|j)(k|l|m|n|o) doors", {"locked": True}, varies=True)
    random = Random(2)
    drawn = {phrase.drawn(random).pattern for _ in range(2000)}
    every = {a + b + c + " doors" for a in "abcde" for b in "fghij" for c in "klmno"}
    assert any(held_out(text) for text in every)
    assert drawn == {text for text in every if not held_out(text)}


def test_the_test_sets_material_has_no_templates():
    assert not any(phrase.varies for phrase in corpus(additions=False).phrases)
