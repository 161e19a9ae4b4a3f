"""JSON schemas: what is held to, what is refused by name, and that nothing is ignored."""

import json
import random

import jsonschema
import numpy as np
import pytest

from fourleaf.errors import RequestError
from fourleaf.text.constraint import Constraint
from fourleaf.text.grammar import compile_constraint
from fourleaf.text.schema import MAX_DEPTH, parse_schema

WHERE = "response_format.json_schema.schema"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "child": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]}},
    "required": ["name", "child"],
}

# Each keyword with values that fit and values that do not. A keyword that the grammar ignored would take the latter.
HELD_TO = [
    ({"type": "string"}, ["", "a b", "é"], [1, None]),
    ({"type": ["integer", "null"]}, [1, None], ["1", 1.5]),
    ({"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}]),
    ({"enum": ["a", 2, None]}, ["a", 2, None], ["b", 3]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd"]),
    ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["", "abd"]),
    ({"type": "string", "pattern": "b"}, ["abc"], ["ac"]),
    ({"type": "string", "pattern": "^a+$", "maxLength": 2}, ["aa"], ["aaa", "b"]),
    ({"type": "string", "format": "date"}, ["2026-11-30"], ["2026-13-30", "today"]),
    ({"type": "string", "format": "uuid"}, ["0e8ba5a6-3b1f-4d38-9b7e-0b6f4c4f2a11"], ["0e8ba5a6"]),
    ({"type": "integer", "minimum": 3, "maximum": 12}, [3, 12], [2, 13]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.5], [0, 1]),
    ({"type": "integer", "multipleOf": 5}, [10, -5], [7]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
    ({"type": "array", "prefixItems": [{"const": 1}], "items": False}, [[1]], [[1, 1], [2]]),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]}, [{"b": 1}, {"a": 1, "b": 2}], [{"a": 1}]),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}}, [{"b": None}], [{"b": 1}]),
    ({"type": "object", "patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False},
     [{"x1": None}], [{"x1": 1}, {"y": None}]),
    ({"type": "object", "additionalProperties": True, "minProperties": 1, "maxProperties": 2}, [{"a": 1}], [{}]),
    ({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 5}]}, [None, 5], [4, "a"]),
    ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, [None, 5], ["a"]),
    ({"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 7}]}, [6], [4, 8]),
    ({"$ref": "#/$defs/person", "$defs": {"person": PERSON}},
     [{"name": "a", "child": {"name": "b", "child": None}}], [{"name": "a", "child": 1}]),
    (True, [1, "a", {}], []),
]  # fmt: skip

REFUSED = [
    ({"not": {"type": "null"}}, "not"),
    ({"if": {}, "then": {}}, "if"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {"const": 1}}, "contains"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "string", "contentEncoding": "base64"}, "contentEncoding"),
    ({"type": "string", "maxlength": 3}, "maxlength"),
    ({"type": "string", "nullable": True}, "nullable"),
    ({"type": "string", "x-guidance": {"lenient": True}}, "x-guidance"),
    ({"type": "string", "format": "idn-email"}, "format"),
    ({"type": "text"}, "type"),
    ({"type": []}, "type"),
    ({"enum": []}, "enum"),
    ({"type": "string", "minLength": -1}, "minLength"),
    ({"type": "string", "maxLength": 1.5}, "maxLength"),
    ({"type": "integer", "minimum": "1"}, "minimum"),
    ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, "exclusiveMinimum"),
    ({"type": "integer", "maximum": 10**400}, "maximum"),
    ({"type": "number", "exclusiveMinimum": 1e14, "maximum": 1e14 + 0.5}, "exclusiveMinimum"),
    ({"exclusiveMaximum": -1e14, "minimum": -1e14 - 0.5}, "exclusiveMaximum"),
    ({"type": "array", "items": [{"type": "null"}]}, "items"),
    ({"type": "object", "properties": []}, "properties"),
    ({"type": "object", "required": "a"}, "required"),
    ({"type": "object", "minProperties": 2}, "minProperties"),
    ({"$ref": "https://example.com/schema"}, "$ref"),
    ({"$ref": "#/$defs/none"}, "$ref"),
    ({"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}}, "$ref"),
    ({"anyOf": []}, "anyOf"),
    ({"$defs": {"unused": {"not": {}}}}, "$defs.unused.not"),
    ({"type": "object", "properties": {"a": {"items": {"not": {}}}}}, "properties.a.items.not"),
    ({"anyOf": [{"type": "null"}, {"not": {}}]}, "anyOf[1].not"),
]


def constraint_of(schema):
    return Constraint("json_schema", json.dumps(schema), param=WHERE)


def is_taken(tokenizer, schema, value):
    return takes(tokenizer, schema, json.dumps(value, ensure_ascii=False))


def takes(tokenizer, schema, text):
    matcher = compile_constraint(constraint_of(schema), tokenizer).matcher()
    for token in tokenizer.encode(text):
        if not matcher.accepts(token):
            return False
        matcher.advance(token)
    return matcher.is_accepting


@pytest.mark.parametrize(("schema", "fitting", "others"), HELD_TO, ids=lambda value: str(value)[:40])
def test_a_keyword_is_held_to(tokenizer, schema, fitting, others):
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    assert all(validator.is_valid(value) for value in fitting), "the test's own values"
    assert not any(validator.is_valid(value) for value in others), "the test's own values"
    assert [value for value in fitting if not is_taken(tokenizer, schema, value)] == []
    assert [value for value in others if is_taken(tokenizer, schema, value)] == []


SPANS = [
    (low, low + size)
    for low in (-9.9e13, -1e12, -12.0, -7.5, -1, -0.5, 0, 0.5, 7.0, 11, 1e6, 1e12, 9.9e13)
    for size in (0.25, 0.5, 1, 2.5)
]


@pytest.mark.parametrize("rest", [{"type": "number"}, {}, {"type": ["number", "null"]}], ids=str)
@pytest.mark.parametrize("excluded", ["exclusiveMinimum", "exclusiveMaximum"])
def test_an_excluded_bound_is_never_taken(tokenizer, excluded, rest):
    """However near the other bound is: the library takes -7 where it is excluded and at least -7.5 is asked."""
    for low, high in SPANS:
        is_low = excluded == "exclusiveMinimum"
        bound, names = (low, (excluded, "maximum")) if is_low else (high, ("minimum", excluded))
        schema = {**rest, names[0]: low, names[1]: high}
        for text in (f"{bound:.16g}", f"{bound:.2f}", f"{bound:.3f}"):
            assert not takes(tokenizer, schema, text), (schema, text)
        assert takes(tokenizer, schema, str((low + high) / 2)), schema


def test_an_excluded_bound_of_whole_numbers_stays_with_them(tokenizer):
    schema = {"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 9.0}
    assert [n for n in range(12) if is_taken(tokenizer, schema, n)] == [8]
    both = {"allOf": [{"type": "integer", "maximum": 9}, {"exclusiveMinimum": 7}]}
    assert [n for n in range(12) if is_taken(tokenizer, both, n)] == [8, 9]


@pytest.mark.parametrize(("schema", "place"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_keyword_that_is_not_held_to_is_refused_with_its_place(tokenizer, schema, place):
    with pytest.raises(RequestError) as raised:
        compile_constraint(constraint_of(schema), tokenizer)
    assert raised.value.param == f"{WHERE}.{place}"
    assert place.split(".")[-1] in raised.value.message


def test_a_bound_that_is_read_as_infinity_is_refused(tokenizer):
    with pytest.raises(RequestError, match="below 1e"):
        compile_constraint(Constraint("json_schema", '{"type": "number", "exclusiveMaximum": 1e400}'), tokenizer)


@pytest.mark.parametrize("key", ["title", "description", "default", "examples", "$comment", "deprecated", "x-order"])
def test_what_says_nothing_about_values_is_taken(tokenizer, key):
    assert is_taken(tokenizer, {"type": "integer", key: "anything"}, 1)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"allOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "pattern": "("},
    ],
    ids=str,
)
def test_what_the_library_cannot_hold_to_or_nothing_fits_is_refused_before_generation(tokenizer, schema):
    with pytest.raises(RequestError) as raised:
        compile_constraint(constraint_of(schema), tokenizer)
    assert raised.value.param == WHERE
    assert "FREE" not in raised.value.message, "no grammar of ours is shown"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"anyOf": [{"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, {"$ref": "#"}]},
    ],
    ids=str,
)
def test_a_schema_whose_values_have_no_end_is_refused(schema):
    with pytest.raises(RequestError, match="no finite value"):
        parse_schema(json.dumps(schema), WHERE)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": ["array", "null"], "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 0},
    ],
    ids=str,
)
def test_recursion_that_can_stop_is_fine(tokenizer, schema):
    compile_constraint(constraint_of(schema), tokenizer)


@pytest.mark.parametrize("text", ["{", "[]", "1", "null", '{"a": 1, "a": 2}', '{"minimum": NaN}', "[" * 100_000])
def test_a_text_that_is_no_schema_is_refused(text):
    with pytest.raises(RequestError) as raised:
        parse_schema(text, WHERE)
    assert raised.value.param == WHERE


def test_a_schema_nested_too_deeply_is_refused():
    schema = {"type": "null"}
    for _ in range(MAX_DEPTH + 2):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="levels deep"):
        parse_schema(json.dumps(schema), WHERE)


def test_objects_that_several_schemas_describe_together_are_left_open(tokenizer):
    parts = [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}]
    assert is_taken(tokenizer, {"type": "object", "allOf": parts}, {"a": 1, "b": 2})


def test_bug_57_no_schema_ever_leads_where_nothing_is_legal(tokenizer):
    for seed, (schema, _, _) in enumerate(HELD_TO):
        rng, matcher = random.Random(seed), compile_constraint(constraint_of(schema), tokenizer).matcher()
        for _ in range(60):
            legal = np.flatnonzero(matcher.allowed()).tolist()
            assert legal
            matcher.advance(rng.choice(legal))
            if matcher.ended:
                break
