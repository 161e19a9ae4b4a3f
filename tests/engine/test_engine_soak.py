"""A sample of `scripts/soak_engine.py`, which says what it does."""

import gc
import weakref
from dataclasses import replace

import pytest
import script

from fourleaf.engine.cost import KINDS, CostTable
from fourleaf.measure.specimen import specimen


@pytest.fixture(scope="module")
def soak():
    return script.load("soak_engine")


def test_bug_kind_16_a_sample_of_the_soak_finds_nothing(soak, byte_tokenizer, monkeypatch):
    pytest.importorskip("llguidance")
    table = CostTable(dict.fromkeys(KINDS, ((1, 0.002), (32, 0.005), (512, 0.05))))
    monkeypatch.setattr("fourleaf.engine.engine.table_of", lambda model, folder: table)
    report = soak.Report()
    engine = specimen(byte_tokenizer, 0)
    soak.soak(engine, round(0.02 * soak.NUM_REQUESTS), 1, report, True, num_pages=12)
    assert report.wrong == []
    for name in ("cancelled", "preempted", "hit tokens", "evicted pages", "snapshots", "under a grammar", *soak.MODES):
        assert report.counts[name], f"the sample must exercise: {name}"
    assert {"ended by stop", "ended by length"} <= report.counts.keys()


def test_what_is_left_behind_is_found(soak, byte_tokenizer):
    report = soak.Report()
    engine = specimen(byte_tokenizer, 0)
    core = engine.core
    core.submit(engine.admit([20] * 40, soak.GenerateParams(mode="ar")), lambda delta: None)
    core.step()
    soak._count(core, report)
    assert {fault.partition(" ")[2] for fault in report.wrong} >= {"requests are left", "held pages are left"}


def test_an_answer_that_is_another_alone_is_found(soak, byte_tokenizer):
    engine = specimen(byte_tokenizer, 0)
    answer = soak.Answer([20] * 40, soak.GenerateParams(mode="ar", max_tokens=5))
    engine.core.submit(engine.admit(answer.prompt, answer.params), answer.hear)
    while engine.core.step():
        pass
    report = soak.Report()
    soak._compare(engine, answer, report)
    assert report.wrong == []
    answer.deltas[0] = replace(answer.deltas[0], tokens=(answer.tokens[0] + 1,))
    soak._compare(engine, answer, report)
    assert len(report.wrong) == 1


def test_memory_that_grows_is_found_and_no_answer_is_kept(soak, byte_tokenizer, monkeypatch):
    """Prompts and answers of a soak are garbage behind their comparison: what grows would be the engine's."""
    table = CostTable(dict.fromkeys(KINDS, ((1, 0.002), (32, 0.005), (512, 0.05))))
    monkeypatch.setattr("fourleaf.engine.engine.table_of", lambda model, folder: table)
    monkeypatch.setattr(soak, "MIN_FOR_MEMORY", 16)
    monkeypatch.setattr(soak, "NUM_AT_ONCE", 4)
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    most, sizes = 0, iter(range(1_000, 9_000, 10))

    def resident():
        nonlocal most
        gc.collect()
        most = max(most, len(alive))
        return next(sizes)

    class Answer(soak.Answer):
        def __init__(self, *words):
            super().__init__(*words)
            alive.add(self)

    monkeypatch.setattr(soak, "Answer", Answer)
    monkeypatch.setattr(soak, "resident_mib", resident)
    report = soak.Report()
    soak.soak(specimen(byte_tokenizer, 0), 16, 5, report, False, num_pages=12)
    assert [fault.partition(" from ")[0] for fault in report.wrong] == ["resident memory grew"]
    assert 0 < most <= soak.NUM_AT_ONCE
