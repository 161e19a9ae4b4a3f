"""One answer being decoded: what it needs of the next forward, and what comes of its logits.

`known` are the prompt and all tokens that are decided; `num_cached` of them are in the cache. The rest is pending: the
prompt at first, then a finished block, or the last token of `ar`. A canvas begins where the cache will end when what is
pending has run; under `draft` its row 0 is the last known token, pinned.

Shapes: W rows whose logits were asked for, N canvas rows, Y vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fourleaf.diffusion.draft import accept, num_equal
from fourleaf.diffusion.policy import Canvas, Noise, Reveal, is_done, num_final, reveal, wanted_rows
from fourleaf.diffusion.sampling import Sampling, adjust, choose, entropy, greedy, probabilities
from fourleaf.engine.draws import Draw, Drawn
from fourleaf.engine.guide import Guide
from fourleaf.engine.logprobs import Record
from fourleaf.engine.need import Need, Vocabulary, end_of_causal
from fourleaf.engine.pilot import Pilot, Tally
from fourleaf.engine.reach import Reach
from fourleaf.engine.request import Delta, FinishReason, FixedMode, Frame, GenerateParams, Usage
from fourleaf.text.stops import StopFinder

# A drafted row is worth verifying while the product of the confidences before it is above this.
LEAST_HOPE = 0.1


class Sequence:
    """One answer. The engine asks `need`, runs it, and gives the logits to `take`."""

    def __init__(
        self,
        prompt: list[int],
        params: GenerateParams,
        max_tokens: int,
        vocabulary: Vocabulary,
        block_size: int,
        observe: Callable[[Frame], None] | None = None,
        stops: StopFinder | None = None,
        guide: Guide | None = None,
        pilot: Pilot | None = None,
    ) -> None:
        self.prompt, self.params, self.max_tokens = prompt, params, max_tokens
        self.vocabulary, self.block_size, self.observe = vocabulary, block_size, observe
        self.stops, self.guide, self.pilot = stops, guide, pilot
        self.sampling, self.noise = Sampling.of(params), Noise(params.seed or 0, params.choice)
        self.known = list(prompt)
        self.num_cached = 0
        self.finish_reason: FinishReason | None = None
        self.splits: list[int] = []  # positions at which a prefill must pause
        self.canvas: Canvas | None = None
        self.accepted = 0  # rows of the last verified block that stand
        self.drawn: Drawn | None = None  # for the next `take`, where it was done for several requests at once
        self.cached_tokens: int | None = None  # of the prompt, found in the prefix cache; None until it is admitted
        self._mode: FixedMode = "diffuse" if params.mode == "auto" else params.mode
        self._tally = Tally()
        self._reach = Reach(block_size)
        self._is_anchored = False  # whether causal logits decided the last known token
        self._is_prefilled = False
        self._is_verifying = False
        self._num_draws = 0
        self._num_lost = 0  # positions that were cached before a preemption
        self._proposed: Tensor | None = None
        self._wanted: list[int] = []
        self._record = Record(params.logprobs)
        self._under: dict[int, Tensor] = {}  # of the rows of a walk that were asked: [1, Y] under the grammar
        self._counts = torch.zeros(vocabulary.size, dtype=torch.int32) if self.sampling.has_penalties else None
        # Whether the most probable token decides, where it is legal: nobody asks how probable the grammar makes it.
        self._is_quick = self.sampling.temperature == 0 and params.logprobs is None

    @property
    def num_completed(self) -> int:
        """Decided tokens of the answer, an end token included."""
        return self._tally.tokens

    @property
    def num_wanted_positions(self) -> int:
        """Positions whose keys and values the next forwards write, at most: known tokens, then a block."""
        return min(len(self.known) + self.block_size, len(self.prompt) + self.max_tokens)

    @property
    def is_prefilling(self) -> bool:
        """Whether the cache lacks what a forward has gone through or should have: at the start, after a preemption."""
        return not self._is_prefilled

    @property
    def num_pending(self) -> int:
        """Causal rows before the next logits."""
        return self._target - self.num_cached

    @property
    def _target(self) -> int:
        return len(self.known) if self.canvas is None else self.canvas.start

    def usage(self) -> Usage:
        tally, modes = self._tally, () if self.pilot is None else tuple(self.pilot.modes)
        done = (tally.tokens, tally.forwards, tally.rows, tally.passes, tally.blocks)
        return Usage(len(self.prompt), *done, self.cached_tokens or 0, tally.proposals, tally.stood, modes)

    def preempt(self) -> None:
        """Forgets what is cached. Canvas, random numbers and counts stay: the answer goes on as it would have."""
        if self._is_prefilled:
            self._num_lost = self.num_cached
        self.num_cached, self.splits = 0, []
        self._is_prefilled = False

    def need(self, most_causal: int) -> Need:
        """The next forward's rows, with at most `most_causal` of a prefill."""
        assert self.finish_reason is None
        if self.canvas is None:
            if self.pilot is not None:
                self._mode = self.pilot.mode(self._tally, min(self.block_size, self._left), self._draft_rows)
            self._open_canvas()
        canvas = self.canvas
        if self._is_verifying:
            assert canvas is not None
            if self.num_cached == canvas.start:
                tokens = canvas.tokens.tolist()
                return Need(tokens, None, list(range(len(tokens))), is_held=True)
        target = self._target
        end = end_of_causal(self.num_cached, target, self.splits, most_causal)
        causal = self.known[self.num_cached : end]
        if end < target or self._is_verifying:
            return Need(causal, None, [])
        if canvas is None:
            return Need(causal, None, [len(causal) - 1])
        assert self.vocabulary.mask is not None
        if self.guide is None or self._mode == "draft":
            self._wanted = wanted_rows(self.params, canvas, self.vocabulary.end)
            ids = np.where(canvas.masked, self.vocabulary.mask, canvas.tokens)
        else:
            self._wanted, ids = np.flatnonzero(canvas.masked).tolist(), self.guide.shown(canvas, self.vocabulary.mask)
        return Need(causal, ids, [len(causal) + row for row in self._wanted])

    def draw(self, need: Need) -> Draw | None:
        """How `take` will choose tokens for this forward's logits; None where it chooses none by them alone."""
        is_guided = self.guide is not None and not self._is_quick
        if not need.wanted or need.is_held or is_guided or self.sampling.has_penalties:
            return None
        return Draw(self.sampling, self.vocabulary.mask, self.noise, self._positions, self._num_draws)

    def take(self, need: Need, logits: Tensor) -> Delta | None:
        """Goes on by what a forward gave. logits: [W, Y]. -> what is final now, if anything is."""
        num_causal = self._count(need)
        self.accepted = 0
        if need.is_held:
            return self._verify(logits)
        self.num_cached += len(need.causal)
        self._is_prefilled = self._is_prefilled or self.num_cached == self._target
        if not need.wanted:
            return None
        if self.canvas is None:
            return self._next_token(logits)
        self._tally.passes += 1
        if not self._num_draws:
            self._tally.carried = 1
        elif num_causal > 1:
            self._tally.fused += 1
        return self._propose(logits) if self._mode == "draft" else self._next_pass(logits)

    def _count(self, need: Need) -> int:
        """A forward in the tally, where it is not of the prefill. -> its causal rows, but for a repeated prefill."""
        tally, num_causal = self._tally, len(need.causal)
        if not self._is_prefilled and self._num_draws:  # as if it had not been preempted
            num_causal = self._target - self._num_lost
        if self._is_prefilled or (self._num_draws and need.wanted):
            tally.forwards += 1
            tally.rows += need.num_rows - len(need.causal) + num_causal
        return num_causal

    def _open_canvas(self) -> None:
        if self._mode == "diffuse":
            assert self.vocabulary.mask is not None
            self.canvas = Canvas.blank(len(self.known), min(self.block_size, self._left), self.vocabulary.mask)
        elif self._mode == "draft" and self._is_anchored and (rows := self._draft_rows) > 1:
            assert self.vocabulary.mask is not None
            self.canvas = Canvas.blank(len(self.known) - 1, rows, self.vocabulary.mask, {0: self.known[-1]})

    @property
    def _draft_rows(self) -> int:
        """Of a canvas of `draft`; the last token that may come is the bonus of a block."""
        return min(self._reach.rows, self._left)

    @property
    def _left(self) -> int:
        """Tokens that the answer may still have, the end token among them."""
        return self.max_tokens - self.num_completed

    def _adjust(self, logits: Tensor, allowed: Tensor | None = None) -> Tensor:
        return adjust(logits, self.sampling, self.vocabulary.mask, self._all_counts(), allowed)

    @property
    def _positions(self) -> list[int]:
        """Of the rows whose logits were wanted."""
        canvas = self.canvas
        return [len(self.known)] if canvas is None else [canvas.start + row for row in self._wanted]

    def _take_drawn(self, logits: Tensor) -> Drawn:
        """What `drawn` holds, once, or what these logits give."""
        found, self.drawn = self.drawn, None
        if found is None:
            adjusted = self._adjust(logits)
            found = Drawn(adjusted, *choose(adjusted, self.sampling, self._positions, self._num_draws, self.noise))
        return found

    def _choose_row(self, adjusted: Tensor, row: int) -> tuple[int, float]:
        """A canvas row's token under the grammar. adjusted: [1, Y]."""
        assert self.canvas is not None
        if self._record.is_wanted:
            self._under[row] = adjusted
        tokens, sure = choose(adjusted, self.sampling, [self.canvas.start + row], self._num_draws, self.noise)
        return tokens[0], sure[0]

    def _all_counts(self) -> Tensor | None:
        """Of the answer's tokens, those that a canvas of `diffuse` shows behind the decided ones included."""
        canvas = self.canvas
        if self._counts is None or canvas is None or self._mode == "draft":
            return self._counts
        shown = canvas.tokens[len(self.known) - canvas.start :][~canvas.masked[len(self.known) - canvas.start :]]
        return self._counts + torch.bincount(torch.from_numpy(shown), minlength=len(self._counts))

    def _next_token(self, logits: Tensor) -> Delta | None:
        """The last causal row's logits decide one token."""
        guide, tokens = self.guide, self._quick_tokens(logits)
        if tokens is None and guide is not None:
            adjusted = self._adjust(logits, guide.allowed())
            tokens, _ = choose(adjusted, self.sampling, self._positions, self._num_draws, self.noise)
            self._record.add(adjusted, tokens, self._positions)
        elif tokens is None:
            drawn = self._take_drawn(logits)
            tokens = drawn.tokens
            self._record.add(drawn.adjusted, tokens, self._positions)
        self._num_draws += 1
        self._is_anchored = True
        if self._mode == "ar":
            self._tally.steps += 1
        return self._decide(tokens if guide is None else guide.settle(tokens, self._left))

    def _quick_tokens(self, logits: Tensor) -> list[int] | None:
        """The most probable token of one row, where that decides and it is legal."""
        if not self._is_quick or (self.drawn is None and not self.sampling.is_plain):
            return None
        tokens = greedy(logits, self.vocabulary.mask) if self.drawn is None else self._take_drawn(logits).tokens
        return tokens if self.guide is None or self.guide.allows(tokens[0]) else None

    def _next_pass(self, logits: Tensor) -> Delta | None:
        """`diffuse`: a pass reveals rows; a finished block becomes pending, to be committed with the next pass."""
        canvas, params, end_id = self.canvas, self.params, self.vocabulary.end
        assert canvas is not None
        drawn = self._take_drawn(logits)
        adjusted, tokens, sure = drawn.adjusted, drawn.tokens, drawn.confidence
        if self.guide is not None:
            guesses, self._under, free = self.guide.guesses, {}, (tokens, sure)
            how = (self._choose_row, params.threshold, self._left)
            walk = self.guide.walk(canvas, adjusted, free, *how, is_quick=self._is_quick)
            change = Reveal(walk.rows, walk.tokens)
            if self._record.is_wanted:
                self._record.walked(canvas, walk, guesses, self._under, dict(zip(self._wanted, adjusted, strict=True)))
        else:
            spread = entropy(adjusted) if params.policy == "entropy" else None
            change = reveal(params, canvas, self._wanted, tokens, sure, spread, end_id)
            if self._record.is_wanted:
                index = [self._wanted.index(row) for row in change.rows]
                positions = [canvas.start + row for row in change.rows]
                self._record.add(adjusted[index], change.tokens, positions, canvas.num_passes)
        canvas.apply(change)
        self._num_draws += 1
        self._show(canvas)
        end = canvas.end_row(end_id)
        if self.guide is None:
            final, is_over = num_final(params, canvas, end_id), is_done(params, canvas, end_id)
        else:  # what the walk has settled is final, whatever the policy
            final, is_over = canvas.num_settled if end is None else end, canvas.is_done(end_id)
        fresh = canvas.tokens[len(self.known) - canvas.start : final].tolist()
        if is_over:
            if end is not None:
                fresh.append(end_id)
            elif self.guide is not None:  # what must follow need not be on the next canvas
                fresh += self.guide.force(self._left - len(fresh))
            self._close_canvas()
        return self._decide(fresh)

    def _propose(self, logits: Tensor) -> None:
        """`draft`: one pass proposes what follows row 0; what is too unlikely to stand is not worth verifying."""
        canvas, end_id = self.canvas, self.vocabulary.end
        assert canvas is not None
        if self.guide is None or self._is_quick:
            drawn = self._take_drawn(logits)
            adjusted, tokens, sure = drawn.adjusted, drawn.tokens, drawn.confidence
        else:
            adjusted, tokens, sure = self._adjust(logits), [], []
        if self.guide is not None:
            free = (tokens, sure) if self._is_quick else None
            walk = self.guide.propose(canvas, adjusted, free, self._choose_row)
            tokens, sure = walk.tokens, walk.confidence
        hope = np.cumprod([1.0, *sure[:-1]])
        num = max(1, int((hope > LEAST_HOPE).sum()))
        if end_id in tokens[:num]:
            num = tokens.index(end_id) + 1
        # Under a grammar q would need each row's mask: taken for certain, proposals are as exact, and fewer stand.
        is_drawn = self.params.temperature > 0 and self.guide is None
        self._proposed = probabilities(adjusted[:num], self.sampling) if is_drawn else None
        canvas.apply(Reveal(list(range(1, num + 1)), tokens[:num]))
        self._num_draws += 1
        self._show(canvas)
        self.canvas = Canvas(canvas.start, canvas.tokens[: num + 1], canvas.masked[: num + 1])
        self._is_verifying = True

    def _verify(self, logits: Tensor) -> Delta | None:
        """`draft`: the causal logits of a proposed block say how much of it stands, and what follows that."""
        canvas, vocabulary = self.canvas, self.vocabulary
        assert canvas is not None
        proposals = canvas.tokens[1:].tolist()
        guide, is_quick = self.guide, self._is_quick and not self.sampling.has_penalties
        if guide is not None:
            guide.follow(proposals)
        found = accept(
            logits,
            proposals,
            self._proposed,
            self._adjusted_row if self.sampling.has_penalties or guide is not None else None,
            self.sampling,
            legal=guide.allows_behind if guide is not None and is_quick else None,
            start=canvas.start + 1,
            pass_index=self._num_draws,
            noise=self.noise,
            mask_id=vocabulary.mask,
            end_id=vocabulary.end,
        )
        decided = found.decided
        self._num_draws += 1
        self._tally.verified += len(logits)
        self._tally.proposals += len(proposals)
        self._reach.add(len(decided))
        self._close_canvas()
        self._is_verifying = False
        stand = decided if guide is None else guide.settle(decided, self._left)
        num = min(1 + num_equal(decided, stand), len(decided))  # what the grammar puts in a token's place included
        self._record.add(found.adjusted[:num], stand[:num], [len(self.known) + i for i in range(num)])
        self.accepted = 1 + num_equal(found.tokens, stand)
        self.num_cached += self.accepted
        self._tally.stood += self.accepted - 1
        self._tally.drafted += len(stand)
        return self._decide(stand)

    def _adjusted_row(self, row: int, logits: Tensor) -> Tensor:
        """Causal logits [Y] behind row `row` of a verified block, given that its rows up to there stand."""
        canvas, counts = self.canvas, self._counts
        assert canvas is not None
        if counts is not None:
            shown = torch.from_numpy(canvas.tokens[1 : row + 1])
            counts = counts + torch.bincount(shown, minlength=len(counts))
        allowed = None if self.guide is None else self.guide.allowed_behind(row)
        return adjust(logits[None], self.sampling, self.vocabulary.mask, counts, allowed)[0]

    def _close_canvas(self) -> None:
        self.canvas = None
        self._is_anchored = self._mode == "draft"
        self._tally.blocks += 1

    def _decide(self, tokens: list[int]) -> Delta | None:
        """Takes tokens as final, up to where the answer ends."""
        sent: list[int] = []
        for token in tokens:
            self._tally.tokens += 1
            if token == self.vocabulary.end or token in self.params.stop_token_ids:
                self.finish_reason = "stop"
                break
            self.known.append(token)
            sent.append(token)
            if self._counts is not None:
                self._counts[token] += 1
            if self.stops is not None and self.stops.feed(token):
                self.finish_reason = "stop"
                break
            if self.num_completed >= self.max_tokens:
                self.finish_reason = "length"
                break
        if not sent and self.finish_reason is None:
            return None
        logprobs = self._record.take(range(len(self.known) - len(sent), len(self.known)))
        usage = None if self.finish_reason is None else self.usage()
        return Delta(tuple(sent), self.finish_reason, usage, logprobs)

    def _show(self, canvas: Canvas) -> None:
        if self.observe is not None:
            tokens, masked = tuple(canvas.tokens.tolist()), tuple(canvas.masked.tolist())
            self.observe(Frame(self._tally.blocks, canvas.start, canvas.num_passes - 1, tokens, masked))
