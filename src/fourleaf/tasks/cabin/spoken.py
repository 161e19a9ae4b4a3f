"""Numbers as people say them: written out from integers, and read back from text.

`say` gives one spoken or written form of a number; `mentions` finds every number in a text with its place, so that
labels can be proved from the words and values swapped in both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
_UNIT_VALUES = {word: value for value, word in enumerate(_UNITS)} | {"nought": 0, "oh": 0}
# Two spellings of drivers' own are read, never written.
_TEN_VALUES = {word: 10 * value for value, word in enumerate(_TENS) if value >= 2} | {"fourty": 40, "twenny": 20}

NUMBER_WORDS = frozenset(_UNIT_VALUES) | frozenset(_TEN_VALUES) | {"hundred", "minus"}

_UNIT = "(?:" + "|".join(sorted(set(_UNITS) | {"nought"}, key=len, reverse=True)) + ")"
_SMALL = "(?:" + "|".join(_UNITS[1:10]) + ")"
_TEENS = "(?:" + "|".join(sorted(_UNITS[10:], key=len, reverse=True)) + ")"
_TENTIES = "(?:" + "|".join(_TEN_VALUES) + ")"
_BELOW_100 = rf"(?:{_TENTIES}(?:[ -]{_SMALL})?|{_TEENS}|{_UNIT})"
_WORDS = (
    rf"(?:(?:(?:a|one|two|three|four|five) )?hundred(?:(?: and)? {_BELOW_100})?"
    rf"|one (?:oh {_SMALL}|{_TENTIES}(?:[ -]{_SMALL})?|{_TEENS})"
    rf"|{_BELOW_100})"
)
_NUMBER = re.compile(rf"(?<![\w.,:/'’-])(?:(?P<digits>\d{{1,3}})(?![\w:/]|[.,]\d)|(?P<words>{_WORDS})(?![\w-]))", re.I)


@dataclass(frozen=True)
class Mention:
    """One number in a text: its value, its place, and whether it is spelt in words."""

    value: int
    start: int
    end: int
    in_words: bool


def read(words: str) -> int:
    """The integer spelt by `words` (0 to 599), for text that matched the number grammar."""
    tokens = [token for token in re.split(r"[ -]", words.lower()) if token not in ("and", "oh")]
    if "hundred" in tokens:
        place = tokens.index("hundred")
        head = 1 if not place or tokens[place - 1] == "a" else _UNIT_VALUES[tokens[place - 1]]
        return 100 * head + (read(" ".join(tokens[place + 1 :])) if tokens[place + 1 :] else 0)
    # "one ten", "one twenty two", "one oh five" are numbers above a hundred.
    if tokens[0] == "one" and len(tokens) > 1:
        return 100 + read(" ".join(tokens[1:]))
    return sum(_TEN_VALUES.get(token, _UNIT_VALUES.get(token, 0)) for token in tokens)


def mentions(text: str) -> list[Mention]:
    """Every number below 1000 in `text`, from left to right."""
    found = []
    for match in _NUMBER.finditer(text):
        in_words = match["words"] is not None
        value = read(match["words"]) if in_words else int(match["digits"])
        found.append(Mention(value, match.start(), match.end(), in_words))
    return found


def _below_100(number: int, hyphen: bool) -> str:
    if number < 20:
        return _UNITS[number]
    tens, unit = divmod(number, 10)
    return _TENS[tens] + ((("-" if hyphen else " ") + _UNITS[unit]) if unit else "")


def say(number: int, random: Random, *, in_words: bool) -> str:
    """One form of `number` (0 to 599): digits, or one of its spoken forms drawn from `random`."""
    assert 0 <= number < 600, number
    if not in_words:
        return str(number)
    hyphen = random.random() < 0.35
    if number < 100:
        return _below_100(number, hyphen)
    hundreds, rest = divmod(number, 100)
    head = "a hundred" if hundreds == 1 and random.random() < 0.5 else f"{_UNITS[hundreds]} hundred"
    if not rest:
        return head
    if hundreds == 1 and random.random() < 0.3:
        return "one " + ("oh " if rest < 10 else "") + _below_100(rest, hyphen)
    return head + (" and " if random.random() < 0.6 else " ") + _below_100(rest, hyphen)


def celsius(fahrenheit: int) -> int:
    """Whole degrees Celsius, halves away from zero."""
    value = (fahrenheit - 32) * 5 / 9
    return int(value + 0.5) if value >= 0 else -int(-value + 0.5)


def kmh(mph: int) -> int:
    """Whole kilometres an hour."""
    return int(mph * 1.609344 + 0.5)
