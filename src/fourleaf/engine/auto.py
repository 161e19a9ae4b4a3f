"""Mode `auto`: the mode with the least expected seconds a token, chosen anew for every block.

The choice is a pure function of a cost table, of what this request has shown so far and, without a seed, of what all
requests have shown and how many are in flight. With a seed the last two stay out: load never changes an answer.

**Expected cost.** With B requests in flight that all do the same, with canvases of n rows, one token takes

    ar        step(B)
    draft     (pass(B n) + verify(B rows worth verifying)) / tokens of a round
    diffuse   (passes alone · pass(B n) + fused forwards · fused(2 B n)) / tokens of a block

The others may do something else. A request that does as it alone finds best makes forwards of two kinds out of one, so
it leaves what is cheapest for all only where it gains more than `MIXED_COST`. And a canvas tried among B single rows
lengthens the forwards of all of them: what it adds counts B times.

**What is not known yet.** Averages fade with age, and begin with what is expected: what all requests have shown, which
weighs up to two observations; or else, weighing half of one, a link or a guess. The link: both canvas modes see the
same text, so the passes of a block times the tokens of a round come to about one and a half blocks. The guess, where no
canvas was seen at all: the mean over predictable, middling and unpredictable text. By it a cold start tries `draft`
first, and rightly so: its probe takes two forwards, a block of unpredictable text in `diffuse` twenty.

**Trying.** `ar` shows nothing of what a canvas would do, so now and then another mode is tried. A trial costs what it
takes beyond the same tokens in the best known mode; the sum of it is kept below `TRIAL_SHARE` of all time decoded, of
all requests together (with a seed: of this one; without, `OPENING_TOKENS` count as decoded from the start). Only the
first choice on a cold start is made without that credit, as a bet on the guess; its loss is booked, and no other mode
is tried until it is paid off. So unpredictable text pays 2% in the long run; a lone answer of 30 such tokens, the
first since the start or seeded, pays about an eighth. A request with a seed learns from itself alone and therefore
chooses worse: in the simulation of the tests, on answers of 128 tokens, by 5% on unpredictable text and by a third on
predictable text, where others are within 5%.
"""

from __future__ import annotations

import functools
from collections.abc import Set
from dataclasses import dataclass, field

from fourleaf.engine.cost import CostTable
from fourleaf.engine.request import FixedMode

# Steps of `ar` until the next choice, which costs a sixteenth of one.
AR_SPAN = 16
# What an observation still weighs when the next one of its kind comes: a mean is over about 10 of a request's own, and
# over about 20 of all requests'.
OWN_FADING = 0.9
SHARED_FADING = 0.95
# What an expectation weighs, in observations: a mere guess, and at most what other requests have shown.
GUESS_WEIGHT = 0.5
SHARED_WEIGHT = 2.0
TRIAL_SHARE = 0.02
# What a request must gain, of a token's cost, to leave the mode that is cheapest for all: forwards of two kinds cost
# more than forwards of one.
MIXED_COST = 0.1
# An engine may try at its start what it may within its first so many tokens of `ar`; twice that while it has not seen
# any canvas.
OPENING_TOKENS = 500

# Means over predictable (20 tokens a round, 3 passes a block), middling (6; 8) and unpredictable text (1.5; 24).
PRIOR_ROUND_TOKENS = 9.0
PRIOR_PASSES = 12.0
# passes of a block · tokens of a round / rows of the block
LINK = 1.5


@dataclass
class Average:
    """A mean that forgets: `fading` is what an observation still weighs when the next one comes."""

    fading: float
    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.total = self.total * self.fading + value * weight
        self.weight = self.weight * self.fading + weight

    @property
    def is_known(self) -> bool:
        return self.weight > 0

    @property
    def mean(self) -> float:
        assert self.is_known, "nothing was observed"
        return self.total / self.weight

    def after(self, prior: Guess) -> Guess:
        """The mean of these observations and of what was expected before them."""
        weight = self.weight + prior.weight
        return Guess((self.total + prior.weight * prior.value) / weight, weight)

    def as_prior(self, guess: float) -> Guess:
        """What these observations of all requests let one expect of the next one; `guess` where there are none."""
        blended = self.after(Guess(guess, GUESS_WEIGHT))
        return Guess(blended.value, min(blended.weight, SHARED_WEIGHT))


@dataclass(frozen=True)
class Guess:
    """A value and how many observations it weighs."""

    value: float
    weight: float


@dataclass
class Experience:
    """What decoding has shown, of one request or of all: plain numbers, changed by `reserve` and `add` alone.

    round_tokens, verified: of a draft round, its tokens, the one from the causal logits included, and its rows that
    were verified. passes, fused, block_tokens: of a block, its forwards with a canvas alone, its fused ones (0 or 1),
    its tokens. All as if canvases were whole.
    spent: seconds, by the cost table, of all blocks. lost: seconds that trials took beyond the best known mode.
    """

    block_size: int
    fading: float = OWN_FADING
    round_tokens: Average = field(init=False)
    verified: Average = field(init=False)
    passes: Average = field(init=False)
    fused: Average = field(init=False)
    block_tokens: Average = field(init=False)
    spent: float = 0.0
    lost: float = 0.0

    def __post_init__(self) -> None:
        self.round_tokens, self.verified = Average(self.fading), Average(self.fading)
        self.passes, self.fused, self.block_tokens = (Average(self.fading) for _ in range(3))

    @classmethod
    def of_all(cls, block_size: int) -> Experience:
        """An empty one for all requests of an engine."""
        return cls(block_size, SHARED_FADING)

    @property
    def has_canvases(self) -> bool:
        return self.round_tokens.is_known or self.passes.is_known

    def reserve(self, choice: Choice) -> None:
        """Books what a trial is expected to lose, so that of many requests that choose at once few try."""
        self.lost += choice.loss

    def add(self, outcome: Outcome, choice: Choice) -> None:
        """Books what became of a choice; a trial's expected loss is replaced by what it was. A request that ends
        before its block does adds nothing."""
        part = outcome.rows / self.block_size
        if outcome.mode == "draft":
            self.round_tokens.add(self._whole_round(outcome))
            self.verified.add(outcome.verified / part, part)
        elif outcome.mode == "diffuse":
            self.passes.add(outcome.passes / part, part)
            self.fused.add(outcome.fused, part)
            self.block_tokens.add(outcome.tokens / part, part)
        self.spent += outcome.seconds
        if choice.is_trial:
            self.lost += outcome.seconds - outcome.tokens * choice.best - choice.loss
        self.lost = max(0.0, self.lost)

    def _whole_round(self, outcome: Outcome) -> float:
        """Where every row of a short canvas held, a longer one is taken to have gone on like a fresh one."""
        if outcome.tokens < outcome.rows or outcome.rows == self.block_size:
            return outcome.tokens
        further = self.round_tokens.mean if self.round_tokens.is_known else PRIOR_ROUND_TOKENS
        return min(float(self.block_size), outcome.tokens + further)


@dataclass(frozen=True)
class Choice:
    """The next block's mode.

    span: rows of its canvas, or steps of `ar` until the next choice. expected: seconds a token of each mode that was
    allowed. best: what is known to cost least among them. loss: seconds that a trial is expected to cost beyond it.
    beside: of a trial, how many requests there are, its own included, if the others decode single rows; else 1.
    """

    mode: FixedMode
    span: int
    expected: dict[FixedMode, float]
    best: float
    loss: float = 0.0
    is_trial: bool = False
    beside: int = 1


@dataclass(frozen=True)
class Outcome:
    """What became of a block. rows: of its canvas (of `ar`, 1); tokens: committed; verified: rows of a draft's
    verification; passes: forwards with its canvas alone; fused: those that committed the block before as well; seconds:
    by `spent_seconds`, never by the clock, so that a seed repeats its choices."""

    mode: FixedMode
    rows: int
    tokens: int
    seconds: float
    verified: int = 0
    passes: int = 0
    fused: int = 0


def spent_seconds(
    table: CostTable,
    mode: FixedMode,
    in_flight: int,
    rows: int,
    *,
    steps: int = 1,
    verified: float = 0.0,
    passes: float = 0.0,
    fused: float = 0.0,
) -> float:
    """Seconds of a block by the table, with `in_flight` requests doing the same: `steps` of `ar`, a round of `draft`
    with `verified` rows, or `passes` alone and `fused` forwards of `diffuse`. rows: of the canvas."""
    if mode == "ar":
        return steps * table.seconds("step", in_flight)
    one_pass = table.seconds("pass", in_flight * rows)
    if mode == "draft":
        return one_pass + table.seconds("verify", round(in_flight * max(1.0, verified)))
    return passes * one_pass + fused * table.seconds("fused", 2 * in_flight * rows)


def trial_seconds(table: CostTable, alone: float, forwards: float, beside: int) -> float:
    """What a trial of `forwards` forwards takes, `alone` seconds if nobody else were there, among `beside` requests
    that decode single rows: what it adds to their forwards it adds for all of them."""
    if beside == 1:
        return alone
    added = alone - forwards * table.seconds("step", 1)
    return beside * added + forwards * table.seconds("step", beside)


@dataclass(frozen=True)
class Expected:
    """Of a mode's next block: seconds, tokens that it commits, and forwards."""

    seconds: float
    tokens: float
    forwards: float

    @property
    def per_token(self) -> float:
        return self.seconds / self.tokens


def expect(
    table: CostTable, own: Experience, everyone: Experience, in_flight: int, rows: int, draft_rows: int | None = None
) -> dict[FixedMode, Expected]:
    """What a block of each mode takes and brings, by the formulas above. everyone: an empty one where only `own` may
    count. rows: of the next canvas, fewer than a block where max_tokens is near: it needs fewer passes, and a round
    holds less. draft_rows: of the next canvas of `draft`, where it has other ones."""
    block_size = own.block_size
    of_round, passes = _expected_canvas(own, everyone, block_size)
    holds = 1.0 - 1.0 / of_round  # the chance that a proposal holds, if it were the same for all
    drafted = rows if draft_rows is None else draft_rows
    if drafted < block_size and holds > 0:
        of_round *= (1.0 - holds**drafted) / (1.0 - holds**block_size)
    verified = min(drafted, own.verified.after(everyone.verified.as_prior(float(block_size))).value)
    fused = own.fused.after(everyone.fused.as_prior(1.0)).value
    tokens = own.block_tokens.after(everyone.block_tokens.as_prior(float(block_size))).value
    passes *= rows / block_size
    return {
        "ar": Expected(spent_seconds(table, "ar", in_flight, 1), 1.0, 1.0),
        "draft": Expected(
            spent_seconds(table, "draft", in_flight, drafted, verified=verified), min(drafted, of_round), 2.0
        ),
        "diffuse": Expected(
            spent_seconds(table, "diffuse", in_flight, rows, passes=passes, fused=fused),
            min(rows, tokens),
            passes + fused,
        ),
    }


def _expected_canvas(own: Experience, everyone: Experience, block_size: int) -> tuple[float, float]:
    """(tokens of a draft round, passes alone of a block), of whole canvases. Where only one of the two was seen, the
    other is expected to be what the link makes of it."""
    round_prior = everyone.round_tokens.as_prior(PRIOR_ROUND_TOKENS)
    passes_prior = everyone.passes.as_prior(PRIOR_PASSES - 1.0)
    link = LINK * block_size
    if everyone.round_tokens.is_known and everyone.passes.is_known:
        link = (everyone.passes.mean + 1.0) * everyone.round_tokens.mean
    seen = own if own.has_canvases else everyone
    if seen.round_tokens.is_known and not seen.passes.is_known:
        of_round = own.round_tokens.after(round_prior).value if everyone.has_canvases else seen.round_tokens.mean
        passes_prior = Guess(min(float(block_size), link / of_round) - 1.0, passes_prior.weight)
    elif seen.passes.is_known and not seen.round_tokens.is_known:
        passes = own.passes.after(passes_prior).value if everyone.has_canvases else seen.passes.mean
        round_prior = Guess(max(1.0, link / (passes + 1.0)), round_prior.weight)
    return own.round_tokens.after(round_prior).value, own.passes.after(passes_prior).value


def choose(
    table: CostTable,
    own: Experience,
    everyone: Experience | None,
    in_flight: int,
    allowed: Set[FixedMode],
    rows: int,
    draft_rows: int | None = None,
) -> Choice:
    """The mode of a request's next block.

    everyone: what all requests have shown; None for a request with a seed, and then `in_flight` does not count either.
    allowed: the modes that the request and its model permit, at least one (`lossless`: "ar" and "draft").
    rows: of the next canvas, the block size or what max_tokens leaves of it. draft_rows: as in `expect`.
    """
    assert allowed, "no mode is allowed"
    assert 1 <= rows <= own.block_size, f"a canvas of {rows} rows, a block of {own.block_size}"
    opening = 0.0
    if everyone is None:
        in_flight, everyone, ledger = 1, Experience(own.block_size), own
    else:
        tokens = OPENING_TOKENS if everyone.has_canvases else 2 * OPENING_TOKENS
        ledger, opening = everyone, tokens * table.seconds("step", in_flight)
    whole = functools.partial(expect, table, everyone=everyone, rows=rows, draft_rows=draft_rows)
    found = {mode: e for mode, e in whole(own=own, in_flight=in_flight).items() if mode in allowed}
    expected = {mode: e.per_token for mode, e in found.items()}
    best = min(expected, key=lambda mode: expected[mode])  # the first of equals, in the order ar, draft, diffuse
    if in_flight > 1:
        of_all = {m: e.per_token for m, e in whole(own=Experience(own.block_size), in_flight=in_flight).items()}
        crowd = min(expected, key=lambda mode: of_all[mode])
        best = crowd if expected[crowd] <= (1 + MIXED_COST) * expected[best] else best
    if best != "ar" and "ar" in expected and not own.has_canvases and not everyone.has_canvases:
        return Choice(best, _span(best, rows, draft_rows), expected, expected["ar"], is_trial=True)
    credit = TRIAL_SHARE * max(ledger.spent, opening) - ledger.lost
    if credit <= 0.0:
        return Choice(best, _span(best, rows, draft_rows), expected, expected[best])
    beside = in_flight if best == "ar" else 1
    trials = whole(own=own, in_flight=1) if beside > 1 else found
    losses = {
        mode: trial_seconds(table, e.seconds, e.forwards, beside) - e.tokens * expected[best]
        for mode, e in trials.items()
        if mode in allowed and mode not in ("ar", best)
    }
    trial = min(losses, key=lambda mode: losses[mode], default=None)
    if trial is not None and 0.0 < losses[trial] <= credit:
        span = _span(trial, rows, draft_rows)
        return Choice(trial, span, expected, expected[best], losses[trial], is_trial=True, beside=beside)
    return Choice(best, _span(best, rows, draft_rows), expected, expected[best])


def _span(mode: FixedMode, rows: int, draft_rows: int | None) -> int:
    if mode == "ar":
        return min(AR_SPAN, rows)
    return rows if mode == "diffuse" or draft_rows is None else draft_rows
