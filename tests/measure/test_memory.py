"""What this process holds: its own memory and pages of files apart, the most of both together."""

import mmap
from pathlib import Path

import pytest
import torch

from fourleaf.errors import ConfigError
from fourleaf.measure import memory as measuring
from fourleaf.measure.memory import growth, memory, reset_peak, settled

MB = 1_000_000

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured through /proc")


def test_a_tensor_is_anonymous_and_a_file_mapped(tmp_path):
    before = memory()
    held = torch.ones(20 * MB)
    after = memory() - before
    assert 70 * MB < after.anonymous < 100 * MB
    assert after.mapped < 10 * MB
    (tmp_path / "pages").write_bytes(bytes(30 * MB))
    before = memory()
    with (tmp_path / "pages").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert sum(pages[i] for i in range(0, len(pages), 4096)) == 0
        after = memory() - before
    assert 25 * MB < after.mapped < 35 * MB
    assert after.anonymous < 10 * MB
    assert after.resident == after.anonymous + after.mapped
    assert held.sum() > 0


def test_pages_mapped_from_nothing_are_its_own():
    before = memory()
    with mmap.mmap(-1, 30 * MB) as pages:
        pages.write(bytes(30 * MB))
        after = memory() - before
    assert 25 * MB < after.anonymous < 75 * MB  # the bytes that were written too, perhaps
    assert 25 * MB < after.shared < 35 * MB
    assert after.mapped < 10 * MB


def test_the_peak_counts_what_is_gone_until_it_is_reset():
    reset_peak()
    before = memory()
    torch.ones(20 * MB).sum()
    assert (memory() - before).peak > 70 * MB
    reset_peak()
    assert (memory() - before).peak < 40 * MB


def test_a_settled_process_has_neither_garbage_nor_holes():
    before = settled()
    rings = []
    for _ in range(200):
        ring = [bytes(60_000), bytearray(60_000)]
        ring.append(ring)  # freed by a collection alone
        rings.append(ring)
    kept, rings, ring = [pair[0] for pair in rings[::50]], [], []
    after = settled() - before
    assert after.anonymous < 8 * MB
    assert len(kept) == 4


def test_a_system_without_proc_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "_STATUS", tmp_path / "status")
    with pytest.raises(ConfigError, match="/proc"):
        memory()


def test_memory_that_grows_all_along_is_not_flat_and_memory_that_comes_in_first_is():
    steady = [300 + i for i in range(10)] + [312] * 30
    assert growth(steady) is None
    assert growth([300 + 2 * i for i in range(40)]) == "resident memory grew from 329 to 369 MiB"
    assert growth([2000 + 2 * i for i in range(40)]) is None  # by 2%
    assert growth([2000 + 2 * i for i in range(40)], share=0.0, least=39) is not None
    assert growth([2000 + 2 * i for i in range(40)], share=0.0, least=40) is None
