"""Drills: what a question sheet needs of a model, one thing at a time.

    - third:1A          Mia comes third. Tom comes first.
    - first:1B
    -> " first:1B third:1A"          -> " Tom: first Mia: third"

Names to values, texts to labels, labels back to texts, labels to other labels of the same text, questions to what
would be said in answer. A sheet asks for all of it one after the other and pays only for the end, so that a small
model finds none; each alone it learns within some hundred thousand tokens, and sheets thereafter (docs/log.md). Labels
to texts, and to labels of other questions, is what a canvas needs to read its own revealed letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random

import numpy as np

from fourleaf.checkpoint.convert import BLOCK_SIZE
from fourleaf.decide.labels import Letters
from fourleaf.decide.sheet import option_line
from fourleaf.tasks.judgements.generator import FAMILIES, MAX_QUESTIONS, MIN_QUESTIONS, lookup
from fourleaf.tasks.judgements.group import NOUL, Group, Variable
from fourleaf.tasks.judgements.wording import TRAINING
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer
from fourleaf.train.data import Document, Source

_NAMED = ("ordering", "assignment", "budgets", "colouring")  # families that ask the same of several
_MOST, _MOST_QUESTIONS = 5, 3
_LOOKUP_SIZES = (2, 3, 4)
_LOOKUP_TURNED = 0.25  # of a look-up's questions that ask for the opposite, the share that stays


def drill_source(tokenizer: Tokenizer, chat: ChatTemplate) -> Source:
    """The training stream of drills as documents, the kinds in turn."""
    drills = Drills(tokenizer, chat)

    def source(seed: int, max_calls: int) -> Iterator[Document]:
        random = Random(f"drills {seed}")
        while True:
            yield drills.labels(random)
            yield drills.meanings(random)
            yield drills.matches(random)
            yield drills.values(random)
            yield drills.questions(random)

    return source


class Drills:
    """Makes them for one tokenizer and chat template."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate) -> None:
        self._tokenizer, self._chat = tokenizer, chat
        self._letters = Letters.of(tokenizer)

    def labels(self, random: Random) -> Document:
        """Options with labels as on a sheet; then the texts in another order, each with its label to be found."""
        texts, number = _texts(random), random.randint(1, MAX_QUESTIONS)
        pairs = [(f" {text}:{number}", [self._letters.ids[i]]) for i, text in enumerate(texts)]
        return self._document("\n".join(self._listed(number, texts)), random.sample(pairs, len(pairs)))

    def meanings(self, random: Random) -> Document:
        """Options of a few questions with their labels; then some labels, each with its text to be found."""
        lines, pairs = [], []
        for number in sorted(random.sample(range(1, MAX_QUESTIONS + 1), random.randint(1, _MOST_QUESTIONS))):
            texts = _texts(random)
            lines += self._listed(number, texts)
            pairs += [
                (f" {self._label(number, i)}:", self._tokenizer.encode(f" {text}")) for i, text in enumerate(texts)
            ]
        return self._document("\n".join(lines), random.sample(pairs, min(len(pairs), _MOST)))

    def matches(self, random: Random) -> Document:
        """Two questions with the same options in orders of their own; then labels of one, each with the other's label
        of the same text to be found: in half of the documents by way of the text, in half at once."""
        texts, is_told = _texts(random), random.random() < 0.5
        numbers = sorted(random.sample(range(1, MAX_QUESTIONS + 1), 2))
        orders = [random.sample(texts, len(texts)) for _ in numbers]
        lines = [line for number, order in zip(numbers, orders, strict=True) for line in self._listed(number, order)]
        given, wanted = random.sample((0, 1), 2)
        pairs: list[tuple[str, Sequence[int]]] = []
        for text in random.sample(texts, len(texts)):
            label, letter = self._label(numbers[given], orders[given].index(text)), orders[wanted].index(text)
            by_text = [(f" {label}:", self._tokenizer.encode(f" {text}"))] if is_told else []
            behind = "" if is_told else f" {label}"
            pairs += [*by_text, (f"{behind}:{numbers[wanted]}", [self._letters.ids[letter]])]
        return self._document("\n".join(lines), pairs)

    def values(self, random: Random) -> Document:
        """Sentences; then their subjects in another order, each with its value to be found."""
        variables = _alike(random)
        pairs = [
            (f" {name}:", self._tokenizer.encode(f" {v.values[v.truth]}"))
            for v, name in zip(variables, _subjects(variables), strict=True)
        ]
        chosen = random.sample(range(len(pairs)), random.randint(2, min(_MOST, len(pairs))))
        state = " ".join(variables[i].says[variables[i].truth] for i in random.sample(chosen, len(chosen)))
        return self._document(state, [pairs[i] for i in chosen])

    def questions(self, random: Random) -> Document:
        """Sentences; then questions about them, each with its answer to be found in words."""
        group = look_up(random)
        pairs = [
            (f" {v.ask}", self._tokenizer.encode(f" {v.options[answer]}"))
            for v, answer in zip(group.variables, group.answers, strict=True)
        ]
        return self._document(group.state, pairs)

    def _label(self, number: int, place: int) -> str:
        return f"{number}{self._letters.text((place,))}"

    def _listed(self, number: int, texts: Sequence[str]) -> list[str]:
        """The lines of a question's options."""
        return [option_line(text, self._label(number, i)) for i, text in enumerate(texts)]

    def _document(self, text: str, pairs: Sequence[tuple[str, Sequence[int]]]) -> Document:
        prompt = self._chat.render([{"role": "user", "content": text}])
        ids, slots = [], []
        for given, found in pairs:
            before = self._tokenizer.encode(given)
            if len(ids) + len(before) + len(found) > BLOCK_SIZE:
                break  # what does not fit on a canvas is not asked
            ids += [*before, *found]
            slots += [False] * len(before) + [True] * len(found)
        return Document(np.array([*prompt, *ids, self._tokenizer.end_id], dtype=np.int64), len(prompt), np.array(slots))


def look_up(random: Random) -> Group:
    """A few sentences and a question about each, with nothing to conclude."""
    family = random.choice(list(FAMILIES))
    return lookup(family, random.choice(_LOOKUP_SIZES), random, TRAINING, turned=_LOOKUP_TURNED)


def _alike(random: Random) -> list[Variable]:
    """The variables of a group that have the same values and a sentence for each."""
    variables, _ = FAMILIES[random.choice(_NAMED)](random.randint(MIN_QUESTIONS, MAX_QUESTIONS), random, TRAINING)
    return [v for v in variables if v.kind != NOUL and v.says]


def _texts(random: Random) -> list[str]:
    """Texts as options have them, no two alike."""
    texts = list(dict.fromkeys(chain(*(v.values for v in _alike(random) + _alike(random)))))
    return random.sample(texts, min(len(texts), random.randint(2, _MOST)))


def _subjects(variables: Sequence[Variable]) -> list[str]:
    """Of each question the words that not all of them have: whom or what it asks about."""
    words = [v.ask.rstrip("?").split() for v in variables]
    common = set(words[0]).intersection(*words[1:])
    return [" ".join(word for word in own if word not in common) for own in words]
