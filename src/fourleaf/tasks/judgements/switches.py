"""Families over things that are so or not so: implication chains, clauses of a contract, safety rules, liars."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from fourleaf.tasks.judgements.group import CHOICE, NOUL, SCORE, Statement, Variable
from fourleaf.tasks.judgements.terms import Term, both, either, equals, iff, implies, negated, rule
from fourleaf.tasks.judgements.wording import Side

_DEVICES = (
    ("the heater", "on", "off"), ("the fan", "on", "off"), ("the radio", "on", "off"), ("the fog light", "on", "off"),
    ("the sunroof", "open", "closed"), ("the left window", "open", "closed"), ("the right window", "open", "closed"),
    ("the trunk", "open", "closed"), ("the camera", "on", "off"), ("the seat heating", "on", "off"),
    ("the massage", "on", "off"), ("the charger", "on", "off"), ("the alarm", "on", "off"),
    ("the blind", "open", "closed"),
)  # fmt: skip
_IS_ASKED = ("is {thing} {state}?", "would you find {thing} {state}?", "is it right that {thing} is {state}?")
_IS_SAID = ("{thing} is {state}.", "right now {thing} is {state}.", "somebody left {thing} {state}.")
_EXACTLY = (
    "{b} is {bs} exactly when {a} is {as_}.",
    "{b} is {bs} if and only if {a} is {as_}.",
    "if {a} is {as_}, {b} is {bs}, and otherwise not.",
    "as long as {a} is {as_}, and only then, {b} is {bs}.",
)
_MODES = ("comfort", "eco", "sport")


def noul(name: str, truth: int, asks: tuple[str, str], says: tuple[str, str], random: Random) -> Variable:
    """A yes or no, asked either way round. asks: (for the world's yes, for its no); says: (where no, where yes)."""
    flipped = random.random() < 0.5
    return Variable(name, NOUL, ("no", "yes"), truth, asks[flipped], says, flipped=flipped)


def _device(index: int, device: tuple[str, str, str], truth: int, random: Random, side: Side) -> Variable:
    thing, yes, no = device
    asks = (side.say(random, _IS_ASKED, thing=thing, state=yes), side.say(random, _IS_ASKED, thing=thing, state=no))
    says = (side.say(random, _IS_SAID, thing=thing, state=no), side.say(random, _IS_SAID, thing=thing, state=yes))
    return noul(f"d{index}", truth, asks, says, random)


def _link(
    a: tuple[Variable, str, str, str], b: tuple[Variable, str, str, str], random: Random, side: Side
) -> Statement:
    """b is so exactly when a is, or exactly when it is not; the twin says the opposite."""
    (first, thing, *_), (second, other, *_) = a, b
    state, other_state = (a[3], a[2]), (b[3], b[2])
    same = first.truth == second.truth
    start = random.randrange(2)  # the state of a that the sentence names
    wording = (side.pick(random, _EXACTLY),)

    def sentence(is_same: bool, twin: Statement | None) -> Statement:
        goal = start if is_same else 1 - start
        text = side.say(random, wording, a=thing, as_=state[start], b=other, bs=other_state[goal])
        return rule(text, iff(equals(first, start), equals(second, goal)), twin=twin)

    return sentence(same, sentence(not same, None))


def chains(size: int, random: Random, side: Side) -> tuple[list[Variable], list[Statement]]:
    """Devices that hang on one another, and the driving mode that follows from two of them."""
    devices = random.sample(_DEVICES, size - 1)
    truths = [random.randrange(2) for _ in devices]
    made = [
        (_device(i, device, truth, random, side), *device)
        for i, (device, truth) in enumerate(zip(devices, truths, strict=True))
    ]
    rules = [_link(made[random.randrange(max(0, i - 2), i)], made[i], random, side) for i in range(1, len(made))]
    (first, thing, on, off), (second, other, up, down) = random.sample(made, 2)
    modes = random.sample(_MODES, 3)
    truth = 2 if not first.truth else 1 - second.truth
    asks = ("Which driving mode is set?", "What is the driving mode?", "In which mode does the car drive?")
    ask = side.pick(random, asks)
    facts = tuple(f"The mode is {name}." for name in modes)
    mode = Variable("mode", CHOICE, tuple(modes), truth, ask, facts, order=tuple(random.sample(range(3), 3)))
    text = (
        f"The mode is {modes[2]} when {thing} is {off}; when {thing} is {on}, it is {modes[0]} if {other} is {up} "
        f"and {modes[1]} if {other} is {down}."
    )
    is_on, is_up = equals(first, 1), equals(second, 1)
    terms = (
        implies(negated(is_on), equals(mode, 2)),
        implies(both(is_on, is_up), equals(mode, 0)),
        implies(both(is_on, negated(is_up)), equals(mode, 1)),
    )
    return [*(v for v, *_ in made), mode], [*rules, rule(text, *terms)]


@dataclass(frozen=True)
class _Skin:
    """Wording of a family of gates: circumstances that facts tell, effects that follow, and an outcome.

    A circumstance: (evidence for it, evidence against it, what it is called, its opposite, asked, asked the other way).
    An effect: (what follows, its opposite, asked, asked the other way).
    """

    circumstances: tuple[tuple[str, str, str, str, str, str], ...]
    effects: tuple[tuple[str, str, str, str], ...]
    outcome: str
    result: str
    ladder: tuple[str, str, str]


_CONTRACT = _Skin(
    circumstances=(
        ("the buyer is Mrs Hall", "the buyer is Hall Ltd", "the buyer is a person", "the buyer is a company",
         "Is the buyer a person?", "Is the buyer a company?"),
        ("the order was cancelled on day 9 of 14", "the order was cancelled on day 20 of 14",
         "the order was cancelled in time", "the order was cancelled too late",
         "Was the order cancelled in time?", "Was the order cancelled too late?"),
        ("the glass came with a crack", "the glass came without a crack", "the goods are broken", "the goods are whole",
         "Are the goods broken?", "Are the goods whole?"),
        ("the bill of 80 was paid with 80", "the bill of 80 was paid with 30", "the bill is paid", "the bill is open",
         "Is the bill paid?", "Is the bill still open?"),
        ("both sides have signed", "one side has not signed", "the contract is valid", "the contract is not valid",
         "Is the contract valid?", "Is the contract without effect?"),
        ("the price is 640", "the price is 310", "the price is above 500", "the price is below 500",
         "Is the price above 500?", "Is the price below 500?"),
    ),
    effects=tuple(
        (f"clause {n} applies", f"clause {n} is void", f"Does clause {n} apply?", f"Is clause {n} void?")
        for n in (2, 4, 5, 7, 9)
    ),
    outcome="Who is to pay for the return?",
    result="To pay is up to",
    ladder=("the seller", "the buyer", "the insurer"),
)  # fmt: skip
_SAFETY = _Skin(
    circumstances=(
        ("the car drives at 96 km/h", "the car drives at 24 km/h", "the car is fast", "the car is slow",
         "Is the car faster than 60 km/h?", "Is the car slower than 60 km/h?"),
        ("the battery is at 11 percent", "the battery is at 83 percent", "the battery is low", "the battery is full",
         "Is the battery below 20 percent?", "Is the battery above 20 percent?"),
        ("a child sits in the back", "the back seats are empty", "there is a child", "there is no child",
         "Is there a child in the car?", "Is the car without a child?"),
        ("rain falls on the car", "the sky is clear", "it is wet", "it is dry",
         "Is it wet outside?", "Is it dry outside?"),
        ("the parking brake is on", "the parking brake is off", "the car is parked", "the car is not parked",
         "Is the car parked?", "Is the car not parked?"),
        ("it is one at night", "it is noon", "it is dark", "it is light",
         "Is it dark outside?", "Is it light outside?"),
    ),
    effects=(
        ("the back windows are locked", "the back windows are free",
         "Are the back windows locked?", "Are the back windows free?"),
        ("video may play", "video stays off", "May video play?", "Does video stay off?"),
        ("the sunroof may open", "the sunroof stays shut", "May the sunroof open?", "Does the sunroof stay shut?"),
        ("the massage is allowed", "the massage is blocked", "Is the massage allowed?", "Is the massage blocked?"),
        ("the speed limiter is on", "the speed limiter is off",
         "Is the speed limiter on?", "Is the speed limiter off?"),
    ),
    outcome="How strong is the warning?",
    result="There is",
    ladder=("no warning", "a yellow warning", "a red warning"),
)  # fmt: skip
_WHEN = (
    "{b} exactly when {a}.",
    "{b} if and only if {a}.",
    "if {a}, {b}; otherwise {c}.",
    "{b} whenever {a}, and only then.",
)
_NOTED = ("{x}.", "it is known that {x}.", "note that {x}.")


def _gates(skin: _Skin, kind: str, size: int, random: Random, side: Side) -> tuple[list[Variable], list[Statement]]:
    """Circumstances, what follows from what is known so far, and a three-way outcome of the last effect."""
    num_effects = max(1, (size - 1) // 2)
    known: list[tuple[Variable, tuple[str, str]]] = []
    for i, told in enumerate(random.sample(skin.circumstances, size - 1 - num_effects)):
        says = (side.say(random, _NOTED, x=told[1]), side.say(random, _NOTED, x=told[0]))
        known.append((noul(f"i{i}", random.randrange(2), (told[4], told[5]), says, random), (told[3], told[2])))
    rules: list[Statement] = []
    for i, (yes, no, ask, other) in enumerate(random.sample(skin.effects, num_effects)):
        sources = known[-2:] if len(known) > 1 and random.random() < 0.5 else random.sample(known, min(2, len(known)))
        (condition, words), truth = _gate(sources, random)
        says = (side.say(random, _NOTED, x=no), side.say(random, _NOTED, x=yes))
        variable = noul(f"o{i}", truth, (ask, other), says, random)
        wording = (side.pick(random, _WHEN),)
        twin = rule(side.say(random, wording, a=words, b=no, c=yes), iff(equals(variable, 0), condition))
        said = side.say(random, wording, a=words, b=yes, c=no)
        rules.append(rule(said, iff(equals(variable, 1), condition), twin=twin))
        known.append((variable, (no, yes)))
    outcome, last = _outcome(skin, kind, known, random)
    return [*(v for v, _ in known), outcome], [*rules, last]


def _gate(sources: list[tuple[Variable, tuple[str, str]]], random: Random) -> tuple[tuple[Term, str], int]:
    """((a condition on one or two known things, in words), whether it is so)."""
    picked = [(v, words, random.randrange(2)) for v, words in sources]
    if len(picked) == 1 or random.random() < 0.3:
        (v, words, value), *_ = picked
        return (equals(v, value), words[value]), int(v.truth == value)
    terms = [equals(v, value) for v, _, value in picked]
    hits = [v.truth == value for v, _, value in picked]
    is_and = random.random() < 0.5
    words = (" and " if is_and else " or ").join(w[value] for _, w, value in picked)
    return ((both if is_and else either)(*terms), words), int(all(hits) if is_and else any(hits))


def _outcome(
    skin: _Skin, kind: str, known: list[tuple[Variable, tuple[str, str]]], random: Random
) -> tuple[Variable, Statement]:
    """The first of three where the last thing known is not so; else by another thing."""
    last, words = known[-1]
    other, others = random.choice(known[:-1])
    names = list(skin.ladder) if kind == SCORE else random.sample(skin.ladder, 3)
    places = random.sample(range(3), 3)
    truth = places[0] if not last.truth else places[1 + other.truth]
    order = tuple(random.sample(range(3), 3)) if kind == CHOICE else ()
    facts = tuple(f"{skin.result} {name}." for name in names)
    variable = Variable("outcome", kind, tuple(names), truth, skin.outcome, facts, order=order)
    text = (
        f"{skin.result} {names[places[0]]} when {words[0]}; when {words[1]}, it is {names[places[2]]} if {others[1]} "
        f"and {names[places[1]]} if {others[0]}."
    )
    is_last, is_other = equals(last, 1), equals(other, 1)
    terms = (
        implies(negated(is_last), equals(variable, places[0])),
        implies(both(is_last, negated(is_other)), equals(variable, places[1])),
        implies(both(is_last, is_other), equals(variable, places[2])),
    )
    return variable, rule(text, *terms)


def contracts(size: int, random: Random, side: Side) -> tuple[list[Variable], list[Statement]]:
    """Clauses that depend on circumstances and on one another, and who pays in the end."""
    return _gates(_CONTRACT, CHOICE, size, random, side)


def safety(size: int, random: Random, side: Side) -> tuple[list[Variable], list[Statement]]:
    """What a car may do in its state, and how strongly it warns."""
    return _gates(_SAFETY, SCORE, size, random, side)


def liars(size: int, random: Random, side: Side) -> tuple[list[Variable], list[Statement]]:
    """People who always lie or never do, what they say of one another, and how many of them lie."""
    people = side.names(random, size - 1)
    honest = [random.randrange(2) for _ in people]
    nouls = [
        noul(f"p{i}", truth, (f"Is {p} honest?", f"Does {p} lie?"), (f"{p} lies.", f"{p} is honest."), random)
        for i, (p, truth) in enumerate(zip(people, honest, strict=True))
    ]
    rules = [rule("Everybody lies always or never.")]
    for i, p in enumerate(people):
        j = random.choice([other for other in range(len(people)) if other != i])
        claim = int(honest[i] == honest[j])  # an honest one says what is so, a liar the opposite
        words = ("lies", "is honest")
        told = [iff(equals(nouls[i], 1), equals(nouls[j], value)) for value in (claim, 1 - claim)]
        twin = rule(f"{p} says that {people[j]} {words[1 - claim]}.", told[1])
        rules.append(rule(f"{p} says that {people[j]} {words[claim]}.", told[0], twin=twin))
    first, second = random.sample(range(len(people)), 2)
    ask = f"What do {people[first]} and {people[second]} have in common?"
    names, order = ("both are honest", "both lie", "nothing"), tuple(random.sample(range(3), 3))
    same = Variable("pair", CHOICE, names, _pair(honest[first], honest[second]), ask, order=order)
    one, two = equals(nouls[first], 1), equals(nouls[second], 1)
    links = (iff(both(one, two), equals(same, 0)), iff(both(negated(one), negated(two)), equals(same, 1)))
    return [*nouls, same], [*rules, rule("", *links)]


def _pair(first: int, second: int) -> int:
    return 2 if first != second else 1 - first
