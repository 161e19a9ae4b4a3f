"""How right answers are by how much of a request's wording training never drew: words, and pairs of words in a row.

    fourleaf eval cabin --set patterns --failures failures.jsonl
    python scripts/unseen_words.py failures.jsonl --examples 100000

Names, places and texts that an answer copies do not count as wording. Prints, for each arm of the failures, requests
and the share of right answers, by the number of words that none of the training stream's first `--examples` has, and by
the share of such pairs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fourleaf.measure.tables import table
from fourleaf.tasks.cabin.generator import stream
from fourleaf.tasks.cabin.schema import FREE_TEXT, Example
from fourleaf.tasks.cabin.testsets import NAMES, build

Bins = Sequence[tuple[str, Callable[[float], bool]]]
WORDS: Bins = [("0", lambda n: n == 0), ("1", lambda n: n == 1), ("2 and more", lambda n: n >= 2)]
PAIRS: Bins = [
    ("under 10%", lambda share: share < 0.1),
    ("10 to 20%", lambda share: 0.1 <= share < 0.2),
    ("20 to 35%", lambda share: 0.2 <= share < 0.35),
    ("above 35%", lambda share: share >= 0.35),
]


def wording(example: Example) -> list[str]:
    """The words of a request, in lower case, less those that its answer copies."""
    text = example.utterance
    for call in example.calls:
        for name, value in call.arguments.items():
            if (call.name, name) in FREE_TEXT:
                text = text.replace(value, " ")
    return re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)?", text.lower())


def seen(num_examples: int, seed: int) -> tuple[set[str], set[tuple[str, str]]]:
    """Words and pairs of words of so many training examples."""
    words: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    for example in itertools.islice(stream(seed), num_examples):
        said = wording(example)
        words.update(said)
        pairs.update(itertools.pairwise(said))
    return words, pairs


def main() -> None:
    """Reads the arguments and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("failures", type=Path)
    parser.add_argument("--set", default="patterns", choices=NAMES)
    parser.add_argument("--n", type=int, help="requests that were asked, where `eval` had an --n")
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    failures = [json.loads(line) for line in asked.failures.read_text(encoding="utf-8").splitlines()]
    wrong: dict[str, set[str]] = {}
    for failure in failures:
        if failure["set"] == asked.set:
            wrong.setdefault(failure["arm"], set()).add(failure["utterance"])
    examples = build(asked.set)[: asked.n]
    words, pairs = seen(asked.examples, asked.seed)
    new_words = np.array([len(set(wording(example)) - words) for example in examples])
    new_pairs = np.array([np.mean([p not in pairs for p in itertools.pairwise(wording(e))] or [0]) for e in examples])
    for what, values, bins in (("new words", new_words, WORDS), ("new pairs", new_pairs, PAIRS)):
        rows = [[what, "requests", *wrong]]
        for name, holds in bins:
            those = [example.utterance for example, value in zip(examples, values, strict=True) if holds(value)]
            right = [f"{100 * np.mean([u not in utterances for u in those]):.1f}%" for utterances in wrong.values()]
            rows.append([name, str(len(those)), *(right if those else ["-"] * len(wrong))])
        print("\n".join(table(rows)), end="\n\n")


if __name__ == "__main__":
    main()
