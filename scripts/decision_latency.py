"""What eight questions cost on one canvas, one by one, and one of them alone: seconds, and ratios within this run.

    python scripts/decision_latency.py --groups 28 --repeats 3 --threads 2

Groups of eight questions of the judgements test set; the ways take turns on each group, so that a slow minute of the
machine hits all of them. Ratios are of medians over groups. `--json FILE` is what scripts/judgements_page.py reads.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from fourleaf.decide.decider import Decider
from fourleaf.decide.questions import DecisionRequest
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.measure.circumstances import circumstances
from fourleaf.measure.judged import request_of
from fourleaf.measure.tables import table
from fourleaf.tasks.judgements import testsets

SIZE = 8
ONE, JOINT_ONCE = "one alone", "eight jointly, 1 pass"
JOINT, JOINT_EACH = "eight jointly, default", "eight jointly, 8 passes"
EACH, APART = "eight one by one", "eight requests of one"


def ways(request: DecisionRequest) -> dict[str, list[DecisionRequest]]:
    """The same group, asked in each way; one by one in one request shares the prefill of the state."""
    apart = [replace(request, questions=(question,)) for question in request.questions]
    return {
        ONE: apart[:1],
        JOINT: [replace(request, joint=True)],
        JOINT_ONCE: [replace(request, joint=True, passes=1)],
        JOINT_EACH: [replace(request, joint=True, passes=SIZE)],
        EACH: [request],
        APART: apart,
    }


def timed(decider: Decider, requests: list[DecisionRequest], repeats: int) -> dict[str, list[float]]:
    """Seconds of each group by way: the fastest of `repeats`."""
    found: dict[str, list[float]] = {}
    for turn, request in enumerate(requests):
        asked = list(ways(request).items())
        asked = asked[turn % len(asked) :] + asked[: turn % len(asked)]
        best = dict.fromkeys(dict(asked), float("inf"))
        for _ in range(repeats):
            for name, sent in asked:
                begin = time.perf_counter()
                for one in sent:
                    decider.decide(one)
                best[name] = min(best[name], time.perf_counter() - begin)
        for name, seconds in best.items():
            found.setdefault(name, []).append(seconds)
    return found


def main() -> None:
    """Reads the arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=bundled_path())
    parser.add_argument("--groups", type=int, default=28)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    engine = Engine.load(asked.model, num_threads=asked.threads)
    about = circumstances(engine, asked.model)
    decider = Decider.of(engine)
    groups = [group for group in testsets.build("coupled") if len(group.variables) == SIZE][: asked.groups]
    requests = [request_of(group) for group in groups]
    decider.decide(requests[0])  # what a first forward derives from the weights
    found = timed(decider, requests, asked.repeats)
    middle = {name: float(np.median(seconds)) for name, seconds in found.items()}
    rows = [
        [f"{len(groups)} groups of {SIZE}", "p50 ms", "p95 ms", "of one alone", "of one by one", "of eight requests"]
    ]
    for name in (ONE, JOINT_ONCE, JOINT, JOINT_EACH, EACH, APART):
        late = 1000 * float(np.quantile(found[name], 0.95))
        ratios = [f"{middle[name] / middle[other]:.2f}" for other in (ONE, EACH, APART)]
        rows.append([name, f"{1000 * middle[name]:.0f}", f"{late:.0f}", *ratios])
    print("\n".join(table(rows)))
    if asked.json is not None:
        times = {name: {"p50": middle[name], "p95": float(np.quantile(found[name], 0.95))} for name in found}
        document = {**about, "groups": len(groups), "questions": SIZE, "ways": times}
        asked.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
