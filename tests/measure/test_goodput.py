from collections.abc import Iterator

import pytest
import torch

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import NumericError
from fourleaf.measure import goodput, report
from fourleaf.measure.goodput import Load, Loop
from fourleaf.measure.timing import TimedCore
from fourleaf.measure.workloads import workload

LENGTH = 5


class Ticks:
    """A clock that moves on by a tenth of a second whenever it is read, or not at all."""

    def __init__(self) -> None:
        self.now, self.step = 0.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture(scope="module")
def engine(tiny, known_costs) -> Iterator[Engine]:
    before = torch.get_num_threads()
    yield Engine.load(tiny, num_threads=1)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def work(engine):
    return workload(engine, "patterns", 3, GenerateParams(max_tokens=LENGTH))


@pytest.fixture
def clock():
    return Ticks()


@pytest.fixture
def core(engine, clock):
    engine.core = TimedCore(engine.model, clock)
    return engine.core


def each_step_takes(clock, core, seconds):
    """The clock stands still but for `seconds` a step."""
    step = core.step

    def slow():
        clock.now += seconds
        return step()

    core.step = slow


def test_a_window_counts_whole_steps_and_what_they_committed(engine, work, core, clock):
    each_step_takes(clock, core, 0.1)
    loop = Loop(engine, work, "ar", 2, core, clock)
    found = loop.run(2.05)
    # Two clients, a token each in a step, and a prefill is a step that gives one, too.
    assert found.seconds == pytest.approx(2.1)
    assert found.forwards == 21
    assert found.tokens == found.good == 42
    assert found.goodput == pytest.approx(20)
    assert found.ended in (8, 9)
    assert all(wait == pytest.approx(0.1) for wait in found.waits)
    assert found.rows_per_forward >= 2
    assert core.is_idle


def test_the_window_opens_when_as_many_requests_have_ended_as_there_are_clients(engine, work, core, clock):
    each_step_takes(clock, core, 0.1)
    loop = Loop(engine, work, "ar", 3, core, clock)
    loop.run(0.05)
    assert loop.num_sent == 6, "three that ended, and three more"
    assert clock.now == pytest.approx(0.1 * (LENGTH + 1))


def test_tokens_of_a_request_whose_first_block_came_late_are_no_good(engine, work, core, clock):
    each_step_takes(clock, core, goodput.LIMIT_S + 0.5)
    found = Loop(engine, work, "ar", 1, core, clock).run(20.0)
    assert found.tokens == found.forwards > 0
    assert found.good == 0
    assert found.late == len(found.waits) > 0


def test_whoever_waits_too_long_when_the_window_closes_was_late(engine, work, core, clock):
    each_step_takes(clock, core, 0.1)
    loop = Loop(engine, work, "ar", 2, core, clock)
    step, seen = core.step, []

    def starve():
        """From the second window's first step on nothing goes on."""
        if loop.found.ended == 0 and loop.num_sent == 4:
            clock.now += 1.0
            seen.append(1)
            return True
        return step()

    core.step = starve
    core.last = []
    found = loop.run(3.5)
    assert found.tokens == found.good == 0
    assert len(found.waits) == found.late == 2
    assert core.is_idle


def test_clients_send_again_at_once_and_answers_keep_their_prompts(engine, work, core, clock, monkeypatch):
    each_step_takes(clock, core, 0.1)
    judged = []

    def is_right(self, engine, index, tokens):
        judged.append((index, tuple(tokens)))
        return index == 0

    monkeypatch.setattr("fourleaf.measure.workloads.Workload.is_right", is_right)
    found = Loop(engine, work, "ar", 2, core, clock).run(3.0)
    by_prompt = dict(judged)
    assert set(by_prompt) == {0, 1, 2}
    assert all(by_prompt[index] == tokens for index, tokens in judged), "the same answer each time"
    alone = {i: tuple(engine.generate_many([p], GenerateParams(mode="ar", max_tokens=LENGTH))[0][0]) for i, p in
             enumerate(work.prompts)}  # fmt: skip
    assert by_prompt == alone
    assert 0 < found.right < found.ended


def test_the_share_of_the_model_is_its_seconds_over_all(engine, work, core, clock):
    clock.step = 0.0
    each_step_takes(clock, core, 0.3)
    head = engine.model.head

    def slow_head(hidden):
        clock.now += 0.1
        return head(hidden)

    engine.model.head = slow_head
    try:
        found = Loop(engine, work, "ar", 1, core, clock).run(3.9)
    finally:
        del engine.model.head
    assert found.model_share == pytest.approx(0.25)


def test_a_fault_is_raised_and_not_counted(engine, work, core, clock, monkeypatch):
    each_step_takes(clock, core, 0.1)

    def burst(self, work, state):
        raise NumericError("no numbers")

    monkeypatch.setattr("fourleaf.measure.timing.Clocked.__call__", burst)
    with pytest.raises(NumericError):
        Loop(engine, work, "ar", 1, core, clock).run(1.0)


def test_every_arm_meets_every_number_of_clients(engine, work):
    seen = []
    found = goodput.run(engine, work, seconds=0.05, clients=(1, 2), progress=lambda *at: seen.append(at))
    assert {n: list(arms) for n, arms in found.loads.items()} == {n: ["ar", "draft", "diffuse", "auto"] for n in (1, 2)}
    assert len(seen) == 32, "four windows each"
    for arms in found.loads.values():
        for load in arms.values():
            assert load.forwards >= 2
            assert 0 < load.model_share < 1
            assert load.seconds >= 0.05
    text = "\n".join(report.goodput_lines(found))
    for words in (
        "goodput",
        "p95 ms",
        "rows a forward",
        "in the model",
        "the best single mode, 2 at once",
        "exact match",
    ):
        assert words in text, words
    assert set(found.document()) == {"1", "2"}


def test_windows_add_up():
    one = Load(2.0, 10, 8, [0.1, 0.2], 5, 20, 1.5, 2, 1)
    one.add(Load(1.0, 5, 5, [3.0], 5, 10, 0.5, 1, 1))
    assert one == Load(3.0, 15, 13, [0.1, 0.2, 3.0], 10, 30, 2.0, 3, 2)
    assert (one.goodput, one.late, one.rows_per_forward) == (pytest.approx(13 / 3), 1, 3)
    assert one.document()["first_block_p50_ms"] == pytest.approx(200)
