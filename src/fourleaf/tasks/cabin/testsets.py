"""The fixed test sets: 1,000 examples with unseen fillers, 1,000 with unseen patterns, and the hand-written dev set.

They are drawn from the base files alone, with randomness of their own, so that additions to the training data leave
them as they are. `data/testsets.json` holds the seed and the SHA-256 of each set's canonical JSONL.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random

from fourleaf.tasks.cabin import phrases
from fourleaf.tasks.cabin.compose import COUNT_WEIGHTS, Composer, label_tags, make_side
from fourleaf.tasks.cabin.fillers import Fillers
from fourleaf.tasks.cabin.phrases import corpus, held_out
from fourleaf.tasks.cabin.schema import DATA, FREE_TEXT, Example, check

SIZE = 1000
SEED = 20261130
NAMES = ("fillers", "patterns")
# Shares of the whole set; the rest has calls by the weights of COUNT_WEIGHTS.
NO_CALL, REPAIRS, TYPOS = 110, 115, 120


def copied_values(examples: list[Example]) -> frozenset[str]:
    """Every copied text of the examples' calls, case-folded, with straight apostrophes."""
    return frozenset(
        value.replace("’", "'").casefold()
        for example in examples
        for call in example.calls
        for name, value in call.arguments.items()
        if (call.name, name) in FREE_TEXT
    )


def _composer(name: str) -> Composer:
    material = corpus(additions=False)
    if name == "patterns":
        return Composer(make_side(material, held_out, Fillers(material, unseen=False)))
    fillers = Fillers(material, unseen=True)
    return Composer(make_side(material, lambda text: not held_out(text), fillers))


def _plan(random: Random) -> Iterator[tuple[int, bool, bool]]:
    """(number of calls, is a repair, has a typo) for each example, in shuffled order."""
    speaking = SIZE - NO_CALL
    counts = [0] * NO_CALL
    for count, weight in enumerate(COUNT_WEIGHTS, 1):
        counts += [count] * round(speaking * weight / sum(COUNT_WEIGHTS))
    counts = (counts + [1] * SIZE)[:SIZE]
    random.shuffle(counts)
    repairs = set(random.sample([i for i, count in enumerate(counts) if count], REPAIRS))
    typos = set(random.sample(range(SIZE), TYPOS))
    for index, count in enumerate(counts):
        yield count, index in repairs, index in typos


def build(name: str) -> list[Example]:
    """The test set `name`: "fillers" (training patterns, unseen copied text) or "patterns" (unseen patterns)."""
    assert name in NAMES, name
    return list(_drawn(name))


@cache
def _drawn(name: str) -> tuple[Example, ...]:
    random = Random(f"cabin test set {name} {SEED}")
    composer = _composer(name)
    examples: list[Example] = []
    seen: set[str] = set()
    for count, repair, typo in _plan(random):
        while True:
            example = composer.example(random, count, repair=repair, typo=typo)
            unseen = name != "fillers" or copied_values([example]) <= composer.side.requests.fillers.drawn
            if example.utterance not in seen and unseen and ("typo" in example.tags) == typo:
                break
        check(example)
        seen.add(example.utterance)
        examples.append(example)
    return tuple(examples)


def dev() -> list[Example]:
    """The hand-written development examples, tagged from their labels."""
    return [replace(example, tags=frozenset(label_tags(example))) for example in phrases.dev()]


def canonical(examples: list[Example]) -> str:
    """One JSON line an example: what the hash is taken of."""
    return "".join(
        json.dumps(
            {
                "utterance": example.utterance,
                "calls": [{"name": call.name, "arguments": call.arguments} for call in example.calls],
                "text": example.text,
                "tags": sorted(example.tags),
            },
            ensure_ascii=False,
        )
        + "\n"
        for example in examples
    )


def digest(name: str) -> str:
    """The SHA-256 of a set's canonical JSONL."""
    return hashlib.sha256(canonical(build(name)).encode()).hexdigest()


def recorded() -> dict[str, str]:
    """The hashes in the repository."""
    return json.loads((DATA / "testsets.json").read_text(encoding="utf-8"))["sha256"]
