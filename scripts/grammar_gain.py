"""What the grammar of the model's own tools changes: exact match, calls that do not parse and tokens a forward, with it
and without, paired by prompt; and what it costs the host.

    python scripts/grammar_gain.py --n 250
    python scripts/grammar_gain.py --cost 40

Cost: one process, one request at a time, each prompt answered with and without the grammar in turn. Host time is what a
step takes beyond the model's part of it; the ratio is of host times a forward, and of whole forwards.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fourleaf.checkpoint.files import write_json
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import GenerateParams
from fourleaf.measure import bootstrap
from fourleaf.measure.circumstances import Ticker
from fourleaf.measure.evaluate import Arm, Outcome, evaluate, examples_of
from fourleaf.measure.tables import percent, points, table
from fourleaf.measure.timing import Timed, core_of, timed
from fourleaf.tasks.cabin.schema import messages, parse_answer

MODES = ("ar", "draft", "diffuse")
HELD, FREE = "held", "free"


def is_broken(outcome: Outcome) -> bool:
    """Whether an answer has a tag of a call, and not all of it reads as calls."""
    calls, rest = parse_answer(outcome.answer)
    return "tool_call>" in outcome.answer and (calls is None or "tool_call>" in rest)


def accuracy(engine: Engine, names: list[str], modes: list[str], limit: int) -> dict[str, object]:
    """Prints a table for each set. -> the same as JSON has it."""
    arms = [
        Arm(f"{mode} {how}", GenerateParams(mode=mode, max_tokens=512, grammar=how == HELD))  # type: ignore[arg-type]
        for mode in modes
        for how in (FREE, HELD)
    ]
    ticker = Ticker(sys.stderr)
    found: dict[str, object] = {}
    for report in evaluate(engine, names, arms, limit=limit, progress=ticker):
        ticker.close()
        rows = [[report.name, "exact match", "broken calls", "cut", "tokens a forward", "rows a token"]]
        for name, score in report.scores.items():
            broken = sum(map(is_broken, report.outcomes[name]))
            tpf = "-" if score.tpf is None else f"{score.tpf.value:.2f}"
            rows.append([name, percent(score.exact), f"{broken}", f"{score.cut}", tpf, f"{score.rows_per_token:.2f}"])
        print(*table(rows), sep="\n")
        pairs = {}
        for mode in modes:
            free, held = ([o.is_right for o in report.outcomes[f"{mode} {how}"]] for how in (FREE, HELD))
            pair = pairs[mode] = bootstrap.paired(free, held, 0)
            told = f"only free {pair.only_first}, only held {pair.only_second}"
            print(f"{mode}, held - free: {points(pair.difference)}; right: {told}", flush=True)
        found[report.name] = {**report.document(), "held_paired": {mode: one.document() for mode, one in pairs.items()}}
    return found


def cost(engine: Engine, name: str, modes: list[str], count: int) -> dict[str, object]:
    """Prints host times. -> the same as JSON has it."""
    core = core_of(engine)
    prompts = [engine.chat.render(messages(example)) for example in examples_of(name, count + 3)]
    rows = [["mode", "forwards", "", "host ms a forward", "", "ratio", "forward ms", "", "ratio", "answers", "ratio"]]
    found: dict[str, object] = {}
    for mode in modes:
        times: dict[str, list[Timed]] = {FREE: [], HELD: []}
        for index, prompt in enumerate(prompts):
            for how in (FREE, HELD) if index % 2 else (HELD, FREE):
                params = GenerateParams(mode=mode, grammar=how == HELD)  # type: ignore[arg-type]
                answer = timed(engine, prompt, params, core)
                if index >= 3:  # the first ones warm up
                    times[how].append(answer)
        host, whole, forwards, seconds = (dict.fromkeys(times, 0.0) for _ in range(4))
        for how, answers in times.items():
            each = [forward for answer in answers for forward in answer.forwards]
            forwards[how], seconds[how] = len(each), sum(answer.seconds for answer in answers)
            whole[how] = 1e3 * sum(one.seconds for one in each) / len(each)
            host[how] = whole[how] - 1e3 * sum(one.model_seconds for one in each) / len(each)
        ratios = [one[HELD] / one[FREE] for one in (host, whole, seconds)]
        found[mode] = {"host_ms": host, "forward_ms": whole, "forwards": forwards, "seconds": seconds}
        counts = [f"{forwards[FREE]:.0f}", f"{forwards[HELD]:.0f}"]
        parts = [[f"{one[FREE]:.3f}", f"{one[HELD]:.3f}", f"{one[HELD] / one[FREE]:.3f}"] for one in (host, whole)]
        rows.append([mode, *counts, *parts[0], *parts[1], f"{seconds[HELD]:.2f} s", f"{ratios[2]:.3f}"])
    print(*table(rows), sep="\n", flush=True)
    return found


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=0, help="examples of each set; 0 leaves accuracy out")
    parser.add_argument("--cost", type=int, default=0, help="prompts on which host time is measured; 0 leaves that out")
    parser.add_argument("--set", action="append", help="patterns and fillers by default")
    parser.add_argument("--mode", action="append", choices=MODES, help="all by default")
    parser.add_argument("--model", type=Path, default=bundled_path())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    engine = Engine.load(given.model, num_threads=given.threads)
    names, modes = given.set or ["patterns", "fillers"], given.mode or list(MODES)
    found = {}
    if given.n:
        found["accuracy"] = accuracy(engine, names, modes, given.n)
    if given.cost:
        found["cost"] = cost(engine, names[0], modes, given.cost)
    if given.json:
        write_json(given.json, found)


if __name__ == "__main__":
    main()
