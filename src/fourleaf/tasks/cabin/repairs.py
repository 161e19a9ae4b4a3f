"""Requests that a person takes back or corrects: only the correction counts (rule 8)."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

from fourleaf.tasks.cabin import spoken
from fourleaf.tasks.cabin.phrases import Phrase, Repair
from fourleaf.tasks.cabin.pieces import FREE_SLOTS, NUMBER_SLOTS, Piece, Requests, draw_number
from fourleaf.tasks.cabin.schema import PARAMETERS, Call

# Between a value and its correction at the end of a request.
_CORRECTIONS = (
    ", no wait, {b}", ", no, {b}", ", sorry, {b}", ", I mean {b}", ", or no, {b}", ", actually {b}", " no wait {b}",
    "... no, {b}", ", er, {b}", ", make that {b}", ", actually make it {b}", ", hang on, {b}", ", scratch that, {b}",
    ", wait no {b}", ", nah, {b}", ", no no, {b}", ", oops, {b}", " - no, {b}", ", I meant {b}", ", correction, {b}",
    ", let's say {b}", ", better {b}", ". No, {b}", ". Actually, {b}", ". Sorry, I meant {b}", ", rather {b}",
    ", uh, no, {b}", ", not {a}, {b}", ", no not {a}, {b} I mean", " um no {b}", ", hmm, {b} instead",
    ". Wait, {b}", ", och no, {b}", ", sorry no, {b}", ", on second thoughts {b}", ", forget that, {b}",
    ", well, {b} actually", " or rather {b}", ", I tell a lie, {b}", ", did I say {a}? I meant {b}",
)  # fmt: skip
# Patterns that might take back more than the request before them may only stand first.
_SWEEPING = re.compile(r"forget|scratch|strike|what I just said|ignore|changed my mind|never mind|don't do that", re.I)
_SAFE_TAIL = re.compile(r"^(?:| percent| degrees| degrees celsius| fahrenheit| degrees fahrenheit)$", re.I)


def value_form(requests: Requests, tool: str, slot: str, random: Random, kinds: tuple[str, ...]) -> tuple[str, Any]:
    """(words, value in the call) for one slot of `tool`."""
    if slot in FREE_SLOTS:
        form = requests.fillers.value(slot, random, kinds)
        return form, form
    if slot in NUMBER_SLOTS:
        said, value, _ = draw_number(slot, tool, random, may_clamp=False)
        return spoken.say(said, random, in_words=random.random() < 0.4), value
    forms = requests.corpus.forms(tool, slot)
    value = random.choice(list(forms))
    return random.choice(forms[value]), value


def _two_values(
    requests: Requests, tool: str, slot: str, random: Random, kinds: tuple[str, ...]
) -> tuple[str, str, Any] | None:
    first, taken_back = value_form(requests, tool, slot, random, kinds)
    for _ in range(5):
        second, value = value_form(requests, tool, slot, random, kinds)
        # A name inside the other ("Anna", "Anna Berg") would leave the label open.
        if value != taken_back and not (isinstance(value, str) and (second in first or first in second)):
            return first, second, value
    return None


def _by_pattern(repair: Repair, requests: Requests, random: Random) -> Piece | None:
    drawn = _two_values(requests, repair.tool, repair.slot, random, ())
    if drawn is None:
        return None
    first, second, value = drawn
    text = repair.pattern.replace("{a}", first).replace("{b}", second)
    arguments = repair.args | {repair.slot: value}
    call = Call(repair.tool, {name: arguments[name] for name in PARAMETERS[repair.tool]})
    return Piece(text, (call,), frozenset({"repair"}), pattern=repair.pattern)


def _at_the_end(requests: Requests, random: Random, tool: str | None) -> Piece | None:
    """Any request that ends with a value, and then another value."""
    phrase = requests.phrase(tool or random.choice(requests.tools), random)
    match = re.search(r"\{(\w+)\}([^{}]*)$", phrase.pattern)
    if not match or match[1] in ("text", "fahrenheit") or not _SAFE_TAIL.match(match[2]):
        return None
    slot = match[1]
    kinds = phrase.query_type if slot == "query" else ()
    drawn = _two_values(requests, phrase.tool, slot, random, kinds)
    if drawn is None:
        return None
    first, second, value = drawn
    value = value * phrase.sign if slot == "delta" and phrase.sign else value
    head = Phrase(phrase.tool, phrase.pattern[: match.start()], phrase.args, phrase.sign)
    # The slots before the last one are filled as ever; the last one is written by hand.
    filled = requests.build(replace(head, args=phrase.args | {slot: value}), random, may_clamp=False)
    if len(filled.calls) != 1 or slot not in filled.calls[0].arguments:
        return None
    unit = match[2]
    correction = random.choice(_CORRECTIONS).replace("{a}", first).replace("{b}", second)
    if unit and random.random() < 0.5 and correction.endswith(second):
        text = filled.text + first + correction + unit
    else:
        text = filled.text + first + unit + correction
    if re.search(r"\b(?:1|one) degrees", text):
        return None
    return Piece(text, filled.calls, filled.tags | {"repair"}, pattern=phrase.pattern)


def _whole(repair: Repair, requests: Requests, random: Random, tool: str | None) -> Piece | None:
    second = requests.draw(random, tool)
    same = random.random() < 0.5
    first = requests.draw(random, second.calls[0].name if same else None)
    if first.calls == second.calls or first.calls[0].name == "send_message" or second.vague or first.vague:
        return None
    if not second.command or len(first.text.split()) > 9:
        return None
    if any(value in second.text for value in first.copied) or any(value in first.text for value in second.copied):
        return None
    if repair.imperative and not (first.bare_command and second.bare_command):
        return None
    if second.ends_free and not repair.pattern.endswith("{second}"):
        return None
    if re.search(r"\bplease\b", repair.pattern) and re.search(r"\bplease\b", second.text):
        return None
    text = repair.pattern
    for name, piece in (("{first}", first), ("{second}", second)):
        words = piece.text if piece.ends_free else piece.text.rstrip(" .!?")
        if (
            not text.startswith(name)
            and re.match(r"[A-Z][a-z]+ ", words)
            and not words.startswith(piece.copied or "\0")
        ):
            words = words[0].lower() + words[1:]
        text = text.replace(name, words)
    return Piece(text, second.calls, second.tags | {"repair"}, explicit=second.explicit, pattern=repair.pattern)


def draw_repair(
    repairs: list[Repair], requests: Requests, random: Random, *, first: bool, tool: str | None = None
) -> Piece:
    """A corrected request; `first` where nothing stands before it, so that it may take back all that was said."""
    while True:
        roll = random.random()
        if roll < 0.45:
            piece = _at_the_end(requests, random, tool)
        else:
            repair = random.choice(repairs)
            if not first and _SWEEPING.search(repair.pattern):
                continue
            if tool and repair.tool not in ("", tool):
                continue
            by_pattern = bool(repair.slot)
            piece = _by_pattern(repair, requests, random) if by_pattern else _whole(repair, requests, random, tool)
        if piece is not None:
            return piece
