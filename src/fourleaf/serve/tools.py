"""Which tools an answer may call.

A model whose tools are in its weights (its folder has a tools.json) cannot learn others from a request: the request
names all of them, a subset, or none, which means all. A model that reads its tools from the prompt takes whatever the
request names; where it names none, nobody has said what may not be called.

The model does not know what a subset leaves out. So a call to a tool that was not offered is taken out of the answer;
when nothing else is in it, the answer is the text with which the model itself declines. Its grammar knows all its tools
for the same reason: held to the subset, it would call one of these where it means another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fourleaf.errors import RequestError
from fourleaf.tasks.cabin.schema import OUT_OF_SCOPE
from fourleaf.text.copied import KEYWORD as COPIED
from fourleaf.text.router import ContentDelta, Event, ToolCallArguments, ToolCallEnd, ToolCallStart

DECLINED = OUT_OF_SCOPE

_ANNOTATIONS = ("title", "description", "$schema", "default", "examples")


@dataclass(frozen=True)
class Offer:
    """The tools of one request: as the chat template sees them, and the names that may come back (None: any)."""

    tools: list[dict[str, Any]] | None
    names: frozenset[str] | None


def offer(fixed: list[dict[str, Any]] | None, asked: list[dict[str, Any]] | None, choice: str) -> Offer:
    """What a request's `tools` and `tool_choice` ("auto" or "none") come to.

    fixed is the tool list in the model's weights, None for a model that reads tools from its prompt.
    Raises RequestError for a tool named twice, or one that is not among the fixed tools.
    """
    for index, tool in enumerate(asked or []):
        name = tool["function"]["name"]
        if any(name == earlier["function"]["name"] for earlier in (asked or [])[:index]):
            raise RequestError(
                f"tools names {name!r} twice.", param=f"tools[{index}].function.name", code="invalid_value"
            )
    tools = asked or fixed
    if fixed is not None and asked:
        _check_fixed(fixed, asked)
        # A grammar follows the parameters' order and limits, so it takes those that the model learnt.
        own = {tool["function"]["name"]: tool for tool in fixed}
        tools = [own[tool["function"]["name"]] for tool in asked]
    if choice == "none":
        return Offer(tools=None, names=frozenset())
    if not tools:
        return Offer(tools=None, names=None)
    return Offer(tools=tools, names=frozenset(tool["function"]["name"] for tool in tools))


def _check_fixed(fixed: list[dict[str, Any]], asked: list[dict[str, Any]]) -> None:
    known = {tool["function"]["name"]: tool["function"].get("parameters") for tool in fixed}
    for index, tool in enumerate(asked):
        name = tool["function"]["name"]
        where = f"tools[{index}].function"
        fault, param = "", where
        if name not in known:
            fault, param = f"it has no tool {name!r}", f"{where}.name"
        elif not _allows(tool["function"].get("parameters") or {}, known[name] or {}):
            fault, param = f"its {name!r} has other parameters", f"{where}.parameters"
        if fault:
            raise RequestError(
                f"This model's tools are fixed: {fault}. Leave `tools` out, or name the model's own tools or some of "
                f"them unchanged: {', '.join(sorted(known))}.",
                param=param,
                code="unsupported_value",
            )


def _allows(asked: object, own: object) -> bool:
    """Whether a client's JSON schema allows all that the model's own does: then the model's calls are what it asks for.

    What only people read makes no difference, nor what SDKs leave unsaid: limits, and that there are no other
    properties, nor keywords of others' (`x-…`). A keyword that is said must be the own one's.
    """
    if not isinstance(asked, dict) or not isinstance(own, dict):
        return asked == own
    mine, theirs = own.get("properties", {}), asked.get("properties", {})
    if not isinstance(theirs, dict) or theirs.keys() != mine.keys():
        return False
    said = {key for key in asked.keys() - {*_ANNOTATIONS, "properties"} if not key.startswith("x-")}
    said |= {COPIED} if asked.get(COPIED) else set()
    return all(_allows(theirs[name], mine[name]) for name in mine) and all(
        _allows_keyword(key, asked[key], own.get(key)) for key in said
    )


def _allows_keyword(key: str, asked: object, own: object) -> bool:
    if key == "additionalProperties":
        return own is False or _allows(asked, own)
    if key in ("required", "enum") and isinstance(asked, list):
        here, there = set(map(repr, asked)), set(map(repr, own if isinstance(own, list) else []))
        return here <= there if key == "required" else here >= there
    return _allows(asked, own)


class OfferFilter:
    """Lets through the calls to offered tools, numbered anew from 0, and everything that is no call."""

    def __init__(self, names: frozenset[str] | None) -> None:
        self._names = names
        self._renumbered: dict[int, int] = {}
        self._dropped = False
        self._has_text = False

    @property
    def calls(self) -> int:
        """Calls let through so far."""
        return len(self._renumbered)

    def passed(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, ToolCallStart):
                if self._names is not None and event.name not in self._names:
                    self._dropped = True
                    continue
                self._renumbered[event.index] = len(self._renumbered)
                yield ToolCallStart(self._renumbered[event.index], event.name)
            elif isinstance(event, ToolCallArguments):
                if event.index in self._renumbered:
                    yield ToolCallArguments(self._renumbered[event.index], event.text)
            elif isinstance(event, ToolCallEnd):
                if event.index in self._renumbered:
                    yield ToolCallEnd(self._renumbered[event.index])
            else:
                if isinstance(event, ContentDelta):
                    self._has_text = self._has_text or bool(event.text.strip())
                yield event

    def closing(self) -> Iterator[Event]:
        """What is left to say once the answer ended on its own."""
        if self._dropped and not self._renumbered and not self._has_text:
            yield ContentDelta(DECLINED)
