"""The tokenizer of another project's checkpoint, as it is, but for one thing: no text becomes a control token.

A Hugging Face checkpoint lists its control tokens in `added_tokens`, where the library matches them in any text. Here
they are taken out of that list and kept apart, as in this project's own tokenizers. Control tokens are those marked
special and those that look like markup (`<think>`): a tag that a user writes is text.
"""

import json
import re
from pathlib import Path
from typing import Any

import tokenizers

from fourleaf.errors import CheckpointError
from fourleaf.text.tokenizer import Tokenizer

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
_MARKUP = re.compile(r"<.+>|\[.+\]", re.DOTALL)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder; with a tokenizer_config.json it is another project's.

    Raises CheckpointError where a file is missing or broken, where the vocabulary is no byte-level BPE, or where
    nothing says which token ends an answer.
    """
    if not (folder / SETTINGS).is_file():
        return Tokenizer.from_file(folder / TOKENIZER)
    raw, settings = _object(folder / TOKENIZER), _object(folder / SETTINGS)
    try:
        added = raw.get("added_tokens") or []
        controls = {t["content"]: t["id"] for t in added if t.get("special") or _MARKUP.fullmatch(t["content"])}
        raw["added_tokens"] = [t for t in added if t["content"] not in controls]
        # In the vocabulary they keep their ids, and no merge spells them.
        raw["model"]["vocab"] |= {t["content"]: t["id"] for t in added}
        raw["post_processor"] = None  # it would put control tokens around a text
        inner = tokenizers.Tokenizer.from_str(json.dumps(raw))
    except Exception as error:  # the library raises bare Exception; another shape of file raises anything
        raise CheckpointError(f"{folder / TOKENIZER} is not a tokenizer.json: {error}") from error
    end, begin = _spelling(settings, "eos_token"), _spelling(settings, "bos_token")
    if end not in controls:
        raise CheckpointError(
            f"{folder / SETTINGS} has the eos_token {end!r}, which is no control token of {TOKENIZER}"
        )
    return Tokenizer(inner, controls, end=end, begin=begin if begin in controls else None)


def _spelling(settings: dict[str, Any], kind: str) -> str:
    token = settings.get(kind)
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read the tokenizer {path}: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no JSON object.")
    return found
