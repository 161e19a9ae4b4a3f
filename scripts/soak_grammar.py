"""Every constrained answer that ends on its own parses and validates: generated JSON schemas and regular expressions.

    python scripts/soak_grammar.py                           # 1,000 schemas, 300 expressions, logits drawn at random
    python scripts/soak_grammar.py --share 0.02              # the sample that the tests run
    python scripts/soak_grammar.py --checkpoint FOLDER       # answers of a model, through its engine

Each constraint is answered in each mode at temperatures 0, 1 and 1.5. Without a checkpoint the model is a source of
random logits, which wants nothing and so tries everything; half of the answers lean towards what closes JSON.
jsonschema and Python's `re` judge. Prints a line for each mode and temperature, and what failed; the exit code is 1 if
anything did.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourleaf.diffusion.constraint import Matcher, Trail, settled, take_forced, walk
from fourleaf.diffusion.draft import accept
from fourleaf.diffusion.policy import Canvas, Noise
from fourleaf.diffusion.sampling import Sampling, adjust, choose, probabilities
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import RequestError
from fourleaf.measure.tables import table
from fourleaf.text.constraint import Constraint
from fourleaf.text.grammar import Grammar, compile_constraint
from fourleaf.text.tokenizer import Tokenizer

MODES, TEMPERATURES = ("ar", "draft", "diffuse"), (0.0, 1.0, 1.5)
NUM_SCHEMAS, NUM_EXPRESSIONS, MAX_TOKENS, BLOCK = 1_000, 300, 192, 32

WORDS = "name title city street zip_code age count price active tags items owner kind status note unit lat lon".split()
VALUES = ["two words", 'a "quote"', "back\\slash", "", *"red green Zürich on/off A-1 日本 north_west no ok".split()]
PATTERNS = ["^[A-Z]{2}-[0-9]{3}$", "^[a-z]+(_[a-z]+)*$", "[0-9]", "^(true|false)$", r"^\+?\d{3,8}$", "^[^,]*,[^,]*$"]
FORMATS = ["date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "uri", "duration"]


# ---- generated constraints


def some_schema(rng: random.Random) -> dict[str, Any]:
    """A schema as applications write them, of supported keywords; often with definitions, sometimes with recursion."""
    root = _object(rng, 0) if rng.random() < 0.7 else _any(rng, 0)
    names = set(re.findall(r"#/\$defs/(\w+)", json.dumps(root)))
    if not names:
        return root
    tree = {
        "type": "object",
        "properties": {"value": _leaf(rng), "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {**root, "$defs": {"leaf": _leaf(rng), "tree": tree}}


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    roll = rng.random()
    if depth >= 3 or roll < 0.45:
        return _leaf(rng)
    if roll < 0.62:
        return _object(rng, depth)
    if roll < 0.78:
        return _array(rng, depth)
    if roll < 0.9:
        return {rng.choice(["anyOf", "anyOf"]): [_any(rng, depth + 1) for _ in range(rng.randint(2, 3))]}
    return {"$ref": f"#/$defs/{rng.choice(['leaf', 'tree'])}"}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randint(0, 5))
    found: dict[str, Any] = {"type": "object", "properties": {name: _any(rng, depth + 1) for name in names}}
    found["required"] = [name for name in names if rng.random() < 0.7]
    roll = rng.random()
    if roll < 0.5:
        found["additionalProperties"] = False
    elif roll < 0.65:
        found["additionalProperties"] = _leaf(rng)
    elif roll < 0.7:
        found = {"type": "object", "additionalProperties": _leaf(rng), "minProperties": 1, "maxProperties": 3}
    return found


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.2:
        return {"type": "array", "prefixItems": [_leaf(rng), _leaf(rng)], "items": False, "minItems": 2}
    low = rng.randint(0, 2)
    found = {"type": "array", "items": _any(rng, depth + 1), "minItems": low}
    return found if rng.random() < 0.4 else {**found, "maxItems": low + rng.randint(0, 3)}


def _leaf(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    high = low + rng.choice([0, 3, 10, 1000])
    return rng.choice([
        lambda: {"type": "string"},
        lambda: {"type": "string", "minLength": abs(low) % 5, "maxLength": 5 + abs(low)},
        lambda: {"type": "string", "pattern": rng.choice(PATTERNS)},
        lambda: {"type": "string", "format": rng.choice(FORMATS)},
        lambda: {"type": "string", "enum": rng.sample(VALUES, 3)},
        lambda: {"enum": [*rng.sample(VALUES, 2), low, None, True, {"a": [1]}]},
        lambda: {"const": rng.choice([*VALUES, low, 1.5, None, [1, "a"]])},
        lambda: {"type": "integer"},
        lambda: {"type": "integer", "minimum": low, "maximum": high},
        lambda: {"type": "integer", "exclusiveMinimum": low, "multipleOf": rng.choice([2, 5, 10])},
        lambda: {"type": "number", "minimum": low / 4, "exclusiveMaximum": high / 4 + 0.5},
        lambda: {"type": "number", "multipleOf": 0.5},
        lambda: {"type": "number"},
        lambda: {"type": "boolean"},
        lambda: {"type": ["string", "null"], "description": "may be missing"},
        lambda: {"type": ["integer", "boolean"], "minimum": low},
    ])()  # fmt: skip


def some_expression(rng: random.Random, depth: int = 0) -> str:
    """A regular expression that Python and the grammar library read alike."""
    pieces = []
    for _ in range(rng.randint(1, 4)):
        roll = rng.random()
        if depth < 3 and roll < 0.3:
            inner = "|".join(some_expression(rng, depth + 1) for _ in range(rng.randint(1, 3)))
            piece = f"{rng.choice(['(', '(?:'])}{inner})"
        elif roll < 0.65:
            piece = rng.choice(["[a-z]", "[A-F0-9]", r"\d", "[^,;]", r"\w", r"[\s_]", ".", "[äöü]", r"\."])
        else:
            piece = re.escape(rng.choice(["cat", "x", "-", "/", "→", "No. ", '"', "\\", "ß"]))
            piece = piece if len(piece) < 3 else f"(?:{piece})"
        pieces.append(piece + rng.choice(["", "", "", "?", "*", "+", "{2}", "{1,3}", "{2,}"]))
    return "".join(pieces)


# ---- answers


@dataclass(frozen=True)
class Model:
    """Logits out of nowhere: the same for the same text and row, other for any other."""

    num_ids: int
    seed: int
    lean: Tensor | None = None  # [Y], added to all rows

    def rows(self, tokens: list[int], num_rows: int, salt: int) -> Tensor:
        """[num_rows, Y]"""
        rng = np.random.default_rng([self.seed, salt, len(tokens), *tokens[-8:]])
        logits = torch.from_numpy(rng.standard_normal((num_rows, self.num_ids), dtype=np.float32) * 3)
        return logits if self.lean is None else logits + self.lean


@dataclass
class Decoder:
    """Decodes one answer from a matcher and a source of logits, as an engine would from a model."""

    model: Model
    sampling: Sampling
    end_id: int
    mask_id: int
    max_tokens: int
    passes: int = 0

    def __post_init__(self) -> None:
        self.noise = Noise(self.model.seed)

    def answer(self, mode: str, matcher: Matcher) -> list[int]:
        decode = {"ar": self._ar, "draft": self._draft, "diffuse": self._diffuse}[mode]
        tokens: list[int] = []
        while len(tokens) < self.max_tokens and (not tokens or tokens[-1] != self.end_id):
            fresh = decode(tokens, matcher)
            assert fresh, "a round must add a token"
            tokens += fresh
            self.passes += 1
        return tokens

    def _adjusted(self, logits: Tensor, allowed: NDArray[np.bool_]) -> Tensor:
        return adjust(logits, self.sampling, self.mask_id, None, torch.from_numpy(allowed))

    def _choose(self, logits: Tensor, allowed: NDArray[np.bool_], position: int) -> tuple[int, float]:
        tokens, sure = choose(self._adjusted(logits, allowed), self.sampling, [position], self.passes, self.noise)
        return tokens[0], sure[0]

    def _ar(self, tokens: list[int], matcher: Matcher) -> list[int]:
        left = self.max_tokens - len(tokens)
        if forced := take_forced(matcher, left):
            return forced
        token, _ = self._choose(self.model.rows(tokens, 1, 0), matcher.allowed(), len(tokens))
        return settled(matcher, [token], left, self.end_id)

    def _draft(self, tokens: list[int], matcher: Matcher) -> list[int]:
        """Proposals by a walk over all rows of a copy; then what stands of them, by the logits of `ar`."""
        left = self.max_tokens - len(tokens)
        if forced := take_forced(matcher, left):
            return forced
        num = min(6, left)
        canvas, guessed = Canvas.blank(len(tokens), num, self.mask_id), self.model.rows(tokens, num, 1)
        guessed[0] = self.model.rows(tokens, 1, 0)[0]  # a good drafter's first row, so that something stands
        drawn: dict[int, Tensor] = {}

        def propose(row: int, allowed: NDArray[np.bool_]) -> tuple[int, float]:
            drawn[row] = probabilities(self._adjusted(guessed[row : row + 1], allowed), self.sampling)[0]
            return self._choose(guessed[row : row + 1], allowed, len(tokens) + row)

        found = walk(matcher.copy(), canvas, 0, propose, {}, tau=-1.0, end_id=self.end_id)
        proposals = found.tokens
        q = torch.nn.functional.one_hot(torch.tensor(proposals), self.model.num_ids).float()  # what is forced is sure
        for row, probability in drawn.items():
            q[row] = probability
        trail = Trail(matcher, proposals)
        rows = [self.model.rows(tokens + proposals[:i], 1, 0)[0] for i in range(len(proposals) + 1)]
        told = accept(
            torch.stack(rows), proposals, q if self.sampling.temperature else None,
            lambda i, logits: self._adjusted(logits[None], trail.allowed(i))[0],
            self.sampling, start=len(tokens), pass_index=self.passes, noise=self.noise, mask_id=self.mask_id,
            end_id=self.end_id,
        )  # fmt: skip
        return settled(matcher, told.decided[:left], left, self.end_id)

    def _diffuse(self, tokens: list[int], matcher: Matcher) -> list[int]:
        """One block."""
        left = self.max_tokens - len(tokens)
        canvas = Canvas.blank(len(tokens), min(BLOCK, left), self.mask_id)
        masked, front, guesses = set(range(len(canvas.tokens))), 0, {}
        everything = np.ones(self.model.num_ids, dtype=bool)
        while front < len(canvas.tokens) and (front == 0 or canvas.tokens[front - 1] != self.end_id):
            logits = self.model.rows(canvas.tokens[:front].tolist(), len(canvas.tokens), 2 + self.passes)
            seen = sorted(masked - guesses.keys())
            positions = [canvas.start + row for row in seen]
            free = choose(self._adjusted(logits[seen], everything), self.sampling, positions, self.passes, self.noise)
            found = walk(
                matcher, canvas, front,
                lambda row, allowed, logits=logits: self._choose(logits[row : row + 1], allowed, canvas.start + row),
                dict(zip(seen, zip(*free, strict=True), strict=True)),
                tau=0.3, end_id=self.end_id, left=left - front, guesses=guesses,
            )  # fmt: skip
            canvas.reveal(found.rows, found.tokens)
            masked -= set(found.rows)
            front, guesses = found.front, found.guesses
            self.passes += 1
        return canvas.tokens[:front].tolist()


def random_answers(
    tokenizer: Tokenizer, max_tokens: int = MAX_TOKENS
) -> Callable[[Grammar, str, float, int], list[int]]:
    """Answers of models of random logits."""
    lean = torch.zeros(tokenizer.vocab_size)
    for token in range(tokenizer.vocab_size):
        if re.fullmatch(rb'["}\]]+', tokenizer.token_bytes(token)):
            lean[token] = 6.0

    def answer(grammar: Grammar, mode: str, temperature: float, seed: int) -> list[int]:
        model = Model(tokenizer.vocab_size, seed, lean if seed % 2 else None)
        decoder = Decoder(model, Sampling(temperature=temperature), tokenizer.end_id, tokenizer.mask_id, max_tokens)
        return decoder.answer(mode, grammar.matcher())

    return answer


# ---- judgement


def verdict(constraint: Constraint, text: str) -> str | None:
    """What is wrong with a finished answer; None where nothing is."""
    assert isinstance(constraint.value, str)
    if constraint.kind == "regex":
        if any(unicodedata.category(letter) == "Cn" for letter in text):
            return None  # of a Unicode version that this Python does not know: it cannot judge a class
        return None if re.fullmatch(constraint.value, text) else "does not match"
    try:
        value = json.loads(text)
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        jsonschema.Draft202012Validator(json.loads(constraint.value), format_checker=checker).validate(value)
    except OverflowError:
        return None  # more digits than a float has: JSON all the same, and jsonschema cannot divide it
    except ValueError as error:
        return f"is no JSON: {error}"
    except jsonschema.ValidationError as error:
        return f"does not validate: {error.message}"
    return None


def constraints(share: float, seed: int) -> Iterator[Constraint]:
    """The schemas, then the expressions; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(max(1, round(share * NUM_SCHEMAS))):
        yield Constraint("json_schema", json.dumps(some_schema(rng)))
    for _ in range(max(1, round(share * NUM_EXPRESSIONS))):
        yield Constraint("regex", some_expression(rng))


def soak(
    share: float,
    seed: int,
    tokenizer: Tokenizer,
    answer: Callable[[Constraint, Grammar, str, float, int], list[int]],
    modes: tuple[str, ...] = MODES,
) -> tuple[list[tuple[str, float, Counter[str]]], list[str], Counter[str]]:
    """-> (mode, temperature, counts) of each arm; what failed; what was refused, by reason."""
    arms = {(mode, temperature): Counter[str]() for mode in modes for temperature in TEMPERATURES}
    faults: list[str] = []
    refused: Counter[str] = Counter()
    for index, constraint in enumerate(constraints(share, seed)):
        try:
            grammar = compile_constraint(constraint, tokenizer)
        except RequestError as error:
            refused[f"{constraint.kind}: {error.message.split(':')[-1].strip()[:60]}"] += 1
            continue
        for (mode, temperature), counts in arms.items():
            tokens = answer(constraint, grammar, mode, temperature, seed + index)
            counts["answers"] += 1
            counts["tokens"] += len(tokens)
            if tokens[-1] != tokenizer.end_id:
                counts["length"] += 1
            elif fault := verdict(constraint, tokenizer.decode(tokens[:-1])):
                counts["wrong"] += 1
                faults.append(f"{constraint.value}\n  {mode} at {temperature}: {tokenizer.decode(tokens)!r} {fault}")
    return [(*arm, counts) for arm, counts in arms.items()], faults, refused


def engine_answers(folder: Path) -> tuple[Tokenizer, Callable[[Constraint, Grammar, str, float, int], list[int]]]:
    """Answers of a checkpoint. An engine leaves the end token out of what it sends; here it comes back."""
    engine = Engine.load(folder)
    prompt = engine.chat.render([{"role": "user", "content": "Answer as you have to."}])

    def answer(constraint: Constraint, grammar: Grammar, mode: str, temperature: float, seed: int) -> list[int]:
        settings: dict[str, Any] = {"mode": mode, "temperature": temperature, "seed": seed, "constraint": constraint}
        params = GenerateParams(**settings, max_tokens=MAX_TOKENS)
        tokens: list[int] = []
        for delta in engine.generate(prompt, params):
            tokens += delta.tokens
            if delta.finish_reason == "stop":
                tokens.append(engine.end_id)
        return tokens

    return engine.tokenizer, answer


def main() -> int:
    """Runs it all. -> exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the constraints, how many are tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="a checkpoint folder; random logits without one")
    chosen = parser.parse_args()
    started = time.perf_counter()
    if chosen.checkpoint:
        tokenizer, answer = engine_answers(chosen.checkpoint)
    else:
        tokenizer = Tokenizer.from_file(bundled_path() / "tokenizer.json")
        free = random_answers(tokenizer)
        answer = lambda _, *rest: free(*rest)  # noqa: E731
    arms, faults, refused = soak(chosen.share, chosen.seed, tokenizer, answer)
    keys = ("answers", "wrong", "length", "tokens")
    rows = [[mode, str(temperature), *(str(counts[key]) for key in keys)] for mode, temperature, counts in arms]
    print("\n".join(table([["mode", "temperature", *keys], *rows])))
    print(f"refused before generation: {dict(refused)}")
    print("\n".join(faults[:20]))
    print(f"{len(faults)} wrong answers, {time.perf_counter() - started:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
