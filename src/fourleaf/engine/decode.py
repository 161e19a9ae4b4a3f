"""Decoding on one model: what each request needs next, all of it in one forward, and what comes of it.

Any number of requests may share the forwards, each at its own pass; a request alone is the same code. Nothing a
canvas pass computes is kept: only causal rows write the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourleaf.diffusion.policy import Canvas, Noise, reveal
from fourleaf.diffusion.sampling import Sampling, adjust, choose, greedy
from fourleaf.engine.request import Delta, FinishReason, Frame, GenerateParams, Usage
from fourleaf.errors import RequestError
from fourleaf.model.state import State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

_HONOURED = ("mode", "threshold", "temperature", "max_tokens", "seed", "choice", "lossless", "priority")


@dataclass
class Request:
    """One answer being decoded. `pending` are tokens decided but not yet in the state: the prompt, a finished block,
    the last token of `ar`."""

    prompt: list[int]
    params: GenerateParams
    max_tokens: int
    observe: Callable[[Frame], None] | None = None
    pending: list[int] = field(default_factory=list)
    canvas: Canvas | None = None
    num_committed: int = 0
    num_sent: int = 0
    num_blocks: int = 0
    forwards: int = 0
    rows: int = 0
    passes: int = 0
    is_prefilled: bool = False
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        for field_ in fields(self.params):
            value = getattr(self.params, field_.name)
            if (field_.name not in _HONOURED and value != field_.default) or value in ("draft", "auto"):
                raise RequestError(
                    f"{field_.name} {value!r} is not supported by this engine; leave it at {field_.default!r}.",
                    param=field_.name,
                    code="unsupported_value",
                )
        self.pending = list(self.prompt)
        self.noise = Noise(self.params.seed, self.params.choice)
        self.sampling = Sampling.of(self.params)

    @property
    def num_known(self) -> int:
        """Prompt and decided tokens: where the next token or block starts."""
        return len(self.prompt) + self.num_committed

    def usage(self) -> Usage:
        return Usage(len(self.prompt), self.num_committed, self.forwards, self.rows, self.passes)


class Decoding:
    """A fixed set of requests on one state. Call `step` until it says that nothing is left."""

    def __init__(self, model: Transformer, requests: list[Request], end_id: int, mask_id: int | None) -> None:
        self.model, self.requests, self.end_id, self.mask_id = model, requests, end_id, mask_id
        dtype = model.lm_head.weight.dtype
        self.state = State.empty(model.config, len(requests), dtype)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Delta]]:
        """One forward for every live request. -> (request index, delta) of those that have news."""
        live = [i for i, r in enumerate(self.requests) if r.finish_reason is None]
        if not live:
            return []
        for i in live:
            self._open_canvas(self.requests[i])
        work = self._work(live)
        hidden, _ = self.model(work, self.state)
        wanted = self._wanted_rows(live, work)
        flat = [row for i in live for row in wanted[i]]
        logits = self.model.head(hidden if len(flat) == len(hidden) else hidden[flat])
        news, begin = [], 0
        for i in live:
            rows = logits[begin : begin + len(wanted[i])]
            begin += len(wanted[i])
            delta = self._advance(self.requests[i], rows)
            if delta is not None:
                news.append((i, delta))
        return news

    def _open_canvas(self, request: Request) -> None:
        if request.params.mode == "diffuse" and request.canvas is None:
            block_size = self.model.config.block_size
            assert block_size is not None
            assert self.mask_id is not None
            rows = min(block_size, request.max_tokens - request.num_committed)
            request.canvas = Canvas.blank(request.num_known, rows, self.mask_id)

    def _work(self, live: list[int]) -> Work:
        causal = [r.pending if r.finish_reason is None else [] for r in self.requests]
        canvases = [(i, c) for i in live if (c := self.requests[i].canvas) is not None]
        parts: list[NDArray[np.int64]] = [np.array(p, dtype=np.int64) for p in causal if p]
        mask = -1 if self.mask_id is None else self.mask_id  # read by canvases alone
        parts += [np.where(c.masked, mask, c.tokens) for _, c in canvases]
        return Work(
            torch.from_numpy(np.concatenate(parts)),
            Segments([len(p) for p in causal]),
            list(self.state.lengths),
            Segments([len(c.tokens) for _, c in canvases]) if canvases else None,
            [i for i, _ in canvases] if canvases else None,
            [c.start for _, c in canvases] if canvases else None,
        )

    def _wanted_rows(self, live: list[int], work: Work) -> dict[int, list[int]]:
        """Flat rows whose logits each request needs: its masked canvas rows, or its last causal row."""
        wanted: dict[int, list[int]] = {}
        causal_end = np.cumsum(work.causal.lengths)
        begin = work.num_causal
        for i in live:
            canvas = self.requests[i].canvas
            if canvas is None:
                wanted[i] = [int(causal_end[i]) - 1]
            else:
                wanted[i] = (np.flatnonzero(canvas.masked) + begin).tolist()
                begin += len(canvas.tokens)
        return wanted

    def _advance(self, request: Request, logits: Tensor) -> Delta | None:
        """Takes a request's logits of this forward to its next state. -> what is final now, if anything is."""
        if request.is_prefilled:
            request.forwards += 1
            request.rows += len(request.pending) + (0 if request.canvas is None else len(request.canvas.tokens))
        request.is_prefilled = True
        request.pending = []
        return self._next_token(request, logits) if request.canvas is None else self._next_pass(request, logits)

    def _next_token(self, request: Request, logits: Tensor) -> Delta:
        """`ar`: the last causal row's logits decide one token."""
        params = request.params
        if params.temperature == 0:
            tokens = greedy(logits, self.mask_id)
        else:
            adjusted = adjust(logits, request.sampling, self.mask_id)
            tokens, _ = choose(adjusted, request.sampling, [request.num_known], 0, request.noise)
        request.pending = tokens
        request.num_committed += 1
        is_end = tokens[0] == self.end_id
        if is_end or request.num_committed >= request.max_tokens:
            request.finish_reason = "stop" if is_end else "length"
        return self._delta(request, [] if is_end else tokens)

    def _next_pass(self, request: Request, logits: Tensor) -> Delta | None:
        """`diffuse`: the pass reveals rows; a finished block becomes pending, to be committed with the next pass."""
        canvas, params = request.canvas, request.params
        assert canvas is not None
        masked = np.flatnonzero(canvas.masked)
        positions = (masked + canvas.start).tolist()
        adjusted = adjust(logits, request.sampling, self.mask_id)
        tokens, sure = choose(adjusted, request.sampling, positions, canvas.num_passes, request.noise)
        canvas.apply(reveal(params, canvas, masked.tolist(), tokens, sure, None, self.end_id))
        request.passes += 1
        if request.observe is not None:
            request.observe(
                Frame(
                    request.num_blocks,
                    canvas.start,
                    canvas.num_passes - 1,
                    tuple(canvas.tokens.tolist()),
                    tuple(canvas.masked.tolist()),
                )
            )
        end = canvas.end_row(self.end_id)
        settled = canvas.num_settled if end is None else end
        fresh = canvas.tokens[request.num_sent : settled].tolist()
        request.num_sent = settled
        if canvas.is_done(self.end_id):
            self._close_canvas(request, canvas, end)
        if not fresh and request.finish_reason is None:
            return None
        return self._delta(request, fresh)

    def _close_canvas(self, request: Request, canvas: Canvas, end: int | None) -> None:
        request.num_committed += len(canvas.tokens) if end is None else end + 1
        request.num_blocks += 1
        request.num_sent = 0
        request.canvas = None
        if end is not None:
            request.finish_reason = "stop"
        elif request.num_committed >= request.max_tokens:
            request.finish_reason = "length"
        else:
            request.pending = canvas.tokens.tolist()

    def _delta(self, request: Request, tokens: list[int]) -> Delta:
        ended = request.finish_reason is not None
        return Delta(tuple(tokens), request.finish_reason, request.usage() if ended else None)
