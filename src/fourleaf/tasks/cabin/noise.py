"""What keyboards and speech recognition do to an utterance: slips, case and punctuation.

Copied text changes only where words and calls change alike; numbers never change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from fourleaf.tasks.cabin.pieces import Piece
from fourleaf.tasks.cabin.schema import FREE_TEXT, Call
from fourleaf.tasks.cabin.spoken import NUMBER_WORDS

_NEIGHBOURS = {
    "a": "sqz", "b": "vn", "c": "xv", "d": "sfe", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo", "j": "hk",
    "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "w", "r": "et", "s": "ad", "t": "ry",
    "u": "yi", "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x",
}  # fmt: skip
_WORD = re.compile(r"(?<![\w'’-])[a-z]{4,}(?![\w'’-])")


def spans_of(text: str, values: tuple[str, ...]) -> list[tuple[int, int]]:
    """Every place where one of `values` stands in `text`."""
    return [match.span() for value in values for match in re.finditer(re.escape(value), text)]


def _slip(word: str, random: Random) -> str:
    at = random.randrange(1, len(word)) if random.random() < 0.9 else 0
    roll = random.random()
    if roll < 0.35 and at + 1 < len(word):
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if roll < 0.6:
        return word[:at] + word[at + 1 :]
    if roll < 0.78:
        return word[: at + 1] + word[at:]
    return word[:at] + random.choice(_NEIGHBOURS[word[at]]) + word[at + 1 :]


def add_typo(piece: Piece, vocabulary: frozenset[str], random: Random) -> Piece:
    """One slip of the keyboard, two now and then, never one that makes another known word. Tags it `typo`."""
    text = piece.text
    for _ in range(2 if random.random() < 0.25 else 1):
        copied = spans_of(text, piece.copied)
        words = [
            match
            for match in _WORD.finditer(text)
            if match[0] not in NUMBER_WORDS and all(match.end() <= a or match.start() >= b for a, b in copied)
        ]
        if not words:
            return piece if text == piece.text else replace(piece, text=text, tags=piece.tags | {"typo"})
        match = random.choice(words)
        slipped = _slip(match[0], random)
        if slipped in vocabulary or slipped in NUMBER_WORDS or slipped == match[0]:
            continue
        text = text[: match.start()] + slipped + text[match.end() :]
    if text == piece.text:
        return piece
    return replace(piece, text=text, tags=piece.tags | {"typo"})


def _alike(piece: Piece, change: Callable[[str], str]) -> Piece:
    """Change the words and the copied arguments alike; the piece itself where that would not stay a copy."""
    text = change(piece.text)
    calls = tuple(
        Call(c.name, {n: change(v) if (c.name, n) in FREE_TEXT else v for n, v in c.arguments.items()})
        for c in piece.calls
    )
    changed = replace(piece, text=text, calls=calls)
    return changed if all(value in text for value in changed.copied) else piece


def _lower_copies(piece: Piece) -> Piece:
    """Names and places as hasty fingers leave them, the rest as it is."""
    copies = sorted(piece.copied, key=len, reverse=True)

    def change(text: str) -> str:
        for value in copies:
            text = text.replace(value, value.lower())
        return text

    return _alike(piece, change)


def _drop_commas(piece: Piece) -> Piece:
    if piece.copied:
        return piece
    return replace(piece, text=re.sub(r"[,;](?= )", "", piece.text))


_PAUSES = ("uh ", "um, ", "er ", "uh, ", "um ", "erm, ", "eh ")
_SEARCHES = ("what's it called, ", "let me think, ", "oh what was it, ", "hmm, ", "I think it's ", "wait, yes, ")


def hesitate(piece: Piece, random: Random) -> Piece:
    """A moment's thought before a copied text, of which it is no part."""
    values = [v for v in piece.copied if piece.text.count(v) == 1 and f" {v}" in piece.text]
    if not values:
        return piece
    value = random.choice(values)
    start = piece.text.index(value)
    # "my {sister}", "the radio station {X}": a pause reads well behind a verb or a preposition, not behind an article.
    if re.search(r"\b(?:my|the|a|an|our|some|that|at|[\"“])\s*$", piece.text[:start], re.I):
        return piece
    message = any(value == call.arguments.get("text") for call in piece.calls)
    head = piece.text[:start].rstrip()
    # A message may itself begin with more than a sound, so only sounds are sure to be no part of it.
    if message or not head[-1:].isalpha() or random.random() < 0.6:
        return replace(piece, text=f"{head} {random.choice(_PAUSES)}{piece.text[start:]}")
    return replace(piece, text=f"{head}, {random.choice(_SEARCHES)}{piece.text[start:]}")


def capital(text: str) -> str:
    """`text` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def restyle(piece: Piece, random: Random) -> Piece:
    """Case and punctuation as people leave them."""
    roll = random.random()
    if roll < 0.12:
        piece = _alike(piece, str.lower)
    elif roll < 0.125:
        piece = _alike(piece, str.upper)
    elif roll < 0.42 and not any(piece.text.startswith(value) for value in piece.copied):
        piece = replace(piece, text=capital(piece.text))
    if random.random() < 0.06:
        piece = _lower_copies(piece)
    if random.random() < 0.04:
        piece = _drop_commas(piece)
    if random.random() < 0.04:
        piece = _alike(piece, lambda text: text.replace("'", "’"))
    # A mark behind a copied text is not part of it, but a message may well end with one of its own.
    if re.search(r"\w$", piece.text) and not piece.ends_in_message:
        mark = random.choices(("", ".", "!", "..."), (84, 13, 2, 1))[0]
        piece = replace(piece, text=piece.text + mark)
    return piece
