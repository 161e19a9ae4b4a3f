"""Who runs next, with requests that are numbers alone."""

from dataclasses import dataclass, field

import pytest

from fourleaf.engine.pages import OutOfPages
from fourleaf.engine.request import GenerateParams
from fourleaf.engine.scheduler import MAX_PREEMPTED, PATIENCE, Scheduler
from fourleaf.engine.sequence import Need


class Wish:
    """A request of a prompt and so many forwards of `rows` rows. Preempted, it must prefill again."""

    def __init__(self, prompt: int, forwards: int, rows: int = 1, priority: str = "interactive") -> None:
        self.params = GenerateParams(mode="ar", priority=priority)
        self.prompt, self.left, self.rows, self.num_cached = prompt, forwards, rows, 0

    @property
    def is_prefilling(self) -> bool:
        return self.num_cached < self.prompt

    def need(self, most: int) -> Need:
        rows = min(most, self.prompt - self.num_cached) if self.is_prefilling else self.rows
        return Need([0] * rows, None, [])

    def preempt(self) -> None:
        self.num_cached = 0


@dataclass
class Desk:
    """Memory for so many positions, and the loop around a scheduler."""

    scheduler: Scheduler
    capacity: int = 10_000
    held: dict[int, int] = field(default_factory=dict)
    wishes: dict[int, Wish] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)

    def admit(self, key: int, sequence: Wish) -> None:
        self.held[key] = 0
        try:
            self.grow(key, sequence.prompt + sequence.rows)
        except OutOfPages:
            del self.held[key]
            raise

    def grow(self, key: int, num_positions: int) -> None:
        if sum(self.held.values()) + max(0, num_positions - self.held[key]) > self.capacity:
            raise OutOfPages
        self.held[key] = max(self.held[key], num_positions)

    def release(self, key: int) -> None:
        del self.held[key]

    def submit(self, wish: Wish) -> int:
        key = len(self.wishes)
        self.wishes[key] = wish
        self.scheduler.submit(key, wish)
        return key

    def step(self) -> list[int]:
        """-> keys of a forward"""
        chosen = self.scheduler.plan(self)
        for entry, need in chosen:
            wish = self.wishes[entry.key]
            assert entry.key in self.held, "it was preempted after it was chosen"
            wish.left -= not wish.is_prefilling
            wish.num_cached += len(need.causal)
            if not wish.left:
                self.scheduler.remove(entry.key)
                self.release(entry.key)
                self.done.append(entry.key)
        return [entry.key for entry, _ in chosen]


def test_a_batch_request_that_is_preempted_again_and_again_comes_to_its_end():
    """It is served now and then, so that its patience is never spent; each time it begins anew."""
    desk = Desk(Scheduler(64, max_running=1))
    batch = desk.submit(Wish(200, 3, priority="batch"))
    for step in range(12 * MAX_PREEMPTED):
        desk.step()
        if step % 5 == 2:
            desk.submit(Wish(1, 1))
    assert desk.scheduler.num_preempted >= MAX_PREEMPTED
    assert batch in desk.done


def test_a_batch_request_that_is_never_served_goes_with_the_others():
    desk = Desk(Scheduler(64, max_running=1))
    desk.submit(Wish(1, 2))
    desk.step()
    batch = desk.submit(Wish(1, 1, priority="batch"))
    for _ in range(PATIENCE + 10):
        desk.submit(Wish(1, 1))
        desk.step()
    assert batch in desk.done


def test_prefills_get_a_page_of_rows_however_many_decode():
    desk = Desk(Scheduler(64))
    for _ in range(60):
        desk.submit(Wish(1, 10_000))
    while any(wish.is_prefilling for wish in desk.wishes.values()):
        desk.step()
    late = desk.submit(Wish(500, 1))
    for _ in range(500 // 32 + 2):
        desk.step()
    assert not desk.wishes[late].is_prefilling


def test_where_memory_ends_the_oldest_goes_on_and_all_are_served_in_the_end():
    desk = Desk(Scheduler(64), capacity=300)
    for i in range(12):
        desk.submit(Wish(60 + i, 40))
    for _ in range(3_000):
        desk.step()
    assert desk.scheduler.num_preempted
    assert len(desk.done) == 12
    assert desk.done[0] == 0
    assert not desk.held


def test_kind_27_everyone_who_is_ready_takes_turns_where_rows_are_few():
    desk = Desk(Scheduler(64))
    keys = {desk.submit(Wish(1, 50, rows=32)) for _ in range(8)}
    for _ in range(8):
        desk.step()
    served = [desk.step() for _ in range(4)]
    assert sorted(key for step in served for key in step) == sorted(keys)


def test_a_request_that_cannot_say_what_it_needs_is_named_once_and_holds_up_nobody():
    desk = Desk(Scheduler(64))
    bad, good = Wish(1, 5), Wish(1, 5)

    def fails(most):
        raise ValueError("no such mode")

    bad.need = fails
    desk.submit(bad)
    assert desk.submit(good) in desk.step()
    ((entry, fault),) = desk.scheduler.take_faults()
    assert (entry.key, str(fault)) == (0, "no such mode")
    assert desk.scheduler.take_faults() == []


def test_interactive_goes_first_and_arrival_decides_among_equals():
    desk = Desk(Scheduler(64, max_running=1))
    order = [desk.submit(Wish(1, 1, priority=name)) for name in ("batch", "interactive", "batch", "interactive")]
    for _ in range(12):
        desk.step()
    assert desk.done == [order[1], order[3], order[0], order[2]]


def test_a_scheduler_wants_rows_for_two_pages():
    with pytest.raises(AssertionError):
        Scheduler(63)


def test_what_decodes_is_never_cut_by_who_else_is_there():
    """Else a block that a grammar has forced would be committed in pieces under load, and usage would tell."""
    desk, asked = Desk(Scheduler(64)), []
    for _ in range(6):
        desk.submit(Wish(1, 40, rows=9))
    wish = Wish(1, 4, rows=50)
    need = wish.need

    def noted(most: int) -> Need:
        if not wish.is_prefilling:
            asked.append(most)
        return need(most)

    wish.need = noted
    key = desk.submit(wish)
    for _ in range(40):
        desk.step()
    assert key in desk.done
    assert set(asked) == {64}
