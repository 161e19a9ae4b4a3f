"""Copied text in every mode: values are words of the prompt, and `draft` says what `ar` says under it."""

import json
from dataclasses import replace

import pytest

from fourleaf.engine.core import Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.engine.template import Gap
from fourleaf.errors import RequestError
from fourleaf.text.constraint import Constraint, Tool, Tools

pytest.importorskip("llguidance")

COPIED = {"type": "string", "x-copied": True}
SCHEMA = {
    "type": "object",
    "properties": {"name": COPIED, "sure": {"type": "boolean"}, "text": COPIED},
    "required": ["name", "sure", "text"],
}
ASKED = 'Tell "Zoë" the\ntrain is late, late; tell Zoltan nothing '
FORM = Constraint("json_schema", json.dumps(SCHEMA))
CALLS = Constraint("tools", Tools((Tool("tell", json.dumps(SCHEMA)), Tool("tell_not", json.dumps(SCHEMA))), "required"))


def answer(engine: Engine, params: GenerateParams, asked: str = ASKED) -> tuple[list[int], str | None]:
    engine = Engine(engine.name, engine.model, engine.tokenizer, engine.chat, Limits(num_pages=64), checks=True)
    deltas = list(engine.generate([*engine.tokenizer.encode(asked), engine.end_id], params))
    return [token for delta in deltas for token in delta.tokens], deltas[-1].finish_reason


def is_copied(value: str) -> bool:
    """Words of the text, or nothing."""
    text = f" {ASKED}"
    begin = text.find(value)
    while begin > 0:
        around = text[begin - 1] + value[:1], value[-1:] + text[begin + len(value)]
        if not value or (value == value.strip() and not any(edge.isalpha() for edge in around)):
            return True
        begin = text.find(value, begin + 1)
    return not value


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse", "auto"])
def test_values_are_words_of_the_prompt(random_engine, mode):
    seen = set()
    for seed, temperature, limit in ((0, 0.0, 120), (1, 1.0, 120), (2, 1.5, 60)):
        params = GenerateParams(mode=mode, temperature=temperature, seed=seed, max_tokens=limit, threshold=0.3)
        tokens, end = answer(random_engine, replace(params, constraint=FORM))
        assert end == "stop"
        value = json.loads(random_engine.tokenizer.decode(tokens))
        seen |= {value["name"], value["text"]}
    assert all(map(is_copied, seen)), seen
    assert seen != {""}


@pytest.mark.parametrize("constraint", [FORM, CALLS], ids=["form", "calls"])
def test_draft_says_what_ar_says(random_engine, constraint):
    for asked, limit in ((ASKED, 150), (ASKED, 75), ("Zoë\t", 90), ("", 80)):
        params = GenerateParams(mode="ar", max_tokens=limit, constraint=constraint)
        assert answer(random_engine, replace(params, mode="draft"), asked) == answer(random_engine, params, asked)


@pytest.mark.parametrize("mode", ["ar", "diffuse"])
def test_a_gap_within_a_copied_value_is_filled_from_the_prompt(random_engine, mode):
    encode = random_engine.tokenizer.encode
    for before, after in (("", ""), ("Zol", "n"), ("the\\ntr", "")):
        infill = (
            tuple(encode(f'{{"name": "{before}')),
            Gap(16),
            tuple(encode(f'{after}", "sure": true, "text": ""}}')),
        )
        for seed, temperature in ((0, 0.0), (1, 1.0)):
            params = GenerateParams(mode=mode, temperature=temperature, seed=seed, constraint=FORM, infill=infill)
            tokens, end = answer(random_engine, params)
            assert end == "stop"
            name = json.loads(random_engine.tokenizer.decode(tokens))["name"]
            assert is_copied(name), name
    with pytest.raises(RequestError, match="part 0"):
        answer(random_engine, replace(params, infill=(tuple(encode('{"name": "gr')), Gap(5), tuple(encode('"}')))))
