"""Holds `fourleaf plan` against a process that runs the checkpoint: memory above one that has imported torch.

    python scripts/plan_check.py CHECKPOINT [--context 512] [--batch 1]

Loads the checkpoint as serving does, prefills a prompt of all but the last block (with a block's first pass riding on
it, where the model denoises), commits that block together with another pass (or takes an `ar` step), and reads the most
that was resident meanwhile. What loading alone needed is not counted: it reads the files' pages, which the system takes
back. Exit code 1 where plan and measurement are more than --within apart.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch  # imported before memory is first measured

from fourleaf.measure.memory import memory, reset_peak

IMPORTED = memory()

from fourleaf.checkpoint.plan import GIB, plan  # noqa: E402
from fourleaf.engine import Engine  # noqa: E402
from fourleaf.measure.tables import table  # noqa: E402
from fourleaf.model.state import State  # noqa: E402
from fourleaf.model.work import Segments, Work  # noqa: E402


@torch.inference_mode()
def run(engine: Engine, context: int, batch: int) -> None:
    """Fills the context of `batch` sequences."""
    model, block = engine.model, engine.model.config.block_size
    state, answer = State.empty(model.config, batch, model.lm_head.weight.dtype), block or 1
    for rows in (max(1, context - answer), answer):
        tokens = torch.arange(batch * rows) % 997
        canvas, starts = None, None
        if block is not None:
            assert engine.mask_id is not None
            tokens = torch.cat((tokens, torch.full((batch * block,), engine.mask_id)))
            canvas, starts = Segments([block] * batch), [length + rows for length in state.lengths]
        owners = None if canvas is None else list(range(batch))
        work = Work(tokens, Segments([rows] * batch), list(state.lengths), canvas, owners, starts)
        hidden, _ = model(work, state)
        torch.softmax(model.head(hidden[-batch * answer :]).float(), -1)


def main() -> int:
    """Reads the command line, prints both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--within", type=float, default=0.1)
    options = parser.parse_args()
    asked = plan(options.checkpoint, memory=None, context=options.context, batch=options.batch)
    engine = Engine.load(options.checkpoint)
    loaded = memory() - IMPORTED
    reset_peak()
    run(engine, options.context, options.batch)
    found = memory() - IMPORTED
    rows = [[name, f"{size / GIB:.3f}"] for name, size in asked.held().items()]
    rows += [["mapped from files", f"{asked.mapped / GIB:.3f}"], ["planned, GiB", f"{asked.total / GIB:.3f}"]]
    rows += [["measured, GiB", f"{found.peak / GIB:.3f}"], ["after loading", f"{loaded.resident / GIB:.3f}"]]
    rows += [
        ["anonymous at the end", f"{found.anonymous / GIB:.3f}"],
        ["mapped at the end", f"{found.mapped / GIB:.3f}"],
    ]
    print("\n".join(table(rows)))
    print(f"planned / measured: {asked.total / found.peak:.3f}")
    return 0 if abs(asked.total / found.peak - 1) <= options.within else 1


if __name__ == "__main__":
    sys.exit(main())
