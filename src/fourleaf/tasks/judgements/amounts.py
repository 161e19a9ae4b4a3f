"""The family of budgets and thresholds: levels that add up to a total, and what depends on them."""

from __future__ import annotations

from random import Random

from fourleaf.tasks.judgements.group import SCORE, Statement, Variable
from fourleaf.tasks.judgements.switches import noul
from fourleaf.tasks.judgements.terms import at_least, equals, iff, negated, rule, total
from fourleaf.tasks.judgements.wording import Side, listed

_LEVELS = ("off", "low", "medium", "high")
_LOADS = (
    "the fan", "the heater", "the seat heating", "the massage", "the audio", "the light", "the cooler", "the charger",
)  # fmt: skip
_SIGNS = (
    ("the lamp is lit", "the lamp is dark", "Is the lamp lit?", "Is the lamp dark?"),
    ("a message shows", "no message shows", "Does a message show?", "Is the screen without a message?"),
    ("the pump runs", "the pump rests", "Does the pump run?", "Does the pump rest?"),
    ("the bell rings", "the bell is silent", "Does the bell ring?", "Is the bell silent?"),
)
_TOTALS = (
    "off counts 0, low 1, medium 2 and high 3; {all} use {t} together.",
    "with off as 0, low as 1, medium as 2 and high as 3, {all} add up to {t}.",
    "{all} share a budget of exactly {t}, where off is 0, low 1, medium 2 and high 3.",
)
_FROM = ("{yes} exactly when {thing} is at {level} or higher.", "{yes} if and only if {thing} is at least at {level}.",
         "{yes} from {level} on for {thing}, and not below.")  # fmt: skip


def budgets(size: int, random: Random, side: Side) -> tuple[list[Variable], list[Statement]]:
    """Two to five loads that share a budget, and signs that show from a level on."""
    num = {3: 2, 4: 3, 5: 3, 6: 4, 7: 4, 8: 5}[size]
    things = random.sample(_LOADS, num)
    truths = [random.randrange(4) for _ in things]
    ask = side.pick(random, ("At what level is {x}?", "How strong is {x}?", "Which level does {x} have?"))
    says = side.pick(random, ("{x} is {at}.", "{x} runs {at}.", "somebody set {x}: it is {at}."))
    scores = []
    for i, (thing, truth) in enumerate(zip(things, truths, strict=True)):
        told = [says.format(x=thing, at="off" if level == "off" else f"at {level}") for level in _LEVELS]
        told = [text.replace("runs off", "is off") for text in told]
        facts = tuple(text[0].upper() + text[1:] for text in told)
        scores.append(Variable(f"x{i}", SCORE, _LEVELS, truth, ask.format(x=thing), facts))
    rules = [rule(side.say(random, _TOTALS, all=listed(things), t=str(sum(truths))), total(scores, sum(truths)))]
    signs = []
    for i, (yes, no, question, other) in enumerate(random.sample(_SIGNS, size - num)):
        which, level = random.randrange(num), random.randrange(1, 4)
        facts = (f"{no[0].upper()}{no[1:]}.", f"{yes[0].upper()}{yes[1:]}.")
        signs.append(noul(f"s{i}", int(truths[which] >= level), (question, other), facts, random))
        wording, reached = (side.pick(random, _FROM),), at_least(scores[which], level)
        parts = {"thing": things[which], "level": _LEVELS[level]}
        twin = rule(side.say(random, wording, yes=no, **parts), iff(negated(equals(signs[-1], 1)), reached))
        rules.append(rule(side.say(random, wording, yes=yes, **parts), iff(equals(signs[-1], 1), reached), twin=twin))
    return [*scores, *signs], rules
