"""Whole utterances with values swapped in both the words and the calls.

Each utterance is searched once for the places where an argument's value is spoken; a draw then fills those places
anew. A place is used only where the words bind it to its argument without doubt: a value that occurs more often than
arguments have it, a number that may be a default, a seat beside a remark about a person are left alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from fourleaf.tasks.cabin import spoken
from fourleaf.tasks.cabin.fillers import Fillers
from fourleaf.tasks.cabin.phrases import Corpus
from fourleaf.tasks.cabin.pieces import EVEN_RATES, FREE_SLOTS, NumberRates, Piece, draw_number
from fourleaf.tasks.cabin.schema import FREE_TEXT, PARAMETERS, Call, Example

# Beside these a seat, side or window may follow from who is meant, so its name alone must not change.
_PERSONAL = re.compile(
    r"\b(?:i['’]?m|i am|i['’]?ve|me|myself|my (?!window|seat|side)\w+|kids?|bairns?|children|he|she|hers?|his|him|"
    r"he['’]s|she['’]s|baby|dog|wife|husband|mate|they|us|we|our|"
    r"passenger['’]s \w+ing|gran\w*|nan|mum|mom|dad|guests?)\b",
    re.I,
)
_FIXED_PLACES = frozenset({"home", "work", "there", "school", "town", "hame"})
_CONTEXT_BEFORE = re.compile(
    r"(?:\bto|\bat|\bon|\blevel|\bnumber|\bby|\bof|\bspeed|\bvolume|\bfan|\bsay|[:,])\s*$", re.I
)
_CONTEXT_AFTER = re.compile(
    r"\s*(?:degrees?|deg|percent|per cent|%|notch\w*|steps?|clicks?|points?|levels?|bars?|ticks?|mph|miles|k\b|km)",
    re.I,
)
# Words near a copied value that say what it is; without them only a known name would, so it stays.
_CUES = {
    "query": r"play|put|listen|hear|music|song|radio|tune|spin|queue|podcast|album|track|stream|blast|band|stick|whack|"
    r"\bon\b|\bby\b|sing|crank|episode|station|fm\b|sound|channel|cue|lash|throw|switch to|instead|mood for|vibe",
    "name": r"call|ring|phone|text|messag|tell|dial|write|drop|let|know|send|buzz|bell|line|speak|talk|sms|reply|"
    r"blower|telephone|get|contact|reach|say|ping|answer|shout|word|whatsapp|inform|connect|through|hold of|tinkle",
    "destination": r"\bto\b|\btae\b|navigat|destin|head|rout|direct|driv|\bgo|find|off|for\b|way|get|bring|tak|reach|"
    r"there|set|sat ?nav|bound|towards|at\b|in\b|address|aim|avoid|without|fastest|need",
    "place": r"stop|via|swing|rout|pick|through|past|way|add|drop|pit|pop|waypoint|visit|by\b|call in|at\b|to\b|detour",
    "text": r".",
}
_SINGLES = {"window": 4, "seat": 4, "zone": 3}
_EXTREME = re.compile(r"\b(?:max\w*|full\w*|high\w*|most|top|blast|open|possible|flat out)\b", re.I)
_DETOURS = {
    "tolls": (" avoiding tolls", ", no tolls", " without toll roads", ", avoid toll roads", " but skip the tolls"),
    "highways": (" avoiding highways", ", no motorways", " without the motorway", ", avoid the freeway"),
    "ferries": (" avoiding ferries", ", no ferries", " without any ferry", ", avoid ferries"),
}


@dataclass(frozen=True)
class Place:
    """A span of an utterance that speaks one argument's value; `owners` are (call index, argument)."""

    start: int
    end: int
    kind: str
    slot: str
    tool: str
    owners: tuple[tuple[int, str], ...]
    unit: str = ""
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Template:
    """An utterance with the places whose values may be swapped, left to right."""

    example: Example
    places: tuple[Place, ...]


class _Claims:
    """Spans that already belong to an argument."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []

    def free(self, start: int, end: int) -> bool:
        return all(end <= a or start >= b for a, b in self.spans)

    def add(self, start: int, end: int) -> None:
        self.spans.append((start, end))


def _query_kinds(value: str, text: str, fillers: Fillers) -> tuple[str, ...]:
    known = fillers.kinds.get(value.casefold())
    if known:
        return (known,)
    if re.search(r"\b(?:radio|station|tune|fm|frequency)\b", text, re.I):
        return ("station",)
    if re.search(r"\b(?:podcast|episode)\b", text, re.I):
        return ("podcast",)
    if re.search(r"\b(?:album|playlist|audiobook|soundtrack)\b", value, re.I):
        return ("other",)
    if value.islower() and len(value.split()) < 3 and not text.islower():
        return ("genre",)
    return ("artist", "song")


def _text_kinds(before: str, value: str) -> tuple[str, ...] | None:
    """Which messages read well there; None where the message is bound to its lead-in."""
    if re.match(r"(?:to|if|whether|about)\b", value, re.I) or re.search(r"\b(?:ask|asking)\b[^,.]*$", before, re.I):
        return None
    loose = re.search(r"(?:[:\"“']|saying|says|say|text|message|sms|this)\s*$", before, re.I)
    return () if loose else ("statement",)


def _free_places(example: Example, claims: _Claims, fillers: Fillers) -> list[Place]:
    text = example.utterance
    owners: dict[str, list[tuple[int, str]]] = {}
    for index, call in enumerate(example.calls):
        for name, value in call.arguments.items():
            if (call.name, name) in FREE_TEXT:
                owners.setdefault(value, []).append((index, name))
    places = []
    for value in sorted(owners, key=len, reverse=True):
        spans = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(value)}(?!\w)", text)]
        spans = [span for span in spans if claims.free(*span)]
        for span in spans:
            claims.add(*span)
        index, slot = owners[value][0]
        if len(spans) != len(owners[value]) or len({name for _, name in owners[value]}) != 1:
            continue
        before = text[: spans[0][0]]
        kinds: tuple[str, ...] | None = ()
        if slot == "text":
            kinds = _text_kinds(before, value)
        elif slot == "query":
            kinds = _query_kinds(value, text, fillers)
        # "the {Copper Kettle}" or "my {sister}" would get a second article.
        bound = re.search(r"\b(?:the|a|an|my|our|your|some|this|his|her)\s+$", before, re.I)
        if kinds is None or value.lower() in _FIXED_PLACES or (bound and kinds != ("genre",)):
            continue
        near = text[max(0, spans[0][0] - 60) : spans[0][0]] + " | " + text[spans[0][1] : spans[0][1] + 30]
        if not re.search(_CUES[slot], near, re.I):
            continue
        tool = example.calls[index].name
        # Several calls may share a value; each of its places belongs to one of them, all are filled alike.
        places += [Place(a, b, "free", slot, tool, tuple(owners[value]), kinds=kinds) for a, b in spans]
    return places


def _unit(tool: str, slot: str, said: int, value: int, text: str) -> str | None:
    """How the number said gives the value: "", "f" or "mph"; None where it does not."""
    spec = PARAMETERS[tool][slot]

    def clamp(number: int) -> int:
        return min(max(number, spec["minimum"]), spec["maximum"])

    if slot == "celsius" and (said > 45 or re.search(r"fahrenheit|\bF\b", text)):
        return "f" if clamp(spoken.celsius(said)) == value else None
    if slot == "speed_kmh" and re.search(r"mph|\bmiles?\b", text):
        return "mph" if clamp(spoken.kmh(said)) == value else None
    return "" if clamp(said) == abs(value) or (slot == "delta" and clamp(-said) == value) else None


def _number_places(example: Example, claims: _Claims) -> list[Place]:
    text = example.utterance
    found = [m for m in spoken.mentions(text) if claims.free(m.start, m.end)]
    bindings: dict[int, list[Place]] = {}
    for index, call in enumerate(example.calls):
        for slot, spec in PARAMETERS[call.name].items():
            if spec["type"] != "integer":
                continue
            hits = []
            for mention in found:
                unit = _unit(call.name, slot, mention.value, call.arguments[slot], text)
                if unit is not None:
                    hits.append(Place(mention.start, mention.end, "number", slot, call.name, ((index, slot),), unit))
            if len(hits) == 1:
                bindings.setdefault(hits[0].start, []).append(hits[0])
    places = []
    for mention in found:
        mine = bindings.get(mention.start, [])
        after = _CONTEXT_AFTER.match(text, mention.end)
        near = bool(after or _CONTEXT_BEFORE.search(text[: mention.start]))
        sure = near or mention.value > 7
        # "A twelve hour shift, so my seat on high": twelve would clamp to the level that "high" means.
        if len(mine) == 1 and mine[0].slot in ("level", "delta", "position"):
            said = abs(example.calls[mine[0].owners[0][0]].arguments[mine[0].slot])
            sure = sure and (mention.value == said or (near and not _EXTREME.search(text)))
        if len(mine) == 1 and sure and mention.value != 0:
            places.append(mine[0])
            claims.add(mention.start, mention.end)
    return places


@cache
def _form_pattern(forms: tuple[str, ...]) -> re.Pattern[str]:
    ordered = sorted(set(forms), key=len, reverse=True)
    return re.compile(rf"(?<![\w'’-])(?:{'|'.join(map(re.escape, ordered))})(?![\w-])", re.I)


def _enum_places(example: Example, claims: _Claims, corpus: Corpus) -> list[Place]:
    text = example.utterance
    personal = bool(_PERSONAL.search(text))
    # Where something is taken back or said twice, a value may be spoken a second time in other words.
    corrected = bool(re.search(r"\b(?:no|not|mean|wait|sorry|rather|actually|nah|or|instead|make that)\b", text, re.I))
    places = []
    for slot in ("window", "seat", "zone", "color", "avoid", "category", "mode"):
        owners = [(i, c) for i, c in enumerate(example.calls) if slot in c.arguments]
        tools = {call.name for _, call in owners}
        if len(tools) != 1 or corrected or (personal and slot in _SINGLES):
            continue
        tool = tools.pop()
        if tool in ("set_defrost", "set_lights", "set_wipers"):
            continue
        values = {form.lower(): value for value, forms in corpus.forms(tool, slot).items() for form in forms}
        matches = [m for m in _form_pattern(tuple(values)).finditer(text) if claims.free(*m.span())]
        if len(matches) != len(owners):
            continue
        for match, (index, call) in zip(matches, owners, strict=True):
            value = values[match[0].lower()]
            if re.match(r"['’]| (?:is|are|has|have|needs?|gets?|was)\b", text[match.end() :]):
                continue
            named = slot != "category" or re.match(r"(?:an?|somewhere) ", match[0])
            if named and value == call.arguments[slot] and value not in ("all", "nothing") and match[0][0].islower():
                places.append(Place(*match.span(), "enum", slot, tool, ((index, slot),)))
                claims.add(*match.span())
    return places


def analyse(example: Example, corpus: Corpus, fillers: Fillers) -> Template:
    """Find the places of an utterance whose values may be swapped."""
    claims = _Claims()
    places = _free_places(example, claims, fillers)
    places += _number_places(example, claims)
    places += _enum_places(example, claims, corpus)
    return Template(example, tuple(sorted(places, key=lambda place: place.start)))


class Swapper:
    """Fills the places of templates anew."""

    def __init__(self, corpus: Corpus, fillers: Fillers, rates: NumberRates = EVEN_RATES) -> None:
        self.rates = rates
        self.corpus = corpus
        self.fillers = fillers

    def draw(self, template: Template, random: Random, *, share: float = 0.75, free_share: float = 0.85) -> Piece:
        """A new wording of the template with each place swapped with probability `share` (`free_share` if copied)."""
        text = template.example.utterance
        arguments = [dict(call.arguments) for call in template.example.calls]
        tags: set[str] = set()
        units = {"f": "fahrenheit", "mph": "mph"}
        tags.update(units[place.unit] for place in template.places if place.unit)
        drawn: dict[tuple[tuple[int, str], ...], str] = {}
        for place in reversed(template.places):
            if place.owners in drawn:
                form = drawn[place.owners]
            elif not self._foreign(place, template) and random.random() >= (
                free_share if place.kind == "free" else share
            ):
                form = text[place.start : place.end]
            else:
                form = self._fill(place, text, arguments, random, tags)
            drawn[place.owners] = form
            text = text[: place.start] + form + text[place.end :]
        calls = tuple(Call(c.name, a) for c, a in zip(template.example.calls, arguments, strict=True))
        return Piece(text, calls, frozenset(tags), template.example.text, pattern=template.example.utterance)

    def _foreign(self, place: Place, template: Template) -> bool:
        """Whether the place holds copied text of the split's other side, which must not stay."""
        value = template.example.utterance[place.start : place.end]
        return place.kind == "free" and not self.fillers.mine(value)

    def usable(self, template: Template) -> bool:
        """Whether every copied text of the split's other side can be swapped away."""
        swappable = {owner for place in template.places if place.kind == "free" for owner in place.owners}
        return all(
            (index, name) in swappable or self.fillers.mine(value)
            for index, call in enumerate(template.example.calls)
            for name, value in call.arguments.items()
            if (call.name, name) in FREE_TEXT
        )

    def _fill(self, place: Place, text: str, arguments: list[dict[str, Any]], random: Random, tags: set[str]) -> str:
        if place.kind == "free":
            form = self.fillers.value(place.slot, random, place.kinds)
            if text.isupper():
                form = form.upper()
            elif text == text.lower() and random.random() < 0.6:
                form = form.lower()
            assert place.slot in FREE_SLOTS
            for index, name in place.owners:
                arguments[index][name] = form
            return form + self._detour(place, text, arguments, random)
        index, name = place.owners[0]
        if place.kind == "number":
            return self._number(place, text, arguments[index], random, tags)
        forms = self.corpus.forms(place.tool, place.slot)
        choices = [value for value in forms if value not in ("all", "nothing")]
        if place.slot == "category" and random.random() < 0.5:
            choices = [arguments[index][name]]
        value = random.choice(choices)
        form = random.choice(forms[value])
        if re.search(r"\ban?\s+$", text[: place.start]):
            return text[place.start : place.end]
        arguments[index][name] = value
        return form

    def _detour(self, place: Place, text: str, arguments: list[dict[str, Any]], random: Random) -> str:
        """Words that add something to avoid behind a destination, now and then."""
        index, name = place.owners[0]
        plain = name == "destination" and arguments[index]["avoid"] == "nothing" and len(place.owners) == 1
        if not plain or random.random() > 0.1 or not re.match(r"\s*(?:$|[,.;] | and | then )", text[place.end :]):
            return ""
        if re.search(r"toll|ferr|boat|highway|motorway|freeway|road|avoid|via", text, re.I):
            return ""
        avoid = random.choice(list(_DETOURS))
        arguments[index]["avoid"] = avoid
        return random.choice(_DETOURS[avoid])

    def _number(self, place: Place, text: str, arguments: dict[str, Any], random: Random, tags: set[str]) -> str:
        old = text[place.start : place.end]
        in_words = (
            not old.isdigit() if random.random() < self.rates.as_written else random.random() < self.rates.in_words
        )
        unit = place.unit or self._other_unit(place, text, random)
        if unit == "mph":
            said = random.randint(4, 18) * 5
            value, clamped = min(spoken.kmh(said), 150), False
        else:
            slot = "fahrenheit" if unit == "f" else place.slot
            said, value, clamped = draw_number(slot, place.tool, random, rates=self.rates)
            # "2 degrees" keeps its plural, and a word for nothing would read oddly where a level stood.
            if said <= 1:
                return old
        tags.update(
            tag
            for tag, on in (
                ("number_word", in_words),
                ("fahrenheit", unit == "f"),
                ("mph", unit == "mph"),
                ("clamp", clamped),
            )
            if on
        )
        sign = -1 if place.slot == "delta" and arguments[place.slot] < 0 else 1
        arguments[place.slot] = sign * value
        form = spoken.say(said, random, in_words=in_words)
        return form if place.unit == unit or unit == "f" else f"{form} {random.choice(('mph', 'miles an hour'))}"

    def _other_unit(self, place: Place, text: str, random: Random) -> str:
        """ "f" or "mph" where a number without a unit may take one: a bare temperature above 45 is Fahrenheit."""
        if self.rates.other_unit and random.random() < self.rates.other_unit:
            if place.slot == "celsius" and not re.search(r"celsius|centigrade|\bC\b", text):
                return "f"
            if place.slot == "speed_kmh" and not re.search(
                r"km|kph|kilom|kays|clicks|\bk\b|\dk\b|mph|mile", text, re.I
            ):
                return "mph"
        return ""
