"""Pages whose figures programs write: text between two comments of the same name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fourleaf.errors import ConfigError


def filled(page: str, made: Mapping[str, str]) -> str:
    """The page with every section's text between `<!-- name -->` and `<!-- /name -->`. Raises ConfigError where it has
    no such marks."""
    for name, text in made.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(page):
            raise ConfigError(f"the page has no {begin} ... {end}")
        whole = f"{begin}\n{text}\n{end}"
        page = pattern.sub(lambda _, whole=whole: whole, page)
    return page


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])
