"""Lossless drafting: which proposals of a canvas stand, so that the answer is what `ar` would have given.

Row 0 of the block is decided before it is drafted; rows 1 to n-1 hold proposals. One causal forward over all n rows
gives logits, and row i's say what `ar` would have for row i+1. What stands is kept, and the first row whose proposal
does not stand, or the last row, gives one token more.

Greedy: the longest prefix of proposals that equal the argmax. Sampling: Leviathan et al., arXiv 2211.17192 and Chen et
al., arXiv 2302.01318: a proposal x drawn from q stands with probability min(1, p(x)/q(x)); where it falls, its token is
drawn from (p-q)+ renormalised. The token is then distributed as p, whatever q is. A proposal whose q was not kept may
be taken for certain (q one-hot): it stands with probability p(x), and where it falls p without it is left. That is as
exact, however the proposal came about, but fewer of them stand.

Shapes: n rows of the block, Y vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fourleaf.diffusion.policy import Noise, Purpose
from fourleaf.diffusion.sampling import Sampling, adjust, draw, probabilities
from fourleaf.errors import NumericError

# (i, raw logits [Y] of row i) -> adjusted logits [Y], by the proposals of rows 1 to i, all of which stand. Called with
# i rising from 0, once each, and never behind the row that ends the round: it may carry counts and a grammar along.
Row = Callable[[int, Tensor], Tensor]
# (i, token) -> whether the grammar allows the token that row i says, given the proposals before it; called as `Row` is.
Legal = Callable[[int, int], bool]
# (adjusted logits, p), both [Y], of row i
Decisive = Callable[[int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Accepted:
    """tokens: the proposals that stand, the last of them an end token where `next_token` is None. next_token: the one
    more. adjusted: [len(tokens) + 1, Y] (one less without a next token), the logits that decided them, in order."""

    tokens: list[int]
    next_token: int | None
    adjusted: Tensor

    @property
    def decided(self) -> list[int]:
        """All tokens that the round has decided."""
        return self.tokens if self.next_token is None else [*self.tokens, self.next_token]


@dataclass(frozen=True)
class Draws:
    """Where a round's random numbers come from. start: absolute position of the first proposal, which row 0 predicts.
    pass_index: the request's counter at the verification; it differs from round to round, or a round would repeat the
    numbers of the one before at the positions that fell."""

    start: int
    pass_index: int
    noise: Noise

    def stands(self, row: int, p: float, q: float) -> bool:
        """With probability min(1, p/q), for the proposal that row `row` predicts."""
        return float(self.noise.uniform(self.start + row, self.pass_index, Purpose.ACCEPT, 1)[0]) * q < p

    def token(self, row: int, weights: Tensor, purpose: Purpose) -> int:
        """A token by `weights` [Y], which need not sum to 1, for the position behind row `row`."""
        keys = self.noise.keys([self.start + row], self.pass_index, purpose)
        return int(draw(weights[None], keys)[0])


def accept(
    logits: Tensor,
    proposals: list[int],
    q: Tensor | None,
    row: Row | None,
    sampling: Sampling,
    *,
    legal: Legal | None = None,
    start: int,
    pass_index: int,
    noise: Noise,
    mask_id: int | None,
    end_id: int,
) -> Accepted:
    """What of a drafted block stands, and the token behind it.

    logits: [n, Y] raw, of the causal forward over the block's n rows; the mask id's are set to minus infinity in place.
    proposals: [n-1]. q: [n-1, Y], from which each proposal was drawn, after temperature, cuts, penalties and grammar;
    None where they were not drawn, as under greedy decoding, or q was not kept. row: needed where penalties or a
    grammar make a row depend on the proposals before it; None where nothing does. legal: of greedy decoding without
    penalties, what the grammar says of one token. Then `row` is asked only where the most probable token is not legal,
    which gives the same tokens; `adjusted` is without the grammar elsewhere. start, pass_index, noise: as in `Draws`.
    end_id: ends an answer; behind an accepted one nothing is decided, not even the next token.

    Raises NumericError where logits are no numbers, or a row allows no token.
    """
    assert len(logits) == len(proposals) + 1, f"{len(logits)} rows, {len(proposals)} proposals"
    assert row is not None or not sampling.has_penalties, "penalties depend on the accepted prefix"
    assert q is None or q.shape == logits[1:].shape, "each proposal comes with all of its q"
    draws = Draws(start, pass_index, noise)
    assert legal is None or (row is not None and sampling.temperature == 0 and not sampling.has_penalties)
    if row is not None and legal is None:
        return _accept_in_turn(lambda i: _by_prefix(row(i, logits[i]), sampling), proposals, q, draws, end_id)
    adjusted = adjust(logits, sampling, mask_id)
    if sampling.temperature == 0:
        under = None if row is None else lambda i: row(i, logits[i])
        return _accept_greedy(adjusted, proposals, end_id, legal, under)
    p = probabilities(adjusted, sampling)
    return _accept_in_turn(lambda i: (adjusted[i], p[i]), proposals, q, draws, end_id)


def _by_prefix(adjusted: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    return adjusted, probabilities(adjusted[None], sampling)[0]


def _accept_greedy(
    adjusted: Tensor,
    proposals: list[int],
    end_id: int,
    legal: Legal | None = None,
    under: Callable[[int], Tensor] | None = None,
) -> Accepted:
    """All rows in one comparison; where a row's best token is not `legal`, its logits `under` the grammar decide.
    adjusted: [n, Y]."""
    top, best = adjusted.max(-1)
    choices = best.tolist()
    num_stand = 0
    while True:
        if legal is not None and not legal(num_stand, choices[num_stand]):
            assert under is not None
            adjusted[num_stand] = under(num_stand)
            top[num_stand], choices[num_stand] = adjusted[num_stand].amax(), int(adjusted[num_stand].argmax())
        if num_stand == len(proposals) or proposals[num_stand] != choices[num_stand]:
            _check(top[: num_stand + 1])
            return Accepted(proposals[:num_stand], choices[num_stand], adjusted[: num_stand + 1])
        num_stand += 1
        if proposals[num_stand - 1] == end_id:
            _check(top[:num_stand])
            return Accepted(proposals[:num_stand], None, adjusted[:num_stand])


def _accept_in_turn(decisive: Decisive, proposals: list[int], q: Tensor | None, draws: Draws, end_id: int) -> Accepted:
    """A row at a time, each after those before it were accepted: the general path, and the plain twin of the other."""
    seen: list[Tensor] = []
    tokens: list[int] = []
    while True:
        i = len(tokens)
        adjusted, p = decisive(i)
        _check(adjusted.amax())
        seen.append(adjusted)
        token, stood = _decide(p, i, proposals, q, draws)
        if not stood:
            return Accepted(tokens, token, torch.stack(seen))
        tokens.append(token)
        if token == end_id:
            return Accepted(tokens, None, torch.stack(seen))


def _decide(p: Tensor, i: int, proposals: list[int], q: Tensor | None, draws: Draws) -> tuple[int, bool]:
    """(the token that row i decides, whether it is the proposal). p: [Y]."""
    if i == len(proposals):
        return draws.token(i, p, Purpose.PROPOSE), False
    proposal = proposals[i]
    drawn_from = one_hot(proposal, p) if q is None else q[i].to(p.device, p.dtype)
    sure = float(drawn_from[proposal])
    assert sure > 0, f"proposal {proposal} of row {i} cannot have been drawn from its q"
    if draws.stands(i, float(p[proposal]), sure):
        return proposal, True
    return draws.token(i, residual(p, drawn_from), Purpose.RESIDUAL), False


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Weights of the token that takes a fallen proposal's place: (p-q)+, not renormalised. -> [Y].

    Where p and q are the same but for rounding nothing may be left of it; any token is then as right by p.
    """
    left = (p - q).clamp(min=0.0)
    return left if float(left.sum()) > 0 else p


def one_hot(token: int, like: Tensor) -> Tensor:
    """q of a proposal that is taken for certain. -> [Y]."""
    found = torch.zeros_like(like)
    found[token] = 1.0
    return found


def _check(tops: Tensor) -> None:
    """Rows decide nothing where the most probable token's logit is no number or minus infinity. tops: [rows]."""
    if not bool(torch.isfinite(tops).all()):
        raise NumericError("a forward gave logits that are no numbers, or the grammar left no token; check the weights")


def num_equal(proposals: list[int], tokens: list[int]) -> int:
    """How many leading ones are the same."""
    num = 0
    while num < min(len(proposals), len(tokens)) and proposals[num] == tokens[num]:
        num += 1
    return num
