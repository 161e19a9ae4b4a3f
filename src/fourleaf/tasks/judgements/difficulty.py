"""How hard the groups are: the settings that decide it, from `data/difficulty.json`, and what comes of them.

The file was committed before a model that trained on the task was first scored, and does not change after: a test set
that is tuned until an arm wins says nothing. The public set's hashes hold the settings in place, a test the measures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fourleaf.tasks.judgements.group import Group, columns, holding, values_left

FILE = Path(__file__).parent / "data" / "difficulty.json"

_document: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
_settings: dict[str, Any] = _document["settings"]

# Of 500 groups, how many have so many questions (design §8); together 2,420 questions.
SIZES = {int(size): count for size, count in _settings["sizes"].items()}
CONTROL_SIZES = {int(size): count for size, count in _settings["control_sizes"].items()}
NUM_UNKNOWABLE: int = _settings["unknowable"]
# Of the facts that may go first, the share whose sentence says what is not so.
DENIED_SHARE: float = _settings["denied_share"]
# Facts at most, beyond those that are needed: this share of the questions.
TOLD_SHARE: float = _settings["told_share"]
# Of training's groups.
CONTROL_SHARE: float = _settings["training_control_share"]


def recorded() -> dict[str, dict[str, float]]:
    """What the public set measures, as it is in the repository."""
    return _document["public_set"]


def measured(groups: Sequence[Group]) -> dict[str, dict[str, float]]:
    """By family and over all: groups, questions, and means of a group.

    facts, rules: sentences. open: questions that its facts alone leave open. fitting: sets of answers that fit its
    facts. lucky: the chance that someone who reads every fact, ignores the rules and guesses is wholly right.
    """
    families = list(dict.fromkeys(group.family for group in groups))
    parts = {name: [group for group in groups if group.family == name] for name in sorted(families)}
    return {name: _means(part) for name, part in (parts | {"all": list(groups)}).items()}


def _means(groups: Sequence[Group]) -> dict[str, float]:
    rows = [_one(group) for group in groups]
    means = {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}
    return {"groups": len(groups), "questions": sum(len(group.variables) for group in groups), **means}


def _one(group: Group) -> dict[str, float]:
    grid = columns(group.variables)
    fits = holding(grid, group.facts)
    left = [len(values) for values in values_left(grid, fits, group.variables)]
    return {
        "facts": len(group.facts),
        "rules": sum(bool(rule.text) for rule in group.rules),
        "open": sum(size > 1 for size in left),
        "fitting": int(fits.sum()),
        "lucky": float(np.prod([1 / size for size in left])),
    }
