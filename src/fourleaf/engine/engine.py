"""The front door to a model: load it once, generate answers, many at a time.

`generate` and `generate_many` need no thread: whoever waits for an answer drives the forwards, of all requests at once.
A server calls `start`: then a thread of the engine's own drives them, and `stream` waits without blocking an event
loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch

from fourleaf.checkpoint.quantised import load_checkpoint
from fourleaf.checkpoint.tools import fixed_tools
from fourleaf.engine.admission import check_fits, check_request
from fourleaf.engine.core import Core, Limits, Sink, tell
from fourleaf.engine.cost import CostTable
from fourleaf.engine.guide import Guide
from fourleaf.engine.infill import Infilling
from fourleaf.engine.pilot import Fleet, Pilot, table_of
from fourleaf.engine.request import Delta, Frame, GenerateParams
from fourleaf.engine.sequence import Sequence, Vocabulary
from fourleaf.errors import CheckpointError, RequestError
from fourleaf.kernels.products import warm
from fourleaf.model.transformer import Transformer
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.constraint import Constraint, taught
from fourleaf.text.foreign import read_tokenizer
from fourleaf.text.grammar import compile_constraint, is_available
from fourleaf.text.router import Router, Spelling, opens_in_reasoning
from fourleaf.text.stops import StopFinder
from fourleaf.text.tokenizer import MASK, Tokenizer

log = logging.getLogger(__name__)

# Seconds within which whoever waits for the engine's thread notices that it was stopped, and drives for himself.
STOPPED_AFTER = 0.5


def bundled_path() -> Path:
    """The checkpoint that ships in the package."""
    return Path(__file__).parents[1] / "models" / "cabin"


@dataclass(eq=False)
class Ticket:
    """One request on its way: what `Engine.submit` gives and `Engine.cancel` takes."""

    sequence: Sequence
    sink: Sink
    key: int | None = None  # once it is in line
    is_cancelled: bool = False


class Engine:
    """A model with its tokenizer and chat template, and all requests to it."""

    def __init__(
        self,
        name: str,
        model: Transformer,
        tokenizer: Tokenizer,
        chat: ChatTemplate,
        limits: Limits | None = None,
        *,
        checks: bool = False,
    ) -> None:
        """checks: as in `Core`."""
        self.name, self.model, self.tokenizer, self.chat = name, model, tokenizer, chat
        self.max_context = model.config.max_position_embeddings
        self.folder: Path | None = None
        self.taught: Constraint | None = None  # what answers are held to where a request says nothing else
        self.core = Core(model, limits, checks=checks)
        self._inbox: deque[Ticket] = deque()  # new requests and cancelled ones, for whoever drives
        self._driving = threading.Lock()
        # For `auto`; its first request waits until forwards are timed, two seconds at most.
        self._fleet = Fleet(self._costs, model.config.block_size or 1, lambda: self.core.num_requests)
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        num_threads: int | None = None,
        dtype: torch.dtype = torch.float32,
        limits: Limits | None = None,
    ) -> Engine:
        """Reads a checkpoint folder; its name is the model's id. Raises CheckpointError for what is missing or broken.

        `num_threads` sets torch's threads for the whole process.
        """
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        if not path.is_dir():
            raise CheckpointError(f"there is no folder {path}")
        template = path / "chat_template.jinja"
        if not template.is_file():
            raise CheckpointError(f"there is no {template}; is {path} a checkpoint folder?")
        tokenizer = read_tokenizer(path)
        chat = ChatTemplate(template.read_text(encoding="utf-8"), tokenizer)
        model = load_checkpoint(path, dtype)
        # Public models round their vocabulary up: rows behind the tokenizer's last token mean nothing.
        if model.config.vocab_size < tokenizer.vocab_size:
            sizes = f"{tokenizer.vocab_size} tokens, its model {model.config.vocab_size}"
            raise CheckpointError(f"{path} does not fit together: its tokenizer has {sizes}")
        engine = cls(path.resolve().name, model, tokenizer, chat, limits)
        engine.folder = path
        warm(model.products())
        engine._learn(fixed_tools(path))
        return engine

    def _learn(self, tools: list[dict[str, Any]] | None) -> None:
        """Takes the tools in the model's weights, and compiles their grammar ahead of the first request."""
        if tools and is_available():
            constraint = taught(tools, self.chat.markup.syntax, self.chat.markup.separator)
            try:
                compile_constraint(constraint, self.tokenizer, self.model.config.vocab_size)
            except RequestError as error:  # its own tools say more than a grammar can hold to: they are as good without
                log.warning("answers of %s are not held to its tools: %s", self.name, error)
            else:
                self.taught = constraint

    def generate(
        self, prompt_ids: list[int], params: GenerateParams, observe: Callable[[Frame], None] | None = None
    ) -> Iterator[Delta]:
        """Yields the answer as it becomes final. Closing the iterator, or raising from `observe`, ends the request.

        Raises ContextLengthError for a prompt that leaves no room to answer, RequestError for an empty one or for
        what this model cannot do.
        """
        return self._deltas(self.admit(prompt_ids, params, observe))

    def generate_many(self, prompts: list[list[int]], params: GenerateParams) -> list[tuple[list[int], Delta]]:
        """Answers to many prompts whose forwards are shared: (tokens, last delta) of each, in order."""
        admitted = [self.admit(ids, params) for ids in prompts]  # all of them, before any is in line
        waiting = [SimpleQueue[Delta | BaseException]() for _ in prompts]
        tickets = [self.submit(sequence, queue.put) for sequence, queue in zip(admitted, waiting, strict=True)]
        answers: list[tuple[list[int], Delta]] = []
        try:
            for queue in waiting:
                tokens: list[int] = []
                while (delta := self._next(queue)).finish_reason is None:
                    tokens += delta.tokens
                answers.append(([*tokens, *delta.tokens], delta))
        finally:
            for ticket in tickets:
                self.cancel(ticket)
        return answers

    async def stream(
        self, prompt_ids: list[int], params: GenerateParams, observe: Callable[[Frame], None] | None = None
    ) -> AsyncIterator[Delta]:
        """`generate` for an event loop; `observe` is called in the engine's thread. Wants `start` first."""
        assert self._thread is not None, "nobody drives the engine; call start()"
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Delta | BaseException] = asyncio.Queue()

        def put(delta: Delta | BaseException) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, delta)

        ticket = self.submit(self.admit(prompt_ids, params, observe), put)
        try:
            while True:
                delta = await queue.get()
                if isinstance(delta, BaseException):
                    raise delta
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            self.cancel(ticket)

    def admit(
        self, prompt_ids: list[int], params: GenerateParams, observe: Callable[[Frame], None] | None = None
    ) -> Sequence:
        """Checks a request against the model; the limit on tokens shrinks to what the context leaves."""
        config = self.model.config
        check_request(prompt_ids, params, self.name, config)
        vocabulary = Vocabulary(self.end_id, self.mask_id, config.vocab_size)
        if params.infill:
            return self._infilling(prompt_ids, params, vocabulary, observe)
        limit = min(params.max_tokens, self.max_context - len(prompt_ids))
        stops = None
        if params.stop:
            stops = StopFinder(params.stop, self._router(prompt_ids, params))
        guide = None
        if (constraint := self._constraint(prompt_ids, params)) is not None:
            grammar = compile_constraint(constraint, self.tokenizer, config.vocab_size)
            guide = Guide(grammar.matcher(prompt_ids), self.end_id)
        pilot = Pilot(self._fleet, params) if params.mode == "auto" else None
        return Sequence(prompt_ids, params, limit, vocabulary, config.block_size or 1, observe, stops, guide, pilot)

    def _constraint(self, prompt_ids: list[int], params: GenerateParams) -> Constraint | None:
        """What the answer is held to."""
        is_free = not params.grammar or params.raw or params.policy != "threshold"
        if params.constraint is not None or self.taught is None or is_free:
            return params.constraint
        if opens_in_reasoning(self.tokenizer, prompt_ids):
            return replace(self.taught, reasoning="open")
        return replace(self.taught, reasoning="optional") if self.chat.thinks else self.taught

    def _infilling(
        self,
        prompt_ids: list[int],
        params: GenerateParams,
        vocabulary: Vocabulary,
        observe: Callable[[Frame], None] | None,
    ) -> Infilling:
        matcher = None
        if params.constraint is not None:
            matcher = compile_constraint(params.constraint, self.tokenizer, vocabulary.size).matcher(prompt_ids)
        check_fits(params.infill, len(prompt_ids), self.max_context, vocabulary, matcher)
        return Infilling(prompt_ids, params, vocabulary, self.model.config.block_size or 1, observe, matcher)

    def _router(self, prompt_ids: list[int], params: GenerateParams) -> Router | Spelling:
        if params.raw:
            return Spelling(self.tokenizer)
        opened = opens_in_reasoning(self.tokenizer, prompt_ids)
        return Router(self.tokenizer, self.chat.markup, reasoning=opened)

    def _costs(self) -> CostTable:
        return table_of(self.model, self.folder)

    def submit(self, sequence: Sequence, sink: Sink) -> Ticket:
        """Puts a request in line; `sink` is called by whoever drives, with each delta or with what went wrong."""
        ticket = Ticket(sequence, sink)
        self._inbox.append(ticket)
        self._wake.set()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Ends a request before the next forward, and frees what it holds. Without effect on one that has ended."""
        if ticket.sequence.finish_reason is not None or ticket.is_cancelled:
            return
        ticket.is_cancelled = True
        self._inbox.append(ticket)
        self._wake.set()
        self._tidy()

    def start(self) -> None:
        """Drives the forwards in a thread of the engine's own, until `stop`."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, name=f"fourleaf-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread behind the forward under way. Requests stay where they are: `generate` goes on by itself,
        `stream` when there is a thread again."""
        thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None:
            thread.join()

    @property
    def end_id(self) -> int:
        return self.tokenizer.end_id

    @property
    def mask_id(self) -> int | None:
        """Stands in masked positions and is never an answer's token; an AR model of another project has none."""
        mask = self.model.config.mask_token_id
        return self.tokenizer.controls.get(MASK) if mask is None else mask

    def _run(self) -> None:
        while self._thread is threading.current_thread():
            with self._driving:
                is_busy = self._drive()
            if not is_busy and not self._inbox:
                self._wake.wait()
                self._wake.clear()

    def _drive(self) -> bool:
        """What is new, then one forward. -> False where nobody is left. By whoever holds `_driving`."""
        try:
            self._take_in()
            return self.core.step()
        except Exception as fault:  # our own: nothing is known of what the core holds, so that it begins anew
            log.exception("the engine failed; all its requests end")
            sinks = self.core.sinks
            self.core = self.core.renewed()
            for sink in sinks:
                tell(sink, fault)
            return True

    def _tidy(self) -> None:
        """Takes in what is new where nobody drives. Whoever cancels calls it afterwards, and whoever has driven, so
        that no cancelled request holds its memory until the next one comes."""
        if self._thread is None and self._inbox and self._driving.acquire(blocking=False):
            try:
                self._take_in()
            finally:
                self._driving.release()

    def _take_in(self) -> None:
        """Hands new and cancelled requests to the core. By whoever drives."""
        while self._inbox:
            ticket = self._inbox.popleft()
            if not ticket.is_cancelled:
                ticket.key = self.core.submit(ticket.sequence, ticket.sink)
            elif ticket.key is not None:
                self.core.cancel(ticket.key)

    def _deltas(self, sequence: Sequence) -> Iterator[Delta]:
        queue = SimpleQueue[Delta | BaseException]()
        ticket = self.submit(sequence, queue.put)
        try:
            while (delta := self._next(queue)).finish_reason is None:
                yield delta
            yield delta
        finally:
            self.cancel(ticket)

    def _next(self, queue: SimpleQueue[Delta | BaseException]) -> Delta:
        """The next delta, driving the forwards for it where no thread does. Raises what ended the request."""
        while True:
            if self._thread is None and queue.empty():
                with self._driving:
                    if queue.empty():
                        self._drive()
                self._tidy()
            try:
                delta = queue.get(timeout=STOPPED_AFTER) if self._thread is not None else queue.get_nowait()
            except Empty:
                continue
            if isinstance(delta, BaseException):
                raise delta
            return delta
