"""Names and wordings, and which of them training may use.

Names that training uses never stand in a test set. Of a list of wordings training leaves out the last where there are
at least three, so that test sets also hold sentences of a form that was never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

_TRAINING_NAMES = (
    "Mia", "Tom", "Ana", "Ben", "Lea", "Max", "Eva", "Jan", "Ida", "Leo", "Zoe", "Tim", "Amy", "Sam", "Kim", "Ron",
    "Ada", "Finn", "Nina", "Paul", "Rosa", "Hugo", "Vera", "Otto", "Lisa", "Mark", "Anna", "John", "Sara", "Peter",
    "Clara", "Felix", "Julia", "David", "Hanna", "Oscar", "Laura", "Simon", "Greta", "Jonas", "Elena", "Bruno", "Alice",
    "Frank", "Carla", "Henry", "Diana", "Viktor", "Paula", "Edgar", "Marta", "Ralph", "Sonja", "Derek", "Irene", "Lars",
    "Helen", "Milan", "Judith", "Pablo", "Fiona", "Tobias", "Esther", "Colin", "Ruth", "Stefan", "Olga", "Walter",
    "Yara", "Quentin", "Bianca", "Zach", "Ursula", "Kofi", "Priya", "Kenji", "Amina", "Ravi", "Chloe", "Dmitri",
)  # fmt: skip
_TEST_NAMES = ("Ella", "Noah", "Maya", "Luca", "Iris", "Owen", "Tara", "Emil", "Nora", "Karl", "Lina", "Theo")
_TRAINING_PLACES = (
    "Ard", "Bell", "Corr", "Dunn", "Esk", "Fenn", "Gale", "Holm", "Isle", "Kern", "Lund", "Moor", "Ash", "Bray", "Clun",
    "Dale", "Eden", "Firth", "Glen", "Hythe", "Ivel", "Jarrow", "Kyle", "Leith", "Marsh", "Ness", "Orme", "Pendle",
    "Stroud", "Thame",
)  # fmt: skip
_TEST_PLACES = ("Oake", "Penn", "Quay", "Rook", "Sund", "Tarn", "Usk", "Vale", "Wick", "Yarm")


@dataclass(frozen=True)
class Side:
    """Training or test: what may be drawn."""

    is_training: bool

    def names(self, random: Random, num: int) -> list[str]:
        """People."""
        return random.sample(_TRAINING_NAMES if self.is_training else _TEST_NAMES, num)

    def places(self, random: Random, num: int) -> list[str]:
        """Regions of a map."""
        return random.sample(_TRAINING_PLACES if self.is_training else _TEST_PLACES, num)

    def pick(self, random: Random, wordings: Sequence[str]) -> str:
        """One of several ways to say it."""
        keep = len(wordings) - (self.is_training and len(wordings) >= 3)
        return wordings[random.randrange(keep)]

    def say(self, random: Random, wordings: Sequence[str], **parts: str) -> str:
        """One wording, filled in, with a capital at its start."""
        text = self.pick(random, wordings).format(**parts)
        return text[0].upper() + text[1:]


TRAINING, TEST = Side(True), Side(False)


def listed(names: Sequence[str], word: str = "and") -> str:
    """A, B and C."""
    return f"{', '.join(names[:-1])} {word} {names[-1]}" if len(names) > 1 else names[0]
