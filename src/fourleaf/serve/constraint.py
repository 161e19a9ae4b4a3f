"""What a request says about the shape of its answer, as a constraint for the engine: formats, tools, tool choice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from fourleaf.serve.body import refuse, shown
from fourleaf.serve.capabilities import Abilities
from fourleaf.serve.tools import Offer
from fourleaf.text.calls import Markup
from fourleaf.text.constraint import Constraint, Tool, Tools

Reasoning = Literal["none", "optional", "open"]


@dataclass(frozen=True)
class Choice:
    """tool_choice. kind "named" has a name; `param` is what the client called the field."""

    kind: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    param: str = "tool_choice"


def read_choice(value: Any, names: list[str]) -> Choice:
    """OpenAI's tool_choice. names: of the tools that may be named. Raises RequestError."""
    if value is None:
        return Choice()
    if isinstance(value, str) and value in ("auto", "none", "required"):
        return Choice(value)  # type: ignore[arg-type]
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    # The responses API has the name beside the type.
    name = function.get("name") if isinstance(function, dict) else value.get("name") if _is_flat(value) else None
    if not isinstance(name, str):
        refuse(
            "tool_choice",
            f'must be "auto", "none", "required" or {{"type": "function", "function": {{"name": ...}}}}, '
            f"not {shown(value)}",
            "invalid_value",
        )
    if name not in names:
        refuse("tool_choice", f"names {shown(name)}, which is none of the tools", "invalid_value")
    return Choice("named", name)


def _is_flat(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "function" and "function" not in value


def read_format(value: Any) -> Constraint | None:
    """OpenAI's response_format, None for free text. Raises RequestError naming what is wrong with it."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint("json_object")
    if kind != "json_schema":
        refuse("response_format", f'must have the type "text", "json_object" or "json_schema", not {shown(value)}')
    where = "response_format.json_schema.schema"
    inner = value.get("json_schema")
    # llama.cpp's clients write the schema beside the type.
    schema = inner.get("schema") if isinstance(inner, dict) else value.get("schema")
    if not isinstance(schema, (dict, bool)):
        refuse(where, f"must be a JSON schema, not {shown(schema)}", "invalid_type")
    return Constraint("json_schema", json.dumps(schema, ensure_ascii=False), param=where)


def constrained(
    offer: Offer,
    choice: Choice,
    form: Constraint | None,
    able: Abilities,
    markup: Markup,
    *,
    own: list[dict[str, Any]] | None = None,
    parallel: bool = True,
    asked_for_tools: bool = True,
    grammar: bool = True,
    reasoning: Reasoning = "none",
) -> Constraint | None:
    """The one constraint that a request says its answer is under; None where it says none.

    own: the tools in the model's weights, which it does not forget because a request names some of them. An answer that
    may call tools and need not is held to all of them (the engine does so by itself, where `grammar` is not false), and
    calls to others than the offered ones are taken out of it: held to the offered ones alone, the model would call one
    of them where it means another. parallel: whether an answer may hold several calls. asked_for_tools: whether the
    request named tools; a model whose tools are in its weights knows them without. grammar: false, and nothing is
    constrained that the request does not ask for by itself.

    Raises RequestError for what the engine cannot enforce.
    """
    if form is not None and form.kind not in able.constraints:
        refuse("response_format", f"of the type {form.kind!r} is not supported here")
    forced = choice.kind in ("required", "named")
    is_either = own is not None and not forced and form is None  # text or calls, as the model was taught
    is_left = (is_either or (not grammar and not forced and form is None)) and parallel
    if forced and not offer.tools:
        refuse(choice.param, "forces a call, and the request has no tools", "invalid_value")
    if "tools" not in able.constraints:
        if forced:
            refuse(choice.param, 'cannot force a call here: use "auto" or "none"')
        if not parallel:
            refuse("parallel_tool_calls", "cannot be false here: leave it out or set it to true")
        tools = None
    elif offer.tools and not is_left and (asked_for_tools or forced or not parallel):
        tools = Tools(
            offered=tuple(Tool.of(tool["function"]) for tool in (own if is_either and own else offer.tools)),
            choice=choice.kind,
            name=choice.name,
            parallel=parallel,
            markup=markup.syntax,
            separator=markup.separator,
            otherwise=None if forced else form,
            is_either=is_either,
        )
    else:
        tools = None
    if tools is not None:
        return Constraint("tools", tools, reasoning, "tools")
    return None if form is None else Constraint(form.kind, form.value, reasoning, form.param)
