"""A question sheet: what the model reads, and the canvas of numbered slots in which it answers.

    The car drives at 96 km/h. ...
    1. Is the car fast?
    - no:1A
    - yes:1B
    2. How strong is the warning?
    - none:2A
    ...
    Answer like 1A 2B.

An option's label stands behind its text, with its question's number before it: whoever has found the text finds the
label as what comes next, which the smallest models do, and the words of an option are the same tokens that they are
within a sentence (decision 033).

The canvas then holds, for each question, its number and the one or two letters of an option: numbers are pinned,
letters masked. A question alone is a sheet of one, so that one by one and together are one format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fourleaf.decide.labels import Letters
from fourleaf.decide.questions import Question
from fourleaf.errors import RequestError
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer

HOW = "Answer like 1A 2B."


def option_line(text: str, label: str) -> str:
    """An option as it is printed."""
    return f"- {text}:{label}"


@dataclass(frozen=True)
class Slot:
    """Where one question is answered. order: the option shown at each place. rows: canvas rows of its letters.
    places: the letters of each place's label."""

    question: Question
    order: tuple[int, ...]
    rows: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Sheet:
    """prompt: ids. canvas: ids with anything where a letter goes. slots: of the questions in their order."""

    prompt: tuple[int, ...]
    canvas: tuple[int, ...]
    slots: tuple[Slot, ...]

    @cached_property
    def masked(self) -> tuple[bool, ...]:
        """[N] whether a canvas row is a letter to be found."""
        letters = {row for slot in self.slots for row in slot.rows}
        return tuple(row in letters for row in range(len(self.canvas)))


class Printer:
    """Makes sheets for one checkpoint's tokenizer and chat template."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate, mask_id: int | None) -> None:
        self.letters = Letters.of(tokenizer)
        self._tokenizer, self._chat = tokenizer, chat
        self._blank = self.letters.ids[0] if mask_id is None else mask_id

    def sheet(
        self, state: str, questions: Sequence[Question], orders: Sequence[tuple[int, ...]], rules: Sequence[str] = ()
    ) -> Sheet:
        """orders: for each question, the option shown at each place. rules: sentences shown below the state."""
        text = [state.strip()]
        if rules:
            text.append(f"Rules: {' '.join(rules)}")
        canvas: list[int] = []
        slots = []
        for number, (question, order) in enumerate(zip(questions, orders, strict=True), 1):
            places = tuple(self.letters.places(len(question.options)))
            text.append(f"{number}. {question.text}".rstrip())
            text += [
                option_line(question.options[shown].text, f"{number}{self.letters.text(place)}")
                for place, shown in zip(places, order, strict=True)
            ]
            canvas += self._tokenizer.encode(str(number))
            rows = tuple(range(len(canvas), len(canvas) + len(places[0])))
            canvas += [self._blank] * len(rows)
            slots.append(Slot(question, order, rows, places))
        text.append(HOW)
        return Sheet(tuple(self._render("\n".join(text))), tuple(canvas), tuple(slots))

    def shared_prefix(self, state: str) -> tuple[int, ...]:
        """The ids that every sheet about this state begins with, whatever is asked.

        Found from two texts that differ behind the state, so that it depends on nothing but the state, and an answer's
        bits on nothing but state and question.
        """
        first, second = (self._render(f"{state.strip()}\n{text}") for text in ("1. a", "Rules: a"))
        same = 0
        while same < min(len(first), len(second)) and first[same] == second[same]:
            same += 1
        return tuple(first[: max(0, same - 1)])  # the last one might merge with what follows

    def answer(self, sheet: Sheet, answers: Sequence[int]) -> list[int]:
        """The canvas with its letters: what a model learns to write. answers: an option's index for each question."""
        canvas = list(sheet.canvas)
        for slot, option in zip(sheet.slots, answers, strict=True):
            for row, letter in zip(slot.rows, slot.places[slot.order.index(option)], strict=True):
                canvas[row] = self.letters.ids[letter]
        return canvas

    def _render(self, text: str) -> list[int]:
        try:
            return self._chat.render([{"role": "user", "content": text}])
        except RequestError as error:
            raise RequestError(str(error), param="state") from error
