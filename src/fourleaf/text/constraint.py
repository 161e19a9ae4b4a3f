"""What an answer must look like, as a request says it: plain data that can be compared, hashed and kept.

`text.grammar` turns a constraint and a tokenizer into the tokens that an answer may have.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal["json_schema", "json_object", "regex", "choices", "tools"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Tool:
    """A tool that an answer may call; `schema` is the JSON text of its parameters' schema, an object's."""

    name: str
    schema: str = '{"type": "object"}'

    @classmethod
    def of(cls, function: Mapping[str, Any]) -> "Tool":
        """From a function in the OpenAI format."""
        parameters = function.get("parameters")
        if not parameters:
            return cls(function["name"])
        return cls(function["name"], json.dumps(parameters, ensure_ascii=False))


@dataclass(frozen=True)
class Tools:
    """Which calls an answer may or must hold, and how the model's chat template writes one.

    choice: "auto", free text and calls as the model likes; "required", at least one call; "named", calls of `name`
    alone, at least one; "none", free text without calls. Without `parallel` an answer has at most one call.

    markup: "json", a call is `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Qwen3, the bundled model);
    "xml", it is `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>` on lines (Qwen3.5 and 3.6).
    `separator` is what the template writes between two calls, behind the opening tag and before the closing one:
    nothing for the bundled model, a line break for Qwen's.

    otherwise: what an answer without calls must look like, where the request says it ("auto" and "none" alone).

    is_either: of "auto" without `otherwise`: an answer is text or calls, and neither is empty. Otherwise text may come
    before calls.
    """

    offered: tuple[Tool, ...]
    choice: Literal["none", "auto", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True
    markup: Literal["json", "xml"] = "json"
    separator: str = ""
    otherwise: "Constraint | None" = None
    is_either: bool = False


@dataclass(frozen=True)
class Constraint:
    """One constraint on a whole answer.

    value: for json_schema the JSON text of a schema; for json_object nothing; for regex the expression, which the
    whole answer matches; for choices the answers to choose from; for tools a `Tools`.

    reasoning: "none", the answer starts at once; "optional", a `<think>` part may come first; "open", the prompt has
    opened that part and the answer starts inside it. What is between think tags is free text.

    param: the request's field that the constraint comes from, for error messages.
    """

    kind: Kind
    value: "str | tuple[str, ...] | Tools" = ""
    reasoning: Literal["none", "optional", "open"] = "none"
    param: str = field(default="response_format", compare=False)


def taught(tools: Iterable[Mapping[str, Any]], markup: Literal["json", "xml"], separator: str) -> Constraint:
    """What a model with these tools in its weights was taught to write: text, or calls to them.

    tools: in the OpenAI format. markup, separator: as in `Tools`.
    """
    offered = tuple(Tool.of(tool["function"]) for tool in tools)
    return Constraint("tools", Tools(offered, markup=markup, separator=separator, is_either=True), param="tools")
