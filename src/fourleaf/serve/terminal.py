"""What a person sees in a terminal: calls, a line about speed, and the canvas while it fills."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fourleaf.engine.request import Frame, GenerateParams
from fourleaf.serve.answer import Finish
from fourleaf.text.router import Message

if TYPE_CHECKING:
    from fourleaf.text.tokenizer import Tokenizer

MASKED_CELL = "░"


def answer_lines(message: Message) -> list[str]:
    """The text, if there is one, and one line a call."""
    calls = [call_line(call.name, call.arguments_json) for call in message.tool_calls]
    return ([message.content] if message.content.strip() else []) + calls


def call_line(name: str, arguments_json: str) -> str:
    """`name(key=value, ...)`."""
    arguments = json.loads(arguments_json).items()
    return f"{name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in arguments)})"


def speed_line(finish: Finish, params: GenerateParams) -> str:
    """Tokens, forwards, tokens a forward, tokens a second."""
    usage = finish.usage
    cut = ", cut at the limit" if finish.reason == "length" else ""
    return (
        f"{params.mode}: {usage.completion_tokens} tokens in {usage.forwards} forwards (TPF {usage.tpf:.2f}), "
        f"{finish.seconds:.2f} s, {finish.tokens_per_second:.0f} tokens/s{cut}"
    )


@dataclass
class CanvasView:
    """Draws every pass: in place on a terminal, one line a pass elsewhere. Use as a context, pass `show` as observer.

    delay: seconds to rest on each pass, for the eye.
    """

    tokenizer: Tokenizer
    out: TextIO
    delay: float = 0.0
    _done: list[Frame] = field(default_factory=list)
    _last: Frame | None = None
    _live: Live | None = None

    def __enter__(self) -> CanvasView:
        console = Console(file=self.out, highlight=False)
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, vertical_overflow="visible")
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, frame: Frame) -> None:
        before = self._last
        if before is not None and before.block_index != frame.block_index:
            self._done.append(before)
            before = None
        self._last = frame
        if self._live is None:
            print(f"block {frame.block_index} pass {frame.pass_index}: {self.row(frame).plain}", file=self.out)
            return
        drawn = Text().join([self.row(done, style="green") for done in self._done] + [self.row(frame, before)])
        drawn.append(f"\nblock {frame.block_index}, pass {frame.pass_index}", style="dim")
        self._live.update(drawn, refresh=True)
        time.sleep(self.delay)

    def row(self, frame: Frame, before: Frame | None = None, style: str = "") -> Text:
        """One canvas up to its end token: a light block for each masked position, bold what this pass revealed.

        Neighbouring tokens are decoded together, because a character may be spread over several.
        """
        drawn = Text()
        start = 0
        kinds = [_kind(frame, before, at) for at in range(self._length(frame))]
        for at in range(1, len(kinds) + 1):
            if at < len(kinds) and kinds[at] == kinds[start]:
                continue
            if kinds[start] == "masked":
                drawn.append(MASKED_CELL * (at - start), style="dim")
            else:
                fresh = "bold green" if kinds[start] == "fresh" else style
                drawn.append(self.tokenizer.decode(list(frame.tokens[start:at])), style=fresh)
            start = at
        return drawn

    def _length(self, frame: Frame) -> int:
        """Rows before the end token, or all of them. What stands in a masked row is no token."""
        shown = zip(frame.tokens, frame.masked, strict=True)
        ends = (at for at, (token, masked) in enumerate(shown) if token == self.tokenizer.end_id and not masked)
        return next(ends, len(frame.tokens))


def _kind(frame: Frame, before: Frame | None, at: int) -> str:
    if frame.masked[at]:
        return "masked"
    return "fresh" if before is not None and before.masked[at] else "kept"


def said_lines(source: TextIO) -> Iterator[str]:
    """Lines that a person types, blank ones left out; with a prompt, history and editing on a terminal."""
    interactive = source.isatty()
    if interactive:
        with suppress(ImportError):  # not on every platform; importing it is what gives `input` its history
            import readline  # noqa: F401
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return
        if line:
            yield line
