"""One answer, from a prompt's ids to typed items: what all APIs and the command line have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Literal

from fourleaf.engine.request import Decoder, Delta, Frame, GenerateParams, TokenLogprob, Usage
from fourleaf.errors import ContextLengthError
from fourleaf.serve.tools import Offer, OfferFilter
from fourleaf.text.router import Event, Router, Spelling, opens_in_reasoning
from fourleaf.text.stops import StopFilter

# Tokens a piece: small enough that clients render smoothly and meters that count chunks see more than one a block.
PIECE_TOKENS = 4


@dataclass(frozen=True)
class Finish:
    """The last item of an answer. Seconds are wall-clock, of decoding alone: a queue or a drawing does not count."""

    reason: Literal["stop", "length", "tool_calls"]
    usage: Usage
    seconds: float
    first_seconds: float
    reasoning_tokens: int = 0
    stop: str | None = None  # the stop text before which the answer ends

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens a second, prefill included; 0 where the clock saw no time pass."""
        return self.usage.completion_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Committed:
    """Tokens that are final, before the events that they give rise to; some give rise to none yet."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


Item = Event | Committed | Finish


def fit(
    prompt_tokens: int, wanted: int | None, max_context: int, *, field: str = "max_tokens", prompt: str = "messages"
) -> int:
    """Tokens that the answer may take: `wanted`, or by default what `GenerateParams` has and the context leaves.

    field, prompt: what the client called them. Raises ContextLengthError with the needed and the allowed number where
    it does not fit; its first words are OpenAI's, by which clients tell it from other faults.
    """
    room = max_context - prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"This model's maximum context length is {max_context} tokens, the {prompt} alone take {prompt_tokens}, "
            f"and the answer needs at least 1. Shorten the {prompt} to {max_context - 1} tokens.",
            param=prompt,
            code="context_length_exceeded",
            prompt_tokens=prompt_tokens,
            max_prompt_tokens=max_context - 1,
        )
    if wanted is None:
        return min(GenerateParams.max_tokens, room)
    if wanted > room:
        raise ContextLengthError(
            f"This model's maximum context length is {max_context} tokens, but {prompt_tokens + wanted} were asked "
            f"for: {prompt_tokens} in the {prompt} and {wanted} in {field}. Ask for at most {room}.",
            param=field,
            code="context_length_exceeded",
        )
    return wanted


def answer(
    engine: Decoder,
    prompt_ids: list[int],
    params: GenerateParams,
    offer: Offer,
    observe: Callable[[Frame], None] | None = None,
) -> Generator[Item]:
    """Decodes one answer; the last item is its `Finish`. Whatever `observe` raises ends the request and comes out."""
    started = time.perf_counter()
    watched = 0.0
    first = 0.0

    def timed(frame: Frame) -> None:
        nonlocal watched
        assert observe is not None
        before = time.perf_counter()
        try:
            observe(frame)
        finally:
            watched += time.perf_counter() - before

    router: Router | Spelling = Spelling(engine.tokenizer)
    if not params.raw:
        opened = opens_in_reasoning(engine.tokenizer, prompt_ids)
        router = Router(engine.tokenizer, engine.chat.markup, offer.tools, reasoning=opened)
    stops = StopFilter(params.stop)
    filtered = OfferFilter(offer.names)
    for delta in engine.generate(prompt_ids, params, timed if observe else None):
        now = time.perf_counter() - started - watched
        first = first or (now if delta.tokens or delta.finish_reason else 0.0)
        for piece in pieces(delta):
            yield piece
            yield from filtered.passed(stops.passed(router.feed(list(piece.tokens))))
        if delta.finish_reason is None:
            continue
        assert delta.usage is not None, "the last delta carries usage"
        yield from filtered.passed(stops.passed(router.finish()))
        yield from filtered.passed(stops.closing())
        reason: Literal["stop", "length", "tool_calls"] = "stop" if stops.found else delta.finish_reason
        if delta.finish_reason == "stop" and not stops.found:
            yield from filtered.closing()
        if reason == "stop" and filtered.calls:
            reason = "tool_calls"
        yield Finish(reason, delta.usage, now, first, router.reasoning_tokens, stops.found)
        return
    raise AssertionError("the engine ended an answer without a finish reason")


def pieces(delta: Delta) -> Iterator[Committed]:
    """A delta's tokens, PIECE_TOKENS at a time."""
    for begin in range(0, len(delta.tokens), PIECE_TOKENS):
        end = begin + PIECE_TOKENS
        logprobs = None if delta.logprobs is None else delta.logprobs[begin:end]
        yield Committed(delta.tokens[begin:end], logprobs)
