"""Decoding under a grammar: pure functions of a matcher and of what each row would be.

A canvas is walked strictly left to right. A token is final while its probability, renormalised over what the grammar
allows, exceeds the threshold; the first open row is final in any case. What the grammar forces is final without asking
the model. Rows right of where the walk stops may be guessed: the next pass sees the guess, and the walk that reaches
the row takes it where the grammar does, because renormalising can only have made it surer. A guess lives one pass.

Near the limit of its length an answer is brought to its end: a token after which it could not end in time gives way to
the first of an ending that fits. This looks at the text before the token alone, so that `ar`, `draft` and `diffuse` do
the same: sample, then `take`.

Shapes: N rows of a canvas, Y vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fourleaf.diffusion.policy import Canvas

Choice = tuple[int, float]  # a token and its confidence


class Matcher(Protocol):
    """Where an answer stands in its grammar. `text.grammar.GrammarMatcher` is one."""

    @property
    def reserve(self) -> int:
        """Tokens before the limit from which on endings are watched; 0: an answer may be cut short."""
        ...

    @reserve.setter
    def reserve(self, value: int) -> None: ...

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """[Y] bool: the tokens that may come next, the end token where the answer may end."""
        ...

    def allows(self, token: int) -> bool:
        """Of one token, what `allowed` says of all."""
        ...

    def accepts(self, token: int) -> bool:
        """Whether `advance` takes this token."""
        ...

    def advance(self, token: int) -> None:
        """Goes on by a token that is legal."""
        ...

    def forced(self) -> list[int]:
        """Tokens that must come next, as far as that is certain."""
        ...

    def copy(self) -> Self:
        """An independent one in the same place."""
        ...

    def adopt(self, other: Self) -> None:
        """Goes to where another copy of the same one stands."""
        ...

    def ending(self, limit: int, goal: Sequence[int] = ()) -> list[int] | None:
        """At most `limit` tokens that lead to and take the end token, or with a `goal` to where its tokens are legal
        one after another (the goal not included); None where none were found."""
        ...


@dataclass(frozen=True)
class Walk:
    """What one pass settled. rows, tokens, confidence: final, rows rising; forced tokens have confidence 1. front: the
    first row that is not final. guesses: masked rows that the next pass shows a token in, with its confidence."""

    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    front: int = 0
    guesses: dict[int, Choice] = field(default_factory=dict)


def walk(
    matcher: Matcher,
    canvas: Canvas,
    front: int,
    choose: Callable[[int, NDArray[np.bool_]], Choice],
    proposals: Mapping[int, Choice],
    *,
    tau: float,
    end_id: int,
    left: int | None = None,
    guesses: Mapping[int, Choice] | None = None,
    is_quick: bool = False,
) -> Walk:
    """Settles rows from `front` on and advances the matcher over them. The canvas is not changed.

    matcher: stands behind row front - 1. choose(row, allowed [Y]): the row's token under the mask and its confidence,
    after penalties. proposals: what `choose` gave without the mask, for rows that this pass saw masked. guesses: what
    this pass saw in masked rows. left: tokens that the answer may still have, row `front` and the end token included;
    None: endings are not watched (proposals of `draft`).

    tau below 0 settles every row: a whole block of proposals for `draft`, on a copy of the matcher.

    is_quick: `choose` takes the most probable token, and nobody asks how probable it is. Then a row's proposal that the
    grammar allows is what `choose` would say, and renormalising could only make it surer: where that was sure enough,
    or need not be sure, `choose` is not asked, and the confidence is the proposal's.
    """
    rows, tokens, confidence = [], [], []
    free: list[int] = []  # forced tokens that still wait for their rows
    row, is_done = front, False
    while row < len(canvas.tokens) and not is_done:
        room = None if left is None else left - (row - front)
        if not canvas.pinned[row]:
            free = free or matcher.forced()
        if canvas.pinned[row]:
            found: Choice | None = (int(canvas.tokens[row]), 1.0)
            free = []  # it may divide a forced text otherwise than `forced` did
        elif free:
            found = (free.pop(0), 1.0)
        else:
            found = _quick(matcher, proposals.get(row), tau, is_first=not rows) if is_quick else None
            found = found or _chosen(matcher, row, choose, guesses or {}, tau, is_first=not rows)
        if found is None:
            break
        taken = take(matcher, found[0], None if canvas.pinned[row] else room, end_id)
        if not canvas.pinned[row]:
            rows.append(row)
            tokens.append(taken)
            confidence.append(found[1])
        is_done = taken == end_id
        row += 1
    ahead = {} if is_done else {r: c for r, c in proposals.items() if r > row and c[1] > tau and c[0] != end_id}
    return Walk(rows, tokens, confidence, row, ahead)


def _quick(matcher: Matcher, proposal: Choice | None, tau: float, is_first: bool) -> Choice | None:
    """The proposal, where it is known to be what the grammar leaves of the row, and final."""
    if proposal is not None and (is_first or proposal[1] > tau) and matcher.allows(proposal[0]):
        return proposal
    return None


def _chosen(
    matcher: Matcher,
    row: int,
    choose: Callable[[int, NDArray[np.bool_]], Choice],
    guesses: Mapping[int, Choice],
    tau: float,
    is_first: bool,
) -> Choice | None:
    """The token that a row settles on, or None where the walk stops."""
    if row in guesses and not is_first:
        token, sure = guesses[row]
        if not matcher.accepts(token):
            return None  # the pass did not see this row masked: the next one will
    else:
        token, sure = choose(row, matcher.allowed())
        if sure <= tau and not is_first:
            return None
    return token, sure


def take(matcher: Matcher, token: int, left: int | None, end_id: int) -> int:
    """Advances the matcher by `token`, which was chosen next, or by what stands in its place: where the answer could
    not be brought to its end behind it, the first token of an ending that fits. -> the token taken.

    left: tokens that the answer may still have, this one and the end token included; None: endings are not watched.
    Where no ending is found that fits, the token is taken and endings are not watched any more: the answer will end
    with `length`.
    """
    if left is None or left > matcher.reserve or token == end_id or matcher.forced():
        matcher.advance(token)
        return token
    behind = matcher.copy()
    behind.advance(token)
    if behind.ending(left - 1) is None:
        ending = matcher.ending(left)
        if ending is None:
            behind.reserve = 0
        elif ending[0] != token:
            token, behind = ending[0], matcher.copy()
            behind.advance(token)
    matcher.adopt(behind)
    return token


def settled(matcher: Matcher, tokens: Sequence[int], left: int, end_id: int) -> list[int]:
    """`take` for tokens that were drawn one after another, under `ar` (one token) and `draft` (those that stand and the
    one behind them). Ends with the first that gives way: what was drawn behind it had another text before it."""
    stand: list[int] = []
    for token in tokens:
        stand.append(take(matcher, token, left - len(stand), end_id))
        if stand[-1] != token or token == end_id:
            break
    return stand


def take_forced(matcher: Matcher, most: int) -> list[int]:
    """The forced tokens that come next, at most `most`; advances the matcher over them."""
    taken: list[int] = []
    while len(taken) < most and (tokens := matcher.forced()[: most - len(taken)]):
        for token in tokens:
            matcher.advance(token)
        taken += tokens
    return taken


class Trail:
    """Grammar masks along tokens that are only proposed, for `draft`: row i's mask, given that i of them stand. It is
    asked in rising order."""

    def __init__(self, matcher: Matcher, tokens: Sequence[int]) -> None:
        self._matcher = matcher.copy()
        self._tokens = list(tokens)
        self._at = 0

    def allowed(self, index: int) -> NDArray[np.bool_]:
        """[Y] bool: what may follow the first `index` tokens, which must be legal."""
        return self._gone_to(index).allowed()

    def allows(self, index: int, token: int) -> bool:
        """Of one token, what `allowed` says of all."""
        return self._gone_to(index).allows(token)

    def _gone_to(self, index: int) -> Matcher:
        assert index >= self._at, "the grammar cannot go back"
        for token in self._tokens[self._at : index]:
            assert self._matcher.accepts(token), "a token that the grammar forbids cannot have been accepted"
            self._matcher.advance(token)
        self._at = index
        return self._matcher


class GapMatcher:
    """A grammar as one gap of an infilling sees it: it ends with the gap-end token, where the pinned tokens behind it
    are legal. `ending` and `take` then keep a gap such that they become so within its limit."""

    def __init__(self, inner: Matcher, pins: Sequence[int], limit: int, gap_end_id: int, end_id: int) -> None:
        """inner: stands at the gap's start, and is advanced with the gap. pins: at least one token. limit: the gap's
        longest length, the gap-end token not counted."""
        assert pins, "a gap with nothing behind it ends with the end token"
        self._inner, self._pins, self._gap_end_id, self._end_id = inner, list(pins), gap_end_id, end_id
        self._has_ended = False
        self.reserve = limit + 1

    @property
    def is_accepting(self) -> bool:
        return not self._has_ended and takes(self._inner, self._pins)

    def allowed(self) -> NDArray[np.bool_]:
        mask = self._inner.allowed() if not self._has_ended else np.zeros_like(self._inner.allowed())
        mask[self._end_id] = False
        mask[self._gap_end_id] = self.is_accepting
        return mask

    def allows(self, token: int) -> bool:
        if token == self._gap_end_id:
            return self.is_accepting
        return token != self._end_id and not self._has_ended and self._inner.allows(token)

    def accepts(self, token: int) -> bool:
        if token == self._gap_end_id:
            return self.is_accepting
        return token != self._end_id and not self._has_ended and self._inner.accepts(token)

    def advance(self, token: int) -> None:
        assert self.accepts(token), f"token {token} is not legal in this gap"
        if token == self._gap_end_id:
            self._has_ended = True
        else:
            self._inner.advance(token)

    def forced(self) -> list[int]:
        # The grammar may force what is pinned behind the gap: the model says whether the gap ends first.
        if self._has_ended or self.is_accepting:
            return []
        return [token for token in self._inner.forced()[:1] if token != self._end_id]

    def copy(self) -> GapMatcher:
        twin = GapMatcher(self._inner.copy(), self._pins, 0, self._gap_end_id, self._end_id)
        twin._has_ended, twin.reserve = self._has_ended, self.reserve
        return twin

    def adopt(self, other: GapMatcher) -> None:
        self._inner.adopt(other._inner)
        self._has_ended, self.reserve = other._has_ended, other.reserve

    def ending(self, limit: int, goal: Sequence[int] = ()) -> list[int] | None:
        assert not goal, "a gap leads to its pins"
        if self._has_ended:
            return None
        found = self._inner.ending(limit - 1, self._pins)
        return None if found is None else [*found, self._gap_end_id]


def takes(matcher: Matcher, tokens: Sequence[int]) -> bool:
    """Whether all these tokens are legal, one after another. Leaves the matcher where it is."""
    ahead = matcher.copy()
    for token in tokens:
        if not ahead.accepts(token):
            return False
        ahead.advance(token)
    return True


def first_unreachable(matcher: Matcher, parts: Sequence[int | Sequence[int]]) -> int | None:
    """Checks a template before anything is generated: the index of the first part that the grammar cannot take, None
    where all can be.

    parts: a gap as its longest length, pinned tokens as a list. Each gap is tried with a filling that leads to the
    pins behind it, which is found in most cases and not in all: a template that is refused may still have a solution.
    """
    matcher = matcher.copy()
    for index, part in enumerate(parts):
        if isinstance(part, int):
            following = parts[index + 1] if index + 1 < len(parts) else ()
            assert not isinstance(following, int), "two gaps in a row are one"
            found = matcher.ending(part, following) if following else []
            if found is None:
                return index + 1
            pins: Sequence[int] = found
        else:
            pins = part
        for token in pins:
            if not matcher.accepts(token):
                return index
            matcher.advance(token)
    return None
