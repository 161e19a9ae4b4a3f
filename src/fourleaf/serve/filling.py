"""A template's answer as items: text by the part that it belongs to, then the usual end."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from fourleaf.engine.request import Decoder, Frame, GenerateParams
from fourleaf.engine.template import Gap, num_pinned
from fourleaf.serve.answer import PIECE_TOKENS, Finish
from fourleaf.serve.usage import usage_of_choices
from fourleaf.text.router import ContentDelta, Spelling
from fourleaf.text.stops import StopFilter
from fourleaf.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Piece:
    """Text of one gap, or pinned where `gap` is None, and how many tokens it stands for. Either may be nothing."""

    text: str
    gap: int | None
    tokens: int


def fill(
    engine: Decoder, prompt_ids: list[int], params: GenerateParams, observe: Callable[[Frame], None]
) -> Generator[Piece | Finish]:
    """Fills one template. Characters are never divided between pieces; a part's last one may hold U+FFFD where its
    bytes are no whole character. Whatever `observe` raises ends the request and comes out."""
    started, first = time.perf_counter(), 0.0
    spelling, part = Spelling(engine.tokenizer), None
    for delta in engine.generate(prompt_ids, params, observe):
        now = time.perf_counter() - started
        first = first or now
        gaps = delta.gaps or (None,) * len(delta.tokens)
        for gap, run in groupby(zip(gaps, delta.tokens, strict=True), key=lambda pair: pair[0]):
            if gap != part:
                yield from _pieces(spelling.finish(), part, 0)
                spelling, part = Spelling(engine.tokenizer), gap
            tokens = [token for _, token in run]
            for begin in range(0, len(tokens), PIECE_TOKENS):
                few = tokens[begin : begin + PIECE_TOKENS]
                yield from _pieces(spelling.feed(few), gap, len(few))
        if delta.finish_reason is not None:
            assert delta.usage is not None, "the last delta carries usage"
            yield from _pieces(spelling.finish(), part, 0)
            yield Finish(delta.finish_reason, delta.usage, now, first)


def _pieces(events: Sequence[Any], gap: int | None, tokens: int) -> Iterator[Piece]:
    text = "".join(event.text for event in events if isinstance(event, ContentDelta))
    if text or tokens:
        yield Piece(text, gap, tokens)


@dataclass
class Filled:
    """One choice: what has come of it."""

    prompt_ids: list[int]
    params: GenerateParams
    stops: StopFilter = field(default_factory=lambda: StopFilter(()))
    text: str = ""
    gaps: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    finish: Finish | None = None

    def __post_init__(self) -> None:
        for index in range(sum(isinstance(part, Gap) for part in self.params.infill)):
            self.gaps[index], self.tokens[index] = "", 0

    def take(self, item: Piece | Finish) -> None:
        """An item in its place."""
        if isinstance(item, Finish):
            self.finish = item
            return
        self.text += item.text
        if item.gap is not None:
            self.gaps[item.gap] += item.text
            self.tokens[item.gap] += item.tokens

    def wire_gaps(self) -> list[dict[str, Any]]:
        """The gaps by index."""
        return [{"index": index, "text": text, "tokens": self.tokens[index]} for index, text in self.gaps.items()]


def usage_of(choices: Sequence[Filled]) -> dict[str, Any]:
    """Of all choices; the pinned tokens, which are in no other count, beside it."""
    finishes = [choice.finish for choice in choices if choice.finish is not None]
    made = usage_of_choices(finishes, [choice.params for choice in choices])
    return made | {"pinned_tokens": num_pinned(choices[0].params.infill)}


def encoded(tokenizer: Tokenizer, text: str | None) -> list[int]:
    """A text's ids; a user's text never becomes a control token."""
    return tokenizer.encode(text) if text else []
