"""The C library's heap: what it holds although nobody uses it."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h


def trim() -> bool:
    """Gives back to the system what was freed and lies between what is alive. -> whether the library can (glibc).

    Arranging packed weights for their product takes and frees a third of their size again, in pieces that nothing of
    the same size will ever ask for. Takes milliseconds; what is used next is touched anew, so it is for ends of work.
    """
    try:
        return ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0)) in (0, 1)
    except (OSError, AttributeError, TypeError):
        return False


def limit_arenas(number: int = 2) -> bool:
    """From now on threads share at most `number` heaps. -> whether the library can (glibc).

    Each thread of a server otherwise gets a heap of its own, up to eight for each core, and each keeps what its busiest
    moment took: 64 connections came to twice the memory that two heaps need.
    """
    try:
        return ctypes.CDLL(None).mallopt(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(number)) == 1
    except (OSError, AttributeError, TypeError):
        return False
