"""Templates as requests write them: a list of texts, gaps and tags.

    ["The fox ", {"gap": {"max_tokens": 8}}, " over the dog."]

A text never becomes a control token. A chat model's tags are pinned by name, `{"tag": "<tool_call>"}`.
"""

from __future__ import annotations

from typing import Any

from fourleaf.engine.template import Gap, Part
from fourleaf.serve.body import refuse, shown
from fourleaf.serve.capabilities import Abilities, Wishes
from fourleaf.text.tokenizer import THINK, THINK_END, TOOL_CALL, TOOL_CALL_END, Tokenizer

TAGS = (TOOL_CALL, TOOL_CALL_END, THINK, THINK_END)
MAX_ITEMS = 256


def read_template(value: Any, tokenizer: Tokenizer, param: str = "template") -> tuple[Part, ...]:
    """A template's parts: texts and tags that stand side by side are one. Raises RequestError, naming the item."""
    if not isinstance(value, list):
        refuse(param, f"must be a list of texts and gaps, not {shown(value)}", "invalid_type")
    if len(value) > MAX_ITEMS:
        refuse(param, f"has {len(value)} items; at most {MAX_ITEMS} are taken", "invalid_value")
    parts: list[Part] = []
    text = ""  # texts side by side are cut into tokens as one

    def pin(ids: list[int]) -> None:
        if ids and parts and not isinstance(parts[-1], Gap):
            parts[-1] = (*parts[-1], *ids)
        elif ids:
            parts.append(tuple(ids))

    for at, item in enumerate(value):
        where = f"{param}[{at}]"
        if isinstance(item, str):
            text += item
            continue
        pin(tokenizer.encode(text))
        text = ""
        if not isinstance(item, dict) or len(item) != 1 or not item.keys() <= {"gap", "tag"}:
            refuse(where, f'must be a text, {{"gap": …}} or {{"tag": …}}, not {shown(item)}', "invalid_type")
        if "tag" in item:
            pin([_tag(item["tag"], tokenizer, f"{where}.tag")])
            continue
        if parts and isinstance(parts[-1], Gap):
            refuse(where, "follows another gap: join them", "invalid_value")
        parts.append(_gap(item["gap"], f"{where}.gap"))
    pin(tokenizer.encode(text))
    if not any(isinstance(part, Gap) for part in parts):
        refuse(param, "has no gap: there is nothing to fill", "invalid_value")
    return tuple(parts)


def wish_for_mode(wishes: Wishes, able: Abilities, *, lossless: bool | None) -> None:
    """An infilling that names no mode: `diffuse`, which alone sees what stands behind a gap, unless the answer must be
    that of `ar`."""
    if "mode" not in wishes.by_field:
        wishes.add("mode", "diffuse" if "diffuse" in able.modes and not lossless else "ar")


def _gap(value: Any, where: str) -> Gap:
    if not isinstance(value, dict):
        refuse(where, f'must be an object such as {{"max_tokens": 8}}, not {shown(value)}', "invalid_type")
    if unknown := sorted(value.keys() - {"max_tokens"}):
        refuse(f"{where}.{unknown[0]}", "is not known; a gap has max_tokens alone", "unknown_parameter")
    limit = value.get("max_tokens")
    if limit is None:
        refuse(f"{where}.max_tokens", "is missing", "missing_required_parameter")
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    if isinstance(limit, bool) or not isinstance(limit, int):
        refuse(f"{where}.max_tokens", f"must be a whole number, not {shown(limit)}", "invalid_type")
    if limit < 1:
        refuse(f"{where}.max_tokens", f"must be at least 1, not {limit}", "invalid_value")
    return Gap(limit)


def _tag(value: Any, tokenizer: Tokenizer, where: str) -> int:
    here = [tag for tag in TAGS if tag in tokenizer.controls]
    if value not in here:
        refuse(where, f"must be one of {', '.join(here) or 'none, as this model has no tags'}, not {shown(value)}")
    return tokenizer.controls[value]
