"""JSON Schema from what the code checks: pydantic models, tables of neutral values, limits of the engine's numbers.

The building blocks of the OpenAPI document (`openapi`); schemas are plain dictionaries.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from fourleaf.engine.request import (
    FIXED_MODES,
    LIMITS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_SEED,
    MODES,
    POLICIES,
    PRIORITIES,
    WHOLE_LIMITS,
)
from fourleaf.serve.body import Wire
from fourleaf.serve.decoding import MAX_CHOICES, MAX_STOPS

Schema = dict[str, Any]

REF = "#/components/schemas/{model}"
STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
ANY_OBJECT: Schema = {"type": "object"}
NULL: Schema = {"type": "null"}


def ref(name: str) -> Schema:
    """A schema of the document's components."""
    return {"$ref": REF.format(model=name)}


def array(items: Schema, **limits: int) -> Schema:
    """limits: minItems, maxItems."""
    return {"type": "array", "items": items, **limits}


def one_of(*values: Any) -> Schema:
    """One of these values and nothing else."""
    return {"enum": list(values)}


def any_of(*schemas: Schema) -> Schema:
    """What fits at least one of them."""
    return {"anyOf": list(schemas)}


def or_null(schema: Schema) -> Schema:
    """A field that may be null, which is as if it were left out."""
    return any_of(schema, NULL)


def given(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object of a request: what else it holds has no effect."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required)}


def told(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object of an answer: it has these fields, some of them not always, and no other."""
    return given(required, optional) | {"additionalProperties": False}


def of_dataclass(kind: type) -> Schema:
    """What `asdict` of it is on the wire: all of its fields."""
    made = _bare(TypeAdapter(kind).json_schema(mode="serialization"))
    return told(made["properties"])


def of_shape(
    shape: type[Wire], neutral: Mapping[str, Sequence[Any]], fields: Mapping[str, Schema], required: Sequence[str] = ()
) -> tuple[Schema, dict[str, Schema]]:
    """A request's schema from its model, and the schemas that it refers to.

    neutral: fields at the values beside null that ask for nothing. fields: in place of what the model says, where it
    leaves a field to code that reads it. required: fields that the same code wants.
    """
    made = _bare(shape.model_json_schema(ref_template=REF))
    inner = made.pop("$defs", {})
    made.pop("description", None)
    properties = made["properties"]
    for name in properties:
        properties[name] = copy.deepcopy(fields[name]) if name in fields else _narrowed(name, properties[name])
    for name, values in neutral.items():
        properties[name] = {"enum": [*values, None], "description": "Accepted where it asks for nothing."}
    untyped = [name for name, schema in properties.items() if not schema]
    assert not untyped, f"the document does not say what these hold: {untyped}"
    made["required"] = [*dict.fromkeys([*made.get("required", ()), *required])]
    return made, inner


def json_text(schema: Schema) -> Schema:
    """A text that holds JSON."""
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}


def event_of(name: str, *, has_done: bool = False) -> Schema:
    """One server-sent event whose data is of that schema; has_done: the last one says [DONE]."""
    data = json_text(ref(name))
    return given({"data": any_of({"const": "[DONE]"}, data) if has_done else data}, {"event": STRING})


# Fields of texts: the words that they may be.
_WORDS: dict[str, tuple[str, ...]] = {"mode": MODES, "policy": POLICIES, "priority": PRIORITIES}
# Fields of numbers, as they are on the wire: the engine's limits, and where the wire has others, those.
_WHOLE: dict[str, tuple[int, int | None]] = {
    **WHOLE_LIMITS,
    "top_k": (-1, None),  # vLLM's word for off
    "max_completion_tokens": WHOLE_LIMITS["max_tokens"],
    "max_output_tokens": WHOLE_LIMITS["max_tokens"],
    "top_logprobs": (0, MAX_LOGPROBS),
    "n": (1, MAX_CHOICES),
    "seed": (-MAX_SEED - 1, MAX_SEED),
}


def _narrowed(name: str, schema: Schema) -> Schema:
    """A field of the model within the limits that the engine's parameters have."""
    special: dict[str, Schema] = {
        "stop": or_null(any_of(STRING | {"minLength": 1}, array(STRING | {"minLength": 1}, maxItems=MAX_STOPS))),
        "modes": or_null(array(one_of(*FIXED_MODES))),
        "logit_bias": or_null(
            {
                "type": "object",
                "propertyNames": {"pattern": "^[0-9]{1,9}$"},
                "additionalProperties": between(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS),
                "description": "By token id, below the vocabulary's size.",
            }
        ),
    }
    if name in special:
        return special[name]
    if name in _WORDS:
        return one_of(*_WORDS[name], None)
    if name in _WHOLE:
        return or_null(between(*_WHOLE[name], kind="integer"))
    if name in LIMITS:
        return or_null(between(*LIMITS[name]))
    return schema


def between(low: float, high: float | None, kind: str = "number") -> Schema:
    """A number with both ends allowed; high None: without one."""
    return {"type": kind, "minimum": low} | ({} if high is None else {"maximum": high})


def _bare(schema: Any) -> Any:
    """Without what pydantic adds for readers of its models: titles, and null as a default."""
    if isinstance(schema, list):
        return [_bare(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    kept: Schema = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: _bare(inner) for name, inner in value.items()}
        elif not (key == "title" and isinstance(value, str)) and key != "default":
            kept[key] = _bare(value)
    return kept
