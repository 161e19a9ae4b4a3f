"""A conversation in this process, without a server: what `fourleaf run` and `fourleaf chat` hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fourleaf.engine.request import Decoder, Frame, GenerateParams
from fourleaf.errors import ContextLengthError
from fourleaf.serve.answer import Committed, Finish, Item, answer, fit
from fourleaf.serve.tools import offer
from fourleaf.serve.usage import usage
from fourleaf.text.router import Message, fold


@dataclass(frozen=True)
class Answer:
    """One whole answer, and how it was decoded."""

    message: Message
    finish: Finish
    params: GenerateParams

    def document(self) -> dict[str, Any]:
        """For programs: JSON data with content, tool_calls (arguments as an object), finish_reason and usage."""
        calls = self.message.tool_calls
        return {
            "content": self.message.content or None,
            "tool_calls": [{"name": call.name, "arguments": json.loads(call.arguments_json)} for call in calls],
            "finish_reason": self.finish.reason,
            "usage": usage(self.finish, self.params),
        }


class Conversation:
    """Messages so far. `max_tokens` limits each answer; None leaves it to the context."""

    def __init__(
        self,
        engine: Decoder,
        fixed_tools: list[dict[str, Any]] | None,
        params: GenerateParams,
        max_tokens: int | None = None,
    ) -> None:
        self._engine = engine
        self._offer = offer(fixed_tools, None, "auto")
        self._params = params
        self._max_tokens = max_tokens
        self._turns: list[list[dict[str, Any]]] = []  # each: what was said, what was answered
        self._calls = 0

    def clear(self) -> None:
        """Forgets everything said so far."""
        self._turns.clear()

    def say(self, text: str, observe: Callable[[Frame], None] | None = None) -> Answer:
        """The answer to `text`. The oldest turns are forgotten where the context cannot hold them.

        Raises ContextLengthError where it cannot hold `text` alone.
        """
        said = {"role": "user", "content": text}
        kept = list(self._turns)
        while True:
            messages = [message for turn in kept for message in turn] + [said]
            ids = self._engine.chat.render(messages, tools=self._offer.tools)
            try:
                limit = fit(len(ids), self._max_tokens, self._engine.max_context)
                break
            except ContextLengthError:
                if not kept:
                    raise
                kept.pop(0)
        params = replace(self._params, max_tokens=limit)
        items: list[Item] = list(answer(self._engine, ids, params, self._offer, observe))
        finish = items.pop()
        assert isinstance(finish, Finish)
        whole = Answer(fold(item for item in items if not isinstance(item, (Committed, Finish))), finish, params)
        self._turns = [*kept, [said, *self._answered(whole.message)]]
        return whole

    def _answered(self, answered: Message) -> list[dict[str, Any]]:
        """The assistant's message, and behind calls their results, which a template may want to see there.

        No car is attached: every call counts as done.
        """
        message: dict[str, Any] = {"role": "assistant", "content": answered.content}
        results = []
        for call in answered.tool_calls:
            made = f"call_{self._calls}"
            function = {"name": call.name, "arguments": call.arguments_json}
            message.setdefault("tool_calls", []).append({"id": made, "type": "function", "function": function})
            results.append({"role": "tool", "tool_call_id": made, "content": '{"ok": true}'})
            self._calls += 1
        return [message, *results]
