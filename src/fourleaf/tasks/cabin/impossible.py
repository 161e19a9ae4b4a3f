"""What the car cannot do, and requests that lack a fact, built anew each time: for training only.

Many stand close to what it can do (an email beside a text message, the bonnet beside the boot), so that the answer
hangs on the thing asked for and not on the shape of the sentence.
"""

from __future__ import annotations

from random import Random

from fourleaf.tasks.cabin.fillers import Fillers

_POLITE = (
    "",
    "",
    "",
    "",
    "can you ",
    "could you ",
    "please ",
    "would you ",
    "I want you to ",
    "go ahead and ",
    "just ",
)
_TASKS = (
    "email {name} that {text}|send {name} an email saying {text}|fax {name}|post on {site} that {text}|tweet {text}|"
    "remind me to {errand} {time}|remind me about {thing}|set an alarm for {clock}|set a timer for {n} minutes|"
    "wake me at {clock}|put {thing} on my shopping list|add {thing} to my calendar|order {food}|order me {food}|"
    "order {food} from {place}|book a table at {place} for {n}|book a room at {place}|reserve two seats at {place}|"
    "buy tickets for {query}|send {name} {n} euros|pay my {bill}|take a photo of {thing}|record a voice memo|"
    "read me my emails|read the message from {name}|delete the last message|block {name}|save {name}'s number|"
    "turn on the {gadget} at home|switch off the {gadget} in the kitchen|lock the front door at home|"
    "open the {part}|close the {part}|fold the {mirror}|adjust the {mirror}|move my seat {way}|recline my seat|"
    "put the headrest {way}|set the lumbar support to {n}|start a massage|turn on the {assist}|turn off the {assist}|"
    "indicate {side}|change to the {side} lane|overtake that {vehicle}|park the car|reverse into that space|"
    "start the engine|stop the engine|shift into {gear}|put it in {gear}|honk at that {vehicle}|beep the horn|"
    "flash the lights at that {vehicle}|translate {word} into {language}|say {word} in {language}|"
    "play a film on the back screen|show {query} on the display|turn up the bass|set the equaliser to {query2}|"
    "add this song to my favourites|like this track|show me the lyrics|tell me a joke|tell me a story about {thing}|"
    "sing me something|read me the news|write a poem about {thing}|google {word}|look up {place} on Wikipedia|"
    "calculate {n} times {m}|convert {n} dollars to euros|check my {bill}|cancel my subscription to {site}|"
    "check the weather in {town}|find my phone|find out who won the match|text {name} a photo|video call {name}|"
    "start a group call|join the {n} o'clock meeting|turn the {gadget} to {n}|vacuum the seats|"
    "wash the windscreen|refill the washer fluid|check the oil|reset the trip counter|"
    "charge the car to {n} percent|schedule charging for {clock}|precondition the battery|download an update|"
    "pair my phone|connect to the wifi|share my location with {name}|take a screenshot|switch to dark mode|"
    "change the voice to a woman's|speak {language}|dim the dashboard|turn on the reading light|open my garage|"
    "perfume the cabin|turn on the humidifier|clean the air filter|switch on recirculation|turn on the {lamp}"
).split("|")
_QUESTIONS = (
    "what's the weather in {town}|will it rain {time}|is it going to snow in {town}|what's the capital of {town}|"
    "how tall is {name}|who is {name}|how old is {name}|who sings this|what's this song called|"
    "when is {name}'s birthday|what time is it in {town}|what day is it|what's {n} plus {m}|"
    "what's the speed limit here|how fast am I going|"
    "are there any speed cameras|when is my next service|how many miles has this car done|what's on at the cinema|"
    "did {name} text me|do I have any messages|who called me|when does {place} open|is {place} open on Sunday|"
    "how much does {food} cost|what's a good recipe for {food}|how do you spell {word}|what does {word} mean|"
    "who won the match|what's my horoscope|what are you called|how are you|do you like {query}|are you a robot|"
    "have I got time for {food}|where did I park yesterday|what's the price of petrol|is my seat belt on|"
    "what's the population of {town}|how far is the moon|what's playing at {place}|is there life on Mars|"
    "why is that {vehicle} honking|what's the altitude|which way is north|how many calories are in {food}"
).split("|")
_TALK = (
    "I had {food} for lunch|what a lovely {thing}|I'm so bored|I love {query}|{name} is getting married|"
    "I think {text}|my {part} is squeaking|that {vehicle} nearly hit us|I hate Mondays|good morning|good night|"
    "you're very clever|you never listen|I'm tired of {town}|I was talking to {name}|{name} says hello|"
    "I could murder {food}|we had such a nice time in {town}|I lost my {thing}|never mind, nothing|nice one|"
    "oh look, a {vehicle}|I can't believe {text}|this {vehicle} in front is so slow|I've been to {town} once"
).split("|")
_NO_FACT = (
    "text {name}|message {name}|send {name} a message|send a text to {name}|write to {name}|drop {name} a line|"
    "text {name} for me|text {name} please|I want to text {name}|send a message to {name}|can you message {name}|"
    "let {name} know|reply to {name}|shoot {name} a text|write {name} a quick note|"
    "text {pronoun} that {text}|tell {pronoun} {text}|let {pronoun} know {text}|send {pronoun} a text|"
    "call {pronoun}|ring {pronoun} back|give {pronoun} a ring|phone {pronoun} now|get {pronoun} on the line|"
    "send a message saying {text}|send a text that says {text}|message {pronoun}|text {pronoun}: {text}|"
    "navigate to, um|take me to|directions to the, what's it called|drive me there|take me to that place|"
    "let's go to the other one|head for, hmm|I need to get somewhere|put in a destination|change the destination|"
    "add a stop|add a stop at, uh|stop on the way|one more stop somewhere|stop at that place {name} mentioned|"
    "set the {setting}|change the {setting}|adjust the {setting}|set the {setting} to|put the {setting} on, um|"
    "I want a different {setting}|can you change the {setting}|set the {setting} please|the {setting}, change it|"
    "play something, you know, that one|play that song again, the one {name} likes|put on that thing|"
    "find me the nearest|look for one near here|find something close by|where's the nearest one|"
    "check something for me|what's the status|tell me the value|open it|close it|turn it off|switch that on|"
    "move the {mover}|set the {mover}|put the {mover} somewhere else|set the {mover} to"
).split("|")
_WORDS = {
    "site": "Instagram|Facebook|LinkedIn|TikTok|my blog|Netflix|Spotify|the forum",
    "errand": "buy milk|call the bank|water the plants|renew the passport|pick up the suit|pay the rent|ring the vet",
    "time": "tomorrow|at six|tonight|on Friday|next week|when I get home|in an hour|this afternoon",
    "clock": "seven|6:30|half past five|noon|quarter to eight|0700",
    "thing": "the dentist|batteries|milk|the sunset|bin day|a dragon|the view|my umbrella|the cat|her glasses|the sea",
    "food": "a pizza|sushi|a large latte|some noodles|two burgers|a curry|an ice cream|fish and chips|a sandwich",
    "bill": "bank balance|electricity bill|parking ticket|phone bill|credit score|insurance",
    "gadget": "heating|oven|lights|washing machine|TV|alarm|kettle|dishwasher|robot vacuum|fridge",
    "part": "bonnet|glovebox|fuel flap|charging port|sunshade|tank|hood|cup holder|sun visor|roof box|frunk|tow hook",
    "mirror": "mirrors|left mirror|rear-view mirror|side mirrors|right mirror",
    "way": "back|forward|up a bit|down|closer to the wheel",
    "assist": "lane assist|parking sensors|traction control|cruise radar|hill hold|autopilot|dashcam|night vision",
    "side": "left|right",
    "vehicle": "lorry|tractor|cyclist|bus|taxi|van|caravan|motorbike|horse",
    "gear": "reverse|neutral|park|first gear|second|drive",
    "word": "hello|serendipity|good luck|thank you|rhubarb|cheese|left-handed|onomatopoeia",
    "language": "French|Polish|Japanese|Welsh|Spanish|Swahili|Hindi|Greek",
    "query2": "rock|jazz|flat|classical|movie mode|speech",
    "lamp": "hazard lights|hazards|interior light|dome light|glovebox light|flashers",
    "pronoun": "him|her|them|him|her|someone|somebody|that guy",
    "setting": "temperature|volume|fan speed|seat heating level|ambient colour|drive mode|cruise speed|wiper mode|"
    "light mode|brightness|mood light|climate|headlight mode|seat ventilation level|blower",
    "mover": "window|sunroof|windows|passenger window|roof|back window on the left",
}


def _fill(template: str, fillers: Fillers, random: Random) -> str:
    while "{" in template:
        start = template.index("{")
        end = template.index("}", start)
        slot = template[start + 1 : end]
        if slot in ("n", "m"):
            form = str(random.randint(2, 90))
        elif slot == "town":
            form = fillers.destination(random)
        elif slot == "place":
            form = fillers.stop(random)
        elif slot == "name":
            form = fillers.name(random)
        elif slot == "query":
            form = fillers.query(random)
        elif slot == "text":
            form = fillers.text(random, ("statement",))
        else:
            form = random.choice(_WORDS[slot].split("|"))
        template = template[:start] + form + template[end + 1 :]
    return template


def out_of_scope(fillers: Fillers, random: Random) -> str:
    """Something that the car cannot do, or small talk."""
    roll = random.random()
    if roll < 0.62:
        return random.choice(_POLITE) + _fill(random.choice(_TASKS), fillers, random)
    return _fill(random.choice(_QUESTIONS if roll < 0.86 else _TALK), fillers, random)


def missing(fillers: Fillers, random: Random) -> str:
    """A request that the car could honour if it knew one thing more."""
    return random.choice(("", "", "", "can you ", "please ", "okay ")) + _fill(random.choice(_NO_FACT), fillers, random)
