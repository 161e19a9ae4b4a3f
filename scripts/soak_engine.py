"""Many requests of every kind at once, cancelled at random, on little memory: nothing leaks, and each answers as alone.

    python scripts/soak_engine.py                                 # 5,000 requests on random weights in fp64
    python scripts/soak_engine.py --checkpoint bundled            # on the bundled model, as it is served
    python scripts/soak_engine.py --share 0.02                    # the sample that the tests run

Each request draws its prompt (many share a prefix), mode, policy, temperature, cuts, penalties, bias, length, stops,
logprobs, priority and, one in six, a grammar. A share of them is cancelled on the way. Pages, snapshots and states are
counted after every forward. Every answer that came to its end is generated once more, alone on an empty engine: tokens,
end, usage and logprobs must be the same, and what a grammar asked for must hold. In fp64 without exception; in fp32
answers may part where the two most probable tokens are closer than MARGIN: each is looked at, and counted. Memory, less
what the prefix cache holds, must be flat in runs of MIN_FOR_MEMORY requests and more.

Prints a report and appends it to `docs/runs/soak-engine.jsonl` with --report; the exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import re
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fourleaf.engine.core import Core, Limits
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.pages import PAGE_SIZE
from fourleaf.engine.request import Delta, GenerateParams, Usage
from fourleaf.engine.score import score
from fourleaf.measure.memory import growth
from fourleaf.measure.specimen import specimen
from fourleaf.text.constraint import Constraint
from fourleaf.text.tokenizer import Tokenizer

NUM_REQUESTS, NUM_AT_ONCE, CANCELLED = 5_000, 24, 0.1
NUM_SAMPLES = 40  # of memory, in a run
MIN_FOR_MEMORY = 500  # of requests
MARGIN = 1e-3  # of logits: nearer tokens may change places in fp32
MAX_EXCEPTIONS = 0.001  # of all tokens that were compared
MODES = ("ar", "draft", "diffuse", "diffuse", "auto")
POLICIES = ("threshold", "threshold", "fixed", "entropy", "edit")
SCHEMA = {
    "type": "object",
    "properties": {"zone": {"enum": ["front", "rear"]}, "level": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["zone", "level"],
    "additionalProperties": False,
}
EXPRESSION = "[a-c]{3}-[0-9]{2,9}!"
CHOICES = ("yes, at once", "no", "not today")
CONSTRAINTS = (
    Constraint("json_schema", json.dumps(SCHEMA)),
    Constraint("regex", EXPRESSION),
    Constraint("choices", CHOICES),
)


def drawn(rng: random.Random, engine: Engine, has_grammar: bool) -> tuple[list[int], GenerateParams]:
    """A request as any client might send it."""
    first, last = len(engine.tokenizer.controls), engine.tokenizer.vocab_size - 1
    shared = [first + (7 * i) % (last - first) for i in range(rng.choice((0, 0, 31, 32, 64, 70, 128)))]
    prompt = shared + [rng.randint(first, last) for _ in range(rng.choice((1, 2, 9, 32, 60)))]
    edits = engine.model.config.bd_edits
    fields: dict[str, Any] = {
        "mode": rng.choice(MODES),
        "policy": rng.choice(POLICIES if edits else POLICIES[:-1]),
        "threshold": rng.choice((0.05, 0.3, 0.9, 1.0)),
        "tokens_per_pass": rng.choice((1, 3, 40)),
        "entropy_bound": rng.choice((0.1, 2.0)),
        "edit_threshold": rng.choice((0.2, 0.9)),
        "temperature": rng.choice((0.0, 0.0, 0.7, 1.5)),
        "seed": rng.randrange(1000),
        "choice": rng.choice((0, 0, 3)),
        "max_tokens": rng.choice((1, 2, 7, 8, 9, 20, 33, 60, 100)),
        "priority": rng.choice(("interactive", "interactive", "batch")),
        "grammar": rng.random() < 0.3,  # of the checkpoint's own tools, where it has any
    }
    for name, value in (
        ("top_p", 0.8), ("top_k", 5), ("min_p", 0.1), ("presence_penalty", 0.7), ("frequency_penalty", 0.4),
        ("repetition_penalty", 1.3), ("logprobs", 2),
        ("stop", ("a", "e ")), ("stop_token_ids", (first + 5,)), ("lossless", fields["mode"] in ("ar", "auto")),
    ):  # fmt: skip
        if rng.random() < 0.15:
            fields[name] = value
    if rng.random() < 0.4:  # an answer that hardly ends before its limit
        fields["logit_bias"] = ((engine.end_id, -100.0), (last, 2.0), (first, -3.0))
    if has_grammar and rng.random() < 1 / 6:
        fields["constraint"] = rng.choice(CONSTRAINTS)
        fields["max_tokens"] = max(40, fields["max_tokens"])
        fields.pop("logit_bias", None)
    return prompt, GenerateParams(**fields)


@dataclass(eq=False)
class Answer:
    """A request and what came of it."""

    prompt: list[int]
    params: GenerateParams
    deltas: list[Delta] = field(default_factory=list)
    fault: BaseException | None = None
    key: int = -1
    is_cancelled: bool = False

    def hear(self, news: Delta | BaseException) -> None:
        assert not self.is_cancelled, "a cancelled request goes on"
        if isinstance(news, BaseException):
            self.fault = news
        else:
            self.deltas.append(news)

    @property
    def is_over(self) -> bool:
        has_ended = bool(self.deltas) and self.deltas[-1].finish_reason is not None
        return has_ended or self.fault is not None or self.is_cancelled

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.tokens]

    @property
    def usage(self) -> Usage:
        found = self.deltas[-1].usage
        assert found is not None
        return replace(found, cached_tokens=0)

    @property
    def logprobs(self) -> list[float]:
        return [entry.logprob for delta in self.deltas for entry in delta.logprobs or ()]


@dataclass
class Report:
    """What a run found. wrong: in words; it passes where there is none. resident_mib: less what the cache holds."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    resident_mib: list[int] = field(default_factory=list)


def soak(
    engine: Engine,
    num: int,
    seed: int,
    report: Report,
    has_grammar: bool,
    num_pages: int | None = None,
    until: float = math.inf,
) -> None:
    """Runs `num` requests through one core, and each alone behind its end; fewer where it is `until` before.

    No answer is kept longer than that: what grows is the engine's.
    """
    rng = random.Random(seed)
    core = Core(engine.model, Limits(max_rows=128, num_pages=num_pages, max_running=6), checks=True)
    engine.core = core  # `auto` asks how many requests there are
    running: list[Answer] = []
    num_sent, every = 0, max(1, num // NUM_SAMPLES)
    while (is_open := num_sent < num and time.perf_counter() < until) or running:
        if is_open and len(running) < NUM_AT_ONCE and rng.random() < 0.5:
            answer = Answer(*drawn(rng, engine, has_grammar))
            answer.key = core.submit(engine.admit(answer.prompt, answer.params), answer.hear)
            running.append(answer)
            num_sent += 1
            if num_sent % every == 0:
                report.resident_mib.append(resident_mib() - (core.cache.used_bytes >> 20))
                said = f"{num_sent} of {num} sent, {report.resident_mib[-1]} MiB, {len(report.wrong)} wrong"
                print(said, *report.wrong[-1:], file=sys.stderr, flush=True)
        if running and rng.random() < CANCELLED / 3:
            answer = rng.choice(running)
            core.cancel(answer.key)
            answer.is_cancelled = True
        core.step()
        for answer in [answer for answer in running if answer.is_over]:
            running.remove(answer)
            report.counts["cancelled"] += answer.is_cancelled
            if not answer.is_cancelled:
                _compare(engine, answer, report)
    _count(core, report)
    report.counts["requests"] = num_sent
    if num_sent >= MIN_FOR_MEMORY and (words := growth(report.resident_mib)):
        report.wrong.append(words)


def _count(core: Core, report: Report) -> None:
    """What is left in a core that has nothing to do, and what the run has exercised."""
    cache, counters = core.cache, core.cache.tree.counters
    cache.check()
    left = {"requests": core.num_requests, "held pages": cache.pages.num_held, "states": cache.memory.num_open}
    cache.tree.evict(cache.num_pages)
    left["pages"] = cache.num_pages - cache.pages.num_free
    left["snapshots"] = cache.memory.num_snapshots
    report.wrong += [f"{number} {name} are left" for name, number in left.items() if number]
    report.counts["forwards"] += core.num_forwards
    report.counts["preempted"] += core.scheduler.num_preempted
    report.counts["hit tokens"] += counters.num_hit_tokens
    report.counts["evicted pages"] += counters.num_evicted_pages
    report.counts["snapshots"] += counters.num_snapshots


def _compare(engine: Engine, answer: Answer, report: Report) -> None:
    """Against the same request alone, on a cache that knows nothing."""
    params, counts = answer.params, report.counts
    name = f"{params} behind {len(answer.prompt)} tokens"
    counts["answers"] += 1
    counts[params.mode] += 1
    if answer.fault is not None:
        report.wrong.append(f"{name}: {answer.fault!r}")
        return
    modes = answer.usage.modes  # `auto` may look at who else is there: its choices are repeated
    alone = Answer(answer.prompt, replace(params, modes=modes) if modes else params)
    core = Core(engine.model, Limits(reuse=False, num_pages=-(-engine.max_context // PAGE_SIZE)), checks=True)
    core.submit(engine.admit(alone.prompt, alone.params), alone.hear)
    while core.step():
        pass
    counts["tokens"] += answer.usage.completion_tokens
    counts[f"ended by {answer.deltas[-1].finish_reason}"] += 1
    if params.constraint is not None and answer.deltas[-1].finish_reason == "stop" and not _was_cut(params):
        counts["under a grammar"] += 1
        text = engine.tokenizer.decode(answer.tokens)
        if not _holds(params.constraint, text):
            report.wrong.append(f"{name}: its constraint does not hold for {text!r}")
    is_exact = engine.model.lm_head.weight.dtype == torch.float64
    if (answer.tokens, answer.usage) == (alone.tokens, alone.usage):
        gap = max((abs(a - b) for a, b in zip(answer.logprobs, alone.logprobs, strict=True)), default=0.0)
        if gap > (1e-8 if is_exact else 1e-3):
            report.wrong.append(f"{name}: logprobs differ by {gap}")
    elif is_exact or not _is_near(engine, answer, alone):
        both = f"among others {answer.tokens} {answer.usage}\n  alone {alone.tokens} {alone.usage}"
        report.wrong.append(f"{name}:\n  {both}")
    else:
        counts["exceptions"] += 1


def _was_cut(params: GenerateParams) -> bool:
    """Whether something else than the grammar may have ended the answer."""
    return bool(params.stop or params.stop_token_ids)


def _holds(constraint: Constraint, text: str) -> bool:
    if constraint.kind == "regex":
        return re.fullmatch(EXPRESSION, text) is not None
    if constraint.kind == "choices":
        return text in CHOICES
    value = json.loads(text)
    return value.keys() == {"zone", "level"} and value["zone"] in ("front", "rear") and 0 <= value["level"] <= 99


def _is_near(engine: Engine, one: Answer, other: Answer) -> bool:
    """Whether two answers part where rounding may decide. Under greedy `ar` and `draft` that is where the two most
    probable tokens are nearly equal; elsewhere a confidence or a clock may be, and no margin tells: they only count."""
    params = one.params
    if params.mode not in ("ar", "draft") or params.temperature or params.constraint is not None:
        return True
    place = next((i for i, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)) if a != b), None)
    if place is None:
        return one.tokens == other.tokens  # usage alone: proposals near the threshold
    ids = [*one.prompt, *one.tokens[:place]]
    behind = score(engine.model, ids, 2, engine.mask_id)[-1]
    assert behind is not None
    top = behind.top
    return top[0][1] - top[1][1] < MARGIN


def resident_mib() -> int:
    """Of this process now, where Linux says so; else its peak."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * resource.getpagesize() >> 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> int:
    """Runs it all. -> exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help=f"of {NUM_REQUESTS} requests")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no request is sent later")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", help="'bundled' or a checkpoint folder; random weights without one")
    parser.add_argument("--no-grammar", action="store_true", help="without the grammar library")
    parser.add_argument("--report", type=Path, help="a JSONL file to which the figures are appended")
    chosen = parser.parse_args()
    started, report = time.perf_counter(), Report()
    if chosen.checkpoint:
        engine = Engine.load(bundled_path() if chosen.checkpoint == "bundled" else Path(chosen.checkpoint))
        num_pages = None
    else:
        engine = specimen(Tokenizer.from_file(bundled_path() / "tokenizer.json"), chosen.seed)
        num_pages = 16
    num = max(1, round(chosen.share * NUM_REQUESTS))
    until = started + 60 * chosen.minutes
    soak(engine, num, chosen.seed, report, not chosen.no_grammar, num_pages, until)
    if report.counts["exceptions"] > max(1, MAX_EXCEPTIONS * report.counts["tokens"]):
        report.wrong.append("too many answers part where rounding may decide")
    for name, number in sorted(report.counts.items()):
        print(f"{name:18} {number:10,}")
    print(f"{'resident MiB':18} {report.resident_mib}")
    print("\n".join(report.wrong[:20]))
    seconds = round(time.perf_counter() - started)
    print(f"{len(report.wrong)} wrong, {seconds} s")
    if chosen.report:
        row = {
            "date": datetime.date.today().isoformat(), "command": " ".join(sys.argv), "model": engine.name,
            "wrong": len(report.wrong), "seconds": seconds,
            "resident_mib": report.resident_mib[:: max(1, len(report.resident_mib) // 10)],
            **dict(sorted(report.counts.items())),
        }  # fmt: skip
        with chosen.report.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
