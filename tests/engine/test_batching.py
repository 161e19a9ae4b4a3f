"""Many requests at once: each answers as if alone, whatever shares its forwards, and nothing is left behind."""

import random
import threading
from dataclasses import replace

import pytest
import torch
from asking import Client, alone, crowd, remade

from fourleaf.engine.core import Core, Limits
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import NumericError

MODES = ("ar", "draft", "diffuse")


def drawn(rng: random.Random, longest: int = 120) -> tuple[list[int], GenerateParams]:
    """A request as many kinds of clients might send it."""
    shared = [30 + i % 60 for i in range(rng.choice((0, 0, 32, 70, 96)))]
    prompt = shared + [rng.randrange(20, 200) for _ in range(rng.randint(1, longest - 96))]
    params = GenerateParams(
        mode=rng.choice(MODES),
        policy=rng.choice(("threshold", "threshold", "fixed", "entropy", "edit")),
        threshold=rng.choice((0.05, 0.3, 0.9)),
        temperature=rng.choice((0.0, 0.0, 1.0)),
        max_tokens=rng.choice((1, 2, 7, 8, 9, 20, 60)),
        seed=rng.randrange(100),
        priority=rng.choice(("interactive", "batch")),
        frequency_penalty=rng.choice((0.0, 0.0, 0.5)),
    )
    return prompt, params


@pytest.mark.parametrize("limits", [{}, {"num_pages": 10}, {"max_rows": 64}, {"max_running": 3}], ids=str)
def test_requests_that_come_and_go_answer_as_if_alone(random_engine, limits):
    """Bug kinds 12, 19-24, 39-41: cancels, little memory, few rows, shared prefixes, all modes and policies mixed."""
    rng = random.Random(1)
    core = Core(random_engine.model, Limits(**{"num_pages": 64, **limits}), checks=True)
    clients = crowd(random_engine, core, rng, drawn, steps=60, coming=0.5, leaving=0.08)
    if "num_pages" in limits:
        assert core.scheduler.num_preempted, "the case must exercise preemption"
    assert core.cache.tree.counters.num_hit_tokens, "the case must exercise hits"
    for client in clients:
        assert client.answer == alone(random_engine, client.prompt, client.params)


def test_draft_says_what_ar_says(random_engine):
    for length in (1, 33, 64, 100):
        prompt = [20 + (7 * i) % 90 for i in range(length)]
        for limit in (1, 2, 8, 9, 60):
            params = GenerateParams(mode="ar", max_tokens=limit)
            drafted = replace(params, mode="draft")
            assert alone(random_engine, prompt, drafted) == alone(random_engine, prompt, params)


@pytest.mark.parametrize("limit", [1, 9, 60])
def test_usage_counts_the_proposals_that_stood(random_engine, limit):
    """A round decides those and one more, unless the last of them ends the answer; a last token needs no round."""
    for start in range(40, 50):
        params = GenerateParams(mode="draft", max_tokens=limit)
        last = list(random_engine.generate(list(range(start, start + 20)), params))[-1]
        assert last.usage is not None
        more = last.usage.completion_tokens - last.usage.stood - last.usage.blocks
        assert more in ((0, 1, 2) if last.finish_reason == "stop" else (1, 2))
        assert last.usage.stood <= last.usage.proposals
        assert (last.usage.proposals > 0) == (last.usage.blocks > 0)


def test_nobody_waits_for_anothers_block(random_engine):
    """Bug kind 27: a short answer that comes late ends before a long one that came early."""
    core = Core(random_engine.model, Limits(num_pages=64), checks=True)
    slow = Client(random_engine, core, [20] * 9, GenerateParams(threshold=1.0, max_tokens=64))
    for _ in range(3):
        core.step()
    quick = Client(random_engine, core, [21] * 9, GenerateParams(mode="ar", max_tokens=2))
    for _ in range(3):
        core.step()
    assert quick.is_done
    assert not slow.is_done


def test_a_long_prompt_is_prefilled_between_the_passes_of_others(random_engine):
    core = Core(random_engine.model, Limits(max_rows=64, num_pages=64), checks=True)
    first = Client(random_engine, core, [20] * 9, GenerateParams(mode="ar", max_tokens=40, stop_token_ids=()))
    core.step()
    Client(random_engine, core, [30 + i % 50 for i in range(250)], GenerateParams(mode="ar", max_tokens=2))
    together = 0
    while not first.is_done:
        core.step()
        together += len(core.last) == 2 and max(len(part.need.causal) for part in core.last) > 1
    assert together >= 4


def test_interactive_goes_before_batch_and_batch_is_not_starved(random_engine):
    core = Core(random_engine.model, Limits(max_running=2, num_pages=64), checks=True)
    batch = [
        Client(random_engine, core, [20 + i] * 5, GenerateParams(mode="ar", max_tokens=40, priority="batch"))
        for i in range(3)
    ]
    core.step()
    urgent = Client(random_engine, core, [50] * 5, GenerateParams(mode="ar", max_tokens=3))
    for _ in range(4):
        core.step()
    assert urgent.is_done, "a running request of batch makes room"
    stream = 0
    while not all(client.is_done for client in batch) and stream < 400:
        Client(random_engine, core, [60 + stream % 30] * 5, GenerateParams(mode="ar", max_tokens=2))
        core.step()
        stream += 1
    assert all(client.is_done for client in batch), "batch starves beside a stream of interactive requests"


def test_a_fault_ends_its_own_request_alone(random_engine, monkeypatch):
    core = Core(random_engine.model, Limits(num_pages=64), checks=True)
    good = Client(random_engine, core, [20] * 40, GenerateParams(max_tokens=20))
    sequence = random_engine.admit([21] * 40, GenerateParams(max_tokens=20))
    found = []
    core.submit(sequence, found.append)
    monkeypatch.setattr(sequence, "take", lambda need, logits: (_ for _ in ()).throw(NumericError("no numbers")))
    while core.step():
        pass
    assert isinstance(found[-1], NumericError)
    assert good.answer == alone(random_engine, good.prompt, good.params)


def test_a_forward_that_fails_is_laid_to_the_request_that_makes_it_fail(random_engine, monkeypatch):
    core = Core(random_engine.model, Limits(num_pages=64), checks=True)
    clients = [Client(random_engine, core, [20 + i] * 40, GenerateParams(max_tokens=20)) for i in range(3)]
    layer = random_engine.model.model.layers[2]
    run = type(layer).forward

    def failing(self, x, work, angles, cache):
        if (work.tokens == 21).any():
            raise RuntimeError("no such kernel")
        return run(self, x, work, angles, cache)

    monkeypatch.setattr(type(layer), "forward", failing)
    while core.step():
        pass
    monkeypatch.undo()
    assert isinstance(clients[1].deltas[-1], RuntimeError)
    for client in (clients[0], clients[2]):
        assert client.answer == alone(random_engine, client.prompt, client.params)


def test_a_thread_drives_for_many_callers(random_engine):
    engine = remade(random_engine)
    engine.start()
    try:
        rng = random.Random(3)
        wishes = [drawn(rng) for _ in range(12)]
        found = {}

        def ask(i):
            found[i] = [t for d in engine.generate(*wishes[i]) for t in d.tokens]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(wishes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        engine.stop()
    assert engine.core.is_idle
    for i, (prompt, params) in enumerate(wishes):
        assert found[i] == alone(random_engine, prompt, params)[0]


def test_closing_an_answer_frees_what_it_holds(random_engine):
    engine = remade(random_engine)
    deltas = engine.generate([20] * 40, GenerateParams(mode="ar", max_tokens=60))
    next(deltas)
    assert engine.core.cache.pages.num_held
    deltas.close()  # pyrefly: ignore[missing-attribute]
    assert engine.core.is_idle
    assert engine.core.cache.pages.num_held == 0


def test_nan_of_one_request_reaches_no_other(random_engine):
    """Bug kind 42: masked keys are multiplied by 0, which a NaN survives."""
    core = Core(random_engine.model, Limits(num_pages=12), checks=True)
    client = Client(random_engine, core, [20] * 40, GenerateParams(mode="ar", max_tokens=5))
    core.step()
    for layer in core.cache.memory._attention:
        if layer is not None:
            for page in core.cache.table(client.key)[1:]:
                layer.values.narrow(0, page * 32, 32).fill_(torch.nan)
    while core.step():
        pass
    assert isinstance(client.deltas[-1], NumericError)
    later = [Client(random_engine, core, [22 + i] * 70, GenerateParams(mode="ar", max_tokens=5)) for i in range(3)]
    while core.step():
        pass
    for one in later:
        assert one.answer == alone(random_engine, one.prompt, one.params)


def test_auto_answers_as_the_modes_that_it_names_and_repeats_itself(random_engine):
    for length in (9, 40):
        prompt = [20 + (7 * i) % 90 for i in range(length)]
        lossless = GenerateParams(mode="auto", max_tokens=60)
        assert alone(random_engine, prompt, lossless) == alone(
            random_engine, prompt, GenerateParams("ar", max_tokens=60)
        )
        free = GenerateParams(mode="auto", lossless=False, max_tokens=60, threshold=0.2)
        deltas = list(random_engine.generate(prompt, free))
        modes = deltas[-1].usage.modes
        assert modes
        again = list(random_engine.generate(prompt, replace(free, modes=modes)))
        assert [d.tokens for d in again] == [d.tokens for d in deltas]
        assert again[-1].usage.modes == modes
    forced = replace(free, modes=("diffuse", "ar", "draft", "diffuse", "draft", "ar"))
    usage = list(random_engine.generate(prompt, forced))[-1].usage
    assert usage.modes[:6] == forced.modes[: len(usage.modes)]
