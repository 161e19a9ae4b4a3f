"""Constraints written out as grammars in llguidance's dialect of Lark, tool calls as the chat template writes them.

Tags are token ids (`<[7]>`): no text can stand in for one. JSON has the spaces of `json.dumps`, as templates render it:
fewer ways to write the same value leave more tokens forced.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from fourleaf.errors import RequestError
from fourleaf.text.constraint import Constraint, Tool, Tools
from fourleaf.text.schema import ANNOTATIONS, Schema, parse_schema, resolve
from fourleaf.text.tokenizer import THINK, THINK_END, TOOL_CALL, TOOL_CALL_END

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
XML_CLOSING = "\n</parameter>\n"  # behind each parameter's value
_CLOSING = json.dumps(XML_CLOSING)
_CLASSES = {r"\d": "[0-9]", r"\w": r"[\p{L}\p{N}_]", r"\S": r"[^\s\x1c-\x1f]"}
_CLASSES_NEGATED = {r"\D": "[^0-9]", r"\W": r"[^\p{L}\p{N}_]", r"\s": r"[\s\x1c-\x1f]"}
# One character, escaped or not; a class's opening bracket takes a first "]" along, which closes nothing.
_PIECE = re.compile(r"\\.|\[\^?\]?|.", re.DOTALL)
_NAME = re.compile(r"[\w.:/-]{1,128}")
_PARAMETER = re.compile(r"[^<>\s]{1,128}")
# What the XML-like markup can say of an object's shape, and of a string that stands there without quotes.
_XML_OBJECT = frozenset("type properties required additionalProperties $defs definitions".split()) | ANNOTATIONS
_XML_STRING = frozenset({"type", "enum", "minLength", "maxLength", *ANNOTATIONS})


def grammar_text(constraint: Constraint, controls: Mapping[str, int]) -> str:
    """The grammar of whole answers. controls: spelling -> id of the tokenizer's control tokens.

    Raises RequestError, naming the field, for what is not supported or cannot be.
    """
    rules = _Rules(controls, constraint.param)
    answer = _answer(constraint, rules)
    if constraint.reasoning == "open":
        answer = f"FREE {rules.tag(THINK_END)} BREAK {answer}"
    elif constraint.reasoning == "optional":
        answer = f"({rules.tag(THINK)} FREE {rules.tag(THINK_END)} BREAK)? {answer}"
    return "\n".join([f"start: {answer}", "FREE: /(?s:.*)/", r"BREAK: /\n{0,2}/", *rules.lines]) + "\n"


class _Rules:
    """The lines of a grammar as they gather, and what they need to know of the request."""

    def __init__(self, controls: Mapping[str, int], param: str) -> None:
        self.controls = controls
        self.param = param
        self.lines: list[str] = []

    def add(self, body: str, *, terminal: bool = False, options: str = "") -> str:
        """A rule of this body; returns its name."""
        name = f"{'T' if terminal else 'r'}{len(self.lines)}"
        self.lines.append(f"{name}{options}: {body}")
        return name

    def tag(self, spelling: str) -> str:
        if spelling not in self.controls:
            self.refuse(f"needs the control token {spelling}, which this model does not have")
        return f"<[{self.controls[spelling]}]>"

    def refuse(self, fault: str, below: str = "") -> NoReturn:
        param = self.param + below
        raise RequestError(f"{param} {fault}.", param=param, code="unsupported_value")


def _answer(constraint: Constraint, rules: _Rules) -> str:
    kind, value = constraint.kind, constraint.value
    if kind == "tools":
        assert isinstance(value, Tools)
        return _tools(value, rules)
    if kind == "choices":
        assert isinstance(value, tuple)
        if not value or not all(value) or len(set(value)) < len(value):
            rules.refuse("must name at least one choice, none of them empty or twice")
        return rules.add(" | ".join(map(json.dumps, value)))
    assert isinstance(value, str)
    if kind == "regex":
        return rules.add(f"/{_slashed(value)}/", terminal=True)
    schema = {"type": "object"} if kind == "json_object" else parse_schema(value, rules.param)
    return rules.add(_json(schema))


def _json(schema: Schema) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _SPACING})}"


def _slashed(expression: str) -> str:
    r"""A regular expression as it stands between slashes. Anchors at its ends go: the whole answer matches anyway.

    Classes become such that Python's `re` agrees: the library's own `\d` and `\w` have digits of newer scripts, marks
    and joiners, and its `\S` has separators of ASCII. In a negated class the other ones would be too wide.
    """
    expression = expression.removeprefix("^")
    stripped = expression.removesuffix("$")
    if (len(stripped) - len(stripped.rstrip("\\"))) % 2 == 0:  # "\$" is a dollar sign
        expression = stripped
    written, depth, classes = [], 0, _CLASSES
    for piece in _PIECE.findall(expression):
        if piece[0] == "[":
            depth += 1
            classes = _CLASSES_NEGATED if depth == 1 and piece[1:2] == "^" else classes
        elif piece == "]" and depth:
            depth -= 1
            classes = classes if depth else _CLASSES
        written.append({**classes, "/": r"\/", "\n": r"\n"}.get(piece, piece))
    return f"(?:{''.join(written)})"


def _tools(tools: Tools, rules: _Rules) -> str:
    """Free text and calls, as the choice has it. Text comes before the calls, never between or behind them."""
    text = "FREE" if tools.otherwise is None else _answer(tools.otherwise, rules)
    if tools.choice == "none":
        return text
    offered = [(i, tool) for i, tool in enumerate(tools.offered) if tools.choice != "named" or tool.name == tools.name]
    if not offered:
        rules.refuse(f"names no tool{'' if tools.name is None else f' {tools.name!r}'}")
    if len({tool.name for _, tool in offered}) < len(offered):
        rules.refuse("names a tool twice")
    kinds = " | ".join(_call(tool, index, tools.markup, rules) for index, tool in offered)
    separator = json.dumps(tools.separator) if tools.separator else ""
    call = rules.add(f"{rules.tag(TOOL_CALL)} {separator} ({kinds}) {separator} {rules.tag(TOOL_CALL_END)}")
    more = f"({separator} {call})*" if tools.parallel else ""
    if tools.choice in ("required", "named"):
        return f"{call} {more}"
    if tools.is_either and tools.otherwise is None:
        text = rules.add("/(?s:.+)/", terminal=True)
    elif tools.otherwise is None:
        return f"FREE ({call} {more})?"
    return f"({text} | {call} {more})"


def _call(tool: Tool, index: int, markup: str, rules: _Rules) -> str:
    """What stands between the tags of one tool's calls."""
    where = f"[{index}].function"
    if not _NAME.fullmatch(tool.name):
        rules.refuse(f"is {tool.name!r}; a name has letters, digits and _ . : / - alone, at most 128", f"{where}.name")
    schema = parse_schema(tool.schema, f"{rules.param}{where}.parameters")
    if schema.get("type", "object") != "object":
        rules.refuse("must describe an object", f"{where}.parameters.type")
    if markup == "xml":
        return _xml_call(tool, schema, f"{where}.parameters", rules)
    opening = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
    arguments = rules.add(_json({**schema, "type": "object"}))
    return rules.add(f'{json.dumps(opening)} {arguments} "}}"')


def _xml_call(tool: Tool, schema: Schema, where: str, rules: _Rules) -> str:
    if unknown := sorted(schema.keys() - _XML_OBJECT):
        rules.refuse("cannot be said in this model's call markup", f"{where}.{unknown[0]}")
    defs = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if missing := [name for name in required if name not in properties]:
        rules.refuse(f"names {missing[0]!r}, which is not among the properties", f"{where}.required")
    parts = []
    for name, inner in properties.items():
        here = f"{where}.properties.{name}"
        if not _PARAMETER.fullmatch(name):
            rules.refuse("is no name that this model's call markup can hold", here)
        value = _xml_value(inner, defs, here, rules)
        rule = rules.add(f"{json.dumps(f'<parameter={name}>{chr(10)}')} {value}")
        parts.append(rule if name in required else f"{rule}?")
    return rules.add(f'{json.dumps(f"<function={tool.name}>{chr(10)}")} {" ".join(parts)} "</function>"')


def _xml_value(schema: Any, defs: Schema, here: str, rules: _Rules) -> str:
    """A parameter's value and its closing tag. A string stands as it is, without the tag in it; all else is JSON.

    Where both may stand, `text.calls` reads JSON as JSON and the rest as a string, so both must be fine.
    """
    kinds = list(_kinds(schema, defs))
    strings = [kind for kind in kinds if kind.get("type") == "string"]
    others = [kind for kind in kinds if kind.get("type") != "string"]
    if strings and others and any(kind.keys() - {"type", *ANNOTATIONS} for kind in others):
        rules.refuse("mixes strings with others that have limits: this model's call markup has no quotes", here)
    ways = [_xml_string(kind, here, rules) for kind in strings]
    if not strings:
        ways = [f"{rules.add(_json({**schema, **defs} if isinstance(schema, dict) else {}))} {_CLOSING}"]
    elif others:
        ways.append(f"{rules.add(_json({'anyOf': others}))} {_CLOSING}")
    return f"({' | '.join(ways)})"


def _kinds(schema: Any, defs: Schema, depth: int = 0) -> Iterator[Schema]:
    """A schema as alternatives, each all strings (type "string") or without any."""
    if not isinstance(schema, dict) or not schema.keys() - ANNOTATIONS or depth > 8:
        yield {"type": "string"}  # anything: what reads as JSON is that, what does not is a string
    elif "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        may_be_text = "string" in schema.get("type", "string")
        words = [value for value in values if isinstance(value, str) and may_be_text]
        if words:
            yield {"type": "string", "enum": words}
        if len(words) < len(values):
            yield {**schema, "enum": [value for value in values if not isinstance(value, str)]}
    elif "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        yield from ({**schema, "type": name} for name in names)
    elif "$ref" in schema:
        yield from _kinds(resolve(defs, schema["$ref"]), defs, depth + 1)
    else:
        for inner in schema.get("anyOf", schema.get("oneOf", [])):
            yield from _kinds(inner, defs, depth + 1)


def _xml_string(schema: Schema, here: str, rules: _Rules) -> str:
    if unknown := sorted(schema.keys() - _XML_STRING):
        rules.refuse("cannot be held to in a string that stands without quotes", f"{here}.{unknown[0]}")
    if "enum" in schema:
        if any("</parameter>" in value for value in schema["enum"]):
            rules.refuse("lists a closing tag", f"{here}.enum")
        return f"({' | '.join(map(json.dumps, schema['enum']))}) {_CLOSING}"
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    # One terminal with the closing tag at its end: the first one ends the value.
    text = rf"(/(?s:.{{{low},{high}}})/ & ~/(?s:.*)<\/parameter>(?s:.*)/)"
    return rules.add(f"{text} {_CLOSING}", terminal=True)
