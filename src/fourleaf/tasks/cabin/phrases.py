"""The data files, read once, checked line by line, and divided into the training and the held-out part.

A pattern (each whole utterance and each fixed sentence too) and each free-text form is held out when the SHA-1 of its
text is divisible by ten, so the division depends on nothing but the text itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fourleaf.errors import LabelError
from fourleaf.tasks.cabin import schema, variants
from fourleaf.tasks.cabin.schema import DATA, PARAMETERS, Example

BASE_FILES = ("phrases.jsonl", "utterances.jsonl")
SLOT = re.compile(r"\{(\w+)\}")
_MOST_DRAWS = 50


def held_out(text: str) -> bool:
    """Whether a pattern, utterance or filler belongs to the held-out tenth."""
    return int(hashlib.sha1(text.encode()).hexdigest(), 16) % 10 == 0


@dataclass(frozen=True)
class Phrase:
    """One way to ask for one tool: `pattern` has slots in braces, `args` the arguments fixed by the wording.

    Where `varies`, the pattern is a template of many (module `variants`), to be drawn before it is used.
    """

    tool: str
    pattern: str
    args: dict[str, Any]
    sign: int = 0
    query_type: tuple[str, ...] = ()
    text_type: tuple[str, ...] = ()
    varies: bool = False

    @property
    def slots(self) -> list[str]:
        return variants.slots(self.pattern) if self.varies else SLOT.findall(self.pattern)

    def drawn(self, random: Random) -> Phrase:
        """One wording of a template, never one that is held out."""
        assert self.varies
        for _ in range(_MOST_DRAWS):
            pattern = variants.draw(self.pattern, random)
            if not held_out(pattern):
                return replace(self, pattern=pattern, varies=False)
        raise LabelError(f"{_MOST_DRAWS} draws of {self.pattern!r} were held out; give the template more wordings")


@dataclass(frozen=True)
class Linked:
    """A template of one utterance with several calls, (name, arguments) each; an argument `{slot}` is copied text."""

    pattern: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    query_type: tuple[str, ...] = ()
    text_type: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repair:
    """A way to take something back: whole requests ({first}, {second}) or the values {a} and {b} of one slot."""

    pattern: str
    imperative: bool = False
    tool: str = ""
    slot: str = ""
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class Corpus:
    """Everything read from the data files, not yet divided."""

    phrases: list[Phrase] = field(default_factory=list)
    utterances: list[Example] = field(default_factory=list)
    linked: list[Linked] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    surfaces: dict[tuple[str, str], dict[Any, list[str]]] = field(default_factory=dict)
    fillers: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    joiners: list[str] = field(default_factory=list)
    openers: list[str] = field(default_factory=list)
    closers: list[str] = field(default_factory=list)
    out_of_scope: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def forms(self, tool: str, slot: str) -> dict[Any, list[str]]:
        """Ways to say each value of a slot; forms of the tool itself go before those of the slot in general."""
        return self.surfaces.get((tool, slot)) or self.surfaces.get(("", slot)) or {}


def _read_phrase(line: dict[str, Any], corpus: Corpus) -> None:
    tool, pattern, args = line["tool"], line["pattern"], line["args"]
    kinds = tuple(line.get("query_type", ())), tuple(line.get("text_type", ()))
    phrase = Phrase(tool, pattern, args, line.get("sign", 0), *kinds, varies=line["kind"] == "variants")
    if tool not in PARAMETERS:
        raise LabelError(f"unknown tool {tool!r}")
    named = [{"fahrenheit": "celsius"}.get(slot, slot) for slot in phrase.slots] + list(args)
    if sorted(named) != sorted(PARAMETERS[tool]):
        raise LabelError(f"slots and args must be exactly {sorted(PARAMETERS[tool])}, got {sorted(named)}")
    for name, value in args.items():
        spec = PARAMETERS[tool][name]
        wrong_enum = "enum" in spec and value not in spec["enum"]
        wrong_range = spec["type"] == "integer" and not spec["minimum"] <= value <= spec["maximum"]
        if wrong_enum or wrong_range or (spec["type"] == "boolean" and not isinstance(value, bool)):
            raise LabelError(f"{name}={value!r} is not allowed by {tool}")
    corpus.phrases.append(phrase)


def _read_linked(line: dict[str, Any], corpus: Corpus) -> None:
    calls = tuple((str(call["name"]), dict(call["arguments"])) for call in line["calls"])
    kinds = tuple(line.get("query_type", ())), tuple(line.get("text_type", ()))
    linked = Linked(line["pattern"], calls, *kinds)
    copied = [v[1:-1] for _, arguments in calls for v in arguments.values() if isinstance(v, str) and v[:1] == "{"]
    if variants.slots(linked.pattern) != sorted(copied):
        raise LabelError(f"the slots of {linked.pattern!r} must be the copied arguments {sorted(copied)}")
    # With each slot standing for itself it is an example like any other.
    schema.check(Example(variants.draw(linked.pattern, Random(0)), tuple(schema.Call(*call) for call in calls), ""))
    corpus.linked.append(linked)


def _read_line(line: dict[str, Any], corpus: Corpus) -> None:
    if "utterance" in line:
        example = schema.parse_line(line)
        schema.check(example)
        corpus.utterances.append(example)
        return
    kind = line["kind"]
    if kind in ("phrase", "variants"):
        _read_phrase(line, corpus)
    elif kind == "linked":
        _read_linked(line, corpus)
    elif kind == "repair":
        repair = Repair(
            line["pattern"],
            bool(line.get("imperative")),
            line.get("tool", ""),
            line.get("slot", ""),
            line.get("args", {}),
        )
        if set(SLOT.findall(repair.pattern)) != ({"a", "b"} if repair.slot else {"first", "second"}):
            raise LabelError("a repair has {first} and {second}, or {a} and {b} with tool and slot")
        corpus.repairs.append(repair)
    elif kind == "surface":
        values = corpus.surfaces.setdefault((line.get("tool", ""), line["slot"]), {})
        values.setdefault(line["value"], []).extend(_strings(line["forms"]))
    elif kind == "filler":
        corpus.fillers.setdefault((line["slot"], line.get("type", "")), []).extend(_strings(line["forms"]))
    elif kind in ("joiner", "opener", "closer"):
        getattr(corpus, kind + "s").extend(_strings(line["forms"]))
    elif kind in ("out_of_scope", "missing"):
        getattr(corpus, kind).extend(_strings([line["text"]]))
    else:
        raise LabelError(f"unknown kind {kind!r}")


def _strings(forms: list[Any]) -> list[str]:
    if not all(isinstance(form, str) for form in forms):
        raise LabelError(f"forms must be strings, got {forms!r}")
    return forms


def load(path: Path, corpus: Corpus) -> None:
    """Read one file into `corpus`. Raises LabelError that names file and line where a line is not right."""
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not raw.strip():
            continue
        try:
            _read_line(json.loads(raw), corpus)
        except (LabelError, ValueError, KeyError, TypeError) as error:
            reason = f"missing key {error}" if isinstance(error, KeyError) else str(error)
            raise LabelError(f"{path.name} line {number}: {reason}") from error


@cache
def corpus(*, additions: bool) -> Corpus:
    """The base files, with or without the `more_*.jsonl` additions (test sets are built without them)."""
    found = Corpus()
    paths = [DATA / name for name in BASE_FILES]
    if additions:
        paths += sorted(DATA.glob("more_*.jsonl"))
    for path in paths:
        load(path, found)
    return found


@cache
def dev() -> tuple[Example, ...]:
    """The hand-written development examples, without tags."""
    lines = (DATA / "dev.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(schema.parse_line(json.loads(line)) for line in lines if line.strip())


def word_runs(text: str, length: int = 6) -> Iterator[tuple[str, ...]]:
    """Runs of `length` words, case-folded and without punctuation."""
    words = re.findall(r"\w+", re.sub(r"['’]", "", text.casefold()))
    for start in range(len(words) - length + 1):
        yield tuple(words[start : start + length])


@cache
def dev_runs() -> frozenset[tuple[str, ...]]:
    """Every run of six words in the development utterances."""
    return frozenset(run for example in dev() for run in word_runs(example.utterance))


def overlaps_dev(text: str) -> bool:
    """Whether `text` shares six consecutive words with a development utterance."""
    runs = dev_runs()
    return any(run in runs for run in word_runs(text))
