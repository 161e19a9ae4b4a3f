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
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fourleaf.errors import RequestError
from fourleaf.text.constraint import Constraint, Tools
from fourleaf.text.schema import ANNOTATIONS
from fourleaf.text.tokenizer import THINK, THINK_END, TOOL_CALL, TOOL_CALL_END, Tokenizer

KEYWORD = "x-copied"

Path = tuple[str | None, ...]  # keys from the outside in; None for an array

_EDGE = "\0"
_SPLIT = b"\xff"  # in no UTF-8: no value goes across what becomes of edges and other unprintable characters
_SPACES = "\n\r\t"
# What no tokenizer joins to a word before it: "don't" has tokens across its apostrophe.
_BEHIND = frozenset({b"", _SPLIT, *(bytes([byte]) for byte in b" ,;:?!)")})
_QUOTE, _BACKSLASH = b'"\\'
_OPEN_OBJECT, _OPEN_ARRAY, _CLOSE_OBJECT, _CLOSE_ARRAY, _COLON, _COMMA = b"{[}]:,"
# What words are made of, but for scripts that put no spaces between them: Thai to Khmer, ideographs and kana.
_WORD = re.compile(r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff]")


def copied_paths(constraint: Constraint) -> Mapping[str, frozenset[Path]]:
    """Where an answer's copied values stand, by the tool that is called ("" where the answer is no call).

    Raises RequestError, naming the place, for the keyword where it cannot be held to.
    """
    value, found = constraint.value, {}
    if constraint.kind == "json_schema":
        assert isinstance(value, str)
        found[""] = frozenset(_paths(json.loads(value), (), constraint.param))
    elif isinstance(value, Tools):
        for i, tool in enumerate(value.offered):
            where = f"{constraint.param}[{i}].function.parameters"
            paths = frozenset(_paths(json.loads(tool.schema), ("arguments",), where))
            if paths and value.markup == "xml":
                _refuse(where, "this model's call markup writes strings without quotes")
            found[tool.name] = paths
    return {name: paths for name, paths in found.items() if paths}


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
        elif key == "items":
            yield from _paths(inner, (*path, None), f"{where}.items")
        elif f'"{KEYWORD}": true' in json.dumps(inner):
            _refuse(f"{where}.{key}", f"{KEYWORD} is followed through properties and items alone")


def _refuse(where: str, fault: str) -> NoReturn:
    raise RequestError(f"{where} cannot be held to: {fault}.", param=where, code="unsupported_schema")


@dataclass(frozen=True)
class Asked:
    """What may be copied. text: UTF-8 as JSON writes it between quotes. starts: offsets where a value may begin.
    ends: [len(text) + 1] whether it may end before an offset."""

    text: bytes
    starts: tuple[int, ...]
    ends: NDArray[np.bool_]

    @classmethod
    def of(cls, prompt_ids: Sequence[int], tokenizer: Tokenizer) -> Asked:
        """The text of a prompt; no value goes across its control tokens."""
        written, starts, ends = bytearray(), [], [False]
        before = ""
        for char in _characters(prompt_ids, tokenizer):
            is_text = char.isprintable() or char in _SPACES
            may_part = not (_WORD.match(before) and _WORD.match(char)) if before and is_text else True
            if before and not before.isspace():
                ends[-1] = may_part
            if is_text and may_part and not char.isspace():
                starts.append(len(written))
            piece = json.dumps(char, ensure_ascii=False)[1:-1].encode() if is_text else _SPLIT
            written += piece
            ends += [False] * len(piece)
            before = char if is_text else ""
        ends[-1] = bool(before) and not before.isspace()
        return cls(bytes(written), tuple(starts), np.array(ends))


def _characters(prompt_ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[str]:
    run = bytearray()
    for token in prompt_ids:
        if token in tokenizer.special_ids:
            yield from run.decode(errors="replace")
            yield _EDGE
            run.clear()
        else:
            run += tokenizer.token_bytes(token)
    yield from run.decode(errors="replace")


class Words:
    """A vocabulary as copying needs it: which tokens have these bytes, and which have a quote in them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.encode = tokenizer.encode
        self.bytes = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.ids: defaultdict[bytes, list[int]] = defaultdict(list)
        for token, word in enumerate(self.bytes):
            if word and token not in tokenizer.special_ids:
                self.ids[word].append(token)
        self.longest = max(map(len, self.ids))
        self.quoting = [token for word, tokens in self.ids.items() if _QUOTE in word for token in tokens]
        self.special = frozenset(tokenizer.special_ids)
        opening, closing = (TOOL_CALL, THINK_END), (TOOL_CALL_END, THINK)
        self.opening = {tokenizer.controls[name] for name in opening if name in tokenizer.controls}
        self.closing = {tokenizer.controls[name] for name in closing if name in tokenizer.controls}


@dataclass
class _Place:
    """Where in a JSON text. stack: of each open container its present key, "" before it, None for an array. said: the
    last string's bytes, or those of the one that is open. at: within a copied value, the offsets of what was asked at
    which its next byte may stand. size: its bytes so far. word: its tokens since it could have ended last."""

    stack: list[str | None] = field(default_factory=list)
    said: bytes = b""
    in_string: bool = False
    is_escaped: bool = False
    tool: str = ""
    at: tuple[int, ...] | None = None
    size: int = 0
    word: tuple[int, ...] = ()

    def copy(self) -> _Place:
        return replace(self, stack=list(self.stack))


class Copying:
    """Follows one answer. `narrow`, `allows`, `accepts` and `forced` are what the prompt adds to the matcher's methods;
    outside copied values they leave everything as it is."""

    def __init__(self, paths: Mapping[str, frozenset[Path]], asked: Asked, words: Words, *, is_open: bool) -> None:
        """is_open: whether the answer begins with JSON; else a control token opens it."""
        self._paths, self._asked, self._words = paths, asked, words
        self._place = _Place() if is_open else None
        self._sure: list[int] | None = None  # what `forced` found here

    def copy(self) -> Copying:
        twin = Copying(self._paths, self._asked, self._words, is_open=False)
        twin._place = None if self._place is None else self._place.copy()
        twin._sure = self._sure
        return twin

    def forced(self) -> list[int]:
        """The tokens of the rest of the word, in the tokenizer's own division, where there is one way to go on."""
        if self._sure is None:
            self._sure = self._rest()
        return self._sure

    def _rest(self) -> list[int]:
        place, asked, words = self._place, self._asked, self._words
        if place is None or not place.at or not place.word:
            return []
        at, rest = place.at, bytearray()
        while not any(asked.ends[offset] for offset in at):
            following = {asked.text[offset] for offset in at if offset < len(asked.text)}
            if len(following) != 1:
                return []
            rest += bytes(following)
            at = tuple(offset + 1 for offset in at)
        if not all(asked.text[offset : offset + 1] in _BEHIND for offset in at):
            return []
        whole = b"".join(words.bytes[token] for token in place.word) + rest
        try:
            divided = words.encode(whole.decode())
        except UnicodeDecodeError:  # the word began inside a character
            return []
        num = len(place.word)
        return divided[num:] if rest and tuple(divided[:num]) == place.word else []

    def narrow(self, mask: NDArray[np.bool_]) -> None:
        """Rules out in `mask` [Y], which the grammar gave, what is not copied."""
        place, words = self._place, self._words
        if place is None:
            return
        quoting = [token for token in words.quoting if mask[token]]
        if place.at is None:
            mask[[token for token in quoting if not self.accepts(token)]] = False
            return
        found = self.forced()[:1] or [token for token in quoting if self.accepts(token)]
        if not self.forced():
            for begin in place.at:
                for end in range(begin + 1, min(begin + words.longest, len(self._asked.text)) + 1):
                    found += words.ids.get(self._asked.text[begin:end], ())
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
        if self._place.at is None and _QUOTE not in self._words.bytes[token]:
            return True
        place = self._place.copy()
        return all(self._read(place, byte) for byte in self._words.bytes[token])

    def advance(self, token: int) -> None:
        """Takes the next token."""
        self._sure = None
        if token in self._words.opening:
            self._place = _Place()
        elif token in self._words.closing:
            self._place = None
        elif (place := self._place) is not None and token not in self._words.special:
            could_end = not place.size or any(self._asked.ends[offset] for offset in place.at or ())
            for byte in self._words.bytes[token]:
                self._read(place, byte)
            place.word = () if place.at is None or not place.size else (*(() if could_end else place.word), token)

    def _read(self, place: _Place, byte: int) -> bool:
        """Takes a byte; false where it is none that is copied."""
        if place.at is not None:
            return self._copy(place, byte)
        if place.in_string:
            place.in_string = place.is_escaped or byte != _QUOTE
            place.is_escaped = not place.is_escaped and byte == _BACKSLASH
            if place.in_string:
                place.said += bytes([byte])
            elif place.stack == ["name"] and "" not in self._paths:
                place.tool = place.said.decode(errors="replace")
        elif byte == _QUOTE:
            place.in_string, place.said = True, b""
            if "" not in place.stack and tuple(place.stack) in self._paths.get(place.tool, ()):
                place.at, place.size = self._asked.starts, 0
        elif byte in (_OPEN_OBJECT, _OPEN_ARRAY):
            place.stack.append("" if byte == _OPEN_OBJECT else None)
        elif byte in (_CLOSE_OBJECT, _CLOSE_ARRAY) and place.stack:
            place.stack.pop()
        elif byte == _COLON and place.stack:
            place.stack[-1] = json.loads(b'"' + place.said + b'"', strict=False)
        elif byte == _COMMA and place.stack and place.stack[-1] is not None:
            place.stack[-1] = ""
        return True

    def _copy(self, place: _Place, byte: int) -> bool:
        assert place.at is not None
        asked = self._asked
        if byte == _QUOTE and not place.is_escaped:
            is_whole = place.size == 0 or any(asked.ends[offset] for offset in place.at)
            place.at, place.in_string = None, False
            return is_whole
        place.is_escaped = not place.is_escaped and byte == _BACKSLASH
        place.at = tuple(i + 1 for i in place.at if i < len(asked.text) and asked.text[i] == byte)
        place.size += 1
        return bool(place.at)
