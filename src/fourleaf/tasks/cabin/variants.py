"""Templates of wordings: `(could you |)(crack|open) {window}` stands for each choice of one alternative a bracket.

Choices nest and may be empty. A template's slots must not depend on the choices.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from random import Random

from fourleaf.errors import LabelError

_TOKEN = re.compile(r"[()|]|[^()|]+")
_SLOT = re.compile(r"\{\w+\}")


@dataclass(frozen=True)
class Choice:
    """Alternatives, each a row of plain text and further choices."""

    alternatives: tuple[tuple[str | Choice, ...], ...]

    @cached_property
    def num_expansions(self) -> int:
        """In how many ways it can be drawn."""
        total = 0
        for alternative in self.alternatives:
            ways = 1
            for part in alternative:
                ways *= 1 if isinstance(part, str) else part.num_expansions
            total += ways
        return total


def draw(template: str, random: Random) -> str:
    """One expansion, its spaces tidied; an alternative is drawn as often as it has expansions, up to a hundred."""
    return re.sub(r"\s+([,.?!])", r"\1", re.sub(r"\s+", " ", _draw(parse(template), random))).strip()


def _draw(choice: Choice, random: Random) -> str:
    # A plain alternative beside one with thousands of expansions must not vanish.
    weights = [min(100, Choice((alternative,)).num_expansions) for alternative in choice.alternatives]
    alternative = random.choices(choice.alternatives, weights)[0]
    return "".join(part if isinstance(part, str) else _draw(part, random) for part in alternative)


def slots(template: str) -> list[str]:
    """The slots' names in order of the alphabet. Raises LabelError where they depend on the choices."""
    return sorted(slot[1:-1] for slot in _slots(parse(template)).elements())


def _slots(choice: Choice) -> Counter[str]:
    found = []
    for alternative in choice.alternatives:
        mine: Counter[str] = Counter()
        for part in alternative:
            mine.update(_SLOT.findall(part) if isinstance(part, str) else _slots(part))
        found.append(mine)
    if any(other != found[0] for other in found):
        raise LabelError(f"each alternative of a choice must have the same slots, got {[sorted(f) for f in found]}")
    return found[0]


@cache
def parse(template: str) -> Choice:
    """The template as a tree. Raises LabelError where brackets do not pair or a bar stands outside them."""
    stack: list[list[list[str | Choice]]] = [[[]]]
    for token in _TOKEN.findall(template):
        if token == "(":
            stack.append([[]])
        elif token == ")":
            if len(stack) == 1:
                raise LabelError(f"a bracket closes that was never opened in {template!r}")
            closed = stack.pop()
            stack[-1][-1].append(Choice(tuple(tuple(parts) for parts in closed)))
        elif token == "|":
            if len(stack) == 1:
                raise LabelError(f"a bar outside brackets in {template!r}")
            stack[-1].append([])
        else:
            stack[-1][-1].append(token)
    if len(stack) > 1:
        raise LabelError(f"a bracket is never closed in {template!r}")
    return Choice(tuple(tuple(parts) for parts in stack[0]))
