"""Names, addresses, places, titles and messages that nobody has seen before, built from syllables and clauses.

Copying must not depend on having met a name: most of what a driver says in these slots is new.
"""

from __future__ import annotations

from random import Random

_ONSETS = (
    "b br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sc sh sk sl sm sn sp st str sv t th tr "
    "v w z ts mb ng zh kh"
).split()
_PLAIN = "b c d f g h j k l m n p r s t v w br cl dr gr st tr th sh".split()
_VOWELS = "a a a e e e i i o o u u ai ea ee ei ie oa oo ou au y".split()
_ACCENTED = "á é è ê í ó ö ø ü ú å ä ñ ç ã ő ž š ł ı ô ë î".split()
_CODAS = ["", "", "", *"n n r r l s t d k m ck nd rt st nn ll rd rn sk x b g p th ng lm ff z sch".split()]
_ENDINGS = (
    "a o e y ie in en an on er el ia io us is ara ita elle ova ski sen son ez ic ou ley ton ham ford wick bury stead "
    "dale mere holm berg stadt heim ville court field worth by gate hurst combe"
).split()
_STREETS = (
    "Street Road Lane Avenue Drive Close Way Court Place Crescent Terrace Square Boulevard Hill Gardens Row Walk "
    "Grove Mews Parade Quay Rise Green Yard View Park Alley Parkway Circle"
).split()
_KINDS = (
    "bakery|pharmacy|dentist|garage|cafe|school|library|pool|gym|hotel|museum|market|hospital|clinic|station|church|"
    "park|stadium|theatre|farm|brewery|pub|bistro|vineyard|car wash|post office|town hall|campsite|harbour|temple|"
    "nursery|florist|butcher|bookshop|mosque|warehouse|ferry terminal|leisure centre|food court|tyre shop|ice rink|"
    "garden centre|barber|nail salon|cash and carry|recycling centre|community centre|airfield|boatyard|golf club"
).split("|")
_BUSINESS = (
    "Bakery|Pharmacy|Motors|Garage|Kitchen|Grill|Books|Dental|Clinic|Diner|Coffee|Tyres|Cycles|Pizza|Sushi|Burgers|"
    "Florist|Furniture|Hardware|Brewery|Bistro|Noodles|Tavern|Inn|Hotel|Lodge|Studios|Gym|Academy|Nursery|Stores|"
    "Market|Deli|Tacos|Kebab|Optics|Vets|Salon|Outlet|Gallery|Sports|Farm Shop|Fish Bar|Tea Rooms|Car Wash"
).split("|")
_ADJECTIVES = (
    "Old New Red Blue Golden Silver Black White Green Rusty Crooked Laughing Sleepy Hungry Lucky Royal Little Big "
    "Merry Jolly Broken Velvet Copper Iron Paper Electric Midnight Lonely Sunny Frozen Burning Quiet Wild Lost Purple "
    "Crimson Hollow Distant Endless Restless Gentle Neon Plastic Wooden Salty Thirsty Secret Second Seventh Last"
).split()
_NOUNS = (
    "Fox Lion Goose Anchor Lantern Kettle Barrel Crown Bell Oak Swan Horse Dragon Rose Ship Plough Badger Owl Heron "
    "Pear Apple Spoon Table Clock Mirror River Harbour Garden Tiger Wolf Moon Star Sky Rain Road Heart Summer Winter "
    "Window Fire Stone Shadow Letter Train Ghost Feather Candle Mountain Ocean Bridge Dream Radio Sugar Thunder Lemon"
).split()
_FIRST = (
    "Aaron Adaeze Agnieszka Alan Alejandra Alice Amir Anders Andrea Anneke Antoine Arjun Asha Ayşe Bartosz Bea Bilal "
    "Brigid Bruno Carla Cem Charlotte Ciarán Clive Cosmo Daisuke Dalia Deepak Denise Dion Dolores Duncan Ebba Edwin "
    "Eilidh Elif Emeka Enrique Esther Eva Fabio Farah Femi Fergus Freya Gareth Gemma Giorgos Greta Gwen Hamza Hana "
    "Harriet Hassan Helga Hugo Ida Ifeoma Igor Ines Iris Isaac Ivan Jamal Janek Jasmin Jin Joana Joel José Jude Kaia "
    "Karim Kenji Kerry Kiran Kirsty Lachlan Lars Lea Leroy Linh Lorenzo Lucía Magda Malik Manon Mads Mehmet Mila "
    "Minh Miriam Mo Molly Monique Nasser Neil Nikolai Nora Obi Oksana Olof Oscar Paolo Patrick Pilar Pooja Rania Raúl "
    "Rebecca Reza Rory Rosa Ruth Sami Sean Selma Shane Shauna Siobhán Stefan Sunita Svetlana Tamsin Tariq Thomas "
    "Tobias Tove Ulla Uma Valentina Vera Vikram Wanda Wei Xin Yara Yusuf Zainab Zlatan"
).split()
_FAMILY = (
    "brother|sister|dad|mum|mom|gran|nan|uncle|auntie|cousin|wife|husband|partner|flatmate|stepdad|stepmum|sister-in-law|"
    "brother-in-law|godmother|big brother|little sister|oldest|youngest|daughter|son|mate|ex|boss|study group"
).split("|")
_TRADES = (
    "neighbour|landlord|dentist|doctor|physio|accountant|solicitor|coach|babysitter|childminder|cleaner|mechanic|vet|"
    "supervisor|manager|team|office|plumber|electrician|builder|hairdresser|tutor|school|garage|letting agent|nursery"
).split("|")
_TITLES = "Mr Mrs Ms Dr Mr. Mrs. Dr. Professor Captain Sister Father Coach Auntie Uncle Aunt Nurse Big Old".split()


def word(random: Random) -> str:
    """A pronounceable word of one to three syllables that is hardly in any dictionary, lower case."""
    count = random.choices((1, 2, 3), (6, 5, 1))[0]
    parts = []
    for _ in range(count):
        onset = random.choice(_PLAIN if random.random() < 0.7 else _ONSETS)
        vowel = random.choice(_ACCENTED) if random.random() < 0.07 else random.choice(_VOWELS)
        parts.append(onset + vowel + (random.choice(_CODAS) if random.random() < 0.7 else ""))
    if random.random() < 0.45:
        parts.append(random.choice(_ENDINGS))
    text = "".join(parts)
    return text if len(text) > 2 else text + random.choice(_ENDINGS)


def proper(random: Random) -> str:
    """An invented proper name, with an accent, an apostrophe or a hyphen now and then."""
    name = word(random).capitalize()
    roll = random.random()
    if roll < 0.03:
        return random.choice(("O'", "D'", "Mc", "Mac", "L'", "N'")) + name
    if roll < 0.06:
        return name + "-" + word(random).capitalize()
    return name


def person(random: Random) -> str:
    """A name as it stands in a phone book: first names, full names, titles, relations."""
    roll = random.random()
    if roll < 0.22:
        return random.choice(_FIRST)
    if roll < 0.42:
        return proper(random)
    if roll < 0.56:
        return f"{random.choice(_FIRST)} {proper(random)}"
    if roll < 0.64:
        return f"{proper(random)} {proper(random)}"
    if roll < 0.74:
        return f"{random.choice(_TITLES)} {proper(random)}"
    if roll < 0.86:
        if random.random() < 0.6:
            relation = f"{random.choice(('my', 'my', 'our'))} {random.choice(_FAMILY)}"
        else:
            relation = f"{random.choice(('my', 'our', 'the', 'the'))} {random.choice(_TRADES)}"
        return relation if random.random() < 0.75 else f"{relation} {random.choice((*_FIRST, proper(random)))}"
    if roll < 0.95:
        place = random.choice(_KINDS) if random.random() < 0.5 else random.choice(("work", "HR", "number 9", "class"))
        article = "the " if place in _KINDS else ""
        link = random.choice(("from", "at", "from"))
        return f"{random.choice(_FIRST)} {link} {article}{place}"
    return f"{random.choice(_FIRST)} {random.choice('ABCDEFGHJKLMNPRSTW')}" + random.choice(("", "."))


def address(random: Random) -> str:
    """A street address in one of several countries' orders."""
    number = str(random.choice((random.randint(1, 99), random.randint(1, 300), random.randint(100, 9999))))
    if random.random() < 0.1:
        number += random.choice("abcABC")
    name = random.choice((proper(random), proper(random), random.choice(_NOUNS), f"{random.choice(_ADJECTIVES)} Mill"))
    roll = random.random()
    if roll < 0.68:
        street = f"{number} {name} {random.choice(_STREETS)}"
    elif roll < 0.74:
        street = f"{name}{random.choice(('straße', 'strasse', 'weg', 'gasse', 'allee', 'gatan', 'straat'))} {number}"
    elif roll < 0.82:
        lead = random.choice(("Via", "Calle", "Rua", "Avenida", "Ulica", "Plaza", "Piazza"))
        street = f"{lead} {name} {number}"
    elif roll < 0.88:
        street = f"{number} {random.choice(('Rue', 'Rue de', 'Avenue', 'Place', 'Rue du'))} {name}"
    elif roll < 0.94:
        street = f"{number} {random.choice(('North', 'South', 'East', 'West', 'Upper', 'Lower'))} {name} Street"
    else:
        street = f"the corner of {name} and {proper(random)}"
    roll = random.random()
    if roll < 0.14:
        street += f", {proper(random)}"
    elif roll < 0.19:
        street += f", flat {random.randint(1, 30)}"
    elif roll < 0.24:
        street += f" in {proper(random)}"
    return street


def place(random: Random) -> str:
    """A destination or a stop: an address, a business, a sight, a town, somebody's home."""
    roll = random.random()
    if roll < 0.28:
        return address(random)
    if roll < 0.38:
        return proper(random) if random.random() < 0.7 else f"{proper(random)} {proper(random)}"
    if roll < 0.47:
        return f"{proper(random)}'s {random.choice(_BUSINESS)}"
    if roll < 0.56:
        return f"{proper(random)} {random.choice((*_BUSINESS, *_KINDS))}"
    if roll < 0.63:
        return f"the {random.choice(_ADJECTIVES)} {random.choice(_NOUNS)}"
    if roll < 0.73:
        link = random.choice(("in", "on", "near", "by", "at", "behind"))
        where = proper(random) if link != "on" else f"{proper(random)} {random.choice(_STREETS)}"
        return f"{random.choice(('the', 'the', 'that', 'a'))} {random.choice(_KINDS)} {link} {where}"
    if roll < 0.79:
        return f"the {proper(random)} {random.choice(_KINDS)}"
    if roll < 0.86:
        owner = random.choice(
            (random.choice(_FIRST), proper(random), "Grandma", "my sister", "Auntie " + proper(random))
        )
        return f"{owner}'s" + random.choice((" place", " house", " flat", " office", "", " new place", " workshop"))
    if roll < 0.91:
        return f"{random.choice(('Hotel', 'Café', 'Mount', 'Lake', 'Port', 'Saint', 'Camp', 'Villa'))} {proper(random)}"
    if roll < 0.95:
        return (
            f"{proper(random)} {random.choice(('airport', 'station', 'beach', 'harbour', 'services', 'retail park'))}"
        )
    extra = random.choice(("entrance B", "gate 4", "car park C", "the back entrance", "terminal 3", "building 7"))
    return f"{proper(random)} {random.choice(_KINDS)}, {extra}"


def title(random: Random, kind: str) -> str:
    """Something to play; `kind` is artist, song, station, podcast or other."""
    adjective, noun, other = random.choice(_ADJECTIVES), random.choice(_NOUNS), random.choice(_NOUNS)
    name = proper(random)
    artist = random.choice((name, f"{random.choice(_FIRST)} {name}", f"The {adjective} {noun}s", f"DJ {name}"))
    song = random.choice(
        (f"{adjective} {noun}", f"{noun} of the {other}", f"{noun} and {other}", f"My {adjective} {noun}", name,
         f"Don't Wake the {noun}", f"{random.choice(_FIRST)}'s {noun}", f"{random.randint(2, 99)} {noun}s")
    )  # fmt: skip
    if kind == "artist":
        return artist
    if kind == "song":
        return song if random.random() < 0.65 else f"{song} by {artist}"
    if kind == "station":
        frequency = f"{random.randint(87, 107)}.{random.randint(0, 9)}"
        return random.choice((f"Radio {name}", f"{name} FM", frequency, f"{frequency} FM", f"{noun} Radio"))
    if kind == "podcast":
        return random.choice((f"The {adjective} {noun}", f"{noun} Talk", f"{name} Weekly", f"{noun}s and {other}s"))
    return random.choice(
        (f"the new album by {artist}", f"the {song} soundtrack", f"something by {artist}", f"my {noun} playlist",
         f"the latest episode of The {adjective} {noun}", f"the audiobook of {song}", f"{artist}'s greatest hits")
    )  # fmt: skip
