"""Questions as they are typed on a command line.

    Is the car fast?                     a noul
    Which mode? eco | sport | off        a choice
    How loud? silent < soft < loud       a score, lowest first

What stands behind the last question mark or colon are the options. Ids are q1, q2, ... in their order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fourleaf.errors import RequestError


def typed_questions(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Questions for `/v1/systemone`. Raises RequestError for what cannot be read."""
    return {f"q{number}": _question(text.strip()) for number, text in enumerate(texts, 1)}


def _question(text: str) -> dict[str, Any]:
    found = re.fullmatch(r"(.*[?:])\s*([^?:]+)", text, re.S)
    if found is None or not re.search(r"[|<]", found.group(2)):
        if not text:
            raise RequestError("A question is empty.", param="ask")
        return {"type": "noul", "instructions": text}
    ask, rest = found.groups()
    if "|" in rest and "<" in rest:
        raise RequestError(f"{text!r:.80} mixes | and <: options are parted by |, levels by <.", param="ask")
    mark = "|" if "|" in rest else "<"
    options = [part.strip() for part in rest.split(mark)]
    if not all(options):
        raise RequestError(f"{text!r:.80} has an empty option.", param="ask")
    if mark == "<":
        return {"type": "score", "instructions": ask, "criteria": options}
    if len(set(options)) < len(options):
        raise RequestError(f"{text!r:.80} has an option twice.", param="ask")
    return {"type": "choice", "instructions": ask, "criteria": dict.fromkeys(options)}
