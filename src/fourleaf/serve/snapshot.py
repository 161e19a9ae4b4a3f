"""`diffusing: true`, Mercury's way to show an answer take shape: each chunk's content is the whole text so far.

A client of such a stream replaces what it shows and never appends. Mercury's chunks do not tell a draft from a final
text; ours do, in a `diffusion` object beside the delta. Calls come as they do in any stream, when they are committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fourleaf.engine.request import Decoder, Frame
from fourleaf.serve.answer import Committed, Finish, Item
from fourleaf.serve.chunks import Choice, Chunk, Stamp
from fourleaf.serve.openai import Prepared
from fourleaf.text.router import ContentDelta, Router, opens_in_reasoning

MASKED_CELL = "░"


class Snapshots:
    """One answer's frames and items as replacing chunks."""

    def __init__(self, stamp: Stamp, index: int, engine: Decoder, prepared: Prepared) -> None:
        self._stamp, self._index, self._engine, self._prepared = stamp, index, engine, prepared
        self._choice = Choice(stamp, index, engine.tokenizer)
        self._committed: list[int] = []
        self._content = ""
        self._passes = 0

    def chunks(self, item: Item | Frame) -> Iterator[Chunk]:
        match item:
            case Frame():
                self._passes += 1
                yield self._snapshot(self._draft(item), provisional=True, frame=item)
            case Committed(tokens):
                self._committed += tokens
                yield from self._choice.chunks(item)
            case ContentDelta(text):
                self._content += text
                if self._passes == 0:  # `ar` has no canvas to show
                    yield self._snapshot(self._content, provisional=False)
            case Finish():
                yield self._snapshot(self._content, provisional=False)
                yield from self._choice.chunks(item)
            case _:
                yield from self._choice.chunks(item)

    def _snapshot(self, content: str, *, provisional: bool, frame: Frame | None = None) -> Chunk:
        about: dict[str, Any] = {"provisional": provisional, "snapshot": True}
        if frame is not None:
            about |= {"block": frame.block_index, "pass": frame.pass_index, "masked": sum(frame.masked)}
        chunk = self._stamp.chunk({"content": content}, index=self._index)
        chunk["choices"][0]["diffusion"] = about
        return chunk

    def _draft(self, frame: Frame) -> str:
        """The content as it would be if the canvas ended here, a light block for each masked position."""
        prompt = self._prepared.prompt_ids
        opened = opens_in_reasoning(self._engine.tokenizer, prompt)
        router = Router(self._engine.tokenizer, self._engine.chat.markup, reasoning=opened)
        before = frame.block_start - len(prompt)
        events = router.feed(self._committed[:before])
        for token, masked in zip(frame.tokens, frame.masked, strict=True):
            if masked:
                events += router.gap(MASKED_CELL)
            elif token == self._engine.tokenizer.end_id:
                break
            else:
                events += router.feed([token])
        return "".join(event.text for event in events if isinstance(event, ContentDelta))
