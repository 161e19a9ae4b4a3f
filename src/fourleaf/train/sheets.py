"""Question sheets as training documents: groups of judgements, half of them asked together, half one by one.

Both formats get the same number of groups, and of tokens too: a group asked one by one gives as many of its questions,
each on a sheet of its own, as fit into what the joint sheet of the group takes. In half of the sheets options are
shown in a turned order, so that averaging over orders asks for nothing new.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from fourleaf.decide.questions import Question, parse_request
from fourleaf.decide.sheet import Printer
from fourleaf.tasks.judgements.generator import stream
from fourleaf.tasks.judgements.group import Group
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer
from fourleaf.train.data import Document, Source

_TURNED_SHARE = 0.5
_QUESTIONS_PER_CALL = 2  # how a curriculum of calls reads here: at one call three questions, at six and more all eight


def sheet_source(tokenizer: Tokenizer, chat: ChatTemplate) -> Source:
    """The training stream of judgements as documents."""
    press = _Press(tokenizer, chat)

    def source(seed: int, max_calls: int) -> Iterator[Document]:
        random = Random(f"sheets {seed}")
        for number, group in enumerate(stream(seed, max_questions=max_calls + _QUESTIONS_PER_CALL)):
            yield from press.together(group, random) if number % 2 == 0 else press.alone(group, random)

    return source


def sheet_texts(seed: int, num: int) -> Iterator[str]:
    """What is printed on sheets, for training a tokenizer."""
    for group in itertools.islice(stream(seed), num):
        yield group.state
        for v in group.variables:
            yield "\n".join((v.ask, *v.options))


class _Press:
    """Makes documents of groups."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate) -> None:
        self._printer = Printer(tokenizer, chat, tokenizer.mask_id)
        self._end_id = tokenizer.end_id

    def together(self, group: Group, random: Random) -> list[Document]:
        """The whole group on one sheet."""
        return [self._document(group.state, _questions(group), group.answers, random)]

    def alone(self, group: Group, random: Random) -> list[Document]:
        """Some of its questions, in random order, on a sheet each."""
        questions = _questions(group)
        room = len(self._document(group.state, questions, group.answers, random).ids)
        made: list[Document] = []
        for i in random.sample(range(len(questions)), len(questions)):
            document = self._document(group.state, [questions[i]], [group.answers[i]], random)
            if made and sum(len(other.ids) for other in made) + len(document.ids) / 2 > room:
                break
            made.append(document)
        return made

    def _document(self, state: str, questions: Sequence[Question], answers: Sequence[int], random: Random) -> Document:
        sheet = self._printer.sheet(state, questions, [_order(len(q.options), random) for q in questions])
        ids = [*sheet.prompt, *self._printer.answer(sheet, answers), self._end_id]
        return Document(np.array(ids, dtype=np.int64), len(sheet.prompt), np.array(sheet.masked))


def _questions(group: Group) -> tuple[Question, ...]:
    return parse_request({"model": "", "state": group.state, "questions": group.questions}).questions


def _order(size: int, random: Random) -> tuple[int, ...]:
    shift = random.randrange(size) if random.random() < _TURNED_SHARE else 0
    return tuple((i + shift) % size for i in range(size))
