"""docs/bug-kinds.md names every kind once, and tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = (TESTS.parent / "docs" / "bug-kinds.md").read_text(encoding="utf-8")


def test_every_kind_has_one_row():
    assert [int(kind) for kind in re.findall(r"^\| (\d+) \|", TABLE, re.MULTILINE)] == list(range(1, 68))


def test_every_test_that_is_named_exists():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)
    assert len(named) > 67
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (TESTS / path).is_file() or f"def {name}(" not in (TESTS / path).read_text(encoding="utf-8")
    ]
    assert not missing
