"""A server that can be poisoned, for `soak_load.py`: `fourleaf serve` with three hooks, and a count of what is left.

    python scripts/poisoned_server.py                             # random weights in fp64
    python scripts/poisoned_server.py --checkpoint bundled

A request whose seed is NAN_SEED gets logits that are no numbers, one whose seed is GRAMMAR_SEED a grammar that fails in
mid-answer: what damaged weights and a bug of ours would do. One whose seed is LEAK_SEED leaves LEAK_BYTES behind for
good. Says where it listens on its first line, and when it has ended, as JSON on its last one, what its engine still
holds. `/at-rest` says what it holds in memory when nobody is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from fourleaf.checkpoint.tools import fixed_tools
from fourleaf.engine import core, runner
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.sequence import Sequence
from fourleaf.measure.memory import settled
from fourleaf.measure.specimen import specimen
from fourleaf.serve import listener
from fourleaf.serve.app import create_app
from fourleaf.serve.settings import Settings
from fourleaf.text.tokenizer import Tokenizer

NAN_SEED, GRAMMAR_SEED, LEAK_SEED = 666_001, 666_002, 666_003
LEAK_BYTES = 2**20


def spoil_logits() -> None:
    """From now on a forward gives NaN to the rows of poisoned requests, and to no other's."""
    honest = runner.forward

    def forward(model: Any, cache: Any, parts: Any) -> Any:
        state, logits = honest(model, cache, parts)
        begin = 0
        for part in parts:
            end = begin + len(part.need.wanted)
            if part.entry.sequence.params.seed == NAN_SEED:
                with torch.inference_mode():
                    logits[begin:end] = torch.nan
            begin = end
        return state, logits

    core.runner.forward = forward


def spoil_grammars(engine: Engine) -> None:
    """From now on the grammars of poisoned requests fail when they are asked."""
    honest = engine.admit

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("a grammar that was told to fail")

    def admit(*given: Any, **named: Any) -> Sequence:
        sequence = honest(*given, **named)
        if sequence.params.seed == GRAMMAR_SEED and sequence.guide is not None:
            for name in ("settle", "force", "walk", "propose", "allowed"):
                setattr(sequence.guide, name, fail)
        return sequence

    engine.admit = admit  # type: ignore[method-assign]


def spoil_ends(engine: Engine) -> None:
    """From now on poisoned requests leave something behind."""
    honest, kept = engine.admit, []

    def admit(*given: Any, **named: Any) -> Sequence:
        sequence = honest(*given, **named)
        if sequence.params.seed == LEAK_SEED:
            kept.append(b"x" * LEAK_BYTES)
        return sequence

    engine.admit = admit  # type: ignore[method-assign]


def at_rest(engine: Engine) -> Callable[[], Awaitable[dict[str, float]]]:
    """A route: waits until the engine has nothing to do, and says what the process holds then, in MiB.

    pools: pages of keys and values that were ever written, used or not; they are never given back and end at the
    cache's budget. snapshots: the cache's, within their own budget. own: all else, the libraries' files included, less
    what the allocator has free: what a leak shows in.
    """

    async def route() -> dict[str, float]:
        while engine.core.num_requests:
            await asyncio.sleep(0.01)
        found, snapshots = settled(), engine.core.cache.snapshots
        num_bytes = 0 if snapshots is None else snapshots.num_bytes
        own = found.resident - found.shared - num_bytes
        return {
            name: round(value / 2**20, 1)
            for name, value in (("own", own), ("pools", found.shared), ("snapshots", num_bytes))
        }

    return route


def left(engine: Engine) -> dict[str, int]:
    """What an engine without requests holds: all of it should be 0. Raises AssertionError where counts contradict."""
    cache = engine.core.cache
    cache.check()
    found = {
        "requests": engine.core.num_requests,
        "held_pages": cache.pages.num_held,
        "states": cache.memory.num_open,
    }
    cache.tree.evict(cache.num_pages)
    return found | {"pages": cache.num_pages - cache.pages.num_free, "snapshots": cache.memory.num_snapshots}


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="'bundled' or a checkpoint folder; random weights without one")
    parser.add_argument("--max-waiting", type=int, default=32)
    parser.add_argument("--drain-seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    folder = bundled_path() if chosen.checkpoint in (None, "bundled") else Path(chosen.checkpoint)
    tools = None
    if chosen.checkpoint:
        engine, tools = Engine.load(folder), fixed_tools(folder)
    else:
        engine = specimen(Tokenizer.from_file(folder / "tokenizer.json"), 0)
    spoil_logits()
    spoil_grammars(engine)
    spoil_ends(engine)
    settings = Settings(max_waiting=chosen.max_waiting, drain_seconds=chosen.drain_seconds, can_manage=False)
    listener.set_up_log("none")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # when the listener has drained, it sends itself the signal again
    with listener.bind("127.0.0.1", 0) as bound:
        app = create_app(engine, fixed_tools=tools, settings=settings)
        app.add_api_route("/at-rest", at_rest(engine))
        print(listener.url(bound), flush=True)
        listener.Listener(app, settings.drain_seconds).run(sockets=[bound])
    print(json.dumps(left(engine) | {"forwards": engine.core.num_forwards}), flush=True)


if __name__ == "__main__":
    main()
