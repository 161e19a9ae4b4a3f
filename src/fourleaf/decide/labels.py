"""The tokens that stand for options: one letter each, or two where there are more options than letters."""

from __future__ import annotations

import math
import string
from dataclasses import dataclass

from fourleaf.errors import CheckpointError
from fourleaf.text.tokenizer import Tokenizer

MIN_LETTERS = 16  # two of them tell 256 options apart


@dataclass(frozen=True)
class Letters:
    """Letters that are one token each in a tokenizer, no two of them the same one."""

    texts: tuple[str, ...]
    ids: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Letters:
        """Raises CheckpointError where the tokenizer has too few."""
        found: dict[int, str] = {}
        for letter in string.ascii_uppercase:
            ids = tokenizer.encode(letter)
            if len(ids) == 1 and ids[0] not in tokenizer.special_ids:
                found.setdefault(ids[0], letter)
        if len(found) < MIN_LETTERS:
            raise CheckpointError(
                f"this checkpoint's tokenizer has {len(found)} capital letters that are one token; decisions need "
                f"{MIN_LETTERS}"
            )
        return cls(tuple(found.values()), tuple(found))

    def width(self, num_options: int) -> int:
        """Letters in the label of each of so many options."""
        return 1 if num_options <= len(self.ids) else 2

    def places(self, num_options: int) -> list[tuple[int, ...]]:
        """For each option, which letters its label is made of."""
        if self.width(num_options) == 1:
            return [(i,) for i in range(num_options)]
        side = math.ceil(math.sqrt(num_options))
        assert side <= len(self.ids)
        return [divmod(i, side) for i in range(num_options)]

    def text(self, place: tuple[int, ...]) -> str:
        """A label as the prompt shows it."""
        return " ".join(self.texts[i] for i in place)
