"""A short way to the end of an answer, searched for with nothing but a matcher: which tokens bring it to its end token.

First greedily, by what closes things in JSON; where that runs in circles (regular expressions), breadth first over
single bytes, where places that allow the same tokens count as one: at first among all, which makes the search short,
then among those of one length, which a counted repetition needs. All find endings that are legal; none proves that none
is shorter, and a search that gives up proves nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fourleaf.text.tokenizer import THINK, THINK_END, Tokenizer

MAX_WIDTH = 6  # places that the second search keeps of each length
LONG_RUN = 8  # times that one token is taken before a way out is searched for
MAX_STEPS = 1_500  # tokens that one search tries


class Position(Protocol):
    """What a search needs of a matcher."""

    def allowed(self) -> NDArray[np.bool_]: ...
    def accepts(self, token: int) -> bool: ...
    def advance(self, token: int) -> None: ...
    def forced(self) -> list[int]: ...
    def copy(self) -> Position: ...


def ending(
    position: Position, tokenizer: Tokenizer, limit: int, goal: Sequence[int] = (), closing: str = ""
) -> list[int] | None:
    """Tokens from `position` to its end token, at most `limit`; None where none were found. Leaves it as it is.

    goal: tokens to lead to in place of the end token; they must be legal behind what is returned, without them.
    closing: text that ends something wherever the grammar takes the whole of it, such as the XML-like markup's closing
    tag, which looks like any other text before it is whole.
    """
    goal = list(goal) or [tokenizer.end_id]
    room = limit - (goal == [tokenizer.end_id])
    found: list[int] | None = []
    if not takes(position, goal):
        # The searches go by bytes, which become fewer tokens when they are divided again: hence more room.
        found = _greedy(position.copy(), tokenizer, 4 * limit, goal, tokenizer.encode(closing))
        found = found or _search(position, tokenizer, 4 * limit, [goal])
        found = found or _search(position, tokenizer, 4 * limit, [goal], MAX_WIDTH)
    if found is None:
        return None
    shorter = min(found, _divided_again(position, tokenizer, found, goal), key=len)
    if len(shorter) > room:
        return None
    return [*shorter, tokenizer.end_id] if goal == [tokenizer.end_id] else shorter


def _greedy(
    position: Position, tokenizer: Tokenizer, limit: int, goal: list[int], closing: list[int]
) -> list[int] | None:
    """Takes, again and again, what most looks like closing. Changes `position`."""
    tokens: list[int] = []
    run, begin, at_run, has_detoured = 0, 0, position.copy(), False
    while not takes(position, goal):
        if len(tokens) > min(limit, MAX_STEPS):
            return None
        ahead = position.forced()
        if ahead and goal != [tokenizer.end_id]:
            ahead = [_first_byte(ahead[0], tokenizer)]
        if not ahead and closing and takes(position, closing):
            ahead = closing
        ahead = ahead or [_closest(position.allowed(), tokenizer)]
        if ahead[0] < 0 or tokenizer.end_id in ahead:
            return None
        if tokens[-1:] != ahead:
            run, begin, at_run, has_detoured = 0, len(tokens), position.copy(), False
        elif run == LONG_RUN and not has_detoured:
            has_detoured = True
            if way := _way_out(at_run, tokenizer):
                position, tokens, ahead = at_run.copy(), tokens[:begin], way
        for token in ahead:
            position.advance(token)
        tokens += ahead
        run += 1
    return tokens


def _way_out(position: Position, tokenizer: Tokenizer) -> list[int] | None:
    """From where the search began to go in circles, inside a string with a pattern or a number with limits, the
    shortest way to where that ends, with what ends it."""
    text, number = ([tokenizer.encode(end) for end in ends] for ends in ('"', "}],"))
    way = _search(position, tokenizer, 4 * LONG_RUN, text)
    if way is None:  # second, as a string may hold what ends a number; by length, as a number's digits count
        way = _search(position, tokenizer, 4 * LONG_RUN, number, MAX_WIDTH)
    if way is None:
        return None
    return way + next((end for end in text + number if takes(position, way + end)), [])


def takes(position: Position, tokens: Sequence[int]) -> bool:
    """Whether all these tokens are legal, one after another."""
    there = position.copy()
    for token in tokens:
        if not there.accepts(token):
            return False
        there.advance(token)
    return True


def _closest(allowed: NDArray[np.bool_], tokenizer: Tokenizer) -> int:
    """The allowed token that closes most; -1 where there is none."""
    tokens = np.flatnonzero(allowed[: tokenizer.vocab_size])
    rank = _steps(tokenizer).ranks[tokens]
    return int(tokens[rank.argmin()]) if len(tokens) else -1


def _rank(word: bytes, is_control: bool) -> int:
    """Smaller closes more: quotes and brackets that close, then plain characters; what opens or parts comes last."""
    if is_control:
        return 3  # a tag that is legal here closes a call or a thought, or opens one that is asked for
    opens, closes = sum(map(word.count, (b"{", b"[", b",", b":", b"\\"))), sum(map(word.count, (b"}", b"]")))
    if opens:
        return 100 * opens + len(word)
    if word == b'"':
        return 1  # before brackets: inside a string they close nothing
    if closes:
        return 2 if closes == len(word) else 20 + len(word)
    return 10 + len(word) if word.isalnum() else 30 + len(word)


@dataclass(frozen=True)
class _Steps:
    """What searches know of a vocabulary: ranks [Y]; ids of control tokens and single ASCII bytes, and of the other
    single bytes; the token of each byte."""

    ranks: NDArray[np.int64]
    ascii: NDArray[np.int64]
    others: NDArray[np.int64]
    by_byte: dict[bytes, int]


_known: weakref.WeakKeyDictionary[Tokenizer, _Steps] = weakref.WeakKeyDictionary()


def _steps(tokenizer: Tokenizer) -> _Steps:
    if tokenizer not in _known:
        words = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        controls = tokenizer.special_ids
        single = {word: i for i, word in enumerate(words) if len(word) == 1 and i not in controls}
        ranks = np.array([_rank(word, i in controls) for i, word in enumerate(words)], dtype=np.int64)
        # A thought is ended at once, or not begun: within it everything else looks as closing and leads nowhere.
        if THINK_END in tokenizer.controls:
            ranks[tokenizer.controls[THINK_END]] = 0
        if THINK in tokenizer.controls:
            ranks[tokenizer.controls[THINK]] = ranks.max() + 1
        _known[tokenizer] = _Steps(
            ranks,
            np.array([*sorted(controls), *(i for word, i in single.items() if word[0] < 128)], dtype=np.int64),
            np.array([i for word, i in single.items() if word[0] >= 128], dtype=np.int64),
            single,
        )
    return _known[tokenizer]


def _search(
    position: Position, tokenizer: Tokenizer, limit: int, goals: list[list[int]], width: int | None = None
) -> list[int] | None:
    """Breadth first, to where the tokens of one of the goals are legal. Without a width, places that allow the same
    tokens count as one; with it, of each length only, and so many are kept."""
    level: list[tuple[list[int], Position]] = [([], position)]
    seen = {position.allowed().tobytes()}
    steps = 0
    while level:
        following: list[tuple[list[int], Position]] = []
        seen = seen if width is None else set()
        for tokens, here in level:
            for run in _runs(here, tokenizer, goals == [[tokenizer.end_id]]):
                steps += 1
                if len(tokens) + len(run) > limit:
                    continue
                if steps > MAX_STEPS:
                    return None
                there = here.copy()
                for token in run:
                    there.advance(token)
                if any(takes(there, goal) for goal in goals):
                    return tokens + run
                mask = there.allowed().tobytes()
                if mask not in seen:
                    seen.add(mask)
                    following.append((tokens + run, there))
        level = sorted(following, key=lambda found: len(found[0]))[:width]
    return None


def _runs(position: Position, tokenizer: Tokenizer, is_whole: bool) -> list[list[int]]:
    """The ways on from here: the forced tokens, or each control token and each single byte that may come next."""
    if forced := position.forced():
        return [forced if is_whole else [_first_byte(forced[0], tokenizer)]]
    allowed = position.allowed()
    steps = _steps(tokenizer)
    plain, others = (ids[allowed[ids]].tolist() for ids in (steps.ascii, steps.others))
    tokens = plain or others or np.flatnonzero(allowed)[:8].tolist()
    return [[token] for token in tokens]


def _first_byte(token: int, tokenizer: Tokenizer) -> int:
    """The token of the first byte alone: a goal may begin in the middle of what is forced."""
    if token in tokenizer.special_ids:
        return token
    return _steps(tokenizer).by_byte.get(tokenizer.token_bytes(token)[:1], token)


def _divided_again(position: Position, tokenizer: Tokenizer, tokens: list[int], goal: list[int]) -> list[int]:
    """The same text in the tokenizer's own, mostly longer tokens, where the grammar takes them; else `tokens`."""
    pieces: list[int] = []
    plain: list[int] = []
    for token in [*tokens, tokenizer.end_id]:
        if token in tokenizer.special_ids:
            pieces += tokenizer.encode(tokenizer.decode(plain))
            pieces.append(token)
            plain = []
        else:
            plain.append(token)
    pieces.pop()
    return pieces if takes(position, [*pieces, *goal]) else tokens
