"""What goes wrong around a request ends that request alone, frees what it held, and never the engine."""

import asyncio
import threading
import time

import pytest
import torch

from fourleaf.engine.core import Core, Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import NumericError, RequestError

PROMPT = [20 + i % 50 for i in range(40)]
LONG = GenerateParams(mode="ar", max_tokens=60, logit_bias=((1, 0.0),))


@pytest.fixture
def engine(random_engine) -> Engine:
    return Engine(
        random_engine.name,
        random_engine.model,
        random_engine.tokenizer,
        random_engine.chat,
        Limits(num_pages=64),
        checks=True,
    )


@pytest.fixture
def endless(random_engine) -> GenerateParams:
    """An answer that only its limit ends."""
    return GenerateParams(mode="ar", max_tokens=200, logit_bias=((random_engine.end_id, -100.0),))


def tokens_of(deltas) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


def run(core: Core) -> None:
    while core.step():
        pass


def nan_in_attention(layer, monkeypatch, is_spoilt):
    """From now on the layer's values are NaN in forwards of which `is_spoilt(work)`."""
    forward = type(layer).forward

    def failing(self, x, work, angles, cache):
        if self is layer and is_spoilt(work):
            x = x * torch.nan
        return forward(self, x, work, angles, cache)

    monkeypatch.setattr(type(layer), "forward", failing)


def test_bug_kind_65_a_sink_that_fails_ends_its_own_request_alone(engine):
    core, first, second = engine.core, [], []

    def broken(delta):
        raise RuntimeError("Event loop is closed")

    params = GenerateParams(max_tokens=20, threshold=0.3)
    for sink in (broken, first.append, broken, second.append):
        core.submit(engine.admit(PROMPT, params), sink)
    run(core)
    assert core.is_idle
    assert core.cache.pages.num_held == 0
    assert tokens_of(first) == tokens_of(second) == tokens_of(engine.generate(PROMPT, params))


def test_a_request_that_cannot_say_what_it_needs_ends_alone(engine, monkeypatch):
    core, bad, good = engine.core, [], []
    sequence = engine.admit(PROMPT, GenerateParams(max_tokens=20))
    core.submit(sequence, bad.append)
    core.submit(engine.admit(PROMPT, GenerateParams(max_tokens=20)), good.append)
    core.step()

    def fails(most):
        raise ValueError("no such mode")

    monkeypatch.setattr(sequence, "need", fails)
    run(core)
    assert isinstance(bad[-1], ValueError)
    assert good[-1].finish_reason is not None
    assert core.cache.pages.num_held == 0


def test_kind_32_a_head_that_finds_no_memory_leaves_every_state_as_it_was(engine, monkeypatch):
    """The layers have run and moved the states on; then the logits do not fit, and each request runs again alone."""
    core, heard = engine.core, [[], [], []]
    for i, answer in enumerate(heard):
        core.submit(engine.admit([*PROMPT, 70 + i], GenerateParams(mode="ar", max_tokens=12)), answer.append)
    core.step()
    head, failed = engine.model.head, []

    def small(hidden):
        if len(hidden) > 1:
            failed.append(len(hidden))
            raise torch.OutOfMemoryError("no memory for logits")
        return head(hidden)

    monkeypatch.setattr(engine.model, "head", small)
    for _ in range(4):
        core.step()
    monkeypatch.undo()
    assert len(failed) == 4
    run(core)
    for i, answer in enumerate(heard):
        assert tokens_of(answer) == tokens_of(
            engine.generate([*PROMPT, 70 + i], GenerateParams(mode="ar", max_tokens=12))
        )


def test_kind_42_a_prefix_of_nan_is_forgotten_and_its_pages_are_cleared(engine, monkeypatch):
    """A long prompt's chunks go into the tree before any logits show that they are no numbers."""
    core = Core(engine.model, Limits(max_rows=64, num_pages=10), checks=True)
    prompt, heard = [20 + i % 90 for i in range(200)], []
    layer = engine.model.model.layers[1]
    nan_in_attention(layer, monkeypatch, lambda work: bool((work.tokens == 95).any()))
    core.submit(engine.admit(prompt, GenerateParams(mode="ar", max_tokens=5)), heard.append)
    while not heard:
        core.step()
        assert core.cache.tree.num_nodes or heard, "the case must put pages into the tree"
    monkeypatch.undo()
    assert isinstance(heard[-1], NumericError)
    assert core.cache.tree.num_nodes == 0
    for pools in core.cache.memory._attention:
        assert pools is None or bool(torch.isfinite(pools.values).all() and torch.isfinite(pools.keys).all())
    again = []
    core.submit(engine.admit(prompt, GenerateParams(mode="ar", max_tokens=5)), again.append)
    run(core)
    assert tokens_of(again) == tokens_of(engine.generate(prompt, GenerateParams(mode="ar", max_tokens=5)))


def test_kind_42_requests_that_draw_from_nan_together_end_alone_and_their_prefix_is_forgotten(engine, monkeypatch):
    """Two alike, so that their rows are drawn at once; none of them has a number to draw from."""
    core, spoilt, good = Core(engine.model, Limits(num_pages=64), checks=True), [[], []], []
    drawn = GenerateParams(mode="ar", temperature=1.0, max_tokens=5)
    nan_in_attention(engine.model.model.layers[1], monkeypatch, lambda work: bool((work.tokens == 95).any()))
    for heard in spoilt:
        core.submit(engine.admit([95] * 40, drawn), heard.append)
    core.step()
    monkeypatch.undo()
    core.submit(engine.admit(PROMPT, drawn), good.append)
    run(core)
    assert [type(heard[-1]) for heard in spoilt] == [NumericError] * 2
    assert tokens_of(good) == tokens_of(engine.generate(PROMPT, drawn))
    again = []
    core.submit(engine.admit([95] * 40, drawn), again.append)
    run(core)
    assert tokens_of(again) == tokens_of(engine.generate([95] * 40, drawn))


def test_a_fault_of_the_engine_itself_is_told_to_all_and_the_next_request_works(engine, monkeypatch):
    engine.start()
    try:
        found = []

        def ask():
            try:
                found.append(tokens_of(engine.generate(PROMPT, LONG)))
            except BaseException as fault:
                found.append(fault)

        def broken(*args):
            raise AssertionError("a page is lost")

        monkeypatch.setattr(engine.core.cache, "settle", broken)
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sum(isinstance(one, AssertionError) for one in found) >= 1
        assert len(found) == 3, "somebody still waits"
        assert tokens_of(engine.generate(PROMPT, LONG))
    finally:
        engine.stop()


def test_a_key_of_before_a_fault_cancels_nobody_afterwards(engine):
    first = engine.core.submit(engine.admit(PROMPT, LONG), lambda delta: None)
    engine.core = engine.core.renewed()
    heard = []
    second = engine.core.submit(engine.admit(PROMPT, LONG), heard.append)
    assert first != second
    engine.core.cancel(first)
    run(engine.core)
    assert heard[-1].finish_reason is not None


def test_whoever_waits_for_a_thread_that_stops_drives_for_himself(engine, endless):
    engine.start()
    deltas, found = engine.generate(PROMPT, endless), []
    found.append(next(deltas))
    taken = threading.Thread(target=lambda: found.extend(deltas))
    taken.start()
    engine.stop()
    taken.join(60)
    assert not taken.is_alive()
    assert found[-1].usage.completion_tokens == 200


def test_kind_20_cancels_and_stops_and_starts_from_many_threads_lose_nothing(engine, endless):
    """Cancels before, while and after a request is taken in; the engine stops and starts meanwhile."""
    errors = []

    def client(number):
        try:
            for turn in range(6):
                deltas = engine.generate([*PROMPT, number, turn], endless if turn % 2 else LONG)
                for _ in range((number + turn) % 4):
                    next(deltas)
                deltas.close()
                ticket = engine.submit(engine.admit(PROMPT, LONG), lambda delta: None)
                engine.cancel(ticket)
                engine.cancel(ticket)
        except StopIteration:
            pass
        except BaseException as fault:
            errors.append(fault)

    threads = [threading.Thread(target=client, args=(20 + i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        engine.start()
        time.sleep(0.05)
        engine.stop()
    engine.start()
    for thread in threads:
        thread.join(60)
    engine.stop()
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    tokens_of(engine.generate(PROMPT, LONG))  # takes in what was left when the thread stopped
    assert engine.core.is_idle
    assert engine.core.cache.pages.num_held == 0


def test_kind_12_a_stream_whose_client_leaves_is_cancelled_within_a_pass(engine, endless):
    async def leave() -> int:
        stream = engine.stream(PROMPT, endless)
        await anext(stream)
        await stream.aclose()
        before = engine.core.num_forwards
        while engine.core.num_requests:
            await asyncio.sleep(0.005)
        return engine.core.num_forwards - before

    engine.start()
    try:
        assert asyncio.run(leave()) <= 2
    finally:
        engine.stop()
    assert engine.core.cache.pages.num_held == 0


def test_a_loop_that_is_closed_under_its_stream_does_not_end_the_engine(engine, endless):
    engine.start()
    try:
        loop = asyncio.new_event_loop()
        stream = engine.stream(PROMPT, endless)
        loop.run_until_complete(anext(stream))
        loop.close()
        assert tokens_of(engine.generate(PROMPT, LONG))
    finally:
        engine.stop()
    assert engine.core.is_idle


def test_a_watcher_that_raises_ends_the_request_that_it_watches(engine):
    def watch(frame):
        raise KeyError("no such element")

    core, bad, good = engine.core, [], []
    core.submit(engine.admit(PROMPT, GenerateParams(max_tokens=20), watch), bad.append)
    core.submit(engine.admit(PROMPT, GenerateParams(max_tokens=20)), good.append)
    run(core)
    assert isinstance(bad[-1], KeyError)
    assert good[-1].finish_reason is not None


def test_where_one_of_many_prompts_is_refused_none_is_in_line(engine):
    for wrong in ([], [1, engine.model.config.vocab_size], [-1]):
        with pytest.raises(RequestError):
            engine.generate_many([PROMPT, PROMPT, wrong], LONG)
    tokens_of(engine.generate(PROMPT, LONG))
    assert engine.core.is_idle
    assert engine.core.cache.tree.counters.num_lookups == 1


def test_a_request_that_is_cancelled_while_another_caller_drives_is_gone_behind_that_forward(
    engine, endless, monkeypatch
):
    """Without a thread: whoever drives looks once more when it has done with its forward."""
    deltas = engine.generate(PROMPT, endless)
    next(deltas)
    ticket = engine.submit(engine.admit(PROMPT[:9], endless), lambda delta: None)
    step = engine.core.step

    def cancelled_meanwhile() -> bool:
        is_busy = step()
        engine.cancel(ticket)
        return is_busy

    monkeypatch.setattr(engine.core, "step", cancelled_meanwhile)
    next(deltas)
    assert engine.core.num_requests == 1
    deltas.close()
    assert engine.core.is_idle
