"""`POST /v1/infill`: a template with gaps, filled. Before it stands a prompt, or messages that it answers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from fourleaf.engine.request import Decoder, GenerateParams
from fourleaf.errors import RequestError
from fourleaf.serve.answer import Finish
from fourleaf.serve.body import parse, refuse, renamed
from fourleaf.serve.chunks import Chunk
from fourleaf.serve.constraint import Choice, constrained, read_format
from fourleaf.serve.decoding import each_choice
from fourleaf.serve.filling import Filled, Piece, encoded, fill, usage_of
from fourleaf.serve.models import Served
from fourleaf.serve.openai import Streamable, admit, only_with_stream
from fourleaf.serve.reply import Reply
from fourleaf.serve.server import Server, watcher
from fourleaf.serve.stream import Answers
from fourleaf.serve.template import read_template, wish_for_mode
from fourleaf.serve.tools import Offer
from fourleaf.serve.worker import Job

# Field -> the values beside null that ask for nothing: gaps have limits of their own, and tools no place in a template.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "max_tokens": (),
    "max_completion_tokens": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "logprobs": (False,),
    "top_logprobs": (0,),
}


class InfillRequest(Streamable):
    """The honoured fields, beside those about decoding."""

    template: list[Any]
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None


async def infill(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError and BusyError before anything is sent."""
    asked = parse(InfillRequest, await server.body(request), NEUTRAL)
    only_with_stream(asked, "stream_options")
    served = server.find(asked.model)
    choices = await run_in_threadpool(prepare, served, asked)
    request.state.note = {"model": asked.model, "mode": choices[0].params.mode}
    answers = server.submit(served, [partial(filling, served.engine, choice) for choice in choices])
    return await _Reply(server, served, asked, choices, answers).respond(request)


def prepare(served: Served, asked: InfillRequest) -> list[Filled]:
    """One choice for each answer that is wanted. Raises RequestError naming what cannot be honoured."""
    engine = served.engine
    if (asked.prompt is None) == (asked.messages is None):
        refuse("prompt", "or messages must be given, and not both", "invalid_value")
    if asked.messages is not None:
        prompt_ids = engine.chat.render(asked.messages)
    else:
        prompt_ids = encoded(engine.tokenizer, asked.prompt)
        if not prompt_ids:
            refuse("prompt", "must not be empty", "invalid_value")
    wishes = asked.wishes(engine.tokenizer.vocab_size)
    wish_for_mode(wishes, served.able, lossless=asked.lossless)
    wishes.add("infill", read_template(asked.template, engine.tokenizer), "template")
    form = read_format(asked.response_format)
    free = Offer(None, frozenset())
    wishes.add(
        "constraint", constrained(free, Choice("none"), form, served.able, engine.chat.markup), "response_format"
    )
    each = each_choice(wishes, served.able, asked.choices())
    admitted(engine, prompt_ids, each[0], "template")
    return [Filled(prompt_ids, params) for params in each]


def admitted(engine: Decoder, prompt_ids: list[int], params: GenerateParams, name: str) -> None:
    """Lets the engine refuse now what it would refuse later. name: what the client called the template."""
    try:
        admit(engine, prompt_ids, params)
    except RequestError as error:
        raise renamed(error, {"infill": name}) from None


def filling(engine: Decoder, choice: Filled, job: Job[Any]) -> Generator[Piece | Finish]:
    """The work of one choice."""
    yield from fill(engine, choice.prompt_ids, choice.params, watcher(job, frames=False))


class _Reply(Reply):
    chunk_kind = "infill.chunk"
    id_prefix = "infill"

    def __init__(
        self, server: Server, served: Served, asked: InfillRequest, choices: list[Filled], answers: Answers[Any]
    ) -> None:
        super().__init__(server, served, asked, answers)
        self._choices = choices

    def _end(self, index: int) -> dict[str, Any]:
        choice = self._choices[index]
        assert choice.finish is not None
        return {"index": index, "gaps": choice.wire_gaps(), "finish_reason": choice.finish.reason}

    def usage(self) -> dict[str, Any]:
        return usage_of(self._choices)

    def take(self, index: int, item: Piece | Finish) -> None:
        self._choices[index].take(item)

    def body(self) -> dict[str, Any]:
        choices = [self._end(index) | {"text": choice.text} for index, choice in enumerate(self._choices)]
        return self._stamp.head("infill") | {"choices": choices, "usage": self.usage()}

    def chunks(self, index: int, item: Piece | Finish) -> Iterator[Chunk]:
        """A piece of text with the gap that it fills; the last chunk of a choice has its gaps as a whole."""
        self.take(index, item)
        if isinstance(item, Finish):
            choice = self._end(index) | {"text": "", "gap": None}
        else:
            choice = {"index": index, "text": item.text, "gap": item.gap, "finish_reason": None}
        yield self._stamp.head(self.chunk_kind) | {"choices": [choice]}
