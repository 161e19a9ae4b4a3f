"""Constraints turned into token masks, by the library llguidance; nothing else imports it.

A `Grammar` is compiled once for each constraint and tokenizer and kept; each request gets a `GrammarMatcher` of its
own, which follows one answer token by token. The library runs an Earley parser over the bytes of tokens and knows
control tokens by id alone, so a text that spells a tag is text. The end token is legal in accepting states alone.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fourleaf.errors import ConfigError, RequestError
from fourleaf.text.constraint import Constraint, Tools
from fourleaf.text.copied import Asked, Copying, Words, copied_paths
from fourleaf.text.ending import ending, takes
from fourleaf.text.markup import XML_CLOSING, grammar_text
from fourleaf.text.tokenizer import Tokenizer

try:
    import llguidance
except ImportError:  # an extra: a server that constrains nothing runs without it
    llguidance = None

MAX_GRAMMARS = 64  # compiled and kept for each tokenizer
SLACK = 128  # tokens beyond the shortest whole answer from which on its ending is watched

MAX_ENDING = 4_096  # tokens: an answer that cannot be had in so many is not searched for
_NOISE = re.compile(r"^at \d+\(\d+\): |failed to compile JSON schema: ")  # where in a text that no user wrote
_REMEDY = "Constrained answers need the package llguidance: pip install 'fourleaf[grammar]'"


def is_available() -> bool:
    """Whether the grammar library is installed."""
    return llguidance is not None


def compile_constraint(constraint: Constraint, tokenizer: Tokenizer, num_ids: int | None = None) -> Grammar:
    """The grammar of a constraint, from the cache where it is there.

    num_ids: width of the model's logits, the tokenizer's number of ids by default. Safe to call from several threads.
    Raises RequestError, naming the field, where the constraint is not supported or no answer satisfies it; ConfigError
    where the library is not installed.
    """
    return _vocabulary(tokenizer).grammar(constraint, num_ids or tokenizer.vocab_size)


def prepare(tokenizer: Tokenizer) -> None:
    """Reads the vocabulary ahead of the first request: seconds where it has 150,000 ids. Raises ConfigError."""
    _vocabulary(tokenizer)


class Grammar:
    """A compiled constraint. `reserve` is the number of tokens before the limit from which on `GrammarMatcher.ending`
    is asked whether an answer can still be ended: the shortest whole answer and `SLACK`; 0 where free text may be cut
    short like any other."""

    def __init__(self, prototype: GrammarMatcher, constraint: Constraint) -> None:
        self._prototype = prototype
        self._copied = copied_paths(constraint)
        self._begins_open = "" in self._copied and constraint.reasoning != "open"
        if self._copied:
            _ = prototype.vocabulary.words  # now, and not when the first answer is waited for
        if isinstance(constraint.value, Tools) and constraint.value.markup == "xml":
            prototype.closing = XML_CLOSING
        prototype.whole = prototype.ending(MAX_ENDING) or []
        prototype.reserve = 0 if _is_free_text(constraint) else len(prototype.whole) + SLACK

    @property
    def reserve(self) -> int:
        return self._prototype.reserve

    def matcher(self, prompt_ids: Sequence[int] = ()) -> GrammarMatcher:
        """One at the start of an answer. prompt_ids: what the answer's copied text is copied from."""
        matcher = self._prototype.copy()
        if self._copied:
            words = matcher.vocabulary.words
            # Once, and not before a copied value begins: most answers to a long prompt may never have one.
            read_prompt = cache(lambda: Asked.of(prompt_ids, words))
            matcher.copying = Copying(self._copied, words, read_prompt, is_open=self._begins_open)
        return matcher


class GrammarMatcher:
    """Where one answer stands in its grammar. Implements `diffusion.constraint.Matcher`."""

    def __init__(self, inner: Any, vocabulary: _Vocabulary, num_ids: int) -> None:
        self._inner = inner
        self.vocabulary = vocabulary
        self._num_ids = num_ids
        self.copying: Copying | None = None
        self._reserve = 0
        self.closing = ""
        self.ended = False
        self.whole: list[int] = []  # the shortest whole answer that was found
        self._plan: list[int] = []  # an ending found at an earlier place; often it is still one

    @property
    def reserve(self) -> int:
        """As in `Grammar`, and where a copied word may be longer than what that allows for, as much more."""
        longest = 0 if self.copying is None or not self._reserve else self.copying.longest
        return self._reserve + max(0, longest - SLACK)

    @reserve.setter
    def reserve(self, value: int) -> None:
        self._reserve = value

    def allowed(self) -> NDArray[np.bool_]:
        """[Y] bool: the tokens that may come next; none behind the end token. Raises RequestError where the grammar
        has become too large to follow."""
        mask = np.zeros(self._num_ids, dtype=bool)
        if self.ended:
            return mask
        bits = np.frombuffer(self._inner.compute_bitmask(), dtype=np.uint8)
        self._check()
        size = min(self._num_ids, self.vocabulary.size)
        mask[:size] = np.unpackbits(bits, bitorder="little", count=size)
        mask[self.vocabulary.end_id] = self.is_accepting  # also where nothing at all may follow
        if self.copying is not None:
            self.copying.narrow(mask)
        return mask

    def allows(self, token: int) -> bool:
        """Of one token, what `allowed` says of all, without a mask of the whole vocabulary."""
        if token == self.vocabulary.end_id:
            return self.is_accepting
        if self.ended or token >= self.vocabulary.size:
            return False
        bits = self._inner.compute_bitmask()
        self._check()
        if not bits[token >> 3] >> (token & 7) & 1:
            return False
        return self.copying is None or self.copying.allows(token)

    def accepts(self, token: int) -> bool:
        """Whether `advance` may be called with this token. A run of forced text may be cut into tokens in any way
        here, while `allowed` names its canonical token alone."""
        if token == self.vocabulary.end_id:
            return self.is_accepting
        if self.ended or token >= self.vocabulary.size:
            return False
        if self._inner.validate_tokens([token]) != 1:
            return False
        return self.copying is None or self.copying.accepts(token)

    def advance(self, token: int) -> None:
        """Takes the next token, which must be legal."""
        assert self.accepts(token), f"token {token} is not legal here"
        if token == self.vocabulary.end_id:
            self.ended = True
            return
        self._inner.consume_token(token)
        self._check()
        if self.copying is not None:
            self.copying.advance(token)
        if self._plan and self._plan[0] == token:
            self._plan = self._plan[1:]

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return not self.ended and self._inner.is_accepting()

    def forced(self) -> list[int]:
        """The tokens that must come next, in the tokenizer's own division of the text; a last one that could still
        merge with what follows is left out. The end token is among them where nothing else can follow."""
        if self.ended:
            return []
        tokens = list(self._inner.compute_ff_tokens())
        if not tokens and self.copying is not None:
            tokens = self.copying.forced()
        if not tokens and self._inner.is_stopped() and self.is_accepting:
            return [self.vocabulary.end_id]
        return tokens

    def copy(self) -> GrammarMatcher:
        """An independent one in the same place."""
        twin = GrammarMatcher(self._inner.deep_copy(), self.vocabulary, self._num_ids)
        twin._reserve, twin.closing, twin.ended = self._reserve, self.closing, self.ended
        twin.whole, twin._plan = self.whole, self._plan
        twin.copying = None if self.copying is None else self.copying.copy()
        return twin

    def adopt(self, other: GrammarMatcher) -> None:
        """Goes to where another copy of the same one stands, which must not be used any more."""
        self._inner, self.ended, self._plan, self._reserve = other._inner, other.ended, other._plan, other._reserve
        self.copying = other.copying

    def ending(self, limit: int, goal: Sequence[int] = ()) -> list[int] | None:
        """Tokens that bring the answer to its end token, few of them and at most `limit`; None where none were found.
        With a `goal` they lead to where its tokens are legal, and do not include them.

        The library knows no shortest ending, so it is searched for (`text.ending`): a found one is legal, and a shorter
        one may exist. What was found at an earlier place is tried first: within a string, or anything else that may go
        on for long, it still ends the answer. The result is a function of the tokens so far and of the earlier calls.
        """
        if goal:
            return ending(self, self.vocabulary.tokenizer, limit, goal, self.closing)
        if not self.is_accepting:
            for plan in (self._plan, self._plan[1:], self._plan[2:], *self._tails(limit)):
                if plan and len(plan) <= limit and takes(self, plan):
                    self._plan = plan
                    return plan
        found = ending(self, self.vocabulary.tokenizer, limit, (), self.closing)
        self._plan = found or self._plan
        return found

    def _tails(self, limit: int) -> Iterator[list[int]]:
        """What the shortest answer from the start ends with, the longest first."""
        yield from (self.whole[begin:] for begin in range(max(0, len(self.whole) - limit), len(self.whole)))

    def _check(self) -> None:
        if self._inner.is_error():
            first = self._inner.get_error().split("\n")[0][:200]
            raise RequestError(f"The answer's grammar cannot be followed any further: {first}", code="grammar_limit")


class _Vocabulary:
    """A tokenizer as the library sees it, and the grammars compiled for it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if llguidance is None:
            raise ConfigError(f"{_REMEDY}.")
        self.tokenizer = tokenizer
        self.size, self.end_id = tokenizer.vocab_size, tokenizer.end_id
        wrapper = llguidance.TokenizerWrapper(_Words(tokenizer))
        self._tokens = llguidance.LLTokenizer(wrapper, n_vocab=tokenizer.vocab_size, eos_token=tokenizer.end_id)
        self._grammars: OrderedDict[tuple[Constraint, int], Grammar] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def words(self) -> Words:
        return Words(self.tokenizer)

    def grammar(self, constraint: Constraint, num_ids: int) -> Grammar:
        assert num_ids >= self.size, "the model has fewer ids than its tokenizer"
        key = (constraint, num_ids)
        with self._lock:
            if key in self._grammars:
                self._grammars.move_to_end(key)
                return self._grammars[key]
        # Outside the lock: a large schema takes a while, and nobody else needs to wait for it.
        made = self._compile(constraint, num_ids)
        with self._lock:
            self._grammars[key] = made
            if len(self._grammars) > MAX_GRAMMARS:
                self._grammars.popitem(last=False)
        return made

    def _compile(self, constraint: Constraint, num_ids: int) -> Grammar:
        assert llguidance is not None
        text = llguidance.LLMatcher.grammar_from_lark(grammar_text(constraint, self.tokenizer.controls))
        inner = llguidance.LLMatcher(self._tokens, text, log_level=0)
        warnings = [] if inner.is_error() else inner.get_grammar_warnings()
        if inner.is_error() or warnings:
            fault = (inner.get_error() or "; ".join(warnings)).split("\n")[0]
            fault = _NOISE.sub("", fault)[:300]
            raise RequestError(
                f"{constraint.param} cannot be turned into a grammar: {fault}",
                param=constraint.param,
                code="unsupported_value",
            )
        prototype = GrammarMatcher(inner, self, num_ids)
        try:
            is_empty = not prototype.allowed().any()
        except RequestError:  # the library finds out at the first mask
            is_empty = True
        if is_empty:
            raise RequestError(f"No answer satisfies {constraint.param}.", param=constraint.param, code="invalid_value")
        return Grammar(prototype, constraint)


class _Words:
    """What `llguidance.TokenizerWrapper` reads of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.end_id
        # An id that no text has must not be the empty string, which would be legal everywhere and lead nowhere.
        self.tokens = [tokenizer.token_bytes(i) or f"<unused {i}>".encode() for i in range(tokenizer.vocab_size)]
        unused = [i for i in range(tokenizer.vocab_size) if not tokenizer.token_bytes(i)]
        self.special_token_ids = sorted({*tokenizer.special_ids, *unused})
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


_vocabularies: weakref.WeakKeyDictionary[Tokenizer, _Vocabulary] = weakref.WeakKeyDictionary()
_vocabularies_lock = threading.Lock()


def _vocabulary(tokenizer: Tokenizer) -> _Vocabulary:
    with _vocabularies_lock:
        if tokenizer not in _vocabularies:
            _vocabularies[tokenizer] = _Vocabulary(tokenizer)
        return _vocabularies[tokenizer]


def _is_free_text(constraint: Constraint) -> bool:
    """Whether an answer may be text of any kind: cut short at the limit it ends with `length`, as text does."""
    value = constraint.value
    return isinstance(value, Tools) and value.choice in ("auto", "none") and value.otherwise is None
