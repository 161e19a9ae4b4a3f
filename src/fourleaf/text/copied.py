"""Copied text: string values that must stand, in whole words, in what the model was asked.

`"x-copied": true` beside a string's type in a schema asks for it: the name of a song, an address, what a message says.
A small model that copies by attention now and then drops a letter of a word that it never saw; held to the words of its
prompt, it only has to find where they begin and end.

A grammar is compiled once and knows no prompt, so this stands beside it: a reader of JSON, byte by byte, that knows
where in the answer it is, and within a copied value at which places of the prompt the value may be. Where all of these
go on alike to the end of a word, the rest of the word is certain and need not be asked of the model.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from fourleaf.errors import RequestError
from fourleaf.text.constraint import Constraint, Tools
from fourleaf.text.schema import ANNOTATIONS, every_schema, resolve
from fourleaf.text.tokenizer import THINK, THINK_END, TOOL_CALL, TOOL_CALL_END, Tokenizer

KEYWORD = "x-copied"

Path = tuple[str | None, ...]  # keys from the outside in; None for an array

_NO_KEY: Final = -1  # an object whose next key is not said yet; "" is a key like any other
_SPLIT = b"\xff"  # in no UTF-8; stands for control tokens, control characters and broken bytes
# What no tokenizer joins to a word before it: "don't" has tokens across its apostrophe.
_BEHIND = frozenset({b"", _SPLIT, *(bytes([byte]) for byte in b" ,;:?!)")})
_QUOTE, _BACKSLASH = b'"\\'
_OPEN_OBJECT, _OPEN_ARRAY, _CLOSE_OBJECT, _CLOSE_ARRAY, _COLON, _COMMA = b"{[}]:,"
# Scripts that put no spaces between words: Thai to Khmer, ideographs and kana.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\uff66-\uff9f\U0001aff0-\U0001b16f"
    "\U00020000-\U0003ffff]"
)
_JOINER = "\u200d"  # makes one emoji of several, and stands within words of some scripts
# Within words: soft hyphen, non-joiner, word joiner. Behind emoji: shades of skin, letters of flags of regions.
_CLINGING = re.compile("[\u00ad\u200c\u2060\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
# Over `_kind` of each character, what is copied whole or not at all: a word, another character (a flag is two of them)
# with what clings to it, spaces, what splits.
_UNIT = re.compile(r"w[wcj]*|(?:ff?|[ocj])(?:c|j[of]?)*|s+|x+")


def copied_paths(constraint: Constraint) -> Mapping[str, frozenset[Path]]:
    """Where an answer's copied values stand, by the tool that is called; "" is the answer that is no call, where it is
    JSON with such values.

    Raises RequestError, naming the place, for the keyword where it cannot be held to.
    """
    value, found = constraint.value, {}
    if constraint.kind == "json_schema":
        assert isinstance(value, str)
        found[""] = _all_paths(value, (), constraint.param)
    elif isinstance(value, Tools):
        if value.otherwise is not None:
            found = dict(copied_paths(value.otherwise))
        for i, tool in enumerate(value.offered):
            if value.choice == "none" or (value.choice == "named" and tool.name != value.name):
                continue
            where = f"{constraint.param}[{i}].function.parameters"
            paths = _all_paths(tool.schema, ("arguments",), where)
            if paths and value.markup == "xml":
                _refuse(where, "this model's call markup writes strings without quotes")
            found[tool.name] = paths
    return {name: paths for name, paths in found.items() if paths}


def _all_paths(text: str, path: Path, where: str) -> frozenset[Path]:
    root = json.loads(text)
    paths = frozenset(_paths(root, path, where))
    for node in every_schema(root):
        if "$ref" in node and _has_copied(resolve(root, node["$ref"])):
            _refuse(
                where, f'"$ref": "{node["$ref"]}" leads to copied text, which is followed where it is written alone'
            )
    return paths


def _has_copied(schema: Any) -> bool:
    return any(node.get(KEYWORD) for node in every_schema(schema))


def _paths(schema: Any, path: Path, where: str) -> Iterator[Path]:
    if not isinstance(schema, dict):
        return
    if schema.get(KEYWORD):
        if schema[KEYWORD] is not True:
            _refuse(f"{where}.{KEYWORD}", "it must be true or false")
        if schema.get("type") != "string" or (others := schema.keys() - {"type", KEYWORD, *ANNOTATIONS}):
            said = f", not beside {sorted(others)[0]}" if schema.get("type") == "string" else ""
            _refuse(f"{where}.{KEYWORD}", f'it can be said of {{"type": "string"}} alone{said}')
        yield path
    for key, inner in schema.items():
        if key == "properties" and isinstance(inner, dict):
            for name, one in inner.items():
                yield from _paths(one, (*path, name), f"{where}.properties.{name}")
        elif key == "items" and "prefixItems" not in schema:
            yield from _paths(inner, (*path, None), f"{where}.items")
        elif key != KEYWORD and _has_copied({key: inner}):
            _refuse(f"{where}.{key}", f"{KEYWORD} is followed through properties and items alone")


def _refuse(where: str, fault: str) -> NoReturn:
    raise RequestError(f"{where} cannot be held to: {fault}.", param=where, code="unsupported_schema")


class Words:
    """A vocabulary as copying needs it. ids: what a token begins with -> the tokens that are just this. quoting [K]:
    tokens with a quote in them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.encode = tokenizer.encode
        self.token_bytes = tokenizer.token_bytes
        self.special = frozenset(tokenizer.special_ids)
        self.ids: dict[bytes, tuple[int, ...]] = {}
        for token in range(tokenizer.vocab_size):
            word = tokenizer.token_bytes(token)
            if word and token not in self.special:
                for end in range(1, len(word)):
                    self.ids.setdefault(word[:end], ())
                self.ids[word] = (*self.ids.get(word, ()), token)
        quoting = [token for word, tokens in self.ids.items() if _QUOTE in word for token in tokens]
        self.quoting = np.array(quoting, dtype=np.int64)
        controls = tokenizer.controls
        self.call, self.think_end = controls.get(TOOL_CALL), controls.get(THINK_END)
        self.closing = {controls[name] for name in (TOOL_CALL_END, THINK) if name in controls}

    def along(self, text: bytes, begins: Iterable[int]) -> list[int]:
        """The tokens that stand in a text at these offsets."""
        found: set[int] = set()
        for begin in begins:
            for end in range(begin + 1, len(text) + 1):
                tokens = self.ids.get(text[begin:end])
                if tokens is None:
                    break
                found.update(tokens)
        return list(found)


@dataclass(frozen=True)
class Asked:
    """What may be copied. text: UTF-8 as JSON writes it between quotes; each place in it leads to an end. starts:
    byte -> offsets where a value that begins with it may begin. first: tokens that a value may begin with. ends:
    [len(text) + 1] whether it may end before an offset. longest: bytes between two ends, at most."""

    text: bytes
    starts: Mapping[int, tuple[int, ...]]
    first: Sequence[int]
    ends: NDArray[np.bool_]
    longest: int

    @classmethod
    def of(cls, prompt_ids: Sequence[int], words: Words) -> Asked:
        """The text of a prompt; no value goes across its control tokens. Takes a moment where the prompt is long."""
        written, ends = bytearray(), [0]
        starts: dict[int, list[int]] = {}
        for piece, kind in _units(prompt_ids, words):
            if kind == "x":  # spaces before it go: behind them a value could neither end nor go on
                written[ends[-1] :] = piece
            else:
                written += piece
            if kind not in "sx":
                starts.setdefault(piece[0], []).append(len(written) - len(piece))
            if kind != "s":
                ends.append(len(written))
        text = bytes(written[: ends[-1]])
        may_end = np.zeros(len(text) + 1, dtype=bool)
        may_end[ends] = True
        first = words.along(text, (start for found in starts.values() for start in found))
        found = {byte: tuple(offsets) for byte, offsets in starts.items()}
        return cls(text, found, first, may_end, int(np.diff(ends).max(initial=0)))


def _units(prompt_ids: Sequence[int], words: Words) -> Iterator[tuple[bytes, str]]:
    """What is copied whole or not at all, as JSON writes it, and its kind: "w" word, "s" spaces, "x" what splits, or
    another character."""
    pieces = (_SPLIT if token in words.special else words.token_bytes(token) for token in prompt_ids)
    text = b"".join(pieces).decode(errors="replace")
    kinds = text.translate({ord(char): _kind(char) for char in set(text)})
    write = json.JSONEncoder(ensure_ascii=False).encode
    for unit in _UNIT.finditer(kinds):
        kind = kinds[unit.start()]
        yield _SPLIT if kind == "x" else write(text[unit.start() : unit.end()])[1:-1].encode(), kind


def _kind(char: str) -> str:
    """What a character is: "w" of a word, "c" clings to what is before it, "j" joins it to what is behind it as well,
    "f" half a flag, "s" a space, "x" what no value goes across, "o" any other."""
    category = unicodedata.category(char)
    if char == "\ufffd" or (category == "Cc" and char not in "\t\n\r"):
        return "x"
    if char.isspace():
        return "s"
    if char == _JOINER:
        return "j"
    if category[0] == "M" or _CLINGING.match(char):
        return "c"
    if "\U0001f1e6" <= char <= "\U0001f1ff":
        return "f"
    return "w" if (char.isalnum() or char == "_") and not _UNSPACED.match(char) else "o"


@dataclass
class _Place:
    """Where in a JSON text.

    tool: whose call it is, None before it is said, "" in no call. stack: of each open container its present key,
    _NO_KEY before it, None for an array. said: the last string's bytes, or those of the one that is open. at: within a
    copied value, the offsets of what was asked at which its next byte may stand, none of them before its first. size:
    its bytes so far. word: its tokens since it could have ended last.
    """

    tool: str | None = ""
    stack: list[str | int | None] = field(default_factory=list)
    said: bytes = b""
    in_string: bool = False
    is_escaped: bool = False
    at: tuple[int, ...] | None = None
    size: int = 0
    word: tuple[int, ...] = ()

    def copy(self) -> _Place:
        return replace(self, stack=list(self.stack))


class Copying:
    """Follows one answer. `narrow`, `allows`, `accepts` and `forced` are what the prompt adds to the matcher's methods;
    outside copied values they leave everything as it is."""

    def __init__(
        self,
        paths: Mapping[str, frozenset[Path]],
        words: Words,
        read_prompt: Callable[[], Asked],
        *,
        is_open: bool,
    ) -> None:
        """paths: as of `copied_paths`. read_prompt: is called within copied values alone, and often. is_open: whether
        the answer may begin with JSON; otherwise a control token opens it."""
        self._paths, self._words, self._read_prompt = paths, words, read_prompt
        self._place = _Place() if is_open else None
        self._sure: list[int] | None = None  # what `forced` found here

    def copy(self) -> Copying:
        twin = Copying(self._paths, self._words, self._read_prompt, is_open=False)
        twin._place = None if self._place is None else self._place.copy()
        twin._sure = self._sure
        return twin

    @property
    def longest(self) -> int:
        """How many tokens the value may be away from where it may end: 0 outside copied values."""
        return 0 if self._place is None or self._place.at is None else self._read_prompt().longest

    def forced(self) -> list[int]:
        """The tokens of the rest of the word, in the tokenizer's own division, where there is one way to go on."""
        if self._sure is None:
            self._sure = self._rest()
        return self._sure

    def _rest(self) -> list[int]:
        place, words = self._place, self._words
        if place is None or not place.at or not place.word:
            return []
        asked, at, rest = self._read_prompt(), place.at, bytearray()
        while not any(asked.ends[offset] for offset in at):
            following = {asked.text[offset] for offset in at}
            if len(following) != 1:
                return []
            rest += bytes(following)
            at = tuple(offset + 1 for offset in at)
        if not rest or not all(asked.text[offset : offset + 1] in _BEHIND for offset in at):
            return []
        whole = b"".join(map(words.token_bytes, place.word)) + rest
        try:
            divided = words.encode(whole.decode())
        except UnicodeDecodeError:  # the word began inside a character
            return []
        num = len(place.word)
        is_same = b"".join(map(words.token_bytes, divided)) == whole  # not where the tokenizer normalises
        return divided[num:] if is_same and tuple(divided[:num]) == place.word else []

    def narrow(self, mask: NDArray[np.bool_]) -> None:
        """Rules out in `mask` [Y], which the grammar gave, what is not copied."""
        place, words = self._place, self._words
        if place is None:
            return
        quoting = words.quoting[mask[words.quoting]].tolist()
        if place.at is None:
            mask[[token for token in quoting if not self.accepts(token)]] = False
            return
        found = self.forced()[:1]
        if not found:
            asked = self._read_prompt()
            found += [token for token in quoting if self.accepts(token)]
            found += words.along(asked.text, place.at) if place.size else asked.first
        left = np.zeros_like(mask)
        left[found] = True
        mask &= left

    def allows(self, token: int) -> bool:
        """Of one token that the grammar allows, what `narrow` says of all."""
        sure = self.forced()
        return token == sure[0] if sure else self.accepts(token)

    def accepts(self, token: int) -> bool:
        """Whether a token that the grammar allows is copied, in whatever division of its word."""
        if self._place is None or token in self._words.special:
            return True
        word = self._words.token_bytes(token)
        if self._place.at is None and _QUOTE not in word:
            return True
        place = self._place.copy()
        return all(self._read(place, byte) for byte in word)

    def advance(self, token: int) -> None:
        """Takes the next token."""
        # The rest of a word stays what it was, without what is said of it.
        self._sure = self._sure[1:] or None if self._sure and self._sure[0] == token else None
        if token == self._words.call:
            self._place = _Place(tool=None)
        elif token == self._words.think_end:
            self._place = _Place() if "" in self._paths else None
        elif token in self._words.closing:
            self._place = None
        elif (place := self._place) is not None and token not in self._words.special:
            could_end = not place.at or any(self._read_prompt().ends[offset] for offset in place.at)
            for byte in self._words.token_bytes(token):
                self._read(place, byte)
            place.word = () if not place.at else (*(() if could_end else place.word), token)

    def _read(self, place: _Place, byte: int) -> bool:
        """Takes a byte; false where it is none that is copied."""
        if place.at is not None:
            return self._copy(place, byte)
        if place.in_string:
            place.in_string = place.is_escaped or byte != _QUOTE
            place.is_escaped = not place.is_escaped and byte == _BACKSLASH
            if place.in_string:
                place.said += bytes([byte])
            elif place.tool is None and place.stack == ["name"]:
                place.tool = place.said.decode(errors="replace")
        elif byte == _QUOTE:
            place.in_string, place.said = True, b""
            if place.tool is not None and tuple(place.stack) in self._paths.get(place.tool, ()):
                place.at, place.size = (), 0
        elif byte in (_OPEN_OBJECT, _OPEN_ARRAY):
            place.stack.append(_NO_KEY if byte == _OPEN_OBJECT else None)
        elif byte in (_CLOSE_OBJECT, _CLOSE_ARRAY) and place.stack:
            place.stack.pop()
        elif byte == _COLON and place.stack:
            place.stack[-1] = json.loads(b'"' + place.said + b'"', strict=False)
        elif byte == _COMMA and place.stack and place.stack[-1] is not None:
            place.stack[-1] = _NO_KEY
        return True

    def _copy(self, place: _Place, byte: int) -> bool:
        assert place.at is not None
        asked = self._read_prompt()
        if byte == _QUOTE and not place.is_escaped:
            is_whole = place.size == 0 or any(asked.ends[offset] for offset in place.at)
            place.at, place.in_string = None, False
            return is_whole
        place.is_escaped = not place.is_escaped and byte == _BACKSLASH
        found = asked.starts.get(byte, ()) if not place.size else place.at
        place.at = tuple(i + 1 for i in found if i < len(asked.text) and asked.text[i] == byte)
        place.size += 1
        return bool(place.at)
