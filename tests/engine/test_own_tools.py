"""What a model with tools in its weights is held to by default, and that walking by single tokens changes nothing."""

import itertools
import json
from dataclasses import replace

import pytest

from fourleaf.engine.core import Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.text.constraint import Constraint, taught
from fourleaf.text.router import Router, fold

pytest.importorskip("llguidance")

LEVEL = {
    "type": "object",
    "properties": {"zone": {"enum": ["front", "rear"]}, "level": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["zone", "level"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": LEVEL}} for name in ("heat", "cool")]
MODES = pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
PROMPTS = [[20 + seed] * (9 + seed) for seed in range(3)]


@pytest.fixture
def engine(random_engine) -> Engine:
    """A model that says nothing sensible, with two tools that are said to be in its weights."""
    found = Engine("own", random_engine.model, random_engine.tokenizer, random_engine.chat, Limits(num_pages=64))
    found.taught = taught(TOOLS, "json", "")
    return found


@pytest.fixture
def calling(engine) -> GenerateParams:
    """Begins with a call, which a random model would do once in a thousand answers."""
    tag = engine.tokenizer.controls["<tool_call>"]
    return GenerateParams(mode="ar", max_tokens=40, threshold=0.3, logit_bias=((tag, 60.0),))


def answer(engine: Engine, params: GenerateParams, prompt: list[int]) -> tuple[list[int], str | None]:
    deltas = list(engine.generate(prompt, params))
    return [token for delta in deltas for token in delta.tokens], deltas[-1].finish_reason


@MODES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_is_text_or_calls_of_own_tools(engine, calling, mode, temperature):
    params = replace(calling, mode=mode, temperature=temperature, seed=3, max_tokens=90)
    num_calls = 0
    for prompt in PROMPTS:
        tokens, _ = answer(engine, params, prompt)
        router = Router(engine.tokenizer)
        message = fold([*router.feed(tokens), *router.finish()])
        for call in message.tool_calls:
            values = json.loads(call.arguments_json)
            assert call.name in ("heat", "cool")
            assert values["zone"] in ("front", "rear")
            assert 0 <= values["level"] <= 99
        num_calls += len(message.tool_calls)
    assert num_calls > 0


def test_draft_says_what_ar_says_under_the_default(engine, calling):
    for params in (calling, replace(calling, logit_bias=())):
        for prompt in PROMPTS:
            assert answer(engine, replace(params, mode="draft"), prompt) == answer(engine, params, prompt)
        assert (
            engine.generate_many(PROMPTS, replace(params, mode="draft"))[0][0] == answer(engine, params, PROMPTS[0])[0]
        )


@MODES
def test_walking_by_single_tokens_gives_what_masks_of_all_give(engine, calling, mode):
    """Who asks for log-probabilities wants to know how probable the grammar makes a token: those answers take the plain
    way, a mask and a renormalisation for each row."""
    schema = Constraint("json_schema", json.dumps(LEVEL))
    for params in (calling, replace(calling, logit_bias=()), replace(calling, logit_bias=(), constraint=schema)):
        params = replace(params, mode=mode)
        for prompt in PROMPTS:
            quick, plain = answer(engine, params, prompt), answer(engine, replace(params, logprobs=0), prompt)
            assert quick == plain
        together = engine.generate_many(PROMPTS, params)
        assert [tokens for tokens, _ in together] == [answer(engine, params, prompt)[0] for prompt in PROMPTS]


@MODES
def test_penalties_are_heeded_by_single_tokens_too(engine, calling, mode):
    params = replace(calling, mode=mode, presence_penalty=1.5, repetition_penalty=1.2)
    for prompt in PROMPTS[:3]:
        assert answer(engine, params, prompt) == answer(engine, replace(params, logprobs=0), prompt)


def test_what_nobody_holds_an_answer_to(engine, calling):
    held = [answer(engine, calling, prompt) for prompt in PROMPTS]
    free = replace(calling, grammar=False)
    others = {
        "off": free,
        "raw": replace(calling, raw=True),
        "policy": replace(calling, policy="entropy"),
    }
    engine_without = Engine("plain", engine.model, engine.tokenizer, engine.chat, Limits(num_pages=64))
    expected = [answer(engine_without, free, prompt) for prompt in PROMPTS]
    assert expected != held
    for name, params in others.items():
        assert [answer(engine, params, prompt) for prompt in PROMPTS] == expected, name


def test_a_constraint_that_is_given_goes_before(engine):
    params = GenerateParams(mode="ar", constraint=Constraint("choices", ("yes", "no")))
    tokens, _ = answer(engine, params, PROMPTS[0])
    assert engine.tokenizer.decode(tokens) in ("yes", "no")


def test_what_follows_for_certain_is_not_on_the_next_canvas(engine, calling):
    """A block that ends in the middle of a name is followed by the rest of the name without a pass."""
    frames = []
    params = replace(calling, mode="diffuse", max_tokens=60)
    sequence = engine.admit(PROMPTS[0], params, frames.append)
    ticket = engine.submit(sequence, lambda _: None)
    while sequence.finish_reason is None:
        engine._drive()
    engine.cancel(ticket)
    starts = sorted({frame.block_start for frame in frames})
    size = engine.model.config.block_size
    assert any(later - earlier > size for earlier, later in itertools.pairwise(starts))
