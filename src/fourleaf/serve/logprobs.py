"""Log-probabilities on the wire."""

from __future__ import annotations

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


def completion_entries(
    tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[TokenLogprob | None], offset: int = 0
) -> dict[str, Any]:
    """The `logprobs` of a text completion. A token without one (a prompt's first) has null.

    offset: characters of the whole text before the first token.
    """
    texts = [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in tokens]
    offsets = [offset + sum(map(len, texts[:at])) for at in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [None if one is None else finite(one.logprob) for one in logprobs],
        "top_logprobs": [None if one is None else _alternatives(tokenizer, one) for one in logprobs],
        "text_offset": offsets,
    }


def _alternatives(tokenizer: Tokenizer, one: TokenLogprob) -> dict[str, float]:
    """By text, as the format has it. Where two tokens spell alike (halves of characters), the better one stays."""
    best: dict[str, float] = {}
    for token, logprob in one.top:
        best.setdefault(tokenizer.token_bytes(token).decode("utf-8", "replace"), finite(logprob))
    return best
