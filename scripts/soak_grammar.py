"""Every constrained answer that ends on its own parses and validates: generated JSON schemas and regular expressions.

    python scripts/soak_grammar.py                           # 1,000 schemas, 300 expressions, logits drawn at random
    python scripts/soak_grammar.py --part 1/2                # every second of them; another process takes --part 2/2
    python scripts/soak_grammar.py --share 0.02              # the sample that the tests run
    python scripts/soak_grammar.py --checkpoint bundled      # answers of a model, through its engine

Each constraint is answered in each mode at temperatures 0, 1 and 1.5. Without a checkpoint the model is a source of
random logits, which wants nothing and so tries everything; half of the answers lean towards what closes JSON, and
`auto` takes any mode for each block. jsonschema and Python's `re` judge. Prints a line for each mode and temperature,
with what the grammar took of each forward, and what failed; the exit code is 1 if anything did. --report appends it.
"Unjudged" are texts over which `re` would try every way for hours, or with letters newer than this Python.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import random
import re
import signal
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import numpy as np
import torch
from numpy.typing import NDArray
from random_constraints import constraints
from torch import Tensor

from fourleaf.diffusion.constraint import Choice, Matcher, Trail, settled, take_forced, walk
from fourleaf.diffusion.draft import accept
from fourleaf.diffusion.policy import Canvas, Noise
from fourleaf.diffusion.sampling import Sampling, adjust, choose, probabilities
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import RequestError
from fourleaf.measure.matching import TimedMatcher, Watch
from fourleaf.measure.tables import table
from fourleaf.text.constraint import Constraint
from fourleaf.text.grammar import Grammar, compile_constraint
from fourleaf.text.tokenizer import Tokenizer

MODES, TEMPERATURES = ("ar", "draft", "diffuse", "auto"), (0.0, 1.0, 1.5)
MAX_TOKENS, BLOCK = 192, 32
PATIENCE = 5.0  # seconds of the judge for one text
TOLD_EVERY = 100  # constraints
# (constraint, its grammar, mode, temperature, seed) -> an answer's tokens, the forwards that it took
Answering = Callable[[Constraint, Grammar, str, float, int], tuple[list[int], int]]


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
    forwards: int = 0  # a model would have run; a round of what is forced has none, one of `draft` two

    def __post_init__(self) -> None:
        self.noise = Noise(self.model.seed)
        self.is_quick = self.sampling.temperature == 0  # as the engine has it
        self.everything = np.ones(self.model.num_ids, dtype=bool)

    def answer(self, mode: str, matcher: Matcher) -> list[int]:
        ways, rng = {"ar": self._ar, "draft": self._draft, "diffuse": self._diffuse}, random.Random(self.model.seed)
        tokens: list[int] = []
        while len(tokens) < self.max_tokens and (not tokens or tokens[-1] != self.end_id):
            decode = ways[mode] if mode in ways else rng.choice(list(ways.values()))
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

    def _free(self, logits: Tensor, positions: list[int]) -> tuple[list[int], list[float]]:
        """What rows say without a grammar: tokens and confidences."""
        return choose(self._adjusted(logits, self.everything), self.sampling, positions, self.passes, self.noise)

    def _ar(self, tokens: list[int], matcher: Matcher) -> list[int]:
        left = self.max_tokens - len(tokens)
        if forced := take_forced(matcher, left):
            return forced
        self.forwards += 1
        token, _ = self._choose(self.model.rows(tokens, 1, 0), matcher.allowed(), len(tokens))
        return settled(matcher, [token], left, self.end_id)

    def _draft(self, tokens: list[int], matcher: Matcher) -> list[int]:
        """Proposals by a walk over all rows of a copy; then what stands of them, by the logits of `ar`."""
        left = self.max_tokens - len(tokens)
        if forced := take_forced(matcher, left):
            return forced
        self.forwards += 2
        num = min(6, left)
        canvas, guessed = Canvas.blank(len(tokens), num, self.mask_id), self.model.rows(tokens, num, 1)
        guessed[0] = self.model.rows(tokens, 1, 0)[0]  # a good drafter's first row, so that something stands
        drawn: dict[int, Tensor] = {}

        def propose(row: int, allowed: NDArray[np.bool_]) -> tuple[int, float]:
            drawn[row] = probabilities(self._adjusted(guessed[row : row + 1], allowed), self.sampling)[0]
            return self._choose(guessed[row : row + 1], allowed, len(tokens) + row)

        said: dict[int, Choice] = {}
        if self.is_quick:
            free = self._free(guessed, [len(tokens) + row for row in range(num)])
            said = dict(enumerate(zip(*free, strict=True)))
        ahead, end, quick = matcher.copy(), self.end_id, self.is_quick
        found = walk(ahead, canvas, 0, propose, said, tau=-1.0, end_id=end, is_quick=quick)
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
            end_id=self.end_id, legal=trail.allows if self.is_quick else None,
        )  # fmt: skip
        return settled(matcher, told.decided[:left], left, self.end_id)

    def _diffuse(self, tokens: list[int], matcher: Matcher) -> list[int]:
        """One block."""
        left = self.max_tokens - len(tokens)
        canvas = Canvas.blank(len(tokens), min(BLOCK, left), self.mask_id)
        masked, front, guesses = set(range(len(canvas.tokens))), 0, {}
        while front < len(canvas.tokens) and (front == 0 or canvas.tokens[front - 1] != self.end_id):
            logits = self.model.rows(canvas.tokens[:front].tolist(), len(canvas.tokens), 2 + self.passes)
            seen = sorted(masked - guesses.keys())
            free = self._free(logits[seen], [canvas.start + row for row in seen])
            found = walk(
                matcher, canvas, front,
                lambda row, allowed, logits=logits: self._choose(logits[row : row + 1], allowed, canvas.start + row),
                dict(zip(seen, zip(*free, strict=True), strict=True)),
                tau=0.3, end_id=self.end_id, left=left - front, guesses=guesses, is_quick=self.is_quick,
            )  # fmt: skip
            canvas.reveal(found.rows, found.tokens)
            masked -= set(found.rows)
            front, guesses = found.front, found.guesses
            self.passes += 1
            self.forwards += 1
        return canvas.tokens[:front].tolist()


def random_answers(tokenizer: Tokenizer, max_tokens: int = MAX_TOKENS) -> Answering:
    """Answers of models of random logits."""
    lean = torch.zeros(tokenizer.vocab_size)
    for token in range(tokenizer.vocab_size):
        if re.fullmatch(rb'["}\]]+', tokenizer.token_bytes(token)):
            lean[token] = 6.0

    def answer(_: Constraint, grammar: Grammar, mode: str, temperature: float, seed: int) -> tuple[list[int], int]:
        model = Model(tokenizer.vocab_size, seed, lean if seed % 2 else None)
        decoder = Decoder(model, Sampling(temperature=temperature), tokenizer.end_id, tokenizer.mask_id, max_tokens)
        return decoder.answer(mode, grammar.matcher()), decoder.forwards

    return answer


# ---- judgement


class UnjudgedError(Exception):
    """The judge cannot say."""


@contextlib.contextmanager
def limited(seconds: float) -> Generator[None]:
    """Raises UnjudgedError in what takes longer: Python's `re` tries every way, of which some texts have 10^30."""

    def give_up(*_: object) -> NoReturn:
        raise UnjudgedError(f"no verdict within {seconds} s")

    before, alarm = signal.signal(signal.SIGALRM, give_up), signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *alarm)  # a test's own limit goes on


def verdict(constraint: Constraint, text: str) -> str | None:
    """What is wrong with a finished answer; None where nothing is. Raises UnjudgedError where the judge cannot say."""
    assert isinstance(constraint.value, str)
    if constraint.kind == "regex":
        if any(unicodedata.category(letter) == "Cn" for letter in text):
            raise UnjudgedError("a letter of a Unicode version that this Python does not know")
        with limited(PATIENCE):
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


def judged(constraint: Constraint, tokens: list[int], tokenizer: Tokenizer) -> tuple[str, str | None]:
    """-> ("right", "wrong", "length" or "unjudged", what is wrong)."""
    if tokens[-1] != tokenizer.end_id:
        return "length", None
    try:
        fault = verdict(constraint, tokenizer.decode(tokens[:-1]))
    except UnjudgedError:
        return "unjudged", None
    return ("wrong" if fault else "right"), fault


def soak(
    share: float,
    seed: int,
    tokenizer: Tokenizer,
    answer: Answering,
    modes: tuple[str, ...] = MODES,
    part: tuple[int, int] = (1, 1),
) -> tuple[list[tuple[str, float, Counter[str]]], list[str], Counter[str]]:
    """part: (k, n): the k-th of n runs that share the constraints. -> (mode, temperature, counts) of each arm; what
    failed; what was refused, by reason."""
    arms = {(mode, temperature): Counter[str]() for mode in modes for temperature in TEMPERATURES}
    faults: list[str] = []
    refused: Counter[str] = Counter()
    watch = Watch()
    ours = list(enumerate(constraints(share, seed)))[part[0] - 1 :: part[1]]
    for done, (index, constraint) in enumerate(ours):
        if done % TOLD_EVERY == TOLD_EVERY - 1:
            print(f"{done + 1} of {len(ours)} constraints, {len(faults)} wrong answers", file=sys.stderr, flush=True)
        try:
            grammar = compile_constraint(constraint, tokenizer)
        except RequestError as error:
            refused[f"{constraint.kind}: {error.message.split(':')[-1].strip()[:60]}"] += 1
            continue
        book_on(watch, grammar)
        for (mode, temperature), counts in arms.items():
            before, began = dict(watch.seconds), time.thread_time()
            tokens, forwards = answer(constraint, grammar, mode, temperature, seed + index)
            counts["all µs"] += round(1e6 * (time.thread_time() - began))
            for what, seconds in watch.seconds.items():
                counts[f"{what} µs"] += round(1e6 * (seconds - before.get(what, 0.0)))
            counts.update({"answers": 1, "tokens": len(tokens), "forwards": forwards})
            how, fault = judged(constraint, tokens, tokenizer)
            counts[how] += 1
            if fault:
                faults.append(f"{constraint.value}\n  {mode} at {temperature}: {tokenizer.decode(tokens)!r} {fault}")
    return [(*arm, counts) for arm, counts in arms.items()], faults, refused


def book_on(watch: Watch, grammar: Grammar) -> None:
    """Whoever asks this grammar for a matcher from now on, the engine too, gets a timed one."""
    vars(grammar)["matcher"] = lambda prompt_ids=(): TimedMatcher(Grammar.matcher(grammar, prompt_ids), watch)


def cost(counts: Counter[str]) -> dict[str, float]:
    """Of a forward, on average: microseconds of the processor that went to the grammar, those of token masks and of the
    search for endings apart; and what share of all of the answers' time the grammar had."""
    parts = {name: number for name, number in counts.items() if name.endswith(" µs") and name != "all µs"}
    found = {name: round(parts.get(name, 0) / counts["forwards"], 1) for name in ("mask µs", "ending µs")}
    whole = sum(parts.values())
    return {"µs": round(whole / counts["forwards"], 1), **found, "share": round(whole / max(1, counts["all µs"]), 3)}


def engine_answers(folder: Path) -> tuple[Tokenizer, Answering]:
    """Answers of a checkpoint. An engine leaves the end token out of what it sends; here it comes back."""
    engine = Engine.load(folder)
    prompt = engine.chat.render([{"role": "user", "content": "Answer as you have to."}])

    def answer(
        constraint: Constraint, grammar: Grammar, mode: str, temperature: float, seed: int
    ) -> tuple[list[int], int]:
        settings: dict[str, Any] = {"mode": mode, "temperature": temperature, "seed": seed, "constraint": constraint}
        if mode == "auto":
            settings["lossless"] = False
        params = GenerateParams(**settings, max_tokens=MAX_TOKENS)
        tokens, forwards = [], 0
        for delta in engine.generate(prompt, params):
            tokens += delta.tokens
            if delta.finish_reason == "stop":
                tokens.append(engine.end_id)
            forwards += delta.usage.forwards if delta.usage else 0
        return tokens, forwards

    return engine.tokenizer, answer


def main() -> int:
    """Runs it all. -> exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the constraints, how many are tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="'2/4': the second of four runs that share the constraints")
    parser.add_argument("--checkpoint", help="'bundled' or a checkpoint folder; random logits without one")
    parser.add_argument("--report", type=Path, help="a JSONL file to which the figures are appended")
    chosen = parser.parse_args()
    part = tuple(int(number) for number in chosen.part.split("/") if number.isdecimal())
    if len(part) != 2 or not 1 <= part[0] <= part[1]:
        parser.error(f"--part {chosen.part} is not K/N with K from 1 to N")
    started = time.perf_counter()
    if chosen.checkpoint:
        folder = bundled_path() if chosen.checkpoint == "bundled" else Path(chosen.checkpoint)
        tokenizer, answer = engine_answers(folder)
    else:
        tokenizer = Tokenizer.from_file(bundled_path() / "tokenizer.json")
        answer = random_answers(tokenizer)
    arms, faults, refused = soak(chosen.share, chosen.seed, tokenizer, answer, part=part)
    keys = ("answers", "wrong", "length", "unjudged", "tokens", "forwards")
    rows = [[mode, str(heat), *(str(c[key]) for key in keys), *map(str, cost(c).values())] for mode, heat, c in arms]
    told = ["grammar µs a forward", "masks", "endings", "of all time"]
    print("\n".join(table([["mode", "temperature", *keys, *told], *rows])))
    whole = sum((counts for _, _, counts in arms), Counter[str]())
    seconds = round(time.perf_counter() - started)
    row = {
        "date": datetime.date.today().isoformat(), "command": " ".join(sys.argv),
        "model": chosen.checkpoint or "random logits", "refused": dict(refused), "seconds": seconds,
        **{key: whole[key] for key in keys}, "a forward": cost(whole),
        "µs by arm": {f"{mode} {heat}": cost(counts)["µs"] for mode, heat, counts in arms},
    }  # fmt: skip
    print(f"refused before generation: {dict(refused)}")
    print("\n".join(faults[:20]))
    print(f"{len(faults)} wrong answers, {seconds} s")
    if chosen.report:
        with chosen.report.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
