"""How an engine in another environment is driven: a process, one JSON object a line in each direction.

A request is `{"do": NAME, ...}`; the answer is `{"value": ...}` or `{"refused": TEXT}`. Standard library alone: this
file is imported in every peer's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1]


class PeerRefusal(Exception):
    """What a peer will not do, in its own words."""


class Peer:
    """One engine's process. Raises PeerRefusal for what it refuses and where it dies."""

    def __init__(self, python: Path, program: Path, environment: Mapping[str, str]) -> None:
        """python: the interpreter of its environment. Its own log goes to standard error."""
        self.program = program
        words = [python, program]
        shared = {"PYTHONPATH": str(SCRIPTS), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **shared, **environment},
            text=True,
            encoding="utf-8",
        )

    def ask(self, do: str, **fields: Any) -> Any:
        """What the peer answers; waits for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerRefusal(f"{self.program} ended with code {self._process.wait()} when asked to {do}")
        answer = json.loads(line)
        if "refused" in answer:
            raise PeerRefusal(answer["refused"])
        return answer["value"]

    def close(self) -> None:
        """Lets it end; waits for that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """The peer's side: answers requests until there are no more. What the engine prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": handlers[request.pop("do")](**request)}
        except Exception as error:  # whatever an engine raises is its answer
            answer = {"refused": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def wave(
    count: int, steps: Iterable[Sequence[tuple[int, Sequence[int]]]], is_prefilled: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Prompts that were answered together, under a clock that starts now.

    steps: one entry for each forward, or step, of the engine: the new tokens of each prompt that got any, by its index.
    is_prefilled: whether all prompts have been read; by default they have when each has had its first token.
    -> tokens by prompt, seconds, prefill_seconds, and `later`, the tokens that came after prefill.
    """
    begin = time.perf_counter()
    tokens: list[list[int]] = [[] for _ in range(count)]
    prefill, early = 0.0, 0
    for news in steps:
        for index, new in news:
            tokens[index] += new
        if not prefill and (all(tokens) if is_prefilled is None else is_prefilled()):
            prefill, early = time.perf_counter() - begin, sum(map(len, tokens))
    seconds = time.perf_counter() - begin
    later = sum(map(len, tokens)) - early
    return {"tokens": tokens, "seconds": seconds, "prefill_seconds": prefill, "later": later}


def waves(prompts: Sequence[Any], together: int) -> Iterator[Sequence[Any]]:
    """So many prompts at a time; a rest that does not fill one is left out."""
    for first in range(0, len(prompts) - together + 1, together):
        yield prompts[first : first + together]
