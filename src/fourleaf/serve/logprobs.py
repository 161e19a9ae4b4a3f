"""Log-probabilities on the wire."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import Any

from fourleaf.engine.request import TokenLogprob
from fourleaf.text.tokenizer import Tokenizer

# JSON has no infinity; this is what OpenAI's servers say in its place.
IMPOSSIBLE = -9999.0


def finite(logprob: float) -> float:
    """A logprob as JSON can carry it."""
    return logprob if math.isfinite(logprob) else IMPOSSIBLE


def chat_entries(tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Entries of a chat choice's `logprobs.content`; `pass` is ours: the pass that revealed the token."""
    return [
        _entry(tokenizer, token, one.logprob)
        | {"top_logprobs": [_entry(tokenizer, *pair) for pair in one.top], "pass": one.pass_index}
        for token, one in zip(tokens, logprobs, strict=True)
    ]


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    spelled = tokenizer.token_bytes(token)
    return {"token": spelled.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(spelled)}


class CompletionLogprobs:
    """The `logprobs` of a text completion, gathered as tokens are committed and given out as their text is.

    Text may be held back where a stop could begin, and what follows a stop is dropped. So a token is given out when a
    character of its own, or of those it shares with others, has been; never one that begins behind the text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._length = 0  # characters of all tokens so far
        self._held: list[tuple[int, TokenLogprob | None, int]] = []  # with the character at which each begins

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> None:
        """More tokens, in order. One without a logprob (a prompt's first) has None."""
        for token, one in zip(tokens, logprobs, strict=True):
            self._held.append((token, one, self._length))
            self._length += len(self._characters.decode(self._tokenizer.token_bytes(token)))

    def end_prompt(self) -> None:
        """A character that the prompt leaves unfinished is not finished by the answer."""
        self._length += len(self._characters.decode(b"", final=True))

    def take(self, length: int, *, rest: bool = False) -> dict[str, Any]:
        """As JSON: the tokens that begin in the first `length` characters and have not been taken. rest: the others,
        too."""
        taken = [one for one in self._held if rest or one[2] < length]
        self._held = self._held[len(taken) :]
        return {
            "tokens": [self._tokenizer.token_bytes(token).decode("utf-8", "replace") for token, _, _ in taken],
            "token_logprobs": [None if one is None else finite(one.logprob) for _, one, _ in taken],
            "top_logprobs": [None if one is None else _alternatives(self._tokenizer, one) for _, one, _ in taken],
            "text_offset": [offset for _, _, offset in taken],
        }


def _alternatives(tokenizer: Tokenizer, one: TokenLogprob) -> dict[str, float]:
    """By text, as the format has it. Where two tokens spell alike (halves of characters), the better one stays."""
    best: dict[str, float] = {}
    for token, logprob in one.top:
        best.setdefault(tokenizer.token_bytes(token).decode("utf-8", "replace"), finite(logprob))
    return best
