"""Calls under the XML-like markup: what the grammar lets through is read back as arguments that fit the schema."""

import json
import random

import jsonschema
import numpy as np
import pytest

from fourleaf.errors import RequestError
from fourleaf.text.calls import Markup, read_call
from fourleaf.text.constraint import Constraint, Tool, Tools
from fourleaf.text.grammar import compile_constraint
from fourleaf.text.markup import grammar_text

XML = Markup("xml", lines=True)
EVERY_KIND = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "short": {"type": "string", "minLength": 2, "maxLength": 5},
        "word": {"enum": ["rear left", "all", "1"]},
        "maybe": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "number": {"type": "integer", "minimum": -3, "maximum": 30},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "nested": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
        "shared": {"$ref": "#/$defs/shared"},
        "any": {},
    },
    "required": ["text", "word", "number", "nested"],
    "$defs": {"shared": {"type": "string", "enum": ["x", "y"]}},
}


def constraint_of(schema, choice="required", **settings):
    tools = Tools((Tool("act", json.dumps(schema)),), choice, markup="xml", separator="\n", **settings)
    return Constraint("tools", tools, param="tools")


def is_taken(tokenizer, constraint, text):
    matcher = compile_constraint(constraint, tokenizer).matcher()
    for token in tokenizer.encode_markup(text):
        if not matcher.accepts(token):
            return False
        matcher.advance(token)
    return matcher.is_accepting


def call_of(*parameters):
    lines = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters)
    return f"<tool_call>\n<function=act>\n{lines}</function>\n</tool_call>"


def test_every_call_that_the_grammar_lets_through_is_read_as_arguments_that_fit(tokenizer):
    validator = jsonschema.Draft202012Validator({**EVERY_KIND, "additionalProperties": False})
    constraint = constraint_of(EVERY_KIND, parallel=False)
    for seed in range(40):
        rng, matcher, tokens = random.Random(seed), compile_constraint(constraint, tokenizer).matcher(), []
        while not matcher.ended:
            if rng.random() < 0.04:  # let the value at hand come to its end
                tokens += (ending := matcher.ending(1000) or [])
                for token in ending:
                    matcher.advance(token)
                break
            tokens.append(rng.choice(np.flatnonzero(matcher.allowed()).tolist()))
            matcher.advance(tokens[-1])
        body = tokenizer.decode(tokens).removeprefix("<tool_call>").removesuffix("</tool_call><|end|>")
        call = read_call(body, XML, {"act": EVERY_KIND})
        assert call is not None, body
        assert list(validator.iter_errors(json.loads(call.arguments_json))) == [], body


def test_a_string_stands_as_it_is_and_ends_at_its_closing_tag(tokenizer):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    for value in ("plain", "", 'with "quotes"', "two\nlines\n", "<b>bold</b>", "{}"):
        assert is_taken(tokenizer, constraint_of(schema), call_of(("a", value)))
    assert not is_taken(tokenizer, constraint_of(schema), call_of(("a", "</parameter>")))
    assert not is_taken(tokenizer, constraint_of(schema), call_of(("b", "x")))
    assert not is_taken(tokenizer, constraint_of(schema), call_of())


def test_limits_of_a_string_are_held_to(tokenizer):
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 3}}}
    assert [n for n in range(5) if is_taken(tokenizer, constraint_of(schema), call_of(("a", "é" * n)))] == [2, 3]


def test_several_calls_stand_on_lines_of_their_own(tokenizer):
    constraint = constraint_of({"type": "object", "properties": {}})
    assert is_taken(tokenizer, constraint, f"{call_of()}\n{call_of()}")
    assert not is_taken(tokenizer, constraint, call_of() + call_of())


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "^x"}}}, ".properties.a.pattern"),
        ({"properties": {"a": {"type": "string", "format": "date"}}}, ".properties.a.format"),
        ({"properties": {"a": {"type": ["string", "integer"], "minimum": 3}}}, ".properties.a"),
        ({"properties": {"a b": {"type": "string"}}}, ".properties.a b"),
        ({"properties": {"a": {"enum": ["</parameter>"]}}}, ".properties.a.enum"),
        ({"properties": {"a": {}}, "minProperties": 1}, ".minProperties"),
        ({"properties": {"a": {}}, "required": ["b"]}, ".required"),
        ({"anyOf": [{"type": "object"}]}, ".anyOf"),
        ({"type": "string"}, ".type"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_markup_cannot_say_is_refused_with_its_place(tokenizer, schema, place):
    with pytest.raises(RequestError) as raised:
        compile_constraint(constraint_of(schema), tokenizer)
    assert raised.value.param == f"tools[0].function.parameters{place}"


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        (Tools((Tool("a b"),), "required"), "tools[0].function.name"),
        (Tools((Tool("a"), Tool("a")), "required"), "tools"),
        (Tools((Tool("a"),), "named", "b"), "tools"),
        (Tools((), "required"), "tools"),
        (Tools((Tool("a"), Tool("b", '{"not": {}}'))), "tools[1].function.parameters.not"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(tokenizer, tools, place):
    with pytest.raises(RequestError) as raised:
        compile_constraint(Constraint("tools", tools, param="tools"), tokenizer)
    assert raised.value.param == place


def test_a_model_without_the_tags_is_told_so():
    with pytest.raises(RequestError, match="<tool_call>"):
        grammar_text(Constraint("tools", Tools((Tool("a"),)), param="tools"), {"<|end|>": 0})
