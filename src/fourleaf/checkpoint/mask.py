"""Which token of a vocabulary may stand in masked positions: one that the AR model never had a use for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourleaf.checkpoint.disk import read_json
from fourleaf.errors import ConfigError

# Kinds of spare tokens, best first. What is trained least comes first: nothing is lost with it.
_KINDS = (
    ("made for masks", re.compile(r"mask", re.IGNORECASE)),
    ("reserved", re.compile(r"reserved|unused|extra_?(id)?_?\d|placeholder", re.IGNORECASE)),
    ("for images and sound", re.compile(r"vision|image|video|audio|box|quad|object_ref|tts", re.IGNORECASE)),
    ("for code completion", re.compile(r"fim|repo|file|gh_|jupyter|issue|commit|code", re.IGNORECASE)),
)
_MADE = ("<|mask|>", "<mask>", "[MASK]")
_BUSY = re.compile(r"think|tool|end|start_of|im_|eot|bos|eos|header|user|assistant|system|turn", re.IGNORECASE)


@dataclass(frozen=True)
class MaskToken:
    """A token id, its spelling ("" for a row of the vocabulary that the tokenizer never gives), and why it is free."""

    id: int
    spelling: str
    reason: str

    def __str__(self) -> str:
        named = f"{self.spelling!r}, id {self.id}" if self.spelling else f"id {self.id}"
        return f"{named} ({self.reason})"


def choose_mask_token(folder: Path, vocab_size: int, wanted: str | None = None) -> MaskToken:
    """The mask token for a checkpoint: `wanted`, an id or a spelling, or the best of its unused special tokens.

    Unused is a special token that no other file of the checkpoint speaks of: neither the chat template nor the
    configuration of model, generation or tokenizer. Where there is none, the last row of the vocabulary that the
    tokenizer does not reach. Raises ConfigError where nothing is free or `wanted` is no token.
    """
    spellings = _spellings(folder)
    if wanted is not None:
        return _named(wanted, spellings, vocab_size)
    for i, text in spellings.items():
        if text in _MADE and i < vocab_size:
            return MaskToken(i, text, "the tokenizer's own mask token")
    special = _special(folder)
    used = _used(folder)
    free = {i: text for i, text in special.items() if i < vocab_size and i not in used and text not in used}
    free = {i: text for i, text in free.items() if text not in _template(folder)}
    for kind, rule in _KINDS:
        for i, text in free.items():
            if rule.search(text):
                return MaskToken(i, text, f"a special token {kind} that the checkpoint's other files do not use")
    if spellings and (last := max(spellings)) < vocab_size - 1:
        return MaskToken(vocab_size - 1, "", f"a row of the vocabulary behind the tokenizer's last token, {last}")
    rest = [i for i, text in free.items() if not _BUSY.search(text)]
    if rest:
        return MaskToken(rest[-1], free[rest[-1]], "a special token that the checkpoint's other files do not use")
    raise ConfigError(
        f"no unused token in {folder} can stand for masked positions; name one with --mask-token, by id or spelling"
    )


def _named(wanted: str, spellings: dict[int, str], vocab_size: int) -> MaskToken:
    for i, text in spellings.items():
        if text == wanted:
            return MaskToken(i, text, "as asked")
    if wanted.isdecimal() and int(wanted) < vocab_size:
        return MaskToken(int(wanted), spellings.get(int(wanted), ""), "as asked")
    raise ConfigError(f"--mask-token is {wanted!r}; it must be a token's spelling or an id in 0..{vocab_size - 1}")


def _tokenizer(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer.json"
    return read_json(path) if path.is_file() else {}


def _spellings(folder: Path) -> dict[int, str]:
    """Every token of the tokenizer by id, as its file spells it."""
    raw = _tokenizer(folder)
    vocabulary = raw.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, list):  # a unigram model lists (piece, score)
        vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
    return {i: text for text, i in vocabulary.items()} | {t["id"]: t["content"] for t in raw.get("added_tokens", [])}


def _special(folder: Path) -> dict[int, str]:
    """Tokens that text is not made of, by id."""
    added = _tokenizer(folder).get("added_tokens", [])
    return {t["id"]: t["content"] for t in sorted(added, key=lambda t: t["id"]) if t.get("special")}


def _used(folder: Path) -> set[int | str]:
    """Ids and spellings that the configuration gives a part to."""
    found: set[int | str] = set()
    for name in ("config.json", "generation_config.json"):
        for key, value in _walk(_optional(folder / name)):
            if key.endswith("_token_id"):
                found.update(v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        for key, value in _walk(_optional(folder / name)):
            if key.endswith("_token"):
                text = value.get("content") if isinstance(value, dict) else value
                found.update([text] if isinstance(text, str) else [])
    return found


def _walk(raw: Any) -> list[tuple[str, Any]]:
    """Each key and value of a JSON object and of the objects in it."""
    if not isinstance(raw, dict):
        return []
    return [pair for key, value in raw.items() for pair in ((key, value), *_walk(value))]


def _template(folder: Path) -> str:
    """All that the chat template says, wherever the checkpoint keeps it."""
    path = folder / "chat_template.jinja"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return text + json.dumps(_optional(folder / "tokenizer_config.json").get("chat_template", ""), ensure_ascii=False)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
