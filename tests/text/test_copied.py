"""Copied text: values in whole words of what was asked, held against the plain definition on random texts."""

import json
import random
import re

import numpy as np
import pytest

from fourleaf.errors import RequestError
from fourleaf.text.constraint import Constraint, Tool, Tools
from fourleaf.text.copied import KEYWORD, copied_paths
from fourleaf.text.grammar import compile_constraint

pytest.importorskip("llguidance")

COPIED = {"type": "string", KEYWORD: True}
PLAY = {"type": "object", "properties": {"query": COPIED, "kind": {"type": "string"}}, "required": ["query", "kind"]}
ASKED = 'Play "Blue moon" by Zoë Ngô-Smith, then call Dr. O\'Hara: a\\b, 3.5 km — 日本語です'


def tools_of(*schemas, markup="json"):
    offered = tuple(Tool(f"t{i}", json.dumps(schema)) for i, schema in enumerate(schemas))
    return Constraint("tools", Tools(offered, "required", markup=markup), param="tools")


def schema_of(**properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Constraint("json_schema", json.dumps(schema))


def is_taken(tokenizer, constraint, text, asked=ASKED):
    matcher = compile_constraint(constraint, tokenizer).matcher(tokenizer.encode(asked))
    for token in tokenizer.encode_markup(text):
        taken = matcher.accepts(token)
        assert taken or not matcher.allows(token)
        if not taken:
            return False
        matcher.advance(token)
    return matcher.is_accepting


def is_copied(value: str, asked: str = ASKED) -> bool:
    """The definition: empty, or in the text without cutting a word or beginning or ending with space."""
    if not value or value != value.strip():
        return not value
    for found in re.finditer(f"(?={re.escape(value)})", asked):
        begin, end = found.start(), found.start() + len(value)
        edges = [asked[max(0, i - 1) : i + 1] for i in (begin, end) if 0 < i < len(asked)]
        if all(not re.fullmatch(r"[a-zA-Zëô0-9]{2}", edge) for edge in edges):
            return True
    return False


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Blue",
        "Blue moon",
        '"Blue moon"',
        "Zoë Ngô-Smith",
        "Ngô",
        "Smith, then call",
        "O'Hara",
        "a\\b",
        "3.5 km",
        "日",
        "語です",
    ],
)
def test_whole_words_of_what_was_asked_are_taken(tokenizer, value):
    assert is_copied(value)
    assert is_taken(tokenizer, schema_of(a=COPIED), json.dumps({"a": value}, ensure_ascii=False))


@pytest.mark.parametrize(
    "value", ["Bluemoon", "Blue  moon", "lue", "Blu", "blue", "Zoe", "moon by Zoë then", "本日", " by"]
)
def test_nothing_else_is(tokenizer, value):
    assert not is_copied(value)
    assert not is_taken(tokenizer, schema_of(a=COPIED), json.dumps({"a": value}, ensure_ascii=False))
    assert is_taken(tokenizer, schema_of(a={"type": "string"}), json.dumps({"a": value}, ensure_ascii=False))


def test_every_random_answer_is_copied_and_comes_to_an_end(tokenizer):
    constraint = tools_of(PLAY, {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]})
    grammar = compile_constraint(constraint, tokenizer)
    prompt, values = tokenizer.encode(ASKED), set()
    for seed in range(60):
        rng, matcher, tokens = random.Random(seed), grammar.matcher(prompt), []
        while not matcher.ended and len(tokens) < 120:
            allowed = np.flatnonzero(matcher.allowed())
            token = int(rng.choice(allowed))
            assert matcher.allows(token)
            assert matcher.accepts(token)
            matcher.advance(token)
            tokens.append(token)
        text = tokenizer.decode(tokens)
        for name, query in re.findall(r'"name": "(t\d)", "arguments": \{"query": "((?:[^"\\]|\\.)*)"', text):
            if name == "t0":
                values.add(json.loads(f'"{query}"'))
        if not matcher.ended:
            ending = matcher.ending(4_000)
            assert ending, text
    assert len(values) > 15
    assert all(is_copied(value) for value in values), values


def test_a_mask_says_of_each_token_what_is_asked_of_it_alone(tokenizer):
    matcher = compile_constraint(tools_of(PLAY), tokenizer).matcher(tokenizer.encode(ASKED))
    written = {"name": "t0", "arguments": {"query": '"Blue moon" by Zoë', "kind": "anything at all"}}
    for token in tokenizer.encode_markup(f"<tool_call>{json.dumps(written, ensure_ascii=False)}</tool_call>"):
        mask = matcher.allowed()
        assert mask[token]
        assert [matcher.allows(i) for i in range(len(mask))] == mask.tolist()
        twin = matcher.copy()
        twin.advance(token)
        matcher.adopt(twin)


def test_values_below_objects_and_lists_are_copied_too(tokenizer):
    inner = {"type": "object", "properties": {"b": COPIED}, "required": ["b"]}
    constraint = schema_of(a=inner, list={"type": "array", "items": COPIED}, free={"type": "string"})
    fine = '{"a": {"b": "Blue moon"}, "list": ["Play", "3.5"], "free": "green"}'
    assert is_taken(tokenizer, constraint, fine)
    for word in ("Blue moon", "3.5"):
        assert not is_taken(tokenizer, constraint, fine.replace(word, "green"))


def test_each_tool_has_copied_values_of_its_own_and_text_between_calls_is_free(tokenizer):
    free = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    constraint = Constraint("tools", Tools((Tool("a", json.dumps(PLAY)), Tool("b", json.dumps(free)))), param="tools")
    call = '<tool_call>{"name": "%s", "arguments": {"query": "%s"%s}}</tool_call>'
    kind = ', "kind": "x"'
    assert is_taken(
        tokenizer, constraint, 'So {"query": "green"}: ' + call % ("a", "moon", kind) + call % ("b", "green", "")
    )
    assert not is_taken(tokenizer, constraint, call % ("b", "green", "") + call % ("a", "green", kind))


def test_no_value_goes_across_a_control_token(tokenizer):
    prompt = [*tokenizer.encode("call Mia"), tokenizer.end_id, *tokenizer.encode("-Now")]
    grammar = compile_constraint(schema_of(a=COPIED), tokenizer)
    for value, is_fine in (("Mia", True), ("Now", True), ("Mia-Now", False), ("end", False)):
        matcher = grammar.matcher(prompt)
        ids, taken = tokenizer.encode(json.dumps({"a": value})), True
        for token in ids:
            taken = taken and matcher.accepts(token)
            if taken:
                matcher.advance(token)
        assert taken == is_fine, value


def test_without_a_prompt_only_the_empty_text_is_left(tokenizer):
    assert is_taken(tokenizer, schema_of(a=COPIED), '{"a": ""}', asked="")
    assert not is_taken(tokenizer, schema_of(a=COPIED), '{"a": "x"}', asked="")


@pytest.mark.parametrize(
    ("constraint", "place"),
    [
        (schema_of(a={**COPIED, "maxLength": 5}), r"properties\.a\.x-copied"),
        (schema_of(a={"type": "integer", KEYWORD: True}), r"properties\.a\.x-copied"),
        (schema_of(a={"type": "string", KEYWORD: "yes"}), r"properties\.a\.x-copied"),
        (schema_of(a={"anyOf": [COPIED, {"type": "null"}]}), r"properties\.a\.anyOf"),
        (tools_of(PLAY, markup="xml"), r"tools\[0\]\.function\.parameters"),
    ],
)
def test_where_it_cannot_be_held_to_the_place_is_named(tokenizer, constraint, place):
    with pytest.raises(RequestError, match=place) as caught:
        compile_constraint(constraint, tokenizer)
    assert caught.value.code in ("unsupported_schema", "unsupported_value")


def test_nothing_is_copied_where_nothing_says_so():
    assert copied_paths(schema_of(a={"type": "string", KEYWORD: False})) == {}
    assert copied_paths(Constraint("regex", "a+")) == {}
    assert copied_paths(tools_of(PLAY)) == {"t0": {("arguments", "query")}}
