"""`POST /v1/completions`: text that goes on, with the prompt echoed and scored where asked, as harnesses want it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from fourleaf.engine.request import Decoder, GenerateParams, TokenLogprob, Usage
from fourleaf.serve.answer import Committed, Finish, Item, answer, fit
from fourleaf.serve.body import parse, refuse, shown
from fourleaf.serve.chunks import Chunk
from fourleaf.serve.decoding import each_choice, top_logprobs
from fourleaf.serve.logprobs import CompletionLogprobs
from fourleaf.serve.models import Served
from fourleaf.serve.openai import Streamable, admit, only_with_stream
from fourleaf.serve.reply import Reply
from fourleaf.serve.server import Server, watcher
from fourleaf.serve.stream import Answers
from fourleaf.serve.tools import Offer
from fourleaf.serve.usage import usage_of_choices
from fourleaf.serve.worker import Job
from fourleaf.text.router import ContentDelta

NEUTRAL: dict[str, tuple[Any, ...]] = {"best_of": (1,), "suffix": ("",)}
DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 128


class CompletionRequest(Streamable):
    """The honoured fields, beside those about decoding."""

    prompt: Any
    max_tokens: int | None = None
    echo: bool | None = None
    logprobs: int | None = None


@dataclass(frozen=True)
class Scored:
    """The prompt's log-probabilities, one a token and one behind the last, before the answer's items."""

    logprobs: list[TokenLogprob | None]


@dataclass
class _Choice:
    """What one choice has said and not yet sent."""

    prompt_ids: list[int]
    params: GenerateParams
    logprobs: CompletionLogprobs
    text: str = ""
    length: int = 0  # characters sent so far
    scores: list[TokenLogprob | None] | None = None
    generated: int = 0
    finish: Finish | None = None


async def completions(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError and BusyError before anything is sent."""
    asked = parse(CompletionRequest, await server.body(request), NEUTRAL)
    only_with_stream(asked, "stream_options")
    served = server.find(asked.model)
    choices = await run_in_threadpool(prepare, served, asked)
    request.state.note = {"model": asked.model, "mode": choices[0].params.mode}
    works = [partial(_work, served.engine, choice, asked) for choice in choices]
    answers = server.submit(served, works)
    return await _Reply(server, served, asked, choices, answers).respond(request)


def prepare(served: Served, asked: CompletionRequest) -> list[_Choice]:
    """Prompts times answers. Raises RequestError naming what cannot be honoured."""
    engine = served.engine
    prompts = [_ids(engine, prompt) for prompt in _prompts(asked.prompt)]
    wishes = asked.wishes(engine.tokenizer.vocab_size)
    wanted = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    if wanted < 0 or (wanted == 0 and not asked.echo):
        refuse("max_tokens", f"must be at least {0 if asked.echo else 1}, not {wanted}", "invalid_value")
    if asked.logprobs is not None:
        top = top_logprobs(asked.logprobs, "logprobs")
        if asked.echo and not served.able.scores:
            refuse("logprobs", "of an echoed prompt are not supported here: leave out echo or logprobs")
        if wanted > 0:
            wishes.add("logprobs", top)
    made: list[_Choice] = []
    for prompt_ids in prompts:
        room = engine.max_context - len(prompt_ids)
        if wanted > 0 or room < 0:
            limit = fit(len(prompt_ids), wanted, engine.max_context, prompt="prompt")
            wishes.add("max_tokens", limit)
        each = [replace(params, raw=True) for params in each_choice(wishes, served.able, asked.choices())]
        if wanted > 0:
            admit(engine, prompt_ids, each[0])
        made += [_Choice(prompt_ids, params, CompletionLogprobs(engine.tokenizer)) for params in each]
    return made


def _prompts(value: Any) -> list[Any]:
    """The prompts: a text, a list of ids, or a list of either."""
    several = isinstance(value, list) and value and not all(_is_id(one) for one in value)
    prompts = value if several else [value]
    if len(prompts) > MAX_PROMPTS:
        refuse("prompt", f"holds {len(prompts)} prompts; at most {MAX_PROMPTS} are taken", "invalid_value")
    return prompts


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(engine: Decoder, prompt: Any) -> list[int]:
    """A prompt's ids. A text never becomes a control token; ids may be any but the mask's."""
    if isinstance(prompt, str):
        ids = engine.tokenizer.encode(prompt)
    elif isinstance(prompt, list) and all(_is_id(one) for one in prompt):
        ids = prompt
    else:
        refuse("prompt", f"must be a text, token ids, or a list of either, not {shown(prompt)}", "invalid_type")
    if not ids:
        refuse("prompt", "must not be empty", "invalid_value")
    vocab_size, mask_id = engine.tokenizer.vocab_size, _mask_id(engine)
    for one in ids:
        if not 0 <= one < vocab_size or one == mask_id:
            refuse("prompt", f"must hold ids below {vocab_size} that are no mask, not {one}", "invalid_value")
    return ids


def _mask_id(engine: Decoder) -> int | None:
    return getattr(engine, "mask_id", None)


def _work(engine: Decoder, choice: _Choice, asked: CompletionRequest, job: Job[Any]) -> Generator[Item | Scored]:
    if asked.echo and asked.logprobs is not None:
        from fourleaf.engine.score import score  # torch, which a server of another engine does not need

        model = engine.model  # type: ignore[attr-defined]  # checked by `able.scores`
        yield Scored(score(model, choice.prompt_ids, asked.logprobs, _mask_id(engine)))
    if asked.max_tokens == 0:
        yield Finish("length", Usage(len(choice.prompt_ids), 0, 0, 0, 0), 0.0, 0.0)
        return
    yield from answer(engine, choice.prompt_ids, choice.params, Offer(None, None), watcher(job, frames=False))


class _Reply(Reply):
    def __init__(
        self, server: Server, served: Served, asked: CompletionRequest, choices: list[_Choice], answers: Answers[Any]
    ) -> None:
        super().__init__(server, served, asked, answers)
        self._asked, self._choices = asked, choices
        self._tokenizer = served.engine.tokenizer
        if asked.echo:
            for choice in choices:
                choice.text = self._tokenizer.decode(choice.prompt_ids)

    def take(self, index: int, item: Item | Scored) -> None:
        choice = self._choices[index]
        match item:
            case Scored(logprobs):
                choice.scores = logprobs
                choice.logprobs.add(choice.prompt_ids, logprobs[:-1])
                choice.logprobs.end_prompt()
            case Committed(tokens, logprobs):
                choice.generated += len(tokens)
                if self._asked.logprobs is not None:
                    choice.logprobs.add(tokens, [None] * len(tokens) if logprobs is None else logprobs)
            case ContentDelta(text):
                choice.text += text
            case Finish():
                choice.finish = item
                self._add_end(choice, item)

    def _add_end(self, choice: _Choice, finish: Finish) -> None:
        """Harnesses that echo count tokens: an end token is one of them, though its text is not shown. Its probability
        is known where it comes right behind the prompt."""
        if choice.scores is None or finish.usage.completion_tokens <= choice.generated:
            return
        behind = choice.scores[-1] if choice.generated == 0 else None
        assert behind is None or isinstance(behind, TokenLogprob)
        choice.logprobs.add([self._tokenizer.end_id], [behind])

    def _wire(self, index: int) -> dict[str, Any]:
        """What has gathered since the last chunk, as a choice."""
        choice = self._choices[index]
        choice.length += len(choice.text)
        entries = None
        if self._asked.logprobs is not None:
            whole = choice.finish is not None and choice.finish.stop is None
            entries = choice.logprobs.take(choice.length, rest=whole)
        wire = {
            "index": index,
            "text": choice.text,
            "logprobs": entries,
            "finish_reason": None if choice.finish is None else choice.finish.reason,
        }
        choice.text = ""
        return wire

    def usage(self) -> dict[str, Any]:
        finishes = [choice.finish for choice in self._choices if choice.finish is not None]
        total = usage_of_choices(finishes, [choice.params for choice in self._choices])
        each = self._asked.choices()
        total["prompt_tokens"] = sum(len(choice.prompt_ids) for choice in self._choices[::each])
        total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
        return total

    def body(self) -> dict[str, Any]:
        wire = [self._wire(index) for index in range(len(self._choices))]
        return self._stamp.head("text_completion") | {"choices": wire, "usage": self.usage()}

    def chunks(self, index: int, item: Item | Scored) -> Iterator[Chunk]:
        self.take(index, item)
        if isinstance(item, ContentDelta | Finish):
            yield self._stamp.head(self.chunk_kind) | {"choices": [self._wire(index)]}
