"""The fields about decoding that several APIs share, under their usual names, as wishes for GenerateParams."""

from __future__ import annotations

import secrets
from typing import Any

from fourleaf.engine.request import MAX_LOGPROBS, MAX_SEED, GenerateParams
from fourleaf.serve.body import Wire, refuse, shown
from fourleaf.serve.capabilities import Abilities, Wishes

MAX_STOPS = 16
MAX_CHOICES = 16

# Fields of the wire that go to the field of GenerateParams with the same name, as they are.
_PLAIN = (
    "mode", "policy", "threshold", "tokens_per_pass", "entropy_bound", "edit_threshold", "lossless", "grammar",
    "priority", "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip


class Decode(Wire):
    """Fields that OpenAI documents, those that other servers added (top_k, min_p, repetition_penalty), and ours."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: Any = None
    n: int | None = None
    mode: str | None = None
    policy: str | None = None
    threshold: float | None = None
    tokens_per_pass: int | None = None
    entropy_bound: float | None = None
    edit_threshold: float | None = None
    lossless: bool | None = None
    grammar: bool | None = None
    priority: str | None = None
    modes: list[str] | None = None

    def wishes(self, vocab_size: int) -> Wishes:
        """Everything but the limit on tokens. Raises RequestError for what has the wrong shape."""
        wishes = Wishes()
        for name in _PLAIN:
            wishes.add(name, getattr(self, name))
        wishes.add("top_k", 0 if self.top_k == -1 else self.top_k)  # vLLM's word for off
        wishes.add("seed", self._seed())
        wishes.add("logit_bias", self._biases(vocab_size))
        wishes.add("stop", stops(self.stop))
        wishes.add("modes", None if self.modes is None else tuple(self.modes))
        return wishes

    def _seed(self) -> int | None:
        """A temperature without a seed draws one, which usage reports, so that it can be asked again."""
        if self.seed is None:
            return secrets.randbelow(MAX_SEED + 1) if (self.temperature or 0) > 0 else None
        if not -MAX_SEED - 1 <= self.seed <= MAX_SEED:
            refuse("seed", f"must fit in 64 bits, and {shown(self.seed)} does not", "invalid_value")
        return self.seed % (MAX_SEED + 1)  # OpenAI's seeds are signed, ours are not

    def _biases(self, vocab_size: int) -> tuple[tuple[int, float], ...] | None:
        if self.logit_bias is None:
            return None
        biases: list[tuple[int, float]] = []
        for key, bias in self.logit_bias.items():
            if not (key.isascii() and key.isdigit() and len(key) <= 9 and int(key) < vocab_size):
                refuse("logit_bias", f"must name token ids below {vocab_size}, not {shown(key)}", "invalid_value")
            biases.append((int(key), bias))
        return tuple(sorted(biases))

    def choices(self) -> int:
        """How many answers are asked for."""
        if self.n is not None and not 1 <= self.n <= MAX_CHOICES:
            refuse("n", f"must be from 1 to {MAX_CHOICES}, not {shown(self.n)}", "invalid_value")
        return self.n or 1


def stops(value: Any, param: str = "stop") -> tuple[str, ...] | None:
    """Stop texts: one, or a list of them. Raises RequestError for anything else."""
    if value is None or value == []:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        refuse(param, f"must be a text or a list of texts, none of them empty, not {shown(value)}", "invalid_type")
    if len(texts) > MAX_STOPS:
        refuse(param, f"holds {len(texts)} texts; at most {MAX_STOPS} are taken", "invalid_value")
    return tuple(texts)


def top_logprobs(value: int, param: str) -> int:
    """How many alternatives a request wants. Raises RequestError for a number out of range."""
    if not 0 <= value <= MAX_LOGPROBS:
        refuse(param, f"must be from 0 to {MAX_LOGPROBS}, not {value}", "invalid_value")
    return value


def each_choice(wishes: Wishes, able: Abilities, count: int) -> list[GenerateParams]:
    """One set of parameters for each of `count` answers."""
    if count > 1:
        wishes.add("choice", count - 1, "n")
        wishes.params(able)  # refuses where answers cannot be told apart
    made: list[GenerateParams] = []
    for choice in range(count):
        if count > 1:
            wishes.add("choice", choice, "n")
        made.append(wishes.params(able))
    return made
