"""Question sheets as training documents: groups of judgements, half of them asked together, half one by one.

Both formats get the same number of groups, and of tokens too: a group asked one by one gives as many of its questions,
each on a sheet of its own, as fit into what the joint sheet of the group takes. In half of the sheets options are
shown in a turned order, so that averaging over orders asks for nothing new.

Three things get a small model off the plateau on which it answers by the commonest option (docs/log.md): drills
(`drills.py`); look-ups, a few sentences and a question about each, with nothing to conclude; and verdicts, a yes or no
behind an option which says whether it is the right one, and which causal rows learn as they learn an answer's tokens.
A letter is one bit or two behind some forty tokens that must all be understood; verdicts are a bit for each option,
right where its text ends.
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
from fourleaf.train.drills import look_up

_TURNED_SHARE = 0.5
_QUESTIONS_PER_CALL = 2  # how a curriculum of calls reads here: at one call three questions, at six and more all eight
_LOOKUP_SHARE = 0.4  # of the groups, with any number of calls but one: there all are look-ups
_JUDGED_SHARE = 0.5  # of the sheets: those with verdicts


def sheet_source(tokenizer: Tokenizer, chat: ChatTemplate) -> Source:
    """The training stream of judgements as documents."""
    press = _Press(tokenizer, chat)

    def source(seed: int, max_calls: int) -> Iterator[Document]:
        random = Random(f"sheets {seed}")
        groups = stream(seed, max_questions=max_calls + _QUESTIONS_PER_CALL)
        share = 1.0 if max_calls == 1 else _LOOKUP_SHARE
        while True:
            for make in (press.together, press.alone):
                yield from make(look_up(random) if random.random() < share else next(groups), random)

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
        (self._newline,) = tokenizer.encode("\n")
        (self._bullet,) = tokenizer.encode("-")
        self._verdicts = tokenizer.encode(" no"), tokenizer.encode(" yes")

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

    def _document(
        self,
        state: str,
        questions: Sequence[Question],
        answers: Sequence[int],
        random: Random,
    ) -> Document:
        sheet = self._printer.sheet(state, questions, [_order(len(q.options), random) for q in questions])
        prompt, hints = list(sheet.prompt), []
        if random.random() < _JUDGED_SHARE:
            share = 1.0 if random.random() < 0.5 else random.random()  # of the options
            right = [
                option == answer for slot, answer in zip(sheet.slots, answers, strict=True) for option in slot.order
            ]
            prompt, hints = self._judged(prompt, [is_right if random.random() < share else None for is_right in right])
        ids = [*prompt, *self._printer.answer(sheet, answers), self._end_id]
        return Document(np.array(ids, dtype=np.int64), len(prompt), np.array(sheet.masked), tuple(hints))

    def _judged(self, prompt: Sequence[int], verdicts: Sequence[bool | None]) -> tuple[list[int], list[int]]:
        """The prompt with verdicts at the ends of its options' lines, and where they begin."""
        made, hints, left = [], [], list(verdicts)
        is_option = False
        for before, token in zip((None, *prompt), prompt, strict=False):
            if token == self._newline and is_option and (verdict := left.pop(0)) is not None:
                hints.append(len(made))
                made += self._verdicts[verdict]
            if before == self._newline or token == self._newline:
                is_option = before == self._newline and token == self._bullet
            made.append(token)
        assert not left, "every option has a line of its own, with a bullet"
        return made, hints


def _questions(group: Group) -> tuple[Question, ...]:
    return parse_request({"model": "", "state": group.state, "questions": group.questions}).questions


def _order(size: int, random: Random) -> tuple[int, ...]:
    shift = random.randrange(size) if random.random() < _TURNED_SHARE else 0
    return tuple((i + shift) % size for i in range(size))
