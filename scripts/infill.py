"""How well gaps in cabin answers are filled, with and without what stands behind them.

    python scripts/infill.py --n 300 --json docs/runs/infill.json

Random templates over right answers: gaps at values, at tools' names, at whole calls, cut where tokens part. Each
template is filled as a whole; and one gap of each, all else being right, with the text behind it pinned and with that
text withheld. Without it a gap has no end of its own, so there it counts as right where the answer goes on with the
gap's tokens and then the one behind them. The figures go into docs/infill.md, between its marks.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import GenerateParams, Mode
from fourleaf.engine.template import Gap, Part
from fourleaf.measure import bootstrap
from fourleaf.measure.circumstances import Ticker, circumstances
from fourleaf.measure.evaluate import examples_of
from fourleaf.measure.marks import filled, markdown
from fourleaf.measure.tables import percent, points
from fourleaf.tasks.cabin.schema import Example, answer_text, messages, parse_answer

PAGE = Path(__file__).parents[1] / "docs" / "infill.md"
MODES: tuple[Mode, ...] = ("diffuse", "ar")
KINDS = ("value", "name", "call")
MAX_GAPS = 3
SLACK = 8  # tokens that a gap may have beyond what is right, at most
AT_ONCE = 16


@dataclass(frozen=True)
class Hole:
    """Tokens begin..end of the right answer, left open, with room for `limit`."""

    kind: str
    begin: int
    end: int
    limit: int


@dataclass(frozen=True)
class Case:
    """A right answer with holes. chosen: the one of them that is also asked alone."""

    prompt: list[int]
    answer: list[int]
    holes: tuple[Hole, ...]
    chosen: Hole

    def template(self, holes: Sequence[Hole]) -> tuple[Part, ...]:
        """The answer with these holes open."""
        parts: list[Part] = []
        at = 0
        for hole in holes:
            parts += [tuple(self.answer[at : hole.begin]), Gap(hole.limit)]
            at = hole.end
        return tuple(part for part in (*parts, tuple(self.answer[at:])) if part)

    def right(self, hole: Hole) -> list[int]:
        return self.answer[hole.begin : hole.end]


def spans(example: Example) -> Iterator[tuple[str, int, int]]:
    """(kind, begin, end) of what can be left open, in characters of the answer."""
    at = 0
    for call in example.calls:
        whole = answer_text(Example("", (call,), ""))
        yield "call", at, at + len(whole)
        name = at + len('<tool_call>{"name": "')
        yield "name", name, name + len(call.name)
        begin = whole.index('"arguments": {') + len('"arguments": {')
        for key, value in call.arguments.items():
            said = json.dumps(value, ensure_ascii=False)
            begin = whole.index(f"{json.dumps(key)}: {said}", begin) + len(json.dumps(key)) + 2
            inner = int(isinstance(value, str))
            if len(said) > 2 * inner:
                yield "value", at + begin + inner, at + begin + len(said) - inner
            begin += len(said)
        at += len(whole)


def holes_of(engine: Engine, example: Example, answer: list[int], rng: random.Random) -> tuple[Hole, ...]:
    """Up to MAX_GAPS holes that neither touch nor overlap, in order. Each kind is as likely as another."""
    ends = [0]  # of the tokens, in bytes
    for token in answer:
        ends.append(ends[-1] + len(engine.tokenizer.token_bytes(token)))
    text = answer_text(example)
    found: dict[str, list[tuple[int, int]]] = {kind: [] for kind in KINDS}
    for kind, begin, end in spans(example):
        low, high = (len(text[:place].encode()) for place in (begin, end))
        first = max(i for i, at in enumerate(ends) if at <= low)
        found[kind].append((first, min(i for i, at in enumerate(ends) if at >= high)))
    holes: list[Hole] = []
    for _ in range(rng.randint(1, MAX_GAPS)):
        kind = rng.choice(KINDS)
        begin, end = rng.choice(found[kind] or found["name"])
        if all(end < hole.begin or begin > hole.end for hole in holes):
            holes.append(Hole(kind, begin, end, end - begin + rng.randint(0, SLACK)))
    return tuple(sorted(holes, key=lambda hole: hole.begin))


def cases_of(engine: Engine, examples: Sequence[Example], seed: int) -> list[Case]:
    """A template over each example that makes calls."""
    rng = random.Random(f"infill {seed}")
    made = []
    for example in examples:
        if not example.calls:
            continue
        answer = engine.tokenizer.encode_markup(answer_text(example))
        holes = holes_of(engine, example, answer, rng)
        made.append(Case(engine.chat.render(messages(example)), answer, holes, rng.choice(holes)))
    return made


@dataclass(frozen=True)
class Said:
    """An answer: its tokens, and the gap that each fills."""

    tokens: list[int]
    gaps: list[int | None]
    generated: int
    forwards: int

    def fill(self, index: int) -> list[int]:
        return [token for token, gap in zip(self.tokens, self.gaps, strict=True) if gap == index]


def ask(engine: Engine, prompt: list[int], params: GenerateParams) -> Said:
    """Fills one template."""
    deltas = list(engine.generate(prompt, params))
    usage = deltas[-1].usage
    assert usage is not None
    gaps = [gap for delta in deltas for gap in delta.gaps or ()]
    return Said([t for delta in deltas for t in delta.tokens], gaps, usage.completion_tokens, usage.forwards)


def ask_all(engine: Engine, wishes: list[tuple[list[int], GenerateParams]], told: Callable[[int], None]) -> list[Said]:
    """Many templates at once, in order."""
    found = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for said in pool.map(lambda wish: ask(engine, *wish), wishes):
            found.append(said)
            told(len(found))
    return found


def keeps_pins(case: Case, said: Said) -> bool:
    """Whether all that was pinned is there, in order, and nothing else outside the gaps."""
    pinned = [token for token, gap in zip(said.tokens, said.gaps, strict=True) if gap is None]
    open_places = {place for hole in case.holes for place in range(hole.begin, hole.end)}
    return pinned == [token for place, token in enumerate(case.answer) if place not in open_places]


def goes_on_right(case: Case, said: Said) -> bool:
    """Whether an answer without a suffix begins with the chosen gap's tokens and the one behind them."""
    hole, own = case.chosen, said.fill(0)
    follows = case.answer[hole.end : hole.end + 1]
    if own[: hole.end - hole.begin] != case.right(hole):
        return False
    return own[hole.end - hole.begin :][:1] == follows


def measure(engine: Engine, cases: Sequence[Case], seed: int, told: Callable[[int, int, str], None]) -> dict[str, Any]:
    """Every mode on every case. -> plain data."""
    found: dict[str, Any] = {}
    for mode in MODES:
        arms = {
            "whole": [case.template(case.holes) for case in cases],
            "pinned": [case.template([case.chosen]) for case in cases],
            "withheld": [withheld(case) for case in cases],
        }
        said: dict[str, list[Said]] = {}
        for name, templates in arms.items():
            wishes = [
                (case.prompt, GenerateParams(mode, infill=template))
                for case, template in zip(cases, templates, strict=True)
            ]
            progress = f"{mode}, {name}"
            said[name] = ask_all(engine, wishes, lambda done, what=progress: told(done, len(cases), what))
        found[mode] = figures(engine, cases, said, seed)
    return found


def withheld(case: Case) -> tuple[Part, ...]:
    """The chosen gap, and nothing behind it; room for the token that would follow."""
    before = tuple(case.answer[: case.chosen.begin])
    gap = Gap(case.chosen.limit + 1)
    return (before, gap) if before else (gap,)


def figures(engine: Engine, cases: Sequence[Case], said: dict[str, list[Said]], seed: int) -> dict[str, Any]:
    """What one mode's answers come to."""
    whole, alone = said["whole"], said["pinned"]
    within, exact, valid = [], [], []
    for case, one in zip(cases, whole, strict=True):
        within += [len(one.fill(i)) <= hole.limit for i, hole in enumerate(case.holes)]
        exact += [one.fill(i) == case.right(hole) for i, hole in enumerate(case.holes)]
        calls, rest = parse_answer(engine.tokenizer.decode(one.tokens))
        valid.append(calls is not None and not rest)
    seen = [one.fill(0) == case.right(case.chosen) for case, one in zip(cases, alone, strict=True)]
    unseen = [goes_on_right(case, one) for case, one in zip(cases, said["withheld"], strict=True)]
    made: dict[str, Any] = {
        "templates": len(cases),
        "gaps": len(exact),
        "pins_kept": sum(keeps_pins(case, one) for case, one in zip(cases, whole, strict=True)),
        "within_limits": sum(within),
        "valid": bootstrap.mean(valid, seed).document(),
        "exact": bootstrap.mean(exact, seed).document(),
        "forwards_a_gap": sum(one.forwards for one in whole) / len(exact),
        "kinds": {},
    }
    for kind in ("all", *KINDS):
        chosen = [i for i, case in enumerate(cases) if kind in ("all", case.chosen.kind)]
        if not chosen:
            continue
        first, second = [unseen[i] for i in chosen], [seen[i] for i in chosen]
        made["kinds"][kind] = {
            "n": len(chosen),
            "withheld": bootstrap.mean(first, seed).document(),
            "pinned": bootstrap.mean(second, seed).document(),
            "gain": bootstrap.paired(first, second, seed).document(),
        }
    return made


def interval(found: dict[str, Any]) -> bootstrap.Interval:
    """As it was before it became plain data."""
    return bootstrap.Interval(**found)


def text_of(found: dict[str, Any]) -> str:
    """The page's tables."""
    rows, gains = [], []
    for mode, one in found["modes"].items():
        rows.append(
            [
                mode,
                f"{one['pins_kept']} of {one['templates']}",
                f"{one['within_limits']} of {one['gaps']}",
                percent(interval(one["valid"])),
                percent(interval(one["exact"])),
                f"{one['forwards_a_gap']:.1f}",
            ]
        )
        for kind, each in one["kinds"].items():
            cells = [percent(interval(each[name])) for name in ("withheld", "pinned")]
            gains.append([mode, kind, str(each["n"]), *cells, points(interval(each["gain"]["difference"]))])
    about = found["circumstances"]
    made = f"{about['model']} (weights {about['weights_sha256'][:12]}), set {found['set']}, seed {found['seed']}."
    head = ["mode", "pins kept", "gaps within their limits", "calls parse", "gaps exactly right", "forwards a gap"]
    gain = ["mode", "gap", "n", "right, text behind withheld", "right, text behind pinned", "difference"]
    return f"{made}\n\n{markdown(head, rows)}\n\n{markdown(gain, gains)}"


def main(words: Sequence[str] | None = None) -> None:
    """Measures, prints, writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=300, help="examples; those without calls are left out")
    parser.add_argument("--set", default="patterns", help="fillers, patterns or dev")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=bundled_path())
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args(words)
    page = asked.page.read_text(encoding="utf-8")
    filled(page, {"infill": ""})  # a page without marks is better missed now than after the run
    engine = Engine.load(asked.model)
    cases = cases_of(engine, examples_of(asked.set, asked.n), asked.seed)
    ticker = Ticker(sys.stderr)
    engine.start()
    try:
        modes = measure(engine, cases, asked.seed, ticker)
    finally:
        ticker.close()
        engine.stop()
    found = {
        "circumstances": circumstances(engine, asked.model), "set": asked.set, "seed": asked.seed, "modes": modes
    }  # fmt: skip
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = text_of(found)
    asked.page.write_text(filled(page, {"infill": text}), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
