"""A template being filled: pinned tokens, and gaps between them whose length nobody knows.

A gap ends where what is pinned behind it fits best (docs/decisions/024-infill.md):

`diffuse`   a blank canvas says at which places the pins are likely; at the likeliest ones the gap is denoised with the
            pins in their rows, so that it sees them; then one causal forward says how likely filling and pins are.
`ar`        the gap is walked from left to right, and each forward says also how likely the pins would be here. `draft`
            does the same, and so does every mode under a grammar.

A filling that is more likely than not, pins included, is taken at once; else the best of those tried. The causal rows
of a trial are held: they move the state only where the trial stands. What stands behind the last pinned token is an
answer like any other.

Shapes: W rows whose logits were asked for, N canvas rows, Y vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fourleaf.diffusion.constraint import GapMatcher, Matcher, take
from fourleaf.diffusion.draft import num_equal
from fourleaf.diffusion.policy import Canvas, is_done, reveal, wanted_rows
from fourleaf.diffusion.sampling import NEVER, adjust, choose, entropy
from fourleaf.engine.draws import Draw
from fourleaf.engine.guide import Guide
from fourleaf.engine.need import Need, Vocabulary, end_of_causal
from fourleaf.engine.places import EVEN, LOOK, TRIALS, Blank, Place, best, log_probs
from fourleaf.engine.request import Delta, Frame, GenerateParams, Usage
from fourleaf.engine.sequence import Sequence
from fourleaf.engine.template import Gap, num_open, num_pinned
from fourleaf.errors import RequestError

SPAN = 31  # tokens of a gap that a walk decides together: the gap may end at each place among them


@dataclass
class _Open:
    """The gap that is being filled. left: tokens that it may still have. pins: what stands behind it. judged: those of
    them whose probability counts. goal: pins that the grammar must be able to take, an end token among them where the
    answer ends with them."""

    index: int
    left: int
    pins: list[int]
    judged: list[int]
    goal: list[int]
    path: list[int] = field(default_factory=list)  # what is to be judged, or walked so far
    places: list[Place] = field(default_factory=list)
    blank: Blank | None = None  # `diffuse`: what the canvas says, while it has no pins
    lengths: list[int] | None = None  # `diffuse`: still to be tried; None until the blank canvas is sure of one
    goes_on: bool = False  # `diffuse`: the canvas is all of the gap's
    matcher: GapMatcher | None = None  # stands behind `path`


class Infilling(Sequence):
    """One template on its way. `known` are the prompt, and all that is pinned or filled up to the open gap."""

    def __init__(
        self,
        prompt: list[int],
        params: GenerateParams,
        vocabulary: Vocabulary,
        block_size: int,
        observe: Callable[[Frame], None] | None = None,
        matcher: Matcher | None = None,
    ) -> None:
        """matcher: at the answer's start, able to take the template. params.mode: not `auto`."""
        self._most_positions = len(prompt) + num_pinned(params.infill) + num_open(params.infill)
        super().__init__(prompt, params, num_open(params.infill), vocabulary, block_size, observe)
        self._matcher, self._walks = matcher, params.mode != "diffuse" or matcher is not None
        self._span = SPAN if self._walks else block_size - 1  # a canvas shows at least one pinned token
        self._next_part = 0
        self._behind: Tensor | None = None  # [1, Y]: what the known tokens' last row says
        self._unsent: list[tuple[int, int | None]] = []  # tokens, and the gaps that they fill
        self._tail: int | None = None  # index of the gap behind which nothing is pinned, once it is reached
        self._num_gaps = 0
        self._gap: _Open | None = None
        self._enter()

    @property
    def num_wanted_positions(self) -> int:
        return min(len(self.known) + SPAN + self.block_size + LOOK, self._most_positions)

    def usage(self) -> Usage:
        found = super().usage()  # the cache may know pinned tokens too
        return replace(found, cached_tokens=min(found.cached_tokens, found.prompt_tokens))

    def need(self, most_causal: int) -> Need:
        if self._tail is not None:
            return super().need(most_causal)
        gap = self._open_gap
        target = len(self.known)
        if not self._walks and gap.lengths is None and self.canvas is None:
            rows = min(self.block_size, gap.left + len(gap.pins))
            self._lay_out(rows, [])
            gap.blank = Blank(rows, gap.judged)
        end = end_of_causal(self.num_cached, target, self.splits, most_causal)
        causal = self.known[self.num_cached : end]
        if end < target:
            return Need(causal, None, [])
        asked = [len(causal) - 1] if self._behind is None else []
        if (canvas := self.canvas) is not None:
            assert self.vocabulary.mask is not None
            self._wanted = wanted_rows(self.params, canvas, self.vocabulary.end)
            ids = np.where(canvas.masked, self.vocabulary.mask, canvas.tokens)
            return Need(causal, ids, asked + [len(causal) + row for row in self._wanted])
        if causal:
            return Need(causal, None, asked)
        held = [*gap.path, *gap.judged]
        return Need(held, None, list(range(len(held))), is_held=True)

    def draw(self, need: Need) -> Draw | None:
        return None if self._tail is None else super().draw(need)

    def take(self, need: Need, logits: Tensor) -> Delta | None:
        if self._tail is not None:
            return self._with_unsent(super().take(need, logits))
        self._count(need)
        self.accepted = 0
        if not need.is_held:
            self.num_cached += len(need.causal)
        self._is_prefilled = self._is_prefilled or self.num_cached == len(self.known)
        if need.is_held:
            return self._walk(need.causal, logits) if self._walks else self._judge(need.causal, logits)
        if need.wanted and self._behind is None:
            self._behind, logits = logits[:1].clone(), logits[1:]
        if need.canvas is None:
            return None
        self._tally.passes += 1
        return self._next_canvas(logits)

    @property
    def _open_gap(self) -> _Open:
        assert self._gap is not None, "the template is filled"
        return self._gap

    def _enter(self) -> None:
        """Takes what is pinned next as known, up to a gap."""
        parts = self.params.infill
        self._gap = None
        while self._next_part < len(parts):
            part = parts[self._next_part]
            self._next_part += 1
            if not isinstance(part, Gap):
                self._append(list(part), None)
                continue
            index, self._num_gaps = self._num_gaps, self._num_gaps + 1
            if self._next_part == len(parts):
                self._tail, self.max_tokens = index, self.num_completed + part.limit
                self.guide = None if self._matcher is None else Guide(self._matcher, self.vocabulary.end)
                return
            pins = parts[self._next_part]
            assert not isinstance(pins, Gap), "two gaps in a row are one"
            is_last = self._next_part + 1 == len(parts)
            goal = [*pins, self.vocabulary.end] if is_last else list(pins)
            # How a text's last token is cut depends on what follows, which is open where a gap does.
            judged = list(pins) if is_last or len(pins) == 1 else list(pins[:-1])
            self._gap = _Open(index, part.limit, list(pins), judged[:LOOK], goal)
            self._begin_span()
            return
        self.finish_reason = "stop"

    def _begin_span(self) -> None:
        gap = self._open_gap
        gap.path, gap.places, gap.blank, gap.lengths, gap.goes_on = [], [], None, None, False
        if self._matcher is not None:
            end = self.vocabulary.end  # no answer ends within a gap: here the end token stands for the gap's own end
            gap.matcher = GapMatcher(self._matcher.copy(), gap.goal, gap.left, end, end)

    @property
    def _is_last_span(self) -> bool:
        return self._open_gap.left <= self._span

    # diffuse

    def _lay_out(self, rows: int, pins: list[int], first: int = 0) -> None:
        """A canvas of `rows`, with pins from row `first` on as far as they have room."""
        assert self.vocabulary.mask is not None
        seen = {first + i: token for i, token in enumerate(pins[: rows - first])}
        self.canvas = Canvas.blank(len(self.known), rows, self.vocabulary.mask, seen)

    def _next_canvas(self, logits: Tensor) -> Delta | None:
        """A pass over a blank canvas, or one that denoises a trial."""
        gap, canvas, params, end_id = self._open_gap, self.canvas, self.params, self.vocabulary.end
        assert canvas is not None
        adjusted = self._adjust(logits)
        if gap.lengths is not None:
            adjusted = self._without_ends(adjusted)
        positions = [canvas.start + row for row in self._wanted]
        tokens, sure = choose(adjusted, self.sampling, positions, self._num_draws, self.noise)
        spread = entropy(adjusted) if params.policy == "entropy" else None
        canvas.apply(reveal(params, canvas, self._wanted, tokens, sure, spread, end_id))
        self._num_draws += 1
        self._show(canvas)
        is_over = is_done(params, canvas, end_id)
        if gap.lengths is None:
            self._look_for_places(adjusted, is_over)
            return None
        if not is_over:
            return None
        self.canvas = None
        gap.path = canvas.tokens[~canvas.pinned].tolist()
        if gap.goes_on:
            return self._go_on([])
        return None

    def _look_for_places(self, adjusted: Tensor, is_over: bool) -> None:
        """A blank canvas is denoised until it is sure where the pins would stand, or done."""
        gap = self._open_gap
        assert gap.blank is not None
        gap.blank.read(adjusted, self._wanted)
        lengths = gap.blank.lengths(gap.left)
        if is_over or lengths[0][1] > EVEN:
            gap.lengths = [length for length, _ in lengths[:TRIALS]]
            self._try_next()

    def _try_next(self) -> None:
        """The next length: its canvas, or nothing to denoise where the gap would be empty."""
        gap = self._open_gap
        assert gap.lengths
        length = gap.lengths.pop(0)
        gap.path, self.canvas = [], None
        if length:
            self._lay_out(min(self.block_size, length + len(gap.pins)), gap.pins, length)

    def _judge(self, held: list[int], logits: Tensor) -> Delta | None:
        """The causal logits say how likely a denoised trial is."""
        gap = self._open_gap
        place = self._place(held, logits)
        gap.places.append(place)
        if place.score > EVEN:
            return self._end_gap(place, held)
        if gap.lengths:
            self._try_next()
            return None
        place = best(gap.places)
        if self._is_last_span or place.end > EVEN:
            return self._end_gap(place, held)
        gap.goes_on = True
        self._lay_out(min(self.block_size, gap.left), [])
        return None

    # a walk

    def _walk(self, held: list[int], logits: Tensor) -> Delta | None:
        """One step: how likely the pins would be here, and where not likely enough, the gap's next token."""
        gap, num = self._open_gap, len(self._open_gap.path)
        if self.observe is not None:  # no token leaves before the gap has ended, and who watches may want to cancel
            shown = Frame(self._tally.blocks, len(self.known), num, tuple(held), (False,) * len(held))
            self.observe(shown)
        place = self._place(held, logits)
        if gap.matcher is None or gap.matcher.is_accepting:
            gap.places.append(place)
            if place.end > EVEN:
                return self._end_gap(place, held)
        likely = best(gap.places) if gap.places else None
        if self._is_last_span and likely is not None and (num == gap.left or place.score - place.end < likely.score):
            return self._end_gap(likely, held)  # whatever is longer begins less likely than this is as a whole
        if not self._is_last_span and num == self._span:
            return self._go_on(held)
        before = self._behind if num == 0 else logits[num - 1 : num]
        assert before is not None
        token = self._next_of_path(before)
        if token is None:
            return self._end_gap(best(gap.places), held)
        gap.path.append(token)
        return None

    def _next_of_path(self, before: Tensor) -> int | None:
        """The token behind the path, or None where the gap must end here. before: [1, Y], what its last row says."""
        gap, matcher, end_id = self._open_gap, self._open_gap.matcher, self.vocabulary.end
        room = gap.left - len(gap.path) + 1  # the end of the gap is one more
        allowed = None if matcher is None else torch.from_numpy(matcher.allowed())
        counts = self._counts
        if counts is not None:
            counts = counts + torch.bincount(torch.tensor(gap.path, dtype=torch.int64), minlength=len(counts))
        adjusted = adjust(before, self.sampling, self.vocabulary.mask, counts, allowed)
        adjusted = self._without_ends(adjusted)
        is_stuck = room == 1 or (allowed is not None and bool((adjusted == NEVER).all()))
        if not is_stuck:
            position = len(self.known) + len(gap.path)
            (token, *_), _ = choose(adjusted, self.sampling, [position], self._num_draws, self.noise)
            self._num_draws += 1
            token = token if matcher is None else take(matcher, token, room, end_id)
            if token != end_id:
                return token
        if not gap.places:
            raise RequestError(
                f"infill: gap {gap.index} cannot be brought to what is pinned behind it, as the grammar wants it, in "
                f"the {gap.left} tokens that it may still have. Give it more.",
                param="infill",
                code="grammar_limit",
            )
        return None

    # both

    def _without_ends(self, adjusted: Tensor) -> Tensor:
        """No answer ends within a gap. In a copy: the logits may be judged again."""
        ends = torch.tensor([self.vocabulary.end, *self.params.stop_token_ids], device=adjusted.device)
        return adjusted.index_fill(1, ends, NEVER)

    def _place(self, held: list[int], logits: Tensor) -> Place:
        assert self._behind is not None
        num = len(self._open_gap.path)
        found = log_probs(self._behind, logits, held, self.vocabulary.mask)
        return Place(tuple(held[:num]), sum(found), sum(found[num:]))

    def _end_gap(self, place: Place, held: list[int]) -> Delta | None:
        """The gap is filled; what is pinned behind it comes next."""
        self._fill(list(place.fill))
        self._enter()
        self._stand(held)
        return self._sent()

    def _go_on(self, held: list[int]) -> Delta | None:
        """The path is part of the gap, which ends later."""
        gap = self._open_gap
        self._fill(gap.path)
        gap.left -= len(gap.path)
        self._begin_span()
        self._stand(held)
        return self._sent()

    def _fill(self, tokens: list[int]) -> None:
        self._append(tokens, self._open_gap.index)
        self._tally.tokens += len(tokens)
        self._tally.blocks += 1

    def _append(self, tokens: list[int], gap: int | None) -> None:
        """Decided tokens: of a gap, or pinned."""
        self.known += tokens
        self._unsent += [(token, gap) for token in tokens]
        for token in tokens:
            if self._counts is not None:
                self._counts[token] += 1
            if self._matcher is not None:
                self._matcher.advance(token)

    def _stand(self, held: list[int]) -> None:
        """What of the rows just run is known by now need not run again; the last known token always does, for its
        logits."""
        self.accepted = num_equal(held, self.known[self.num_cached : -1])
        self.num_cached += self.accepted
        self._behind = None

    def _sent(self) -> Delta | None:
        return self._with_unsent(None if self.finish_reason is None else Delta((), self.finish_reason, self.usage()))

    def _with_unsent(self, delta: Delta | None) -> Delta | None:
        """A delta of the tail, if any, behind what was decided before it."""
        fresh = delta or Delta(())
        said = [*self._unsent, *((token, self._tail) for token in fresh.tokens)]
        if not said and delta is None:
            return None
        self._unsent = []
        return replace(fresh, tokens=tuple(token for token, _ in said), gaps=tuple(gap for _, gap in said))
