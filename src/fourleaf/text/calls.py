"""How a checkpoint's chat template writes tool calls, and calls read back from what a model wrote.

Two ways are in use. "json" (Qwen3, the bundled model): `{"name": …, "arguments": {…}}` between the tags. "xml"
(Qwen3.5, Qwen3.6, Qwen3-Coder): `<function=name>`, and each argument's bare text between `<parameter=key>` and
`</parameter>`, on lines of their own. There the text does not say whether 5 is a number, so the tool's schema does.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from fourleaf.text.tokenizer import TOOL_CALL

# What Python's `string` filter, which templates use, makes of JSON's words.
_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
# A value ends at the first closing tag behind which another parameter begins or none is left.
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|\Z))", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class ToolCall:
    """A finished call; `arguments_json` is the JSON text of an object."""

    name: str
    arguments_json: str


@dataclass(frozen=True)
class Markup:
    """How calls are written. lines: tags stand on lines of their own, and the newlines beside them are no content."""

    syntax: Literal["json", "xml"] = "json"
    lines: bool = False

    @property
    def separator(self) -> str:
        """What the template writes between two calls."""
        return "\n" if self.lines else ""


PLAIN = Markup()  # the bundled model's


def markup_of(template: str) -> Markup:
    """The markup that a chat template's source shows."""
    syntax: Literal["json", "xml"] = "xml" if "<function=" in template else "json"
    # In Jinja a newline is a real one or the escape in a string literal.
    return Markup(syntax, re.search(re.escape(TOOL_CALL) + r"(?:\\n|\n)", template) is not None)


def schemas_of(tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Parameter schemas by tool name, from tools in the OpenAI format; what has another shape is left out."""
    functions = [tool.get("function") for tool in tools or ()]
    return {
        function["name"]: function.get("parameters")
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }


def read_call(text: str, markup: Markup, schemas: Mapping[str, Any]) -> ToolCall | None:
    """A call from the text between its tags, or None. Strict: what would be lost on the way makes it no call.

    schemas: JSON schema of each tool's parameters; the XML way takes the types of arguments from it.
    """
    read = _read_xml(text, schemas) if markup.syntax == "xml" else _read_json(text)
    if read is None:
        return None
    name, arguments = read
    try:
        arguments_json = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):  # 1e999 was read as infinity
        return None
    if _SURROGATE.search(name + arguments_json):  # an escape of half a character: no UTF-8 can carry it
        return None
    return ToolCall(name, arguments_json)


def _read_json(text: str) -> tuple[str, dict[str, Any]] | None:
    try:
        call = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        return None
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return name, arguments


def _read_xml(text: str, schemas: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    function = _FUNCTION.fullmatch(text)
    if function is None:
        return None
    name, body = function.groups()
    schema = schemas.get(name)
    arguments: dict[str, Any] = {}
    end = 0
    while (found := _PARAMETER.match(body, end)) is not None:
        key, value = found.groups()
        if key in arguments:
            return None
        arguments[key] = _typed(value, schema, key)
        end = found.end()
    return None if body[end:].strip() else (name, arguments)


def _typed(text: str, schema: Any, key: str) -> Any:
    """An argument's text as the JSON value that its schema allows; text where nothing says otherwise or it is none."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or key not in properties:
        return text
    types = set(_types(properties[key], schema, 0))
    if types == {"string"}:
        return text
    if text in _PYTHON_WORDS:
        value = _PYTHON_WORDS[text]
    else:
        try:
            value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
            json.dumps(value, allow_nan=False)
        except (ValueError, RecursionError):
            return text
    kind = _type_of(value)
    if kind == "string" or (types and kind not in types and not (kind == "integer" and "number" in types)):
        return text
    return value


def _types(schema: Any, root: Any, depth: int) -> Iterator[str]:
    """The JSON types that a schema allows; none where it allows any."""
    if not isinstance(schema, Mapping) or depth > 8:
        return
    kind = schema.get("type")
    if isinstance(kind, str):
        yield kind
    elif isinstance(kind, list):
        yield from (name for name in kind if isinstance(name, str))
    elif isinstance(schema.get("enum"), list):
        yield from map(_type_of, schema["enum"])
    elif "const" in schema:
        yield _type_of(schema["const"])
    else:
        for group in ("anyOf", "oneOf"):
            for one in schema.get(group) or ():
                yield from _types(one, root, depth + 1)
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            yield from _types((root.get("$defs") or {}).get(reference.removeprefix("#/$defs/")), root, depth + 1)


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return "null" if value is None else names[type(value)]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key stands twice")
    return result


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
