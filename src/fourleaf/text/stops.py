"""Stop texts: where an answer's content ends because it says what the request named.

Stops are looked for in content alone, as the router gives it: not in thoughts, not in calls, never across a tag. The
answer ends at the first character that completes a stop; where several end with it, at the longest. That depends on
the text and on no cut between tokens, blocks or portions. The stop itself is no part of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fourleaf.text.router import ContentDelta, Event, Router, Spelling


class _Stop:
    """How much of one stop the text so far ends with (Knuth, Morris and Pratt, 1977)."""

    def __init__(self, text: str) -> None:
        assert text, "an empty stop ends everything"
        self.text = text
        self.matched = 0
        self._shorter = [0]  # for each beginning: the longest shorter one that it ends with
        for i in range(1, len(text)):
            self._shorter.append(self._grown(self._shorter[-1], text[i]))

    def feed(self, character: str) -> bool:
        """Whether this character completes the stop."""
        self.matched = self._grown(self.matched, character)
        return self.matched == len(self.text)

    def _grown(self, matched: int, character: str) -> int:
        while matched and self.text[matched] != character:
            matched = self._shorter[matched - 1]
        return matched + (self.text[matched] == character)


class StopFilter:
    """Passes on what certainly stands before a stop, so that a stream never takes anything back.

    found: the stop that ended the text, once there is one. Whatever follows it is dropped.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        self._stops = [_Stop(text) for text in stops]
        self._held = ""  # the beginning of a stop, perhaps

    def feed(self, text: str) -> str:
        """More of the text. -> what is certain to be kept."""
        if self.found is not None:
            return ""
        text, begin = self._held + text, len(self._held)
        for i in range(begin, len(text)):
            complete = [stop.text for stop in self._stops if stop.feed(text[i])]
            if complete:
                self.found = max(complete, key=len)
                self._held = ""
                return text[: i + 1 - len(self.found)]
        held = max((stop.matched for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def close(self) -> str:
        """The text ends here, or something stands behind it that no stop goes across. -> what was held back."""
        held, self._held = self._held, ""
        for stop in self._stops:
            stop.matched = 0
        return held

    def passed(self, events: Iterable[Event]) -> Iterator[Event]:
        """A router's events up to a stop."""
        for event in events:
            if self.found is not None:
                return
            text = self.feed(event.text) if isinstance(event, ContentDelta) else self.close()
            if text:
                yield ContentDelta(text)
            if not isinstance(event, ContentDelta):
                yield event

    def closing(self) -> Iterator[Event]:
        """What was held back, behind the last event."""
        if text := self.close():
            yield ContentDelta(text)


class StopFinder:
    """Says after which token an answer ends. It reads a router of its own, so it finds what `StopFilter` finds in the
    events of an equal one.

    found: the stop, once there is one. num_kept: characters of content before it, or so far.
    """

    def __init__(self, stops: Sequence[str], router: Router | Spelling) -> None:
        self._filter, self._router = StopFilter(stops), router
        self.num_kept = 0

    @property
    def found(self) -> str | None:
        return self._filter.found

    def feed(self, token_id: int) -> bool:
        """The answer's next token. -> whether it is the last one: it completes a stop."""
        assert self.found is None, "the answer has ended"
        for event in self._filter.passed(self._router.feed([token_id])):
            if isinstance(event, ContentDelta):
                self.num_kept += len(event.text)
        return self.found is not None
