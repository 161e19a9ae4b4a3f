"""What `scripts/soak_load.py` judges memory by: at rest a server holds what it needs, and whatever leaked besides."""

import asyncio
import sys

import pytest
import script

from fourleaf.engine.engine import bundled_path
from fourleaf.engine.request import GenerateParams
from fourleaf.measure.specimen import specimen
from fourleaf.text.tokenizer import Tokenizer


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured through /proc")
def test_at_rest_a_leak_shows_and_what_was_given_back_does_not():
    server = script.load("poisoned_server")
    engine = specimen(Tokenizer.from_file(bundled_path() / "tokenizer.json"), 0)
    server.spoil_ends(engine)

    def ask(number: int, seed: int) -> None:
        for _ in range(number):
            list(engine.generate([5, 6, 7], GenerateParams(max_tokens=20, seed=seed)))

    def rest() -> dict[str, float]:
        return asyncio.run(server.at_rest(engine)())

    ask(4, 1)
    before = rest()
    ask(12, 1)
    used = [bytearray(200_000) for _ in range(100)]  # a busy moment, between things that live on
    kept, used = used[::25], []
    after = rest()
    ask(12, server.LEAK_SEED)
    leaking = rest()
    assert len(kept) == 4
    assert -2 < after["own"] - before["own"] < 3
    assert leaking["own"] - after["own"] > 11


def test_a_run_that_grows_at_rest_fails_and_a_busy_one_does_not():
    soak = script.load("soak_load")
    assert soak.growing([300.0 + i % 5 for i in range(24)]) == []
    assert soak.growing([300.0 + 0.25 * i for i in range(24)]) == []  # within what trees and tables take
    assert soak.growing([300.0 + 0.5 * i for i in range(24)]) == ["resident memory grew from 304.25 to 310.25 MiB"]
    assert "at rest 7 times" in soak.growing([300.0] * 7)[0]


def test_a_closed_gate_waits_for_those_inside_and_lets_nobody_in():
    gate, said = script.load("soak_load").Gate(), []

    async def ask(name: str, seconds: float) -> None:
        async with gate:
            said.append(f"{name} in")
            await asyncio.sleep(seconds)
            said.append(f"{name} out")

    async def main() -> None:
        first = asyncio.create_task(ask("first", 0.05))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(5), gate.closed():
            second = asyncio.create_task(ask("second", 0))
            await asyncio.sleep(0.01)
            said.append("at rest")
        await asyncio.gather(first, second)

    asyncio.run(main())
    assert said == ["first in", "first out", "at rest", "second in", "second out"]
