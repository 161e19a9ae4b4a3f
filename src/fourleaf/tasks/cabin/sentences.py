"""Text messages assembled from clauses: what a driver might want to tell somebody, new each time.

A statement can follow "that"; a note (question, order, greeting) cannot. Neither names anything the car can do, so
that the end of a message stays clear.
"""

from __future__ import annotations

from random import Random

from fourleaf.tasks.cabin.invented import person, place, proper

_TIMES = (
    "at eight|at half past nine|around noon|tomorrow|tonight|on Friday|next week|in ten minutes|in an hour|by seven|"
    "at quarter to six|on Tuesday morning|after work|before lunch|in a bit|this evening|at 7:45|at 18:30|on the 14th|"
    "at twenty past|first thing Monday|any minute now|in five|a bit later|after the match|by the weekend|at three"
).split("|")
_THINGS = (
    "the keys|the cake|the tickets|my charger|the pram|the documents|the dog|the drill|the tent|your jacket|the milk|"
    "some bread|the passports|the wine|the spare tyre|the presents|two pizzas|the invoice|the kids' shoes|a ladder|"
    "the contract|the swimming bag|flowers|nappies|the leftovers|the football boots|the blue folder|the parcel|"
    "your glasses|the car seat|the paint|12 eggs|the medicine|the guitar|all the receipts|the trailer|ice|the projector"
).split("|")
_EVENTS = (
    "the meeting|dinner|the party|the appointment|training|the concert|the match|the flight|the wedding|the interview|"
    "our table|the viewing|the barbecue|swimming|the recital|the delivery|the inspection|choir practice|the rehearsal"
).split("|")
_PEOPLE = "I|I|I|we|we|she|he|they|the kids|Grandma|the plumber|my mum|the boss|everybody|Leo".split("|")
_VERBS = (
    "found {thing}|forgot {thing}|left {thing} at {place}|lost {thing}|packed {thing}|picked up {thing}|"
    "dropped off {thing}|sold {thing}|need {thing} {time}|want to see {thing}|can't find {thing}|took {thing}|"
    "missed {event}|cancelled {event}|booked {event} for {time}|moved {event}|got to {place}|"
    "just left {place}|passed {place}|waited at {place} for an hour|met {person} at {place}|"
    "spoke to {person} about {event}|bumped into {person}|paid for {thing}|already ate|slept badly|"
    "made it in time|changed the plan|had a flat tyre|hit a traffic jam near {place}|broke down near {place}"
).split("|")
_STATEMENTS = (
    "I'm running {n} minutes late|I'll be there {time}|I'm on my way to {place}|I'm nearly at {place}|"
    "I'm stuck behind {noun}|I can't make it {time}|I'll bring {thing}|I'm bringing {thing}|I've got {thing}|"
    "we're at {place}|we'll be home {time}|we're out of {stuff}|we need {thing}|we're running late|"
    "{event} is cancelled|{event} starts {time}|{event} has been moved to {day}|{event} went really well|"
    "{thing} is in the {room}|{thing} is with {person}|there's {noun} on the road|there's no {stuff} left|"
    "{person} is coming too|{person} can't come {time}|the {noun2} is broken again|the train is {n} minutes late|"
    "it's all sorted|it's raining here|it's going to be a long night|the code is {code}|the address is {place}|"
    "I love you|I miss you loads|I owe you {n} quid|you were right|you left {thing} in the {room}|"
    "your parcel is here|nobody's home|my phone is dying|traffic is terrible|the road is closed near {place}|"
    "I said yes|I got the job|she had the baby|it's a girl|he scored twice|we won {n} to {m}|we're fine"
).split("|")
_NOTES = (
    "on my way|running late|see you {time}|see you at {place}|be there {time}|can you bring {thing}|"
    "could you pick up {thing} from {place}|don't forget {thing}|where are you|are you home yet|"
    "what time is {event}|is {event} still on|did you find {thing}|have you seen {thing}|happy birthday|"
    "happy birthday {name}|congratulations|well done|good luck with {event}|thanks for {thing}|thank you so much|"
    "sorry about {event}|call me {time}|call me back|ring me when you're free|wait for me at {place}|"
    "leave {thing} in the {room}|don't wait up|start without me|put the kettle on|get some {stuff} please|"
    "need anything from {place}|fancy a coffee {time}|shall we meet at {place}|who's bringing {thing}|"
    "how was {event}|when does {event} start|did {person} call|are we still on for {day}|"
    "please feed the cat|please bring {thing}|say hi to {person}|hugs to everyone|sleep well|get well soon|"
    "yes|no|ok|ok {time} works|maybe {day}|sounds good|no worries|back {time}|home {time}|here|"
    "landed, waiting for bags|almost there, {n} minutes|{n} more minutes|dinner {time}|guess what, {statement}"
).split("|")
_STUFF = "milk|coffee|bread|cat food|loo roll|eggs|cheese|beer|rice|nappies|washing powder|apples|petrol money".split(
    "|"
)
_ROOMS = "kitchen|hall|garage|shed|fridge|office|cellar|bathroom|garden|top drawer|back room|porch".split("|")
_NOUNS = "a tractor|an accident|a lorry|roadworks|a huge queue|sheep|a fallen tree|a funeral|a parade|a bus".split("|")
_MACHINES = "boiler|washing machine|printer|dishwasher|internet|tap|lift|coffee machine|oven|gate|alarm".split("|")
_DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|the weekend|the 3rd|next month".split("|")
_TAILS = (
    ", sorry|, love you|, see you {time}|, no rush|, don't worry|, so start without me|, call you {time}|"
    ", promise|, can you believe it|, will explain later|, kisses|, back {time}|, thanks for waiting|"
    " because of {noun}| because {statement}| but {statement}| and {statement}|, {statement}| so I'll be late|"
    " if that's ok with you| and I'm bringing {person}| with {person}"
).split("|")


def _fill(template: str, random: Random, depth: int) -> str:
    values = {
        "time": lambda: random.choice(_TIMES),
        "thing": lambda: random.choice(_THINGS),
        "event": lambda: random.choice(_EVENTS),
        "place": lambda: random.choice((place(random), "the station", "the school", "work", "the office", "IKEA")),
        "person": lambda: person(random),
        "name": lambda: proper(random),
        "stuff": lambda: random.choice(_STUFF),
        "room": lambda: random.choice(_ROOMS),
        "noun": lambda: random.choice(_NOUNS),
        "noun2": lambda: random.choice(_MACHINES),
        "day": lambda: random.choice(_DAYS),
        "n": lambda: random.choice((str(random.randint(2, 50)), "ten", "five", "twenty", "fifteen")),
        "m": lambda: str(random.randint(0, 5)),
        "code": lambda: str(random.randint(100, 99999)),
        "statement": lambda: statement(random, depth + 1),
    }
    while "{" in template:
        start = template.index("{")
        end = template.index("}", start)
        template = template[:start] + values[template[start + 1 : end]]() + template[end + 1 :]
    return template


def statement(random: Random, depth: int = 0) -> str:
    """A clause that can follow "that"."""
    if random.random() < 0.4:
        subject, verb = random.choice(_PEOPLE), random.choice(_VERBS)
        template = f"{subject} {verb}"
        if subject in ("she", "he", "Grandma", "the plumber", "my mum", "the boss", "everybody", "Leo"):
            template = template.replace(" need ", " needs ").replace(" want ", " wants ")
    else:
        template = random.choice(_STATEMENTS)
    if depth < 2 and random.random() < (0.3, 0.12)[depth]:
        template += random.choice(_TAILS)
    return _fill(template, random, depth)


def note(random: Random) -> str:
    """A question, an order, a greeting, or a clause."""
    text = _fill(random.choice(_NOTES), random, 1)
    if random.random() < 0.12:
        text += ", " + _fill(random.choice(_NOTES), random, 1)
    return text
