"""From a forward's logits to tokens: penalties, bias and grammar, then temperature and cuts, then a draw.

Every function takes all rows of a request at once, and rows never see each other: a row's token is the same alone and
in a batch. Cuts and penalties are Hugging Face's and vLLM's. Where these differ: `min_p` cuts last, as in Hugging Face;
penalties come after the bias, as in vLLM. Where we differ from both: repetition counts the response, never the prompt.

Shapes: M rows, Y vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourleaf.diffusion.policy import Noise, Purpose
from fourleaf.errors import NumericError

NEVER = float("-inf")
HEADS = (64, 256, 1024)  # how many of the most probable tokens are sorted in the hope that top-p needs no more
CHUNK = 1 << 16  # logits that a CPU's cache holds with what is made of them; more are taken row by row

# SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the step between two counters, and the multipliers of its mixer.
_GAMMA, _MIX_1, _MIX_2 = (value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; the fields are those of `GenerateParams`, and checked there."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, params: object) -> Sampling:
        """The part of a request's parameters that this module reads."""
        return cls(*(getattr(params, field.name) for field in fields(cls)))

    @property
    def has_penalties(self) -> bool:
        """Whether `adjust` needs the counts of the response's tokens."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

    @property
    def is_plain(self) -> bool:
        """Whether raw logits need nothing but the mask id's ban."""
        return not self.has_penalties and not self.logit_bias


def adjust(
    logits: Tensor,
    sampling: Sampling,
    mask_id: int | None,
    counts: Tensor | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """Logits of what may be chosen, untempered, in at least fp32. -> [M, Y].

    logits: [M, Y] raw; the mask id's are set to minus infinity in place, the rest is left as it is. counts: [Y] whole
    numbers, how often the response holds each token; needed where there are penalties. allowed: [Y] or [M, Y] bool,
    what the grammar allows.

    In vLLM's order: bias; then repetition (Keskar et al., arXiv 1909.05858: positive logits of present tokens are
    divided, negative ones multiplied), frequency and presence as OpenAI documents them.
    """
    if mask_id is not None:
        logits[:, mask_id] = NEVER
    found = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.logit_bias:
        ids, values = zip(*sampling.logit_bias, strict=True)
        bias = torch.tensor(values, dtype=found.dtype, device=found.device).expand(len(found), -1)
        found = found.index_add(1, torch.tensor(ids, device=found.device), bias)
    if sampling.has_penalties:
        assert counts is not None, "penalties need the response's counts"
        found = _penalised(found, sampling, counts)
    return found if allowed is None else found.masked_fill(~allowed, NEVER)


def _penalised(found: Tensor, sampling: Sampling, counts: Tensor) -> Tensor:
    present = counts.nonzero()[:, 0]
    times, values, factor = counts[present].to(found.dtype), found[:, present], sampling.repetition_penalty
    values = torch.where(values > 0, values / factor, values * factor)
    values = values - sampling.frequency_penalty * times - sampling.presence_penalty
    return found.index_copy(1, present, values)


def probabilities(adjusted: Tensor, sampling: Sampling) -> Tensor:
    """What a token is drawn from: tempered, cut, summing to 1. -> [M, Y]. Temperature 0 puts all on the argmax.

    Cuts in this order, each on what the one before has left, renormalised. top_k: tokens at least as probable as the
    k-th. top_p: tokens at least as probable as the last of the fewest whose sum reaches it (Holtzman et al., arXiv
    1904.09751). min_p: tokens with at least that share of the most probable one's (Nguyen et al., arXiv 2407.01082).
    Tokens exactly as probable as the last one kept are kept, so that no order among equals decides.
    """
    if sampling.temperature == 0:
        return torch.zeros_like(adjusted).scatter_(1, adjusted.argmax(-1, keepdim=True), 1.0)
    tempered = (adjusted - adjusted.amax(-1, keepdim=True)) / sampling.temperature  # at most 0: it cannot overflow
    if 0 < sampling.top_k < tempered.shape[1]:
        least = tempered.topk(sampling.top_k).values[:, -1:]
        tempered = tempered.masked_fill(tempered < least, NEVER)
    found = torch.softmax(tempered, -1)
    if sampling.top_p < 1:
        found = _renormalised(found, found >= _least_of_nucleus(found, sampling.top_p))
    if sampling.min_p > 0:
        found = _renormalised(found, found >= sampling.min_p * found.amax(-1, keepdim=True))
    return found


def _renormalised(found: Tensor, kept: Tensor) -> Tensor:
    found = found.masked_fill(~kept, 0.0)
    return found / found.sum(-1, keepdim=True)


def _least_of_nucleus(found: Tensor, top_p: float) -> Tensor:
    """Smallest probability among the fewest tokens that sum to `top_p`. -> [M, 1]."""
    ordered = _falling(found, top_p)
    needed = (ordered.double().cumsum(-1)[:, :-1] < top_p).sum(-1, keepdim=True)
    return ordered.gather(1, needed)


def _falling(found: Tensor, total: float) -> Tensor:
    """Each row's probabilities in falling order, or so many of them that they sum to `total`."""
    for size in HEADS:
        if 4 * size <= found.shape[1]:
            head = found.topk(size).values
            if bool((head.double().sum(-1) >= total).all()):
                return head
    return found.sort(-1, descending=True).values


def choose(
    adjusted: Tensor,
    sampling: Sampling,
    positions: list[int],
    pass_index: int,
    noise: Noise,
    purpose: Purpose = Purpose.PROPOSE,
) -> tuple[list[int], list[float]]:
    """A token for each row, and its confidence: its untempered probability under softmax(adjusted), without cuts.

    adjusted: [M, Y] of `adjust`; positions: [M]. Raises NumericError where a row holds no number above minus infinity.
    """
    keys = None if sampling.temperature == 0 else noise.keys(positions, pass_index, purpose)
    return pick(adjusted, sampling, keys)


def pick(adjusted: Tensor, sampling: Sampling, keys: NDArray[np.uint64] | None) -> tuple[list[int], list[float]]:
    """`choose` with the keys of its draws, which may be of several requests; None takes the most probable tokens."""
    tokens: list[int] = []
    confidence: list[float] = []
    step = max(1, CHUNK // adjusted.shape[1]) if adjusted.device.type == "cpu" else len(adjusted)
    for begin in range(0, len(adjusted), step):
        rows = adjusted[begin : begin + step]
        top, chosen = rows.max(-1)
        if sampling.temperature > 0:
            assert keys is not None
            chosen = draw(probabilities(rows, sampling), keys[begin : begin + step])
            top = rows.gather(1, chosen[:, None])[:, 0]
        tokens += chosen.tolist()
        confidence += (top - rows.logsumexp(-1)).exp().tolist()
    _refuse_nan(confidence)
    return tokens, confidence


def draw(found: Tensor, keys: NDArray[np.uint64]) -> Tensor:
    """A token of each row by its probabilities, which need not sum to 1. found: [M, Y]; keys: [M]. -> [M] on device.

    A race of exponentials: the token whose clock -ln(u) / p rings first (the Gumbel trick without its second
    logarithm). Unlike a walk along cumulated probabilities it hardly feels rounding: a token changes only where two
    clocks are all but equal, not where any of Y sums is (docs/decisions/012-draws.md).
    """
    runners = torch.arange(found.shape[1], device=found.device)[None]
    num_possible = max(1, int((found > 0).sum(-1).max()))  # rows of NaN give any token: their confidence tells
    if 4 * num_possible <= found.shape[1]:  # cut: those that are left race alone, with the same clocks
        found, runners = found.topk(num_possible)
    clocks = exponentials(torch.from_numpy(keys.view(np.int64)).to(found.device), runners)
    first = (found.double() / clocks).argmax(-1, keepdim=True)
    return runners.expand(len(found), -1).gather(1, first)[:, 0]


def exponentials(keys: Tensor, tokens: Tensor) -> Tensor:
    """Draws of the unit exponential: SplitMix64 of each row's key, its counter the token. keys: [M] int64; tokens:
    [M, K], or [1, K] for all rows. -> [M, K], each a function of its key and token alone."""
    mixed = keys[:, None] + (tokens + 1) * _GAMMA
    mixed.bitwise_xor_(_shifted(mixed, 30)).mul_(_MIX_1)
    mixed.bitwise_xor_(_shifted(mixed, 27)).mul_(_MIX_2)
    mixed.bitwise_xor_(_shifted(mixed, 31))
    return _shifted(mixed, 11).double().add_(0.5).mul_(2.0**-53).log_().neg_()


def _shifted(bits: Tensor, by: int) -> Tensor:
    """A right shift of unsigned numbers: torch's int64 keeps the sign."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


def entropy(adjusted: Tensor) -> list[float]:
    """Entropy of each row's softmax(adjusted), untempered, in nats. -> [M]."""
    return torch.special.entr(torch.softmax(adjusted, -1)).sum(-1).tolist()


def greedy(logits: Tensor, mask_id: int | None) -> list[int]:
    """The most probable token of each row, for those who need no confidence. logits: [M, Y] raw.

    Raises NumericError as `choose` does.
    """
    if mask_id is not None:
        logits[:, mask_id] = NEVER
    top, tokens = logits.max(-1)
    _refuse_nan((top - top).tolist())  # 0, or NaN for an infinity too
    return tokens.tolist()


def _refuse_nan(values: list[float]) -> None:
    if any(math.isnan(value) for value in values):
        raise NumericError("a forward gave logits that are no numbers, or the grammar left no token; check the weights")
