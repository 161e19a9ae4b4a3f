"""One answer as OpenAI's chat completion chunks, and the whole completion as their fold.

Both kinds of response come from one generator, so they cannot differ.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fourleaf.engine.request import GenerateParams
from fourleaf.serve.answer import Finish
from fourleaf.text.router import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

Chunk = dict[str, Any]


@dataclass(frozen=True)
class Stamp:
    """What all chunks of one answer share."""

    model: str
    fingerprint: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> Chunk:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._head("chat.completion.chunk") | {"choices": [choice]}

    def role_chunk(self) -> Chunk:
        """The first chunk; it needs nothing of the answer, and so it can be sent at once."""
        return self.chunk({"role": "assistant", "content": ""})

    def usage_chunk(self, usage: dict[str, Any]) -> Chunk:
        return self._head("chat.completion.chunk") | {"choices": [], "usage": usage}

    def completion(self, choice: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
        return self._head("chat.completion") | {"choices": [choice], "usage": usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def chunks(stamp: Stamp, items: Iterable[Event | Finish], params: GenerateParams) -> Iterator[Chunk]:
    """Everything behind the role chunk: the answer's deltas, the finish reason, the usage."""
    for item in items:
        if isinstance(item, Finish):
            yield stamp.chunk({}, item.reason)
            yield stamp.usage_chunk(usage(item, params))
        elif (delta := _delta(item)) is not None:
            yield stamp.chunk(delta)


def _delta(event: Event) -> dict[str, Any] | None:
    """An event as the `delta` of a chunk; None where the wire has no word for it."""
    match event:
        case ContentDelta():
            return {"content": event.text} if event.text else None
        case ReasoningDelta():
            return {"reasoning_content": event.text} if event.text else None
        case ToolCallStart():
            call = {
                "index": event.index,
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
            return {"tool_calls": [call]}
        case ToolCallArguments():
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
        case ToolCallEnd():
            return None


def usage(finish: Finish, params: GenerateParams) -> dict[str, Any]:
    """OpenAI's three counts, and under `fourleaf` how the answer was decoded."""
    counts = finish.usage
    how: dict[str, Any] = {"mode": params.mode}
    if params.mode == "diffuse":
        how["threshold"] = params.threshold
    if params.temperature > 0:
        how["seed"] = params.seed
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "fourleaf": how
        | {
            "forwards": counts.forwards,
            "passes": counts.passes,
            "rows": counts.rows,
            "tpf": round(counts.tpf, 3),
            "seconds": round(finish.seconds, 4),
            "first_seconds": round(finish.first_seconds, 4),
            "tokens_per_second": round(finish.tokens_per_second, 1),
        },
    }


def fold(stamp: Stamp, parts: Iterable[Chunk]) -> dict[str, Any]:
    """The completion that the chunks of one answer add up to."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    finish_reason: str | None = None
    total: dict[str, Any] = {}
    for part in parts:
        total = part.get("usage") or total
        for choice in part["choices"]:
            finish_reason = choice["finish_reason"] or finish_reason
            delta = choice["delta"]
            for key in ("content", "reasoning_content"):
                if delta.get(key):
                    message[key] = message.get(key, "") + delta[key]
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(calls):
                    calls.append({key: call[key] for key in ("id", "type")} | {"function": dict(call["function"])})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls
    message["refusal"] = None
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return stamp.completion(choice, total)
