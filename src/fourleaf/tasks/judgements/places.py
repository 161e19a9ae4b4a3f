"""Families over who or what goes where: exactly one of several, an order, an assignment, a coloured map."""

from __future__ import annotations

from random import Random

from fourleaf.tasks.judgements import terms
from fourleaf.tasks.judgements.group import CHOICE, SCORE, Statement, Variable
from fourleaf.tasks.judgements.switches import noul
from fourleaf.tasks.judgements.terms import (
    before,
    different,
    equals,
    iff,
    implies,
    negated,
    one_of,
    rule,
)
from fourleaf.tasks.judgements.wording import Side, listed

_ROLES = (
    ("drives", "does not drive", "Does {p} drive?", "Is {p} no driver?", "Who drives?"),
    ("has the key", "has no key", "Does {p} have the key?", "Is {p} without the key?", "Who has the key?"),
    ("pays", "does not pay", "Does {p} pay?", "Does {p} go without paying?", "Who pays?"),
    ("gets the parking space", "gets no parking space", "Does {p} get the parking space?",
     "Does {p} miss out on the parking space?", "Who gets the parking space?"),
    ("booked the car", "did not book the car", "Did {p} book the car?", "Is {p} not the one who booked the car?",
     "Who booked the car?"),
)  # fmt: skip
_ONE_OF = ("Exactly one of {all} {does}.", "Of {all}, only one {does}.", "One of {all} {does}, and nobody else.")
_RANKS = ("first", "second", "third", "fourth")
_EVENTS = (
    ("comes", "come", "At which place does {p} come?", "Does {p} come before {q}?", "Does {p} come after {q}?"),
    ("speaks", "speak", "When does {p} speak?", "Does {p} speak before {q}?", "Does {p} speak after {q}?"),
    ("gets off", "get off", "When does {p} get off?", "Does {p} get off before {q}?", "Does {p} get off after {q}?"),
)
_SKINS = (
    ("in the front left", "in the front right", "in the back left", "in the back right", "sits", "sit",
     "Where does {p} sit?", "in front", "in the back"),
    ("in the morning", "at noon", "in the evening", "at night", "works", "work", "When does {p} work?",
     "before evening", "after noon"),
    ("on level one", "on level two", "on level three", "on level four", "parks", "park", "Where does {p} park?",
     "on the two lower levels", "on the two upper levels"),
)  # fmt: skip
_COLOURS = ("red", "green", "blue")


def _orders(size: int, random: Random) -> tuple[int, ...]:
    return tuple(random.sample(range(size), size))


def exactly_one(size: int, random: Random, side: Side) -> tuple[list[Variable], list[Statement]]:
    """One of several people, asked as a choice and person by person."""
    people = side.names(random, size - 1)
    does, does_not, ask, other, who = random.choice(_ROLES)
    holder = random.randrange(len(people))
    nouls = [
        noul(
            f"p{i}",
            int(i == holder),
            (ask.format(p=p), other.format(p=p)),
            (f"{p} {does_not}.", f"{p} {does}."),
            random,
        )
        for i, p in enumerate(people)
    ]
    choice = Variable(
        "who",
        CHOICE,
        tuple(people),
        holder,
        who,
        tuple(f"{p} {does}." for p in people),
        order=_orders(len(people), random),
    )
    named = [equals(v, 1) for v in nouls]
    links = [iff(term, equals(choice, i)) for i, term in enumerate(named)]
    text = side.say(random, _ONE_OF, all=listed(people), does=does)
    return [*nouls, choice], [rule(text, terms.exactly_one(named), *links)]


def ordering(size: int, random: Random, side: Side) -> tuple[list[Variable], list[Statement]]:
    """Three or four people one after the other; the places of all, and who is before whom."""
    num = 3 if size == 3 else 4
    people = side.names(random, num)
    places = random.sample(range(num), num)
    does, do, ask, is_before, is_after = random.choice(_EVENTS)
    scores = [
        Variable(f"p{i}", SCORE, _RANKS[:num], place, ask.format(p=p),
                 tuple(f"{p} {does} {rank}." for rank in _RANKS[:num]),
                 tuple(f"{p} does not {do} {rank}." for rank in _RANKS[:num]))
        for i, (p, place) in enumerate(zip(people, places, strict=True))
    ]  # fmt: skip
    pairs = random.sample([(a, b) for a in range(num) for b in range(a + 1, num)], size - num + 1)
    told, *asked = pairs
    text = side.pick(random, ("No two {do} at once.", "They {do} one at a time.", "All {do} at different places."))
    rules = [rule(text.format(do=do), different(scores))]
    nouls = []
    for i, (a, b) in enumerate(asked):
        words = (is_before.format(p=people[a], q=people[b]), is_after.format(p=people[a], q=people[b]))
        says = (f"{people[a]} {does} after {people[b]}.", f"{people[a]} {does} before {people[b]}.")
        nouls.append(noul(f"q{i}", int(places[a] < places[b]), words, says, random))
        rules.append(rule("", iff(equals(nouls[-1], 1), before(scores[a], scores[b]))))
    a, b = told if places[told[0]] < places[told[1]] else told[::-1]
    twin = rule(f"{people[b]} {does} before {people[a]}.", before(scores[b], scores[a]))
    rules.append(rule(f"{people[a]} {does} before {people[b]}.", before(scores[a], scores[b]), twin=twin))
    return [*scores, *nouls], rules


def assignment(size: int, random: Random, side: Side) -> tuple[list[Variable], list[Statement]]:
    """Three or four people and as many seats, shifts or levels."""
    num = 3 if size == 3 else 4
    people = side.names(random, num)
    *spots, does, do, ask, low, high = random.choice(_SKINS)
    spots = spots[:num]
    found = random.sample(range(num), num)
    choices = [
        Variable(f"p{i}", CHOICE, tuple(spots), spot, ask.format(p=p),
                 tuple(f"{p} {does} {s}." for s in spots), tuple(f"{p} does not {do} {s}." for s in spots),
                 _orders(num, random))
        for i, (p, spot) in enumerate(zip(people, found, strict=True))
    ]  # fmt: skip
    text = side.pick(random, ("No two {do} in one place.", "Each has a place alone.", "Nobody shares a place."))
    rules = [rule(text.format(do=do), different(choices))]
    nouls = []
    for i, person in enumerate(random.sample(range(num), size - num)):
        p, variable = people[person], choices[person]
        words = (f"Does {p} {do} {low}?", f"Does {p} {do} {high}?")
        says = (f"{p} {does} {high}.", f"{p} {does} {low}.")
        nouls.append(noul(f"q{i}", int(found[person] < 2), words, says, random))
        rules.append(rule("", iff(equals(nouls[-1], 1), one_of(variable, (0, 1)))))
    a, b = random.sample(range(num), 2)
    text = side.pick(random, ("If {p} {does} {x}, {q} {does} {y}.", "When {p} {does} {x}, {q} {does} {y}."))
    parts = {"p": people[a], "q": people[b], "does": does, "x": spots[found[a]]}
    is_there = equals(choices[a], found[a])
    twin = rule(
        text.format(y=spots[found[b]], **parts).replace(f", {people[b]} {does}", f", {people[b]} does not {do}"),
        implies(is_there, negated(equals(choices[b], found[b]))),
    )
    said = text.format(y=spots[found[b]], **parts)
    rules.append(rule(said, implies(is_there, equals(choices[b], found[b])), twin=twin))
    return [*choices, *nouls], rules


def colouring(size: int, random: Random, side: Side) -> tuple[list[Variable], list[Statement]]:
    """Regions of a map in three colours, neighbours in different ones."""
    regions = side.places(random, size)
    while True:
        colours = [random.randrange(3) for _ in regions]
        if len(set(colours)) == 3:
            break
    ask = side.pick(random, ("What colour is {p}?", "Which colour does {p} have?", "In what colour is {p} painted?"))
    choices = [
        Variable(f"r{i}", CHOICE, _COLOURS, colour, ask.format(p=p), tuple(f"{p} is {c}." for c in _COLOURS),
                 tuple(f"{p} is not {c}." for c in _COLOURS), _orders(3, random))
        for i, (p, colour) in enumerate(zip(regions, colours, strict=True))
    ]  # fmt: skip
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size) if colours[a] != colours[b]]
    edges = random.sample(pairs, min(len(pairs), size + random.randrange(0, 3)))
    header = side.pick(
        random,
        (
            "Neighbours differ in colour.",
            "No two neighbours have the same colour.",
            "Regions that touch differ in colour.",
        ),
    )
    touches: dict[int, list[int]] = {}
    for a, b in edges:
        touches.setdefault(a, []).append(b)
    lines = " ".join(f"{regions[a]} touches {listed([regions[b] for b in bs])}." for a, bs in touches.items())
    return choices, [rule(f"{header} {lines}", *(different([choices[a], choices[b]]) for a, b in edges))]
