"""Question sheets as training documents: groups of judgements, half of them asked together, half one by one.

Both formats get the same number of groups, and of tokens too, questions asked again aside: a group asked one by one
gives as many of its questions, each on a sheet of its own, as fit into what the joint sheet of the group takes. In
half of the sheets options are shown in a turned order, so that averaging over orders asks for nothing new.

Five things get a small model off the plateau on which it answers by the commonest option (docs/log.md): drills
(`drills.py`); look-ups, a few sentences and a question about each, with nothing to conclude; a question that is asked
again and again, with its first answer given, which only a look at the letter there can tell; and hints, which causal
rows learn as they learn an answer's tokens: the answer in words behind a question, and verdicts, a yes or no behind an
option which says whether it is the right one. A letter is one bit or two behind some forty tokens that must all be
understood; a hint says as much at once, right where a question or an option ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
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

SAME = "The same is asked more than once."
_TURNED_SHARE = 0.5
_QUESTIONS_PER_CALL = 2  # how a curriculum of calls reads here: at one call three questions, at six and more all eight
_LOOKUP_SHARE = 0.4  # of the groups, with any number of calls but one: there all are look-ups
_JUDGED_SHARE = 0.5  # of the sheets: those with verdicts
_AGAIN_SHARE = 0.5  # of pairs of sheets, together and alone, those that a question asked again follows
_SAID = 2  # sentences, of other things
_TIMES = (2, 3, 4)  # that it is asked
_WORDED_SHARE = 0.5  # of the sheets: those with answers in words


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
            if random.random() < _AGAIN_SHARE:
                yield press.again(next(groups), random)

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
        self._tokenizer = tokenizer
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

    def again(self, group: Group, random: Random) -> Document:
        """One of its questions several times, in other orders, the first of them answered; nothing else says how."""
        asked, *others = random.sample(group.variables, len(group.variables))
        facts = [v.says[v.truth] for v in others if v.says and v.says[v.truth]]
        (question,), (answer,) = _questions(replace(group, variables=(asked,))), (asked.shown(asked.truth),)
        times = random.choice(_TIMES)
        orders = [tuple(random.sample(range(len(question.options)), len(question.options))) for _ in range(times)]
        sheet = self._printer.sheet(" ".join([*facts[:_SAID], SAME]), [question] * times, orders)
        ids = [*sheet.prompt, *self._printer.answer(sheet, [answer] * times), self._end_id]
        asked_for = np.array(sheet.masked)
        asked_for[list(sheet.slots[0].rows)] = False
        return Document(np.array(ids, dtype=np.int64), len(sheet.prompt), asked_for)

    def _document(
        self,
        state: str,
        questions: Sequence[Question],
        answers: Sequence[int],
        random: Random,
    ) -> Document:
        sheet = self._printer.sheet(state, questions, [_order(len(q.options), random) for q in questions])
        verdicts, words = _some(_JUDGED_SHARE, random), _some(_WORDED_SHARE, random)
        told = [
            self._tokenizer.encode(f" {slot.question.options[answer].text}") if random.random() < words else []
            for slot, answer in zip(sheet.slots, answers, strict=True)
        ]
        judged = [
            self._verdicts[option == answer] if random.random() < verdicts else []
            for slot, answer in zip(sheet.slots, answers, strict=True)
            for option in slot.order
        ]
        prompt, hints = self._hinted(sheet.prompt, told, judged)
        ids = [*prompt, *self._printer.answer(sheet, answers), self._end_id]
        return Document(np.array(ids, dtype=np.int64), len(prompt), np.array(sheet.masked), tuple(hints))

    def _hinted(
        self, prompt: Sequence[int], told: Sequence[list[int]], judged: Sequence[list[int]]
    ) -> tuple[list[int], list[int]]:
        """The prompt with hints at the ends of lines, and their positions. told: of each question; judged: of each
        option."""
        made: list[int] = []
        hints: list[int] = []
        of_questions, of_options = list(told), list(judged)
        begins_option = False
        for token, after in zip(prompt, (*prompt[1:], None), strict=True):
            if token == self._newline:
                hint = of_options.pop(0) if begins_option else of_questions.pop(0) if after == self._bullet else []
                hints += range(len(made), len(made) + len(hint))
                made += hint
                begins_option = after == self._bullet
            made.append(token)
        assert not of_questions and not of_options, "questions and options have lines of their own"
        return made, hints


def _some(share: float, random: Random) -> float:
    """How probable a hint is on a sheet: on `share` of the sheets all of them or a part."""
    if random.random() >= share:
        return 0.0
    return 1.0 if random.random() < 0.5 else random.random()


def _questions(group: Group) -> tuple[Question, ...]:
    return parse_request({"model": "", "state": group.state, "questions": group.questions}).questions


def _order(size: int, random: Random) -> tuple[int, ...]:
    shift = random.randrange(size) if random.random() < _TURNED_SHARE else 0
    return tuple((i + shift) % size for i in range(size))
