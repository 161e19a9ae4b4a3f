"""Who runs in the next forward. Numbers alone, no tensors.

A request is WAITING, then runs (PREFILLING, then ACTIVE) and is forgotten when it has ended. Every forward takes what
is ready of as many requests as its rows allow: first whoever was served longest ago, `interactive` before `batch`. A
part of the rows is kept for prefills, so that neither can starve the other; and a request of `batch` that has waited
long counts as `interactive`.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Protocol

from fourleaf.engine.pages import PAGE_SIZE, OutOfPages
from fourleaf.engine.sequence import Need, Sequence

MAX_ROWS = 512
# Of a forward's rows, what prefills may count on while others decode.
PREFILL_SHARE = 0.25
MAX_RUNNING = 64
# Forwards without being served, or preemptions, after which a request of `batch` goes with the others.
PATIENCE = 64
MAX_PREEMPTED = 4


class Room(Protocol):
    """What the scheduler asks of the cache. Both raise OutOfPages, with nothing taken, where there is no room."""

    def admit(self, key: int, sequence: Sequence) -> None: ...
    def grow(self, key: int, num_positions: int) -> None: ...
    def release(self, key: int) -> None: ...


@dataclass(order=True)
class Entry:
    """One request that waits or runs. Ordered as the line is: by rank, then by arrival."""

    rank: int
    key: int  # rises with arrival
    sequence: Sequence = field(compare=False)
    served: int = field(default=0, compare=False)  # the plan that last took it
    num_preempted: int = field(default=0, compare=False)


class Scheduler:
    """The line, and those that run."""

    def __init__(self, max_rows: int = MAX_ROWS, max_running: int = MAX_RUNNING) -> None:
        assert max_rows >= 2 * PAGE_SIZE
        assert max_running >= 1
        self.max_rows, self.max_running = max_rows, max_running
        self.num_preempted = 0
        self._waiting: list[Entry] = []
        self._running: dict[int, Entry] = {}
        self._faults: list[tuple[Entry, Exception]] = []
        self._tick = 0

    def submit(self, key: int, sequence: Sequence) -> None:
        """Puts a request in line. Keys rise."""
        rank = int(sequence.params.priority == "batch")
        insort(self._waiting, Entry(rank, key, sequence, self._tick))

    def remove(self, key: int) -> bool:
        """Forgets a request, wherever it is. -> whether it ran, and so holds memory."""
        if self._running.pop(key, None) is not None:
            return True
        self._waiting = [entry for entry in self._waiting if entry.key != key]
        return False

    def plan(self, room: Room) -> list[tuple[Entry, Need]]:
        """The next forward, with memory for all of it. Empty where nobody is left."""
        self._tick += 1
        self._promote()
        self._admit(room)
        chosen: dict[int, tuple[Entry, Need]] = {}
        in_turn = sorted(self._running.values(), key=lambda entry: (entry.rank, entry.served, entry.key))
        prefilling = [entry for entry in in_turn if entry.sequence.is_prefilling]
        left = self.max_rows - (max(PAGE_SIZE, int(self.max_rows * PREFILL_SHARE)) if prefilling else 0)
        for entry in in_turn:
            if not entry.sequence.is_prefilling:
                left -= self._choose(entry, left, chosen, room)
        left = self.max_rows - sum(need.num_rows for _, need in chosen.values())
        for entry in prefilling:
            left -= self._choose(entry, left, chosen, room)
        for entry, _ in chosen.values():
            entry.served = self._tick
        return list(chosen.values())

    def take_faults(self) -> list[tuple[Entry, Exception]]:
        """Requests that could not say what they need, and why: for the last plan, once."""
        faults, self._faults = self._faults, []
        return faults

    def _choose(self, entry: Entry, left: int, chosen: dict[int, tuple[Entry, Need]], room: Room) -> int:
        """Takes a request into the forward if its rows fit, or if it would be alone. -> the rows.

        Prefills take what is left. What decodes is never cut by who else is there, so that its usage is its own.
        """
        is_prefilling = entry.sequence.is_prefilling
        if entry.key not in self._running or (chosen and left < PAGE_SIZE and is_prefilling):
            return 0
        try:
            need = entry.sequence.need(max(PAGE_SIZE, left) if is_prefilling else self.max_rows)
        except Exception as fault:
            self._faults.append((entry, fault))
            return 0
        if chosen and need.num_rows > left and not is_prefilling:
            return 0
        while True:
            try:
                room.grow(entry.key, entry.sequence.num_cached + len(need.causal))
            except OutOfPages:
                victim = max(self._running.values())
                self._preempt(victim, room)
                chosen.pop(victim.key, None)
                if victim is entry:
                    return 0
                continue
            chosen[entry.key] = entry, need
            return need.num_rows

    def _admit(self, room: Room) -> None:
        while self._waiting:
            entry = self._waiting[0]
            if len(self._running) >= self.max_running:
                youngest = max(self._running.values())
                if youngest.rank <= entry.rank:
                    return
                self._preempt(youngest, room)
            try:
                room.admit(entry.key, entry.sequence)
            except OutOfPages:
                assert self._running, "one request of full length fits by construction"
                return
            del self._waiting[0]
            self._running[entry.key] = entry

    def _preempt(self, entry: Entry, room: Room) -> None:
        """Back into the line. What it has committed stays in the prefix cache as long as there is room."""
        del self._running[entry.key]
        room.release(entry.key)
        entry.sequence.preempt()
        entry.served = self._tick
        entry.num_preempted += 1
        insort(self._waiting, entry)
        self.num_preempted += 1

    def _promote(self) -> None:
        """Whoever was not served for long, or got nowhere, goes with the interactive ones from now on. Between plans
        alone: within one the line must keep its order."""
        late = [entry for entry in (*self._waiting, *self._running.values()) if entry.rank]
        tired = [e for e in late if self._tick - e.served > PATIENCE or e.num_preempted >= MAX_PREEMPTED]
        for entry in tired:
            entry.rank = 0
        if tired:
            self._waiting.sort()
