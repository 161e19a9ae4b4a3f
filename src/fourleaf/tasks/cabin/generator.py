"""Training examples without end, from a seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from fourleaf.tasks.cabin.compose import COUNT_WEIGHTS, Composer, make_side
from fourleaf.tasks.cabin.fillers import Fillers
from fourleaf.tasks.cabin.phrases import corpus, held_out, overlaps_dev
from fourleaf.tasks.cabin.pieces import TRAINING_RATES
from fourleaf.tasks.cabin.schema import DONE, MAX_CALLS, Call, Example, answer_text, tool_calls_message

NO_CALL_SHARE = 0.1
REPAIR_SHARE = 0.11
TYPO_SHARE = 0.12
HISTORY_SHARE = 0.08
CONTINUATION_SHARE = 0.02
# The test sets have 7%; a model that met it as often got half of them wrong.
PARTLY_SHARE = 0.12

_READINGS: dict[str, Any] = {
    "range": {"range_km": 312},
    "battery": {"battery_percent": 64},
    "tire_pressure": {"bar": [2.4, 2.4, 2.5, 2.5]},
    "outside_temperature": {"celsius": 7},
    "arrival_time": {"arrival": "18:42"},
    "traffic": {"traffic": "light"},
}


@cache
def training_composer() -> Composer:
    """The training side: patterns and fillers that are not held out, additions included."""
    material = corpus(additions=True)
    fillers = Fillers(material, unseen=False)
    side = make_side(material, lambda text: not held_out(text), fillers, TRAINING_RATES)
    return Composer(replace(side, invents=True, partly=PARTLY_SHARE))


def _result(call: Call) -> str:
    if call.name == "query_status":
        return json.dumps(_READINGS[call.arguments["item"]])
    if call.name == "find_nearby":
        return json.dumps({"found": 3})
    return json.dumps({"ok": True})


def _turn(example: Example, first_id: int, *, finish: bool) -> list[dict[str, Any]]:
    """Chat messages of one earlier turn: the question, the answer, the tools' results, and `Done.` where finished."""
    asked: dict[str, Any] = {"role": "user", "content": example.utterance}
    if not example.calls:
        return [asked, {"role": "assistant", "content": answer_text(example)}]
    answer = tool_calls_message(example.calls, first_id)
    results = [
        {"role": "tool", "tool_call_id": made["id"], "content": _result(call)}
        for made, call in zip(answer["tool_calls"], example.calls, strict=True)
    ]
    done = [{"role": "assistant", "content": DONE}] if finish else []
    return [asked, answer, *results, *done]


def draw_count(random: Random, max_calls: int, *, no_call_share: float = NO_CALL_SHARE) -> int:
    """How many calls an example has, by the weights of the test sets up to `max_calls`."""
    if random.random() < no_call_share:
        return 0
    weights = COUNT_WEIGHTS[:max_calls]
    return random.choices(range(1, len(weights) + 1), weights)[0]


def draw(composer: Composer, random: Random, max_calls: int = MAX_CALLS) -> Example:
    """One example without history."""
    count = draw_count(random, max_calls)
    return composer.example(
        random, count, repair=random.random() < REPAIR_SHARE / (1 - NO_CALL_SHARE), typo=random.random() < TYPO_SHARE
    )


def _with_history(composer: Composer, random: Random, max_calls: int) -> Example:
    """An example behind one or two short earlier turns; its answer depends on its own words alone."""
    turns: list[dict[str, Any]] = []
    for _ in range(random.choice((1, 1, 2))):
        earlier = draw(composer, random, min(2, max_calls))
        turns += _turn(earlier, len(turns), finish=random.random() < 0.6)
    example = draw(composer, random, max_calls)
    return Example(example.utterance, example.calls, example.text, example.tags | {"history"}, tuple(turns))


def _continuation(composer: Composer, random: Random, max_calls: int) -> Example:
    """The tools have answered and nobody has spoken since: `Done.`"""
    count = max(1, draw_count(random, min(4, max_calls), no_call_share=0))
    earlier = composer.example(random, count, repair=False, typo=False)
    turns = _turn(earlier, 0, finish=False)
    return Example("", (), DONE, frozenset({"continuation"}), tuple(turns))


def stream(seed: int, *, max_calls: int = MAX_CALLS) -> Iterator[Example]:
    """Endless, deterministic training examples with up to `max_calls` calls each.

    No example shares six consecutive words with a development utterance.
    """
    random = Random(f"cabin {seed}")
    composer = training_composer()
    while True:
        roll = random.random()
        if roll < CONTINUATION_SHARE:
            example = _continuation(composer, random, max_calls)
        elif roll < CONTINUATION_SHARE + HISTORY_SHARE:
            example = _with_history(composer, random, max_calls)
        else:
            example = draw(composer, random, max_calls)
        spoken = [example.utterance, *(m["content"] for m in example.history if m["role"] == "user")]
        if not any(overlaps_dev(text) for text in spoken):
            yield example
