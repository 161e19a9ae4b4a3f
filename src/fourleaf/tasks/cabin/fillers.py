"""Free text for the copied slots: listed forms of one side of the split, and invented ones of the same side."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fourleaf.tasks.cabin import invented, sentences
from fourleaf.tasks.cabin.phrases import Corpus, held_out

GENRE_LIKE = ("genre",)


class Fillers:
    """Draws values of the copied slots from the training side, or from the held-out side where `unseen`.

    The held-out side remembers in `drawn` what it gave.
    """

    def __init__(self, corpus: Corpus, *, unseen: bool) -> None:
        self.unseen = unseen
        self.drawn: set[str] = set()
        self.listed = {key: [form for form in forms if self.mine(form)] for key, forms in corpus.fillers.items()}
        self.kinds = {
            form.casefold(): kind for (slot, kind), forms in corpus.fillers.items() if slot == "query" for form in forms
        }

    def mine(self, form: str) -> bool:
        """Whether a form belongs to this side: unseen is what is held out in lower case, so unseen in any spelling."""
        folded = held_out(form.replace("’", "'").casefold())
        return folded if self.unseen else not (folded or held_out(form))

    def _draw(self, random: Random, invent: Callable[[], str], lists: list[list[str]], listed_share: float) -> str:
        lists = [forms for forms in lists if forms]
        # The held-out lists are a tenth as long: drawn as often, their few forms would fill a test set.
        listed_share = 0.3 * listed_share if self.unseen else listed_share
        # Held-out forms are one in ten, so an invented one is drawn until it falls on this side.
        while True:
            if lists and random.random() < listed_share:
                return random.choice(random.choice(lists))
            form = invent()
            if self.mine(form) and form.count(",") < 3:
                return form

    def _lists(self, slot: str, kinds: tuple[str, ...]) -> list[list[str]]:
        return [forms for (s, kind), forms in self.listed.items() if s == slot and (not kinds or kind in kinds)]

    def destination(self, random: Random) -> str:
        """Where to go, read well after "to"."""
        return self._draw(random, lambda: invented.place(random), self._lists("destination", ()), 0.45)

    def stop(self, random: Random) -> str:
        """A place on the way."""
        lists = self._lists("place", ()) * 3 + self._lists("destination", ())
        return self._draw(random, lambda: invented.place(random), lists, 0.5)

    def name(self, random: Random) -> str:
        """Whom to call or to write to."""
        return self._draw(random, lambda: invented.person(random), self._lists("name", ()), 0.4)

    def query(self, random: Random, kinds: tuple[str, ...] = ()) -> str:
        """What to play, of one of `kinds` where given."""
        kind = random.choice(kinds or ("artist", "artist", "song", "song", "genre", "station", "podcast", "other"))
        lists = self._lists("query", (kind,))
        if kind in GENRE_LIKE and lists and lists[0]:
            return random.choice(lists[0])
        share = 0.4
        return self._draw(random, lambda: invented.title(random, kind), lists, share)

    def text(self, random: Random, kinds: tuple[str, ...] = ()) -> str:
        """A message; only statements where `kinds` is ("statement",)."""
        if "statement" in kinds:
            return self._draw(random, lambda: sentences.statement(random), self._lists("text", ("statement",)), 0.35)
        invent = sentences.note if random.random() < 0.55 else sentences.statement
        return self._draw(random, lambda: invent(random), self._lists("text", ()), 0.35)

    def value(self, slot: str, random: Random, kinds: tuple[str, ...] = ()) -> str:
        """A form for any of the five copied slots."""
        if slot == "query":
            form = self.query(random, kinds)
        elif slot == "text":
            form = self.text(random, kinds)
        else:
            form = {"destination": self.destination, "place": self.stop, "name": self.name}[slot](random)
        if self.unseen:
            self.drawn.add(form.casefold())
        return form
