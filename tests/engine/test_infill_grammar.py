"""Templates under a grammar: the whole answer obeys it, and a template that cannot is refused before anything runs."""

import json
import re
from dataclasses import replace

import pytest

from fourleaf.engine.core import Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.engine.template import Gap
from fourleaf.errors import RequestError
from fourleaf.text.constraint import Constraint

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"zone": {"enum": ["front", "rear"]}, "level": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["zone", "level"],
    "additionalProperties": False,
}


def said(engine: Engine, params: GenerateParams, prompt: list[int]) -> tuple[str, str | None]:
    engine = Engine(engine.name, engine.model, engine.tokenizer, engine.chat, Limits(num_pages=32), checks=True)
    deltas = list(engine.generate(prompt, params))
    return engine.tokenizer.decode([t for delta in deltas for t in delta.tokens]), deltas[-1].finish_reason


def template(engine: Engine, *parts: str | int):
    return tuple(Gap(part) if isinstance(part, int) else tuple(engine.tokenizer.encode(part)) for part in parts)


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_filled_template_obeys_its_grammar(random_engine, mode, temperature):
    schema = Constraint("json_schema", json.dumps(SCHEMA))
    letters = Constraint("regex", "[a-c]{3,12}-[0-9]{2,9}!")
    cases = [
        (schema, template(random_engine, '{"zone": "', 5, '", "level": ', 3, "}")),
        (schema, template(random_engine, 12, '"rear"', 24)),
        (schema, template(random_engine, '{"zone": ', 30)),
        (letters, template(random_engine, "ab", 9, "-", 9, "7!")),
        (letters, template(random_engine, 4, "-12", 2, "!")),
    ]
    for seed, (constraint, infill) in enumerate(cases):
        params = GenerateParams(mode=mode, temperature=temperature, seed=seed, constraint=constraint, infill=infill)
        text, end = said(random_engine, params, [20 + seed] * 9)
        assert end == "stop"
        pinned = [random_engine.tokenizer.decode(part) for part in infill if not isinstance(part, Gap)]
        assert re.search(".*".join(map(re.escape, pinned)), text)
        if constraint is letters:
            assert re.fullmatch("[a-c]{3,12}-[0-9]{2,9}!", text)
        else:
            value = json.loads(text)
            assert value["zone"] in ("front", "rear")
            assert 0 <= value["level"] <= 99


def test_a_gap_without_room_for_what_the_grammar_wants_is_refused_before_anything_runs(random_engine):
    params = GenerateParams(constraint=Constraint("json_schema", json.dumps(SCHEMA)))
    for parts, index in (
        (('{"zone": "', 3, '", "level": 5}'), 2),  # neither front nor rear fits
        (('{"zone": "up', 5, '", "level": 5}'), 0),
        (('{"zone": "', 5, '", "level": 5'), 2),  # the answer cannot end here
    ):
        with pytest.raises(RequestError, match=f"which part {index} would be legal") as found:
            random_engine.admit([20], replace(params, infill=template(random_engine, *parts)))
        assert found.value.param == "infill"
