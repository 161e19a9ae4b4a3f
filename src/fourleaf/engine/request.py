"""What a caller asks of an engine, and what comes back.

Any engine (this one, one request at a time, or one that batches) takes `GenerateParams` and yields `Delta`s, so that
server, command line and measurements do not know which of them runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from fourleaf.engine.template import Part, check_template
from fourleaf.errors import RequestError

if TYPE_CHECKING:
    from fourleaf.text.chat import ChatTemplate
    from fourleaf.text.constraint import Constraint
    from fourleaf.text.tokenizer import Tokenizer

# On the bundled model 0.95 answers 2 to 6 points more of its test sets right than 0.9, for a sixth more forwards.
DEFAULT_THRESHOLD = 0.95

Mode = Literal["ar", "draft", "diffuse", "auto"]
FixedMode = Literal["ar", "draft", "diffuse"]  # what `auto` chooses from
Policy = Literal["threshold", "fixed", "entropy", "edit"]
Priority = Literal["interactive", "batch"]
FinishReason = Literal["stop", "length"]

MODES: tuple[str, ...] = get_args(Mode)
FIXED_MODES: tuple[FixedMode, ...] = get_args(FixedMode)
LOSSLESS_MODES: tuple[FixedMode, ...] = ("ar", "draft")
POLICIES: tuple[str, ...] = get_args(Policy)
PRIORITIES: tuple[str, ...] = get_args(Priority)
MAX_SEED = 2**63 - 1
MAX_LOGIT_BIAS = 100.0

# Limits of the numbers, both ends allowed.
LIMITS: dict[str, tuple[float, float]] = {
    "threshold": (0.0, 1.0),
    "edit_threshold": (0.0, 1.0),
    "entropy_bound": (0.0, 1000.0),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.1, 10.0),
}
WHOLE_LIMITS: dict[str, tuple[int, int | None]] = {
    "tokens_per_pass": (1, None),
    "top_k": (0, None),
    "max_tokens": (1, None),
    "choice": (0, 2**31 - 1),
}
MAX_LOGPROBS = 20


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"{name} must be a number, not {value!r}.", param=name, code="invalid_type")
    if not low <= value <= high:  # False for NaN too
        raise RequestError(f"{name} must be from {low:g} to {high:g}, not {value!r}.", param=name, code="invalid_value")


def _integer(name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be a whole number, not {value!r}.", param=name, code="invalid_type")
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name} must be {limits}, not {value}.", param=name, code="invalid_value")


def _true_or_false(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, not {value!r}.", param=name, code="invalid_type")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RequestError(
            f"{name} must be one of {', '.join(allowed)}, not {value!r}.", param=name, code="invalid_value"
        )


@dataclass(frozen=True)
class GenerateParams:
    """How to decode one answer.

    mode                "ar": one token a forward. "draft": the tokens of `ar`, proposed by a canvas and verified.
                        "diffuse": blocks, several tokens a forward. "auto": for each block the cheapest of them.
    lossless            `auto` only: None and True keep `diffuse` out of the mix, so that the answer is that of `ar`;
                        False lets it in.
    modes               `auto` only: the modes of an earlier answer, one a block, to be taken again; () chooses anew.
    priority            "interactive" goes before "batch".

    policy              which positions a pass of `diffuse` reveals, see `diffusion.policy`.
    threshold           policies `threshold` and `edit`: every position whose confidence exceeds it; 0 to 1.
    tokens_per_pass     policy `fixed`: how many; at least 1.
    entropy_bound       policy `entropy`: what the entropies of a pass's positions may sum to, in nats.
    edit_threshold      policy `edit`: the confidence above which another token replaces a revealed one; 0 to 1.

    temperature         0 is greedy; at most 2.
    top_k               the k most probable tokens alone; 0 is off.
    top_p               the most probable tokens whose probabilities sum to it; 1 is off.
    min_p               tokens at least this share as probable as the most probable one; 0 is off.
    presence_penalty    taken off the logits of tokens that the answer holds; -2 to 2.
    frequency_penalty   the same for each time that the answer holds them; -2 to 2.
    repetition_penalty  divides positive logits of tokens that the answer holds and multiplies negative ones; 1 is off.
    logit_bias          (token id, added to its logit) pairs; -100 to 100.
    constraint          what the answer must look like.
    grammar             whether an answer without a constraint is held to what the model was taught, where it has tools
                        in its weights: text, or calls to these tools. Not in infillings, nor where `raw`; nor under
                        another policy than `threshold`, which would have no say: a grammar is walked left to right.
    infill              a template: pinned tokens, which the answer has as they are, and gaps, each filled by at most
                        its limit of tokens. The limits stand in the place of max_tokens. () asks for a usual answer.

    max_tokens          limit on committed tokens, the end token among them; at least 1.
    stop                texts before which the answer's content ends.
    stop_token_ids      tokens that end the answer as the end token does, and are left out of it.
    raw                 the answer is text that goes on, no chat: all of it is content, tags and control tokens as they
                        are spelled, so that stops are looked for in all of it.
    seed                0 to 2^63 - 1: with one, `auto` chooses modes by nothing but the request itself. None: random
                        numbers as of seed 0, and `auto` may look at what other requests have shown.
    choice              which of a request's `n` answers this is: each has its own random numbers.
    logprobs            None: none. Otherwise each token's log-probability, and so many of the most probable tokens'.

    Raises RequestError, with `param` naming the field, for a value outside its limits.
    """

    mode: Mode = "diffuse"
    threshold: float = DEFAULT_THRESHOLD
    temperature: float = 0.0
    max_tokens: int = 512
    seed: int | None = None
    policy: Policy = "threshold"
    tokens_per_pass: int = 4
    entropy_bound: float = 0.1
    edit_threshold: float = 0.9
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    choice: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    raw: bool = False
    logprobs: int | None = None
    lossless: bool | None = None
    priority: Priority = "interactive"
    constraint: Constraint | None = None
    grammar: bool = True
    modes: tuple[FixedMode, ...] = ()
    infill: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, MODES)
        _one_of("policy", self.policy, POLICIES)
        _one_of("priority", self.priority, PRIORITIES)
        for name, (low, high) in LIMITS.items():
            _number(name, getattr(self, name), low, high)
        for name, (least, most) in WHOLE_LIMITS.items():
            _integer(name, getattr(self, name), least, most)
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _true_or_false("grammar", self.grammar)
        self._check_lists()
        self._check_auto()
        if self.infill:
            self._check_infill()

    def check_ids(self, vocab_size: int) -> None:
        """Raises RequestError for a token id in logit_bias or stop_token_ids that a model of so many tokens lacks."""
        named = {"logit_bias": [token for token, _ in self.logit_bias], "stop_token_ids": self.stop_token_ids}
        for name, ids in named.items():
            for token in ids:
                _integer(name, token, 0, vocab_size - 1)

    def _check_lists(self) -> None:
        for token, bias in self.logit_bias:
            _integer("logit_bias", token, 0)
            _number("logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        if len({token for token, _ in self.logit_bias}) < len(self.logit_bias):
            raise RequestError("logit_bias names a token twice.", param="logit_bias", code="invalid_value")
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError(
                    f"stop must hold texts of at least one character, not {text!r}.", param="stop", code="invalid_value"
                )

    def _check_infill(self) -> None:
        check_template(self.infill)
        undone = {"stop": self.stop, "logprobs": self.logprobs is not None, "mode": self.mode == "auto"}
        for name, is_asked in undone.items():
            if is_asked:
                value = getattr(self, name)
                raise RequestError(
                    f"{name} {value!r} is not supported in an infilling: leave it out"
                    + (", or set it to diffuse, draft or ar." if name == "mode" else "."),
                    param=name,
                    code="unsupported_value",
                )

    @property
    def is_lossless(self) -> bool:
        """Of `auto`: whether it keeps to the modes that answer as `ar` does."""
        return self.lossless is not False

    def _check_auto(self) -> None:
        if self.lossless is not None:
            _true_or_false("lossless", self.lossless)
        allowed = LOSSLESS_MODES if self.lossless else FIXED_MODES
        for mode in self.modes:
            _one_of("modes", mode, allowed)
        if self.modes and self.mode != "auto":
            raise RequestError(
                f"modes replays an answer of mode 'auto', not {self.mode!r}.", param="modes", code="invalid_value"
            )
        if self.lossless and self.mode == "diffuse":
            raise RequestError(
                "lossless allows the modes ar, draft and auto; 'diffuse' may answer otherwise than 'ar'.",
                param="lossless",
                code="invalid_value",
            )


@dataclass(frozen=True)
class Usage:
    """What one answer took.

    prompt_tokens      tokens of the prompt
    completion_tokens  committed tokens, up to and including the end token
    forwards           forwards after prefill; a fused forward counts once
    rows               rows that went through those forwards (a step is one row, a pass as many as its canvas has)
    passes             denoise passes, those that ran inside a fused forward or the last prefill chunk included
    blocks             blocks that were finished, those of `draft` (its rounds) included
    cached_tokens      tokens of the prompt that an earlier request had left in the prefix cache
    proposals          of `draft`, those that were verified; `stood` of them did stand
    modes              `auto`: the mode of each choice, in order; `GenerateParams.modes` takes them to repeat the answer
    """

    prompt_tokens: int
    completion_tokens: int
    forwards: int
    rows: int
    passes: int
    blocks: int = 0
    cached_tokens: int = 0
    proposals: int = 0
    stood: int = 0
    modes: tuple[FixedMode, ...] = ()

    @property
    def tpf(self) -> float:
        """Tokens per forward; 0 where no forward followed the prefill."""
        return self.completion_tokens / self.forwards if self.forwards else 0.0


@dataclass(frozen=True)
class Frame:
    """The canvas after one denoise pass, for whoever watches. Provisional: only a `Delta` is final.

    block_start is the position of the block's first row in the whole sequence, prompt included; `tokens` and `masked`
    have one entry a row, and a masked row's token means nothing.
    """

    block_index: int
    block_start: int
    pass_index: int
    tokens: tuple[int, ...]
    masked: tuple[bool, ...]


@dataclass(frozen=True)
class TokenLogprob:
    """How probable a token was when it was decided: untempered, after grammar, bias and penalties.

    logprob     natural logarithm
    pass_index  `diffuse`: the pass of its block that revealed it, counted from 0 as in `Frame`. Other positions of the
                block were masked then, so an answer's logprobs do not sum to its own. `ar` and `draft`: 0. A token
                that `diffuse` guessed right of what its grammar had reached has the pass and logprob of the guess
    top         (token id, logprob) of the most probable tokens, falling; tokens that were ruled out are not among them
    """

    logprob: float
    pass_index: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Delta:
    """Committed tokens, never the end token. The last delta of an answer has finish_reason and usage, and only it.

    logprobs: one a token where the request asked for them, otherwise None. gaps: of an infilling, for each token the
    index of the gap that it fills, None where it is pinned.
    """

    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    gaps: tuple[int | None, ...] | None = None


class Decoder(Protocol):
    """What server, command line and measurements need of an engine; `Engine` is one."""

    @property
    def name(self) -> str:
        """The id under which the model is served."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat(self) -> ChatTemplate: ...

    @property
    def max_context(self) -> int:
        """Limit on the tokens of prompt and answer together."""

    def generate(
        self, prompt_ids: list[int], params: GenerateParams, observe: Callable[[Frame], None] | None = None
    ) -> Iterator[Delta]:
        """Yields the answer as it is committed. Closing the iterator, or raising from `observe`, ends the request."""
