"""Holds `fourleaf plan` against processes that run checkpoints: memory above one that has imported torch.

    python scripts/plan_check.py [CHECKPOINT[:CONTEXT[:BATCH]] ...] [--within 0.1] [--json FILE]

Without a checkpoint the bundled one is run, at three sizes. Each case has a process of its own, of one thread: it loads
the checkpoint as serving does, answers BATCH prompts at once that leave one block of CONTEXT free (one token in an AR
model), and reads the most that was resident meanwhile. What loading alone needed is not counted: it reads the files'
pages, which the system takes back. Exit code 1 where planned and measured are more than --within apart in any case.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch  # imported before memory is first measured

from fourleaf.measure.memory import memory, reset_peak

IMPORTED = memory()

from fourleaf.checkpoint.plan import plan  # noqa: E402
from fourleaf.engine import Engine, bundled_path  # noqa: E402
from fourleaf.engine.request import GenerateParams  # noqa: E402
from fourleaf.errors import FourleafError  # noqa: E402
from fourleaf.measure.tables import table  # noqa: E402

MIB = 1 << 20
CONTEXT = 512
BUNDLED = ((256, 1), (2048, 1), (512, 8))


class Case(NamedTuple):
    """A checkpoint folder, tokens of prompt and answer, prompts at once."""

    folder: Path
    context: int
    batch: int

    def __str__(self) -> str:
        return f"{self.folder.name}:{self.context}:{self.batch}"


def case(text: str) -> Case:
    """CHECKPOINT[:CONTEXT[:BATCH]]."""
    folder, *numbers = text.split(":")
    context, batch = (*map(int, numbers), *(CONTEXT, 1)[len(numbers) :])
    return Case(Path(folder), context, batch)


def run(engine: Engine, context: int, batch: int) -> None:
    """Fills the context of `batch` sequences, no two of which begin alike."""
    block = engine.model.config.block_size
    mode, answer = ("ar", 1) if block is None else ("diffuse", block)
    prompts = [[300 + (7 * i + n) % 600 for i in range(max(1, context - answer))] for n in range(batch)]
    engine.generate_many(prompts, GenerateParams(mode=mode, max_tokens=answer))  # type: ignore[arg-type]


def measured(asked: Case) -> dict[str, Any]:
    """The plan of a case and what this process took, in bytes."""
    made = plan(asked.folder, memory=None, context=asked.context, batch=asked.batch)
    engine = Engine.load(asked.folder, num_threads=1)
    loaded = memory() - IMPORTED
    reset_peak()
    run(engine, asked.context, asked.batch)
    found = memory() - IMPORTED
    parts = made.held() | {"mapped": made.mapped}
    return {
        "case": str(asked),
        "planned": made.total,
        "measured": found.peak,
        "loaded": loaded.resident,
        "anonymous": found.anonymous,
        "mapped": found.mapped,
        "parts": {name: size for name, size in parts.items() if size},
    }


def in_its_own_process(asked: Case) -> dict[str, Any]:
    """Raises SystemExit, with what it said, where the process fails."""
    command = [sys.executable, __file__, "--alone", f"{asked.folder}:{asked.context}:{asked.batch}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{asked}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def lines(found: list[dict[str, Any]], within: float) -> list[str]:
    """One line a case, and below it what was planned."""
    columns = ("planned", "measured", "loaded", "anonymous", "mapped")
    rows = [["MiB", *columns, "planned / measured", ""]]
    for one in found:
        share = one["planned"] / one["measured"]
        numbers = [f"{one[name] / MIB:,.1f}" for name in columns]
        rows.append([one["case"], *numbers, f"{share:.3f}", "" if abs(share - 1) <= within else "OUTSIDE"])
        rows += [[f"  {name}", f"{size / MIB:,.1f}"] for name, size in one["parts"].items()]
    return table(rows)


def main() -> int:
    """Reads the command line, prints all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=case, nargs="*")
    parser.add_argument("--within", type=float, default=0.1)
    parser.add_argument("--json", type=Path, help="write every number to this file")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measured(given.cases[0])))
        return 0
    cases = given.cases or [Case(bundled_path(), *size) for size in BUNDLED]
    found = [in_its_own_process(asked) for asked in cases]
    print("\n".join(lines(found, given.within)))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return int(any(abs(one["planned"] / one["measured"] - 1) > given.within for one in found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        sys.exit(main())
    except FourleafError as error:
        sys.exit(f"plan_check: {error}")
