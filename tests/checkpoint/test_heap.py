"""What was freed between things that live on goes back to the system."""

import sys
from pathlib import Path

import pytest

from fourleaf.checkpoint.heap import trim
from fourleaf.measure.memory import memory

MB = 1_000_000
glibc = pytest.mark.skipif(not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="a C library of another kind")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is measured through /proc")
@glibc
def test_holes_are_given_back():
    trim()
    before = memory()
    pieces = [bytes(60_000) for _ in range(1000)]  # small enough to lie in the heap, side by side
    kept, pieces = pieces[::50], []
    held = memory() - before
    assert trim()
    after = memory() - before
    assert held.anonymous > 40 * MB
    assert after.anonymous < 15 * MB
    assert len(kept) == 20


def test_a_library_that_cannot_is_no_fault(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not trim()
