"""Copied text: values in whole words of what was asked, held against the plain definition on random texts."""

import json
import random
import re

import numpy as np
import pytest
from tokenizers import normalizers, pre_tokenizers

import fourleaf.text.tokenizer
from fourleaf.diffusion.constraint import take
from fourleaf.errors import RequestError
from fourleaf.text.constraint import Constraint, Tool, Tools
from fourleaf.text.copied import KEYWORD, Asked, copied_paths
from fourleaf.text.grammar import compile_constraint
from fourleaf.text.tokenizer import Tokenizer, train_tokenizer

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
        (schema_of(a={"anyOf": [{**COPIED, KEYWORD: 1}, {"type": "null"}]}), r"properties\.a\.anyOf"),
        (schema_of(a=COPIED, b={"$ref": "#/properties/a"}), r"#/properties/a"),
        (schema_of(a=COPIED, b={"anyOf": [{"$ref": "#"}, {"type": "null"}]}), r'"\$ref": "#"'),
        (schema_of(a={"type": "array", "prefixItems": [{"type": "string"}], "items": COPIED}), r"properties\.a\.items"),
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
    assert copied_paths(schema_of(a={"enum": [{KEYWORD: True}], "examples": [{KEYWORD: True}]})) == {}
    assert copied_paths(tools_of(PLAY)) == {"t0": {("arguments", "query")}}


def walked(matcher, rng, most=60):
    """Random legal tokens, each said of alike by all that can be asked; `matcher` stands behind them."""
    tokens = []
    while not matcher.ended and len(tokens) < most:
        mask = matcher.allowed()
        assert mask.any(), tokens
        asked = [*np.flatnonzero(mask)[:40].tolist(), *rng.sample(range(len(mask)), 40)]
        assert all(matcher.allows(i) == mask[i] for i in asked)
        if forced := matcher.forced():
            assert np.flatnonzero(mask).tolist() == forced[:1]
        token = int(rng.choice(np.flatnonzero(mask)))
        matcher.advance(token)
        tokens.append(token)
        if not matcher.copying.forced():
            matcher.copying._sure = None  # what was kept from token to token is what is found anew
            assert not matcher.copying.forced()
    return tokens


@pytest.mark.parametrize("asked", ["call Mia ", " \n\t ", "Mia \x00 Bo", "Mia \ufffd ", "Bo\u2028\u200d", "\u0301 "])
def test_no_way_leads_to_spaces_that_nothing_follows(tokenizer, asked):
    grammar = compile_constraint(schema_of(a=COPIED, b=COPIED), tokenizer)
    for seed in range(5):
        walked(grammar.matcher([*tokenizer.encode(asked), tokenizer.end_id]), random.Random(seed))


@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        ("cafe\u0301s", ["cafe", "cafe\u0301", "\u0301s", "s"]),
        ("हिन्दी", ["ह", "हि", "दी"]),
        ("می\u200cخواهم", ["می", "خواهم"]),
        ("\U0001f468\u200d\U0001f469\U0001f3fb", ["\U0001f468", "\U0001f469", "\U0001f468\u200d"]),
        ("\U0001f1e9\U0001f1ea", ["\U0001f1e9", "\U0001f1ea"]),
        ("3\u00a0000", ["00"]),
        ("سلام שלום", ["سل", "לום"]),
        ("\ue000\uffff\U0010ffff", []),
    ],
)
def test_a_character_stays_with_the_marks_and_joiners_behind_it(tokenizer, whole, parts):
    for value, is_fine in ((whole, True), *((part, False) for part in parts)):
        text = json.dumps({"a": value}, ensure_ascii=False)
        assert is_taken(tokenizer, schema_of(a=COPIED), text, f"so {whole}, now") == is_fine, value


@pytest.mark.parametrize("reasoning", ["none", "optional", "open"])
def test_values_are_held_to_the_prompt_behind_a_thought_and_without_one(tokenizer, reasoning):
    said = {"optional": ["", '<think>a "b": {"a": "green</think>'], "open": ['{"a": "green</think>'], "none": [""]}
    constraint = Constraint("json_schema", schema_of(a=COPIED).value, reasoning)
    for thought in said[reasoning]:
        assert is_taken(tokenizer, constraint, thought + '{"a": "moon"}')
        assert not is_taken(tokenizer, constraint, thought + '{"a": "green"}')


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_text_that_is_no_call_is_free_behind_a_thought(tokenizer, choice):
    tools = Tools((Tool("t0", json.dumps(PLAY)),), choice)
    free = 'so {"\\x": "{", "name": "t0", "arguments": {"query": "green"}}'
    assert is_taken(tokenizer, Constraint("tools", tools, "open"), "well</think>" + free)


def test_an_answer_in_a_format_beside_tools_is_held_to_the_prompt_too(tokenizer):
    form = schema_of(name=COPIED, arguments=COPIED)
    for choice in ("auto", "none"):
        tools = Tools((Tool("t0", json.dumps(PLAY)), Tool("moon", json.dumps(PLAY))), choice, otherwise=form)
        constraint = Constraint("tools", tools)
        assert is_taken(tokenizer, constraint, '{"name": "moon", "arguments": "Blue"}')
        assert not is_taken(tokenizer, constraint, '{"name": "t0", "arguments": "Blue"}')
        assert not is_taken(tokenizer, constraint, '{"name": "moon", "arguments": "green"}')
    call = '<tool_call>{"name": "t0", "arguments": {"query": "%s", "kind": "x"}}</tool_call>'
    free = Constraint("tools", Tools((Tool("t0", json.dumps(PLAY)),), otherwise=form))
    assert is_taken(tokenizer, free, call % "moon")
    assert not is_taken(tokenizer, free, call % "green")


def test_keys_that_look_like_a_call_or_like_nothing_are_keys(tokenizer):
    inner = {"type": "object", "properties": {"name": {"type": "string"}, "": COPIED}, "required": ["name", ""]}
    names = {"name": COPIED, "arguments": inner}
    schema = {"type": "object", "properties": names, "required": list(names)}
    call = '<tool_call>{"name": "t0", "arguments": {"name": "%s", "arguments": {"name": "%s", "": "%s"}}}</tool_call>'
    assert is_taken(tokenizer, tools_of(schema), call % ("moon", "t1", "Play"))
    assert not is_taken(tokenizer, tools_of(schema), call % ("t0", "t1", "Play"))
    assert not is_taken(tokenizer, tools_of(schema), call % ("moon", "t1", "green"))


def test_a_tool_that_cannot_be_called_is_no_reason_to_refuse(tokenizer):
    offered = (Tool("t0", json.dumps(PLAY)), Tool("t1"))
    for tools in (Tools(offered, "named", "t1", markup="xml"), Tools(offered, "none", markup="xml")):
        assert copied_paths(Constraint("tools", tools)) == {}


def test_the_prompt_is_read_once_and_only_for_a_copied_value(tokenizer, monkeypatch):
    read, of = [], Asked.of
    monkeypatch.setattr(Asked, "of", lambda *args: read.append(1) or of(*args))
    matcher = compile_constraint(schema_of(free={"type": "string"}, a=COPIED), tokenizer).matcher(
        tokenizer.encode(ASKED)
    )
    for token in tokenizer.encode('{"free": "any \\"thing\\"", "a"'):
        matcher.allowed()
        matcher.advance(token)
    assert not read
    twin = matcher.copy()
    for one in (matcher, twin):
        for token in tokenizer.encode(': "Blue moon"}'):
            one.allowed()
            one.advance(token)
    assert len(read) == 1


def test_an_answer_in_a_long_word_comes_to_its_end_in_time(tokenizer):
    word = "".join(random.Random(1).choice("abcdefghijklmnop") for _ in range(320))
    prompt = tokenizer.encode(f"send {word} or {word[:100]}x on")
    grammar = compile_constraint(schema_of(a=COPIED), tokenizer)
    wanted = tokenizer.encode(json.dumps({"a": word}))
    for limit in (len(wanted) // 2, len(wanted) - 20, len(wanted) + 1):
        matcher, tokens = grammar.matcher(prompt), []
        while not matcher.ended and len(tokens) < limit:
            mask = matcher.allowed()
            token = (
                wanted[len(tokens)] if len(tokens) < len(wanted) and mask[wanted[len(tokens)]] else int(mask.argmax())
            )
            tokens.append(take(matcher, token, limit - len(tokens), tokenizer.end_id))
        assert matcher.ended, limit
        assert json.loads(tokenizer.decode(tokens[:-1]))["a"] in ("", word)


def test_a_tokenizer_that_joins_anything_and_one_that_normalises(tokenizer, corpus, monkeypatch):
    joined = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    monkeypatch.setattr(fourleaf.text.tokenizer, "_pre_tokenizer", lambda: joined)
    texts = [json.dumps({"a": text, "b": ["moon", text]}) for text in corpus[:300]]
    wild = train_tokenizer(texts, 900)
    assert sum(b'"' in wild.token_bytes(i) and len(wild.token_bytes(i)) > 3 for i in range(wild.vocab_size)) > 10
    inner = type(wild._inner).from_str(tokenizer._inner.to_str())
    inner.normalizer = normalizers.NFC()
    asked = 'call "Mia" at the moon cafe\u0301 \\ or cafe\u0301\'s, b": ["c'
    for one in (wild, Tokenizer(inner)):
        prompt = [i for char in asked for i in one.encode(char)] if one is not wild else one.encode(asked)
        grammar = compile_constraint(schema_of(a=COPIED, b={"type": "array", "items": COPIED}), one)
        for seed in range(8):
            walked(grammar.matcher(prompt), random.Random(seed))
    # Composed, "e" and its mark are other bytes than those asked for.
    matcher = compile_constraint(schema_of(a=COPIED), Tokenizer(inner)).matcher(prompt)
    for token in tokenizer.encode('{"a": "caf'):
        matcher.advance(token)
    assert not matcher.forced()
    assert matcher.accepts(tokenizer.encode("e")[0])


def test_an_id_without_text_in_a_prompt_is_nothing(tokenizer):
    matcher = compile_constraint(schema_of(a=COPIED), tokenizer).matcher([tokenizer.vocab_size + 3])
    walked(matcher, random.Random(0))
