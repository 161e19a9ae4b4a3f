"""JSON schemas and regular expressions as applications write them, out of a seed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from fourleaf.text.constraint import Constraint

NUM_SCHEMAS, NUM_EXPRESSIONS = 1_000, 300

WORDS = "name title city street zip_code age count price active tags items owner kind status note unit lat lon".split()
VALUES = ["two words", 'a "quote"', "back\\slash", "", *"red green Zürich on/off A-1 日本 north_west no ok".split()]
PATTERNS = ["^[A-Z]{2}-[0-9]{3}$", "^[a-z]+(_[a-z]+)*$", "[0-9]", "^(true|false)$", r"^\+?\d{3,8}$", "^[^,]*,[^,]*$"]
FORMATS = ["date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "uri", "duration"]


def some_schema(rng: random.Random) -> dict[str, Any]:
    """A schema as applications write them, of supported keywords; often with definitions, sometimes with recursion."""
    root = _object(rng, 0) if rng.random() < 0.7 else _any(rng, 0)
    names = set(re.findall(r"#/\$defs/(\w+)", json.dumps(root)))
    if not names:
        return root
    tree = {
        "type": "object",
        "properties": {"value": _leaf(rng), "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {**root, "$defs": {"leaf": _leaf(rng), "tree": tree}}


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    roll = rng.random()
    if depth >= 3 or roll < 0.45:
        return _leaf(rng)
    if roll < 0.62:
        return _object(rng, depth)
    if roll < 0.78:
        return _array(rng, depth)
    if roll < 0.9:
        return {rng.choice(["anyOf", "anyOf"]): [_any(rng, depth + 1) for _ in range(rng.randint(2, 3))]}
    return {"$ref": f"#/$defs/{rng.choice(['leaf', 'tree'])}"}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randint(0, 5))
    found: dict[str, Any] = {"type": "object", "properties": {name: _any(rng, depth + 1) for name in names}}
    found["required"] = [name for name in names if rng.random() < 0.7]
    roll = rng.random()
    if roll < 0.5:
        found["additionalProperties"] = False
    elif roll < 0.65:
        found["additionalProperties"] = _leaf(rng)
    elif roll < 0.7:
        found = {"type": "object", "additionalProperties": _leaf(rng), "minProperties": 1, "maxProperties": 3}
    return found


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.2:
        return {"type": "array", "prefixItems": [_leaf(rng), _leaf(rng)], "items": False, "minItems": 2}
    low = rng.randint(0, 2)
    found = {"type": "array", "items": _any(rng, depth + 1), "minItems": low}
    return found if rng.random() < 0.4 else {**found, "maxItems": low + rng.randint(0, 3)}


def _leaf(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    high = low + rng.choice([0, 3, 10, 1000])
    return rng.choice([
        lambda: {"type": "string"},
        lambda: {"type": "string", "minLength": abs(low) % 5, "maxLength": 5 + abs(low)},
        lambda: {"type": "string", "pattern": rng.choice(PATTERNS)},
        lambda: {"type": "string", "format": rng.choice(FORMATS)},
        lambda: {"type": "string", "enum": rng.sample(VALUES, 3)},
        lambda: {"enum": [*rng.sample(VALUES, 2), low, None, True, {"a": [1]}]},
        lambda: {"const": rng.choice([*VALUES, low, 1.5, None, [1, "a"]])},
        lambda: {"type": "integer"},
        lambda: {"type": "integer", "minimum": low, "maximum": high},
        lambda: {"type": "integer", "exclusiveMinimum": low, "multipleOf": rng.choice([2, 5, 10])},
        lambda: {"type": "number", "minimum": low / 4, "exclusiveMaximum": high / 4 + 0.5},
        lambda: {"type": "number", "multipleOf": 0.5},
        lambda: {"type": "number"},
        lambda: {"type": "boolean"},
        lambda: {"type": ["string", "null"], "description": "may be missing"},
        lambda: {"type": ["integer", "boolean"], "minimum": low},
    ])()  # fmt: skip


def some_expression(rng: random.Random, depth: int = 0) -> str:
    """A regular expression that Python and the grammar library read alike."""
    pieces = []
    for _ in range(rng.randint(1, 4)):
        roll = rng.random()
        if depth < 3 and roll < 0.3:
            inner = "|".join(some_expression(rng, depth + 1) for _ in range(rng.randint(1, 3)))
            piece = f"{rng.choice(['(', '(?:'])}{inner})"
        elif roll < 0.65:
            piece = rng.choice(["[a-z]", "[A-F0-9]", r"\d", "[^,;]", r"\w", r"[\s_]", ".", "[äöü]", r"\."])
        else:
            piece = re.escape(rng.choice(["cat", "x", "-", "/", "→", "No. ", '"', "\\", "ß"]))
            piece = piece if len(piece) < 3 else f"(?:{piece})"
        pieces.append(piece + rng.choice(["", "", "", "?", "*", "+", "{2}", "{1,3}", "{2,}"]))
    return "".join(pieces)


def constraints(share: float, seed: int) -> Iterator[Constraint]:
    """The schemas, then the expressions; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(max(1, round(share * NUM_SCHEMAS))):
        yield Constraint("json_schema", json.dumps(some_schema(rng)))
    for _ in range(max(1, round(share * NUM_EXPRESSIONS))):
        yield Constraint("regex", some_expression(rng))
