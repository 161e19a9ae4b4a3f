"""JSON schemas from requests: what of them is held to, and refusal by name of everything else.

A keyword that nobody enforces would let through what the client has forbidden, so there is none: each is supported,
says nothing about values (`title`), or is refused with its place in the schema. The supported part is draft 2020-12
without the keywords that look at a whole value at once (`not`, `if`, `uniqueItems`, `contains`, `unevaluated…`).

An object that lists `properties` and does not say whether it may have others has no others: every answer still fits the
schema, and no answer is padded with keys that nobody asked for.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from fourleaf.errors import RequestError

Schema = dict[str, Any]

MAX_DEPTH = 64  # levels of a schema's JSON text; the grammar library recurses over them
FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())

# Keywords that say nothing about values.
ANNOTATIONS = frozenset("title description default examples $comment $schema deprecated readOnly writeOnly".split())
_COUNTS = frozenset("minItems maxItems minLength maxLength minProperties maxProperties".split())
_NUMBERS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split())
_EXCLUSIVE = (
    ("exclusiveMinimum", "minimum", 1, max),
    ("exclusiveMaximum", "maximum", -1, min),
)
_BOUNDS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum".split())
_DIGITS = 15  # of which the library loses none
_MOST_NUMBER = 1e300  # what JSON writes beyond it is read as infinity
_MOST_STRICT = 1e14  # from here on they are all before the point
_MAPS = frozenset("properties patternProperties $defs definitions".split())
_LISTS = frozenset("anyOf oneOf allOf prefixItems".split())
_SINGLES = frozenset("additionalProperties items".split())
_VALUES = frozenset("type enum const required pattern format $ref".split())
_KNOWN = ANNOTATIONS | _COUNTS | _NUMBERS | _MAPS | _LISTS | _SINGLES | _VALUES
_TYPES = frozenset("null boolean integer number string array object".split())
_APPLICATORS = frozenset("anyOf oneOf allOf $ref".split())
_SHAPES = frozenset("properties patternProperties additionalProperties required".split())


def parse_schema(text: str, param: str) -> Schema:
    """A schema ready for the grammar library, from its JSON text.

    param: the request's field, for messages. Raises RequestError, whose `param` goes on to the place inside the schema
    ("response_format.json_schema.schema.properties.age"), for text that is no schema, for what is not supported, and
    for a schema that no finite value fits.
    """
    try:
        schema = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{param} is not the JSON text of a schema: {error}", param=param) from error
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise RequestError(f"{param} must be an object.", param=param)
    _check(schema, schema, param, 0)
    if not _is_finite(schema):
        raise RequestError(f"{param} fits no finite value: something it requires requires itself.", param=param)
    return _changed(schema, [_strict, _closed] if _may_close(schema) else [_strict])


def resolve(root: Schema, reference: str) -> Any:
    """What a local `$ref` ("#", "#/$defs/name") points to; None where there is nothing."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def _check(schema: Any, root: Schema, where: str, depth: int) -> None:
    """Raises RequestError for the first keyword in `schema`, or below it, that is not supported or is mis-shaped."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        _refuse(where, "must be a schema: an object, true or false")
    if depth > MAX_DEPTH:
        _refuse(where, f"is nested more than {MAX_DEPTH} levels deep")
    for key, value in schema.items():
        here = f"{where}.{key}"
        if (key == "$id" and depth == 0) or (key.startswith("x-") and key != "x-guidance"):
            continue
        if key not in _KNOWN:
            _refuse(here, f"is not supported: {key!r} would not be held to. Leave it out")
        if key in _COUNTS and not (type(value) is int and value >= 0):
            _refuse(here, "must be a whole number from 0")
        if key in _NUMBERS and not (type(value) in (int, float) and abs(value) < _MOST_NUMBER):
            _refuse(here, f"must be a number below {_MOST_NUMBER:g}")
        _check_value(key, value, root, here)
        for name, inner in _below(key, value, here):
            _check(inner, root, name, depth + 1)
    for excluded, *_ in _EXCLUSIVE:
        bound = schema.get(excluded, 0)
        is_tight = any(key != excluded and abs(schema[key] - bound) < 1 for key in _BOUNDS & schema.keys())
        if abs(bound) >= _MOST_STRICT and is_tight and "number" in _type_names(schema):
            fault = f"is {bound}, less than one from another bound, which is not held to from {_MOST_STRICT:g} on"
            _refuse(f"{where}.{excluded}", f"{fault}; use minimum and maximum")
    if schema.get("minProperties", 0) > 1 and not schema["minProperties"] <= len(schema.get("required", ())):
        # Keys that are not listed may come twice, and two equal keys are one property.
        _refuse(f"{where}.minProperties", "is supported up to 1, or up to the number of required properties")


def _check_value(key: str, value: Any, root: Schema, here: str) -> None:
    if key == "type":
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(name, str) and name in _TYPES for name in names):
            _refuse(here, f"is {value!r}; it must be one of {', '.join(sorted(_TYPES))}, or a list of them")
    elif key == "format" and value not in FORMATS:
        _refuse(here, f"is {value!r}; the supported formats are {', '.join(sorted(FORMATS))}")
    elif key == "enum" and not (isinstance(value, list) and value):
        _refuse(here, "must be a list with at least one value")
    elif key == "required" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        _refuse(here, "must be a list of property names")
    elif key == "pattern" and not isinstance(value, str):
        _refuse(here, "must be a regular expression")
    elif key == "$ref":
        if not (isinstance(value, str) and (value == "#" or value.startswith("#/"))):
            _refuse(here, f"is {value!r}; only references inside the schema ('#/$defs/…') are followed")
        if not isinstance(resolve(root, value), dict | bool):
            _refuse(here, f"is {value!r}, which points to no schema")


def _below(key: str, value: Any, here: str) -> Iterator[tuple[str, Any]]:
    """The schemas under a keyword, each with its place. Raises RequestError where the keyword is mis-shaped."""
    if key in _MAPS:
        if not isinstance(value, dict):
            _refuse(here, "must be an object of schemas")
        yield from ((f"{here}.{name}", inner) for name, inner in value.items())
    elif key in _LISTS:
        if not isinstance(value, list) or not value:
            _refuse(here, "must be a list with at least one schema")
        yield from ((f"{here}[{i}]", inner) for i, inner in enumerate(value))
    elif key in _SINGLES:
        if isinstance(value, list):
            _refuse(here, "must be one schema; a list of them is called prefixItems")
        yield here, value


def _is_finite(root: Schema) -> bool:
    """Whether some finite value fits, as far as recursion decides it: a tree that must have a child has no end."""
    nodes = list(every_schema(root))
    finite: set[int] = set()
    while True:
        found = {id(node) for node in nodes if id(node) not in finite and _has_value(node, root, finite)}
        if not found:
            return id(root) in finite
        finite |= found


def _has_value(node: Schema, root: Schema, finite: set[int]) -> bool:
    """Whether a node has a finite value, given the nodes of which that is known."""

    def known(schema: Any) -> bool:
        return schema is True or (isinstance(schema, dict) and id(schema) in finite)

    if "$ref" in node and not known(resolve(root, node["$ref"])):
        return False
    if not all(map(known, node.get("allOf", ()))):
        return False
    if any(key in node and not any(map(known, node[key])) for key in ("anyOf", "oneOf")):
        return False
    if "const" in node or "enum" in node:
        return True
    others = set(_type_names(node)) - {"array", "object"}
    if others:  # strings, numbers, true, false and null have an end
        return True
    properties = node.get("properties", {})
    if "object" in _type_names(node) and all(known(properties.get(name, True)) for name in node.get("required", ())):
        return True
    if "array" not in _type_names(node):
        return False
    prefix = node.get("prefixItems", [])
    items = [*prefix, *[node.get("items", True)] * (node.get("minItems", 0) - len(prefix))]
    return all(map(known, items[: node.get("minItems", 0)]))


def _type_names(node: Schema) -> list[str]:
    names = node.get("type", sorted(_TYPES))
    return names if isinstance(names, list) else [names]


def every_schema(schema: Any) -> Iterator[Schema]:
    """The schema and every schema below it."""
    if isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            for _, inner in _below(key, value, key):
                yield from every_schema(inner)


def _may_close(root: Schema) -> bool:
    """Whether objects can be closed one by one: not where several schemas describe one object together."""
    return not any(
        "allOf" in node or (node.keys() & _APPLICATORS and node.keys() & _SHAPES) or len(node.keys() & _APPLICATORS) > 1
        for node in every_schema(root)
    )


def _changed(schema: Any, changes: Sequence[Callable[[Schema], None]]) -> Any:
    """A copy in which every schema went through the changes, those below it first."""
    if not isinstance(schema, dict):
        return schema
    copy: Schema = {}
    for key, value in schema.items():
        if key in _MAPS:
            copy[key] = {name: _changed(inner, changes) for name, inner in value.items()}
        elif key in _LISTS:
            copy[key] = [_changed(inner, changes) for inner in value]
        else:
            copy[key] = _changed(value, changes) if key in _SINGLES else value
    for change in changes:
        change(copy)
    return copy


def _closed(schema: Schema) -> None:
    """An object that lists properties has no others."""
    listed = schema.get("properties", {})
    is_open = not schema.keys() & {"additionalProperties", "patternProperties"}
    if listed and is_open and set(schema.get("required", ())) <= listed.keys():
        schema["additionalProperties"] = False


def _strict(schema: Schema) -> None:
    """An excluded whole number whose allowed side is away from zero becomes the next number of 15 digits, inclusive.

    With another bound less than one away (8 excluded, at most 8.5), the library takes it although it is excluded.
    """
    if "number" not in _type_names(schema):
        return
    for excluded, included, away, tighter in _EXCLUSIVE:
        bound = schema.get(excluded)
        if bound is None or bound != round(bound) or bound * away < 0 or abs(bound) >= _MOST_STRICT:
            continue
        inside = bound + away * 10.0 ** (len(str(abs(round(bound)))) - _DIGITS)
        del schema[excluded]
        schema[included] = tighter(inside, schema.get(included, inside))


def _refuse(where: str, fault: str) -> NoReturn:
    raise RequestError(f"{where} {fault}.", param=where, code="unsupported_schema")


def _object(pairs: list[tuple[str, Any]]) -> Schema:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
