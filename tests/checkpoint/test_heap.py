"""What was freed between things that live on goes back to the system."""

import subprocess
import sys
from pathlib import Path

import pytest

from fourleaf.checkpoint.heap import limit_arenas, trim
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


THREADS = """
import ctypes, sys, threading
from fourleaf.checkpoint.heap import limit_arenas
if len(sys.argv) > 1:
    assert limit_arenas(2)
library = ctypes.CDLL(None)
library.fdopen.restype = ctypes.c_void_p
together = threading.Barrier(12)
def work():
    together.wait()
    library.malloc(ctypes.c_size_t(1000))
    together.wait()
threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
stream = library.fdopen(1, b"w")
library.malloc_info(0, ctypes.c_void_p(stream))
library.fflush(ctypes.c_void_p(stream))
"""


@glibc
def test_threads_share_two_heaps():
    def heaps(*words: str) -> int:
        done = subprocess.run([sys.executable, "-c", THREADS, *words], capture_output=True, text=True, check=True)
        return done.stdout.count("<heap nr=")

    assert heaps("limited") <= 2 < heaps()


def test_a_library_that_cannot_is_no_fault(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not trim()
    assert not limit_arenas()
