"""From requests to an utterance: pieces chosen, joined, opened, closed, and mixed with what cannot be done.

Every rule that joining could break is kept here: what stands behind a message, "for me" beside a zone, remarks about
one system beside another request for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from random import Random
from typing import Any

from fourleaf.tasks.cabin import impossible, series
from fourleaf.tasks.cabin.fillers import Fillers
from fourleaf.tasks.cabin.noise import add_typo, capital, hesitate, restyle
from fourleaf.tasks.cabin.phrases import Corpus, Linked, Repair
from fourleaf.tasks.cabin.pieces import CLUSTERS, COPYING_TOOLS, EVEN_RATES, NumberRates, Piece, Requests
from fourleaf.tasks.cabin.repairs import draw_repair
from fourleaf.tasks.cabin.schema import FREE_TEXT, MISSING, OUT_OF_SCOPE, Example
from fourleaf.tasks.cabin.whole import Swapper, Template, analyse

COUNT_WEIGHTS = (30, 25, 15, 10, 8, 5, 4, 3)
# Whole utterances are closer to how people talk than patterns are.
WHOLE_SHARE = 0.55
# Of the pieces where two calls or more are wanted, in training: requests that share words.
SERIES_SHARE = 0.16
# More joiners of everyday speech; a bare comma is the commonest of all.
_PLAIN_JOINERS = (", ", ", ", ", ", " and ", " and ", ", and ", ". ", " then ", ", then ", " and also ", "; ")
_SENTENCE_JOINERS = (
    ". ", ". ", ". Also, ", ". And ", ". Oh, and ", ". Then ", ". Oh yeah, ", ". One more thing, ", ". Plus, ",
    ". Oh and ", ". Another thing, ", ", and ", "; ",
)  # fmt: skip
_AFTER_MARK = (" ", " ", " Also, ", " And ", " Oh, and ", " Then ", " Plus ", " Oh and ", " And then ")
_NEEDS_COMMAND = re.compile(
    r"please|could you|if you can|when that's done|as well as|once you|at the same time|to |need"
)
_BAD_LATER = re.compile(
    r"^(?:actually|sorry|no\b|nah|wait|oops|forget|scratch|never ?mind|instead|i mean|same|too\b|both|ditto|again|also|"
    r"and\b|then\b|plus\b|hello|hi\b|hey|good (?:morning|evening|day)|okay|ok\b|right\b|one:|list|first)",
    re.I,
)
_FINAL = re.compile(r"that['’]s (?:it|all)|nothing else|only that|thanks?\b|cheers|all of it|in that order|\bta$", re.I)
_SCOPED = re.compile(
    r"forget (?:it|that|all)|scratch (?:that|all)|cancel (?:that|it|all)|ignore (?:that|all)|none of|neither|undo", re.I
)
_LEANING = re.compile(r"\b(?:it|its|that|this|one|there|him|her|them|they|other|both|again|same|else)\b", re.I)
_ASKS = re.compile(
    r"^(?:what|who|how|why|when|where|which|is|are|do|does|did|can|could|will|tell|give|order|book)\b", re.I
)
_DOMAINS = re.compile(
    r"(navigat|route|stop|direct|guid|destin|address|drive|take|avoid|go )|(call|phone|dial|ring)|(text|messag|write|"
    r"tell|send|sms|reply|let )|(temper|climate|degree|thermostat)|(volum|sound)|(fan|air)|(light|colou?r|beam)|(mode)|"
    r"(cruise|speed)|(wiper)|(roof)|(window)|(play|music|song)|(seat)|(status|value|check)|(find|search|look|near)",
    re.I,
)
_FREE_CLOSERS = (
    " please", " please", ", please", " thanks", ", thanks", " thank you", " pls", ". Thanks!", ". Thank you",
    " for me", " for me please", " now", " right now", ", would you", ", if you can", ", cheers", ", ta", ", mate",
    " asap",
)  # fmt: skip


@dataclass
class Side:
    """All material of one side of the split."""

    corpus: Corpus
    requests: Requests
    swapper: Swapper
    templates: dict[int, list[Template]]
    weights: dict[int, list[float]]
    repairs: list[Repair]
    linked: list[Linked]
    out_of_scope: list[str]
    missing: list[str]
    vocabulary: frozenset[str]
    invents: bool = False
    # How often requests stand beside one that cannot be done or lacks a fact.
    partly: float = 0.07


def _rarity(templates: list[Template]) -> list[float]:
    """Weights that lift utterances with rare tools, rare fixed values or copied text."""
    counts: dict[tuple[str, str], int] = {}

    def features(template: Template) -> list[tuple[str, str]]:
        found = []
        for call in template.example.calls:
            fixed = sorted((n, v) for n, v in call.arguments.items() if isinstance(v, bool) or n in _FIXED_NAMES)
            found.append((call.name, repr(fixed)))
        return found

    for template in templates:
        for feature in features(template):
            counts[feature] = counts.get(feature, 0) + 1
    weights = []
    for template in templates:
        calls = template.example.calls
        lift = 1.8 if any(call.name in COPYING_TOOLS for call in calls) else 1.0
        weights.append(lift * sum(counts[f] ** -0.5 for f in features(template)) / len(calls))
    return weights


_FIXED_NAMES = frozenset({"window", "zone", "seat", "mode", "action", "item", "category", "color", "avoid"})


def _spelt_out(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments whose values a linked template has itself, slots left out."""
    return {name: value for name, value in arguments.items() if not str(value).startswith("{")}


def make_side(corpus: Corpus, keep: Callable[[str], bool], fillers: Fillers, rates: NumberRates = EVEN_RATES) -> Side:
    """The material whose patterns, utterances and sentences `keep` accepts."""

    def fixed(tool: str, args: dict[str, Any]) -> bool:
        """Whether copied text that a pattern spells out belongs to this side ("take me home")."""
        return all(fillers.mine(value) for name, value in args.items() if (tool, name) in FREE_TEXT)

    # Of a template each wording that is drawn is kept or not.
    phrases = [p for p in corpus.phrases if (p.varies or keep(p.pattern)) and fixed(p.tool, p.args)]
    kept = [example for example in corpus.utterances if keep(example.utterance)]
    swapper = Swapper(corpus, fillers, rates)
    templates = [t for t in (analyse(e, corpus, fillers) for e in kept if e.calls) if swapper.usable(t)]
    weights = _rarity(templates)
    by_count: dict[int, list[Template]] = {}
    count_weights: dict[int, list[float]] = {}
    for template, weight in zip(templates, weights, strict=True):
        by_count.setdefault(len(template.example.calls), []).append(template)
        count_weights.setdefault(len(template.example.calls), []).append(weight)
    silent = [example for example in kept if not example.calls]
    words = re.findall(r"[a-z]+", " ".join([p.pattern for p in corpus.phrases] + [e.utterance for e in kept]).lower())
    return Side(
        corpus,
        Requests(corpus, phrases, fillers, rates),
        swapper,
        by_count,
        {count: list(accumulate(values)) for count, values in count_weights.items()},
        [r for r in corpus.repairs if keep(r.pattern) and fixed(r.tool, r.args)],
        [p for p in corpus.linked if all(fixed(tool, _spelt_out(args)) for tool, args in p.calls)],
        [t for t in corpus.out_of_scope if keep(t)] + [e.utterance for e in silent if e.text == OUT_OF_SCOPE],
        [t for t in corpus.missing if keep(t)] + [e.utterance for e in silent if e.text == MISSING],
        frozenset(words),
    )


class Composer:
    """Draws examples from one side."""

    def __init__(self, side: Side) -> None:
        self.side = side

    def silent(self, random: Random) -> Piece:
        """Something that the car cannot do, small talk, or a request that lacks a fact."""
        cannot = random.random() < 0.6
        pool, answer = (self.side.out_of_scope, OUT_OF_SCOPE) if cannot else (self.side.missing, MISSING)
        if self.side.invents and random.random() < 0.4:
            return Piece(self._invented(random, cannot), (), answer=answer)
        piece = Piece(random.choice(pool), (), answer=answer)
        if cannot and random.random() < 0.08:
            other = Piece(random.choice(pool), (), answer=answer)
            if not _BAD_LATER.match(other.text) and other.text != piece.text:
                piece = replace(piece, text=self.join([piece, other], random))
        return piece

    def _invented(self, random: Random, cannot: bool) -> str:
        build = impossible.out_of_scope if cannot else impossible.missing
        return build(self.side.requests.fillers, random)

    def whole(self, count: int, random: Random) -> Piece | None:
        """A whole utterance of `count` calls with its values swapped; None where there is none."""
        pool = self.side.templates.get(count)
        if not pool:
            return None
        template = random.choices(pool, cum_weights=self.side.weights[count])[0]
        return self.side.swapper.draw(template, random)

    def _series(self, most: int, random: Random) -> Piece | None:
        if self.side.linked and random.random() < 0.4:
            return series.linked(random.choice(self.side.linked), self.side.requests.fillers, random)
        return series.draw(most, random)

    def pieces(self, count: int, random: Random, *, repair: bool) -> list[Piece]:
        """Pieces of `count` calls in all that may stand together."""
        chosen: list[Piece] = []
        remaining = count
        repair_at = random.randrange(min(count, 3)) if repair else -1
        tries = 0
        while remaining:
            tries += 1
            if tries > 400:
                chosen, remaining, tries = [], count, 0
            piece: Piece | None
            if repair_at == len(chosen):
                piece = draw_repair(self.side.repairs, self.side.requests, random, first=not chosen)
            elif self.side.invents and remaining > 1 and random.random() < SERIES_SHARE:
                piece = self._series(remaining, random)
            elif random.random() < WHOLE_SHARE:
                size = remaining if random.random() < 0.5 else random.randint(1, remaining)
                piece = self.whole(size, random)
            else:
                piece = self.side.requests.draw(random)
            if piece is None or len(piece.calls) > remaining or not self._fits(piece, chosen, alone=count == 1):
                continue
            # The repair would never be reached where one piece makes all calls.
            if repair and len(chosen) < repair_at and len(piece.calls) == remaining:
                continue
            chosen.append(piece)
            remaining -= len(piece.calls)
        return chosen

    def _fits(self, piece: Piece, chosen: list[Piece], *, alone: bool) -> bool:
        if not chosen:
            return True
        if _BAD_LATER.match(piece.text) or piece.vague or any(_FINAL.search(other.text) for other in chosen):
            return False
        if _SCOPED.search(piece.text) and "repair" not in piece.tags:
            return False
        if chosen[-1].ends_in_message and not piece.command:
            return False
        for other in chosen:
            if any(piece.systems & c and other.systems & c for c in CLUSTERS) and (piece.feeling or other.feeling):
                return False
            shared = piece.groups & other.groups
            apart = piece.explicit and other.explicit and not set(piece.calls) & set(other.calls)
            if shared and not apart and not shared <= {"query_status", "find_nearby", "call_contact", "add_stop"}:
                return False
            if set(piece.calls) & set(other.calls) or set(piece.copied) & set(other.copied):
                return False
        return True

    def add_silent(self, chosen: list[Piece], random: Random) -> list[Piece]:
        """With one part more that cannot be done or lacks a fact: the calls stay as they are (rules 6 and 7)."""
        for _ in range(8):
            cannot = random.random() < 0.6
            text = random.choice(self.side.out_of_scope if cannot else self.side.missing)
            if self.side.invents and random.random() < 0.4:
                text = self._invented(random, cannot)
            piece = Piece(text, ())
            asks = piece.command or _ASKS.match(text)
            if not asks or _BAD_LATER.match(text) or _LEANING.search(text) or len(text.split()) > 12:
                continue
            spoken_of = " ".join([*(c.name for p in chosen for c in p.calls), *(p.text for p in chosen)])
            if not cannot and self._domains(text) & self._domains(spoken_of):
                continue
            at = random.randint(0, len(chosen))
            follows_message = at > 0 and chosen[at - 1].ends_in_message
            if follows_message or (at < len(chosen) and (chosen[at].vague or _BAD_LATER.match(chosen[at].text))):
                continue
            if at > 0 and _FINAL.search(chosen[at - 1].text):
                continue
            return [*chosen[:at], replace(piece, tags=frozenset({"partial"})), *chosen[at:]]
        return chosen

    @staticmethod
    def _domains(text: str) -> set[int]:
        return {match.lastindex or 0 for match in _DOMAINS.finditer(text)}

    def join(self, chosen: list[Piece], random: Random) -> str:
        """One text of all pieces."""
        text = chosen[0].text
        style = random.random()
        for before, piece in pairwise(chosen):
            joiner = self._joiner(text, before, piece, style, random)
            if not text.endswith(("?", "!", "…")) and joiner[0] != " ":
                text = _without_stop(text, before)
            words = piece.text
            if re.search(r"[.?!]\s*$", joiner) or (joiner == " " and text.endswith((".", "?", "!"))):
                if not words.startswith(piece.copied or "\0") and random.random() < 0.8:
                    words = capital(words)
            else:
                words = self._lowered(piece)
            text += joiner + words
        return text

    def _lowered(self, piece: Piece) -> str:
        match = re.match(r"[A-Z][a-z']*(?![A-Za-z])", piece.text)
        known = (
            match
            and match[0] not in ("I", "I'm", "I've", "I'd", "I'll")
            and match[0].lower().split("'")[0] in self.side.vocabulary
        )
        if not known or (piece.copied and piece.text.startswith(piece.copied)):
            return piece.text
        return piece.text[0].lower() + piece.text[1:]

    def _joiner(self, text: str, before: Piece, piece: Piece, style: float, random: Random) -> str:
        if text.endswith(("?", "!", ".", "…")) and random.random() < 0.9:
            return random.choice(_AFTER_MARK)
        if not piece.command:
            if before.ends_free or random.random() < 0.6:
                return random.choice(_SENTENCE_JOINERS)
            return random.choice((", ", ", ", " and ", ", and "))
        if style < 0.35 or random.random() < 0.35:
            return random.choice(_PLAIN_JOINERS)
        return random.choice(self.side.corpus.joiners)

    def dress(self, piece: Piece, random: Random) -> Piece:
        """Opener, closer, slips, case and punctuation around an utterance."""
        text = piece.text
        if random.random() < 0.2:
            openers = [
                o
                for o in self.side.corpus.openers
                if not ("for me" in o and piece.for_all) and (piece.command or len(o.split()) < 5)
            ]
            opener = random.choice(openers)
            head = text.split(maxsplit=1)[0].lower().strip(",")
            if not (
                opener.strip(" ,").lower().endswith(head)
                or re.match(r"(?:hey|hi|hello|ok|okay|so|please)\b", text, re.I)
            ):
                text = opener + (self._lowered(replace(piece, text=text)) if opener else text)
        if (
            random.random() < 0.18
            and not piece.ends_in_message
            and not re.search(r"please|thank|cheers|\bta\b", text, re.I)
        ):
            text = self._closed(replace(piece, text=text), random)
        return replace(piece, text=text)

    def _closed(self, piece: Piece, random: Random) -> str:
        pool = list(_FREE_CLOSERS) if piece.ends_free or not piece.calls else self.side.corpus.closers
        closer = random.choice([c for c in pool if not ("for me" in c and (piece.for_all or len(piece.calls) > 1))])
        if piece.text.endswith(("?", "!", "…", ".")):
            sentence = closer.lstrip(".") if closer.startswith(".") else " " + capital(closer.strip(" ,"))
            return piece.text + sentence
        return piece.text + closer

    def example(self, random: Random, count: int, *, repair: bool, typo: bool) -> Example:
        """An utterance with its answer: `count` calls (0: none), all rules kept."""
        if not count:
            piece = self.silent(random)
            tags = {"no_call"}
        else:
            chosen = self.pieces(count, random, repair=repair)
            tags = {"joined"} if len(chosen) > 1 else set()
            if random.random() < self.side.partly:
                chosen = self.add_silent(chosen, random)
            piece = Piece(
                self.join(chosen, random),
                tuple(call for part in chosen for call in part.calls),
                frozenset().union(*(part.tags for part in chosen)),
            )
        piece = self.dress(piece, random)
        if random.random() < 0.05:
            piece = hesitate(piece, random)
        if typo:
            piece = add_typo(piece, self.side.vocabulary, random)
        piece = restyle(piece, random)
        return Example(piece.text.strip(), piece.calls, piece.answer, frozenset(piece.tags | tags | label_tags(piece)))


def _without_stop(text: str, last: Piece) -> str:
    """`text` without its full stop, unless the stop belongs to a copied text ("call Anna B.")."""
    return text if any(value.endswith(".") and text.endswith(value) for value in last.copied) else text.rstrip(".")


def label_tags(piece: Piece | Example) -> set[str]:
    """Tags that follow from the calls alone."""
    calls = piece.calls
    tags = {"no_call"} if not calls else {"single"} if len(calls) == 1 else {"multi"}
    if any(name in ("destination", "place", "query", "name", "text") for call in calls for name in call.arguments):
        tags.add("free_text")
    if any(call.name.startswith("adjust_") for call in calls):
        tags.add("relative")
    return tags
