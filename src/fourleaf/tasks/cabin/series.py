"""Several requests that share words: "turn off the radio and the seat heater", "open my window and hers too".

Joined requests of `compose` are each complete; people leave out what they have just said. For training only: the test
sets are built without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from fourleaf.tasks.cabin import spoken, variants
from fourleaf.tasks.cabin.fillers import Fillers
from fourleaf.tasks.cabin.phrases import SLOT, Linked
from fourleaf.tasks.cabin.pieces import SEAT_SETS, WINDOW_PAIRS, Piece
from fourleaf.tasks.cabin.schema import Call

Calls = tuple[Call, ...]
_SEATS = {
    "driver": "my|my|my|the driver's|the driver",
    "passenger": "the passenger|the passenger's|the front passenger|the passenger side",
    "rear_left": "the rear left|the back left|the left rear",
    "rear_right": "the rear right|the back right|the right rear",
}
_SHORT = {
    "driver": "mine|mine|my one|the driver's",
    "passenger": "the passenger's|the passenger one|the one next to me|the one beside me|the passenger side",
    "rear_left": "the rear left one|the back left one|the one behind me|the back left|the rear left",
    "rear_right": "the rear right one|the back right one|the back right|the rear right",
}
_PAIR_SHORT = "the back ones|the rear ones|the kids'|both back ones|both in the back|the two in the back"
_HEATERS = "seat heater|seat heating|heated seat|seat warmer"
_COOLERS = "seat ventilation|seat cooling|seat fan|ventilated seat"


def _call(tool: str, **arguments: Any) -> Calls:
    return (Call(tool, arguments),)


@dataclass(frozen=True)
class Thing:
    """Something with two states: how it is called (`names` has choices without a bracket) and the calls of each.

    `system` keeps one series from speaking of the same thing twice.
    """

    names: str
    on: Calls
    off: Calls
    system: str


def _seat_things() -> list[Thing]:
    things = []
    for tool, nouns in (("set_seat_heating", _HEATERS), ("set_seat_ventilation", _COOLERS)):
        for seat, owners in _SEATS.items():
            on, off = (_call(tool, seat=seat, level=level) for level in (2, 0))
            things.append(Thing(f"({owners}) ({nouns})", on, off, f"{tool} {seat}"))
    return things


_HEATED = _seat_things()
_SWITCHED = [
    Thing("the (AC|A/C|air con|aircon|air conditioning)", _call("set_ac", on=True), _call("set_ac", on=False), "ac"),
    Thing("the (fan|fan|blower)", _call("set_fan", level=3), _call("set_fan", level=0), "fan"),
    Thing(
        "the (heated (steering |)wheel|steering wheel (heater|heating)|wheel (heater|heating|warmer)|steering heating)",
        _call("set_steering_heating", on=True), _call("set_steering_heating", on=False), "wheel",
    ),
    Thing(
        "the (front|windscreen|windshield) (defroster|demister|defogger|defrost)",
        _call("set_defrost", window="front", on=True), _call("set_defrost", window="front", on=False), "front glass",
    ),
    Thing(
        "the (rear|back window|rear window|back) (defroster|demister|defogger|defrost)",
        _call("set_defrost", window="rear", on=True), _call("set_defrost", window="rear", on=False), "rear glass",
    ),
    Thing("the (wipers|wipers|windscreen wipers|windshield wipers)", _call("set_wipers", mode="auto"),
          _call("set_wipers", mode="off"), "wipers"),
    Thing("the (lights|headlights|headlamps)", _call("set_lights", mode="low"), _call("set_lights", mode="off"),
          "lights"),
    Thing("the (music|music|radio|stereo|tunes)", _call("control_media", action="resume"),
          _call("control_media", action="stop"), "media"),
]  # fmt: skip
# Only one of the two states is a request that needs no more words.
_ONLY_ON = [
    Thing("the (fog lights|fogs|fog lamps|foglights)", _call("set_lights", mode="fog"), (), "lights"),
    Thing("the (high beams|full beams|main beams|high beam)", _call("set_lights", mode="high"), (), "lights"),
]
_ONLY_OFF = [
    Thing("the (cruise control|cruise|cruise)", (), _call("set_cruise", speed_kmh=0), "cruise"),
    Thing("the (navigation|sat nav|satnav|route guidance|nav)", (), _call("cancel_navigation"), "route"),
]


def _opened() -> list[Thing]:
    """What opens and shuts: windows one by one and in pairs, roof, boot. On is open."""
    named = {f"({owners}) window": (window,) for window, owners in _SEATS.items()}
    named |= {"(" + "|".join(forms) + ")": windows for windows, forms in WINDOW_PAIRS.items()}
    named["(all |)the windows"] = ("all",)
    things = []
    for names, windows in named.items():
        on, off = (tuple(c for w in windows for c in _call("set_window", window=w, position=p)) for p in (100, 0))
        things.append(Thing(names, on, off, "window"))
    opened, closed = (_call("set_sunroof", position=position) for position in (100, 0))
    things.append(Thing("the (sunroof|sunroof|roof|moonroof|glass roof)", opened, closed, "roof"))
    opened, closed = (_call("set_trunk", open=state) for state in (True, False))
    things.append(Thing("the (boot|trunk|tailgate|boot lid)", opened, closed, "boot"))
    return things


_OPENED = _opened()
_STARTS = (
    "(||||||please |could you |can you |would you |will you |just |go ahead and |I'd like you to |I want you to |"
    "I need you to |you can |time to |let's |might you |kindly |do me a favour and )"
)
_ENDS = "(||||||||, please| please|, thanks| thanks|, cheers| now|, would you|, if you can| as well|, that's all)"
_ANDS = (
    "and|and|and|and|and also|as well as|plus|along with|together with|and while you're at it|, and also|and then|"
    "and, if you can,|and, yeah,|and, um,|and maybe|and after that"
)
_ON = "turn on|turn on|switch on|put on|start|activate|enable|get me|stick on|fire up|pop on"
_OFF = "turn off|turn off|switch off|shut off|stop|kill|cut|deactivate|disable|end|knock off|get rid of"
_OPEN = "open|open|open up|open fully"
_SHUT = "close|close|shut|shut|close up"


def _list(names: list[str], random: Random) -> str:
    """ "a, b and c", or each behind an "and"."""
    joiner = variants.draw(f"({_ANDS})", random)
    space = "" if joiner.startswith(",") else " "
    if len(names) == 2 and random.random() < 0.2:
        return f"both {names[0]} and {names[1]}"
    if len(names) > 2 and random.random() < 0.15:
        return " and ".join(names)
    if len(names) > 2 and random.random() < 0.2:
        return ", ".join(names)
    oxford = "," if len(names) > 2 and space != "" and random.random() < 0.3 else ""
    return ", ".join(names[:-1]) + oxford + space + joiner + " " + names[-1]


def _switched(random: Random) -> list[Thing]:
    """What is switched, with a few of the eight seat things, which would crowd out the rest."""
    return _SWITCHED + random.sample(_HEATED, 3)


def _pick(pool: list[Thing], on: list[bool], calls: int, random: Random) -> list[tuple[Thing, bool]]:
    """Things of different systems with `calls` calls in all, each with its state.

    `on` lists the states allowed. Empty where they do not come out.
    """
    chosen: list[tuple[Thing, bool]] = []
    for thing in random.sample(pool, len(pool)):
        mine = random.choice(on)
        wanted = thing.on if mine else thing.off
        have = sum(len(t.on if s else t.off) for t, s in chosen)
        taken = {t.system for t, _ in chosen}
        clash = thing.system in taken and (thing.system != "window" or _overlap(thing, chosen))
        if wanted and have + len(wanted) <= calls and not clash:
            chosen.append((thing, mine))
    done = sum(len(t.on if s else t.off) for t, s in chosen) == calls and len(chosen) > 1
    return chosen if done else []


def _overlap(thing: Thing, chosen: list[tuple[Thing, bool]]) -> bool:
    """Whether a window is spoken of twice."""
    mine = {c.arguments["window"] for c in thing.on}
    others = {c.arguments["window"] for t, _ in chosen if t.system == "window" for c in t.on}
    return bool(mine & others) or "all" in mine | others


def _shared_verb(calls: int, random: Random) -> Piece | None:
    """One verb, several objects."""
    opened = random.random() < 0.35
    state = random.random() < 0.5
    pool = _OPENED if opened else _switched(random) + (_ONLY_ON if state else _ONLY_OFF)
    chosen = _pick(pool, [state], calls, random)
    if not chosen:
        return None
    listed = _list([variants.draw(f"({t.names})", random) for t, _ in chosen], random)
    if opened:
        verb = _OPEN if state else _SHUT
        text = variants.draw(f"{_STARTS}({verb}) {listed}{_ENDS}", random)
    elif random.random() < 0.5:
        text = variants.draw(f"{_STARTS}({_ON if state else _OFF}) {listed}{_ENDS}", random)
    else:
        way = "on" if state else "off"
        text = variants.draw(f"({_STARTS}(turn|switch|put) {listed} {way}|{listed} {way}|I want {listed} {way}){_ENDS}",
                             random)  # fmt: skip
    return Piece(text, tuple(c for t, _ in chosen for c in (t.on if state else t.off)))


def _states(calls: int, random: Random) -> Piece | None:
    """Each thing with its state, verbs left out: "AC off, windows shut, lights on"."""
    chosen = _pick(_switched(random) + _OPENED, [True, False], calls, random)
    if not chosen:
        return None
    bare = random.random() < 0.6
    parts = []
    for thing, state in chosen:
        name = variants.draw(f"({thing.names})", random)
        name = name.removeprefix("the ") if bare else name
        forms = ("open|open|down" if thing.system == "window" else "open") if state else "closed|shut|shut"
        if thing.system == "window" and not state:
            forms += "|up"
        way = variants.draw(f"({forms})", random) if thing in _OPENED else ("on" if state else "off")
        parts.append(f"{name} {way}")
    between = random.choice((", ", ", ", ", ", " and ", ", and ", ", then ", "; ", ". ", " but ", " "))
    last = random.choice((between, between, " and ", ", and ", " and then ", ", plus "))
    if between == " but ":
        between, last = ", ", (", but " if len({s for _, s in chosen[-2:]}) > 1 else ", and ")
    text = between.join(parts[:-1]) + last + parts[-1]
    wanted = tuple(c for t, s in chosen for c in (t.on if s else t.off))
    return Piece(variants.draw(f"(|||||||okay, |right, |so, |please, ){text}{_ENDS}", random), wanted)


def _number(low: int, high: int, random: Random) -> tuple[int, str]:
    number = random.randint(low, high)
    return number, spoken.say(number, random, in_words=random.random() < 0.5)


def _values(calls: int, random: Random) -> Piece | None:
    """Several things with a value each, the verb spoken once."""
    settable = {
        "the fan|the blower|fan|the fan speed": ("set_fan", {}, "level", 0, 7),
        "the volume|volume|the sound|the music volume": ("set_volume", {}, "level", 1, 30),
        "the temperature|the temp|the climate|temperature": ("set_temperature", {"zone": "all"}, "celsius", 16, 30),
        "the cruise|cruise control|the cruise control": ("set_cruise", {}, "speed_kmh", 30, 150),
        **{
            f"{'|'.join(f'{o} {n}' for o in owners.split('|') for n in nouns.split('|'))}":
                (tool, {"seat": seat}, "level", 1, 3)
            for tool, nouns in (("set_seat_heating", _HEATERS), ("set_seat_ventilation", _COOLERS))
            for seat, owners in _SEATS.items()
        },
    }  # fmt: skip
    if calls > len(settable):
        return None
    parts, wanted = [], []
    word = random.choice((" to ", " to ", " at ", " on ", " "))
    for names in random.sample(list(settable), calls):
        tool, fixed, slot, low, high = settable[names]
        value, said = _number(low, high, random)
        unit = {"celsius": " degrees", "level": "", "speed_kmh": ""}[slot] if random.random() < 0.5 else ""
        parts.append(variants.draw(f"({names})", random) + word + said + unit)
        wanted.append(Call(tool, {**fixed, slot: value}))
    start = f"{_STARTS}(set|put|have|get) " if word != " " else ""
    between = random.choice((", ", ", ", " and "))
    last = random.choice((" and ", " and ", ", and ", ", then ", ", "))
    return Piece(variants.draw(f"{start}{between.join(parts[:-1])}{last}{parts[-1]}{_ENDS}", random), tuple(wanted))


def _moved(calls: int, random: Random) -> Piece | None:
    """Volume, warmth and fan up or down with one verb."""
    up = random.random() < 0.5
    things = [
        ("the volume|the music|the radio|the sound", "adjust_volume", {"delta": 3 if up else -3}),
        ("the temperature|the temp", "adjust_temperature", {"zone": "all", "delta": 2 if up else -2}),
        ("the fan|the blower|the fan speed", "set_fan", {"level": 5 if up else 2}),
    ]
    if calls > 3:
        return None
    chosen = random.sample(things, calls)
    wanted = [Call(tool, dict(arguments)) for _, tool, arguments in chosen]
    much = random.choice(("", "", "", " a bit", " a little"))
    if much:
        for call in wanted:
            if "delta" in call.arguments:
                call.arguments["delta"] = 1 if up else -1
    listed = _list([variants.draw(f"({names})", random) for names, _, _ in chosen], random)
    way = "up" if up else "down"
    verb = "turn|bring|put|crank|nudge" if up else "turn|bring|take|knock|nudge"
    return Piece(
        variants.draw(f"({_STARTS}({verb}) {listed} {way}{much}|{listed} {way}{much}|"
                      f"{_STARTS}turn {way} {listed}{much}){_ENDS}", random),
        tuple(wanted),
    )  # fmt: skip


_FIRST = {
    "set_seat_heating": (
        f"(({_STARTS}(turn on|switch on|put on|start) )NAME|{_STARTS}(warm|heat)( up|) SEAT|NAME on)",
        f"({_STARTS}(turn off|switch off|stop) NAME|NAME off)", _HEATERS,
    ),
    "set_seat_ventilation": (
        f"(({_STARTS}(turn on|switch on|put on|start) )NAME|{_STARTS}(cool|ventilate) SEAT|NAME on)",
        f"({_STARTS}(turn off|switch off|stop) NAME|NAME off)", _COOLERS,
    ),
    "set_window": (
        f"({_STARTS}(open|wind down|roll down|lower|put down) NAME|NAME (open|down))",
        f"({_STARTS}(close|shut|wind up|roll up|put up) NAME|NAME (closed|shut|up))", "window",
    ),
}  # fmt: skip
_SECOND = (
    "(, and OTHER(| too| as well| also)| and OTHER(| too| as well| also)|, (OTHER|and OTHER), too|, then OTHER(| too)|"
    "(, and|. Then|, then) (do |)the same (for|with|on) OTHER|. Same (for|with) OTHER|, same (again |)for OTHER|"
    ", and likewise OTHER|. Oh, and OTHER(| too| as well)|. And OTHER(, please| too|)|, plus OTHER|"
    "(, and|. And) do OTHER(| too| as well)|, and not just that, OTHER too|, and while you're at it OTHER(| too))"
)


def _echoed(calls: int, random: Random) -> Piece | None:
    """The second seat or window named by a mere "and mine too"."""
    tool = random.choice(list(_FIRST))
    on, off, nouns = _FIRST[tool]
    state = random.random() < 0.6
    seats = random.sample(list(_SEATS), 2)
    values = {"set_window": ("position", 100 if state else 0)}.get(tool, ("level", 2 if state else 0))
    slot = "window" if tool == "set_window" else "seat"
    other = variants.draw(f"({_SHORT[seats[1]]})", random)
    named = seats
    if calls == 3 and seats[0] in ("driver", "passenger"):
        named, other = [seats[0], *next(iter(SEAT_SETS))], variants.draw(f"({_PAIR_SHORT})", random)
    elif calls != 2:
        return None
    owner = variants.draw(f"({_SEATS[seats[0]]})", random)
    frame = (on if state else off).replace("NAME", f"{owner} ({nouns})").replace("SEAT", f"{owner} seat")
    text = variants.draw(f"{frame}{_SECOND.replace('OTHER', other)}(||||, please| please|, thanks| for me)", random)
    if "driver" not in named:
        text = text.removesuffix(" for me")
    return Piece(text, tuple(Call(tool, {slot: seat, values[0]: values[1]}) for seat in named))


def linked(pattern: Linked, fillers: Fillers, random: Random) -> Piece:
    """One wording of a hand-written template of several calls, its copied slots filled."""
    text = variants.draw(pattern.pattern, random)
    kinds = {"query": pattern.query_type, "text": pattern.text_type}
    values = {}
    for slot in SLOT.findall(text):
        values[slot] = fillers.value(slot, random, kinds.get(slot, ()))
        text = text.replace("{" + slot + "}", values[slot], 1)
    calls = tuple(
        Call(name, {n: values[v[1:-1]] if isinstance(v, str) and v[:1] == "{" else v for n, v in arguments.items()})
        for name, arguments in pattern.calls
    )
    return Piece(text, calls, pattern=pattern.pattern)


def draw(most: int, random: Random) -> Piece | None:
    """A series of two to `most` calls (at most five); None where the draw does not come out."""
    calls = random.randint(2, min(most, 5))
    build = random.choice((_shared_verb, _shared_verb, _states, _states, _values, _moved, _echoed, _echoed))
    return build(calls, random)
