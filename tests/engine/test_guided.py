"""Answers under a grammar, in every mode: they parse, and `draft` says what constrained `ar` says."""

import json
import re
from dataclasses import replace

import pytest

from fourleaf.engine.core import Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.text.constraint import Constraint

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"zone": {"enum": ["front", "rear"]}, "level": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["zone", "level"],
    "additionalProperties": False,
}
MODES = pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])


def answer(engine: Engine, params: GenerateParams, prompt: list[int] | None = None) -> tuple[str, str | None, int]:
    """(text, how it ended, forwards)."""
    engine = Engine(engine.name, engine.model, engine.tokenizer, engine.chat, Limits(num_pages=32), checks=True)
    deltas = list(engine.generate(prompt or [20] * 9, params))
    tokens = [token for delta in deltas for token in delta.tokens]
    usage = deltas[-1].usage
    assert usage is not None
    return engine.tokenizer.decode(tokens), deltas[-1].finish_reason, usage.forwards


@MODES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_holds(random_engine, mode, temperature):
    constraint = Constraint("json_schema", json.dumps(SCHEMA))
    for seed in range(3):
        params = GenerateParams(
            mode=mode, temperature=temperature, seed=seed, max_tokens=60, threshold=0.3, constraint=constraint
        )
        text, end, _ = answer(random_engine, params, [20 + seed] * 9)
        assert end == "stop"
        value = json.loads(text)
        assert value["zone"] in ("front", "rear")
        assert 0 <= value["level"] <= 99


@MODES
def test_an_expression_and_choices_hold(random_engine, mode):
    params = GenerateParams(mode=mode, max_tokens=40, constraint=Constraint("regex", "[a-c]{3}-[0-9]{2,9}!"))
    text, end, _ = answer(random_engine, params)
    assert end == "stop"
    assert re.fullmatch("[a-c]{3}-[0-9]{2,9}!", text)
    choices = ("yes, at once", "no", "not today")
    text, end, _ = answer(random_engine, replace(params, constraint=Constraint("choices", choices)))
    assert end == "stop"
    assert text in choices


def test_draft_says_what_constrained_ar_says(random_engine):
    for seed in range(4):
        params = GenerateParams(mode="ar", max_tokens=60, constraint=Constraint("json_schema", json.dumps(SCHEMA)))
        prompt = [30 + seed] * (9 + seed)
        drafted = replace(params, mode="draft")
        assert answer(random_engine, drafted, prompt)[:2] == answer(random_engine, params, prompt)[:2]


@MODES
def test_what_is_forced_costs_no_forward(random_engine, mode):
    text = "the only thing that may be said"
    params = GenerateParams(mode=mode, max_tokens=60, constraint=Constraint("choices", (text,)))
    said, end, forwards = answer(random_engine, params)
    assert (said, end) == (text, "stop")
    blocks = -(-len(text) // 8)
    assert forwards <= (blocks if mode == "diffuse" else 2)


@MODES
def test_an_answer_is_closed_while_there_is_room(random_engine, mode):
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    params = GenerateParams(
        mode=mode, temperature=1.0, max_tokens=30, constraint=Constraint("json_schema", json.dumps(schema))
    )
    for seed in range(3):
        text, end, _ = answer(random_engine, replace(params, seed=seed))
        assert end == "stop"
        assert isinstance(json.loads(text)["text"], str)
