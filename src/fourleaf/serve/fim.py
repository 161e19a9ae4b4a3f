"""`POST /v1/fim/completions`: what stands between a prompt and a suffix, in the shapes of Mercury and Mistral.

A choice has its text as OpenAI's completions have it (`text`) and as chat completions have it (`message`, `delta`):
clients of either kind read it. A model that was trained to fill in the middle gets its own form of prompt; any other
one gets the suffix as text that is pinned behind a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import Decoder
from fourleaf.engine.template import Gap
from fourleaf.serve.answer import Finish, fit
from fourleaf.serve.body import parse, refuse
from fourleaf.serve.capabilities import fim_tokens
from fourleaf.serve.chunks import Chunk
from fourleaf.serve.decoding import each_choice
from fourleaf.serve.filling import Filled, Piece, encoded, usage_of
from fourleaf.serve.infill import admitted, filling
from fourleaf.serve.models import Served
from fourleaf.serve.openai import Streamable, only_with_stream
from fourleaf.serve.reply import Reply
from fourleaf.serve.server import Server
from fourleaf.serve.stream import Answers
from fourleaf.serve.template import wish_for_mode
from fourleaf.text.stops import StopFilter

NEUTRAL: dict[str, tuple[Any, ...]] = {"min_tokens": (0,), "echo": (False,), "logprobs": (), "best_of": (1,)}
DEFAULT_MAX_TOKENS = 128  # fewer where the context leaves fewer


class FimRequest(Streamable):
    """The honoured fields, beside those about decoding. `random_seed` is Mistral's word for seed."""

    prompt: str
    suffix: str | None = None
    max_tokens: int | None = None
    random_seed: int | None = None


async def fim_completions(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError and BusyError before anything is sent."""
    asked = parse(FimRequest, await server.body(request), NEUTRAL)
    only_with_stream(asked, "stream_options")
    if asked.random_seed is not None and asked.seed is not None:
        refuse("random_seed", "and seed are one and the same: give one of them", "invalid_value")
    asked.seed = asked.random_seed if asked.seed is None else asked.seed
    served = server.find(asked.model)
    choices = await run_in_threadpool(prepare, served, asked)
    request.state.note = {"model": asked.model, "mode": choices[0].params.mode}
    answers = server.submit(served, [partial(filling, served.engine, choice) for choice in choices])
    return await _Reply(server, served, asked, choices, answers).respond(request)


def prepare(served: Served, asked: FimRequest) -> list[Filled]:
    """One choice for each answer that is wanted. Raises RequestError naming what cannot be honoured."""
    engine, tokenizer = served.engine, served.engine.tokenizer
    before, behind = encoded(tokenizer, asked.prompt), encoded(tokenizer, asked.suffix)
    if asked.max_tokens is not None and asked.max_tokens < 1:
        refuse("max_tokens", f"must be at least 1, not {asked.max_tokens}", "invalid_value")
    prompt_ids, pinned = _prompt(engine, before, behind)
    taken = len(prompt_ids) + len(pinned)
    default = min(DEFAULT_MAX_TOKENS, max(1, engine.max_context - taken))
    limit = fit(taken, asked.max_tokens or default, engine.max_context, prompt="prompt")
    wishes = asked.wishes(tokenizer.vocab_size)
    stop = wishes.by_field.pop("stop", None)  # looked for in the gap's text, wherever it comes from
    if pinned:
        wish_for_mode(wishes, served.able, lossless=asked.lossless)
        wishes.add("infill", (Gap(limit), tuple(pinned)), "suffix")
    else:
        wishes.add("max_tokens", limit)
        if stop is not None:
            wishes.add("stop", stop.value)
    each = [replace(params, raw=True) for params in each_choice(wishes, served.able, asked.choices())]
    admitted(engine, prompt_ids, each[0], "suffix")
    stops = () if stop is None else stop.value
    return [Filled(prompt_ids, params, StopFilter(stops)) for params in each]


def _prompt(engine: Decoder, before: list[int], behind: list[int]) -> tuple[list[int], list[int]]:
    """(prompt, what is pinned behind the gap): in the form that the model was trained on, where it was.

    At the top of a file nothing stands before the cursor, which editors send as an empty prompt. A model that has no
    form of its own for it is given what its texts begin with, or else what ends the text before.
    """
    mask_id = engine.mask_id if isinstance(engine, Engine) else None
    forms = fim_tokens(engine.tokenizer, mask_id)
    if not behind or forms is None:
        tokenizer = engine.tokenizer
        return before or [tokenizer.controls.get(tokenizer.begin or "", tokenizer.end_id)], behind
    prefix, suffix, middle = forms
    return [prefix, *before, suffix, *behind, middle], []


class _Reply(Reply):
    id_prefix = "fim"

    def __init__(
        self, server: Server, served: Served, asked: FimRequest, choices: list[Filled], answers: Answers[Any]
    ) -> None:
        super().__init__(server, served, asked, answers)
        self._choices = choices
        self._texts = [""] * len(choices)

    def _text(self, index: int, item: Piece | Finish) -> str:
        """What an item adds to the text between prompt and suffix, before a stop."""
        choice = self._choices[index]
        choice.take(item)
        if isinstance(item, Finish):
            return choice.stops.close()
        return "" if choice.params.infill and item.gap is None else choice.stops.feed(item.text)

    def _reason(self, index: int) -> str | None:
        """Why the choice has ended; "length" where the gap is as long as it may be."""
        choice = self._choices[index]
        if choice.finish is None or choice.stops.found is not None:
            return None if choice.finish is None else "stop"
        gap = choice.params.infill[0] if choice.params.infill else None
        is_full = isinstance(gap, Gap) and choice.tokens[0] >= gap.limit
        return "length" if is_full else choice.finish.reason

    def usage(self) -> dict[str, Any]:
        made = usage_of(self._choices)
        pinned = made.pop("pinned_tokens")  # to a client they are a part of what it sent
        return made | {name: made[name] + pinned for name in ("prompt_tokens", "total_tokens")}

    def _wire(self, index: int, text: str, place: str) -> dict[str, Any]:
        """A choice. place: where clients of chat completions look for the text."""
        return {
            "index": index,
            "text": text,
            place: {"role": "assistant", "content": text},
            "logprobs": None,
            "finish_reason": self._reason(index),
        }

    def take(self, index: int, item: Piece | Finish) -> None:
        self._texts[index] += self._text(index, item)

    def body(self) -> dict[str, Any]:
        choices = [self._wire(index, text, "message") for index, text in enumerate(self._texts)]
        return self._stamp.head("text_completion") | {"choices": choices, "usage": self.usage()}

    def chunks(self, index: int, item: Piece | Finish) -> Iterator[Chunk]:
        text = self._text(index, item)
        if text or isinstance(item, Finish):
            yield self._stamp.head(self.chunk_kind) | {"choices": [self._wire(index, text, "delta")]}
