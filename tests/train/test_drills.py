"""Drills: each asks for what its text says, and for nothing that a test set holds."""

import re
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from fourleaf.tasks.judgements import wording
from fourleaf.train.data import Document
from fourleaf.train.drills import drill_source


@pytest.fixture(scope="module")
def drills(tokenizer, chat) -> list[Document]:
    return list(islice(drill_source(tokenizer, chat)(5, 8), 500))


def _parts(document: Document, tokenizer) -> tuple[str, str, list[str]]:
    """Prompt, answer, and the answer's runs of tokens that are to be found."""
    assert document.slots is not None
    answer = document.ids[document.answer_start : -1]
    assert document.ids[-1] == tokenizer.end_id
    assert len(document.slots) == len(answer)
    edges = np.flatnonzero(np.diff(document.slots.astype(int), prepend=0, append=0))
    found = [tokenizer.decode(answer[a:b]) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    content = tokenizer.decode(document.ids[: document.answer_start])
    return content.removeprefix("<|user|>").removesuffix("<|assistant|>"), tokenizer.decode(answer), found


def test_every_label_asked_for_is_that_of_its_text(drills, tokenizer):
    for document in drills[::5]:
        prompt, answer, found = _parts(document, tokenizer)
        shown = dict(line.removeprefix("- ").rsplit(":", 1) for line in prompt.split("\n"))
        assert sorted(shown) == sorted(set(shown))
        asked = sorted((text for text in shown if f" {text}:" in answer), key=lambda text: answer.index(f" {text}:"))
        assert answer == "".join(f" {text}:{shown[text]}" for text in asked)
        assert found == [shown[text][-1] for text in asked]
        assert len(document.slots) <= 32


def test_every_label_tells_its_text(drills, tokenizer):
    num_questions = set()
    for document in drills[1::5]:
        prompt, answer, found = _parts(document, tokenizer)
        shown = {label: text for text, label in (line.removeprefix("- ").rsplit(":", 1) for line in prompt.split("\n"))}
        num_questions.add(len({label[0] for label in shown}))
        assert len(document.slots) <= 32
        rest = answer
        for text in found:
            label, rest = rest.removeprefix(" ").split(f":{text}", 1)
            assert shown[label] == text.removeprefix(" ")
        assert rest == ""
    assert num_questions == {1, 2, 3}


def test_every_label_tells_the_other_question_s_label_of_its_text(drills, tokenizer):
    ways = Counter()
    for document in drills[2::5]:
        prompt, answer, found = _parts(document, tokenizer)
        shown = {label: text for text, label in (line.removeprefix("- ").rsplit(":", 1) for line in prompt.split("\n"))}
        numbers = sorted({label[0] for label in shown})
        first, second = ({text for label, text in shown.items() if label[0] == number} for number in numbers)
        assert first == second
        asked = answer.removeprefix(" ").split(" ", 1)[0][0]
        is_told = answer.count(":") > len([label for label in found if label in "ABCDE"])
        ways[is_told, asked == numbers[0]] += 1
        for one in re.findall(r"(\d[A-E]):(?: ([^:]+):)?(\d[A-E])", answer):
            label, text, other = one
            assert shown[label] == shown[other]
            assert label[0] == asked != other[0]
            assert text == (shown[label] if is_told else "")
    assert len(ways) == 4, ways
    assert min(ways.values()) > 10


def test_every_value_asked_for_stands_in_its_subjects_sentence(drills, tokenizer):
    for document in drills[3::5]:
        prompt, answer, found = _parts(document, tokenizer)
        sentences = prompt.lower().removesuffix(".").split(". ")
        assert len(document.slots) <= 32
        rest = answer
        for value in found:
            subject, rest = rest.split(f":{value}", 1)
            about = [s for s in sentences if subject.strip().lower() in s.replace(",", "").split(value)[0]]
            assert any(value.strip() in s for s in about), (prompt, answer)
        assert rest == ""


def test_every_question_is_answered_as_its_sentence_says(drills, tokenizer):
    words = Counter()
    for document in drills[4::5]:
        prompt, answer, found = _parts(document, tokenizer)
        assert len(document.slots) <= 32
        words.update(found)
        rest = answer
        for said in found:
            _, rest = rest.split("?", 1)
            assert rest.startswith(said)
            rest = rest.removeprefix(said)
            if said not in (" yes", " no"):
                assert said.strip().lower() in prompt.lower()
        assert rest == ""
    assert min(words[" yes"], words[" no"]) > 15


def test_the_texts_stand_in_another_order_than_they_are_asked_for(drills, tokenizer):
    same = 0
    for document in drills[::5]:
        prompt, answer, _ = _parts(document, tokenizer)
        same += "".join(f" {line[2:]}" for line in prompt.split("\n")) == answer
    assert 0 < same < len(drills) / 10


def test_names_of_the_test_sets_never_occur(drills, tokenizer):
    text = " ".join(tokenizer.decode(document.ids) for document in drills)
    assert not any(f"{name} " in text or f"{name}:" in text for name in wording._TEST_NAMES + wording._TEST_PLACES)
    assert any(f"{name}:" in text for name in wording._TRAINING_NAMES)


def test_the_source_is_a_function_of_its_seed(tokenizer, chat):
    source = drill_source(tokenizer, chat)

    def drawn(seed):
        return [document.ids.tolist() for document in islice(source(seed, 1), 10)]

    assert drawn(1) == drawn(1) != drawn(2)
