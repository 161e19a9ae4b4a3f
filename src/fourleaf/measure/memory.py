"""What this process holds in memory, as Linux counts it."""

from __future__ import annotations

import gc
import resource
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fourleaf.checkpoint.heap import trim
from fourleaf.errors import ConfigError

_STATUS = Path("/proc/self/status")
_PEAK_RESET = Path("/proc/self/clear_refs")
# What memory that is called flat may grow by: a share, or so many MiB where that is more.
_MAX_GROWTH, _MIN_GROWTH_MIB = 0.05, 24


@dataclass(frozen=True)
class Memory:
    """Bytes, and faults counted from the start of the process.

    anonymous: memory of its own (RssAnon and RssShmem), which only swap could take away. shared: of it, RssShmem, where
    the engine's pages lie. mapped: pages of files (RssFile), which the system takes back when it needs them and reads
    again. swapped: what it has put out (VmSwap). peak: the most that both were together since `reset_peak` (VmHWM).
    major_faults: pages that had to come from the disk.
    """

    anonymous: int
    shared: int
    mapped: int
    swapped: int
    peak: int
    major_faults: int

    @property
    def resident(self) -> int:
        return self.anonymous + self.mapped

    def __sub__(self, before: Memory) -> Memory:
        """What was added; the peak counts from what was resident before."""
        return Memory(
            self.anonymous - before.anonymous,
            self.shared - before.shared,
            self.mapped - before.mapped,
            self.swapped - before.swapped,
            self.peak - before.resident,
            self.major_faults - before.major_faults,
        )


def memory() -> Memory:
    """Of this process, now. Raises ConfigError where the system does not say."""
    if not _STATUS.is_file():
        raise ConfigError("memory is measured through /proc, which this system does not have")
    fields = dict(line.split(":", 1) for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines())
    own, shared, mapped, swapped, peak = (
        int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem", "RssFile", "VmSwap", "VmHWM")
    )
    return Memory(own + shared, shared, mapped, swapped, peak, resource.getrusage(resource.RUSAGE_SELF).ru_majflt)


def settled() -> Memory:
    """`memory()` behind a collection of what is garbage, and with the heap's holes given back to the system.

    What an allocator keeps of its busiest moment goes, what something still refers to stays: of a process at rest, this
    is what leaks show in. Raises ConfigError as `memory` does.
    """
    gc.collect()
    trim()
    return memory()


def reset_peak() -> None:
    """Lets `peak` begin anew from what is resident now."""
    _PEAK_RESET.write_text("5", encoding="ascii")


def growth(samples: Sequence[float], share: float = _MAX_GROWTH, least: float = _MIN_GROWTH_MIB) -> str | None:
    """Whether resident memory grew in a long run, in words; None where it was flat.

    samples: MiB, at even distances, at least four. The last quarter is held against the second, by their medians: in
    the first one grammars, thread pools and the like come in. It may exceed it by a `share` of it, or by `least` MiB.
    """
    quarter = len(samples) // 4
    assert quarter, f"{len(samples)} samples say nothing"
    before, after = statistics.median(samples[quarter : 2 * quarter]), statistics.median(samples[-quarter:])
    if after - before <= max(least, share * before):
        return None
    return f"resident memory grew from {before:g} to {after:g} MiB"
