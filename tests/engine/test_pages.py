import random

import pytest

from fourleaf.engine.pages import OutOfPages, Pages, Snapshots


class PlainPages:
    """The twin: a set of free pages, looked through from end to end."""

    def __init__(self, num):
        self.free = set(range(num))

    def runs(self):
        firsts = [page for page in sorted(self.free) if page - 1 not in self.free]
        return [
            (first, next(n for n in range(1, len(self.free) + 2) if first + n not in self.free)) for first in firsts
        ]

    def take(self, n, after):
        taken = []
        if after is not None:
            while len(taken) < n and after + 1 + len(taken) in self.free:
                taken.append(after + 1 + len(taken))
        self.free -= set(taken)
        while len(taken) < n:
            first, length = max(self.runs(), key=lambda run: (run[1], -run[0]))
            size = min(n - len(taken), length)
            if first > 0:
                first += (length - size) // 2
            taken += range(first, first + size)
            self.free -= set(taken)
        return taken


@pytest.mark.parametrize(("num", "seed"), [(1, 0), (7, 1), (64, 2), (200, 3)])
def test_take_gives_the_same_pages_as_a_search_through_all_free_ones(num, seed):
    rng = random.Random(seed)
    pages, plain = Pages(num), PlainPages(num)
    owned: list[list[int]] = []
    for _ in range(1500):
        if owned and rng.random() < 0.3:
            for page in owned.pop(rng.randrange(len(owned))):
                pages.release(page)
                plain.free.add(page)
        else:
            n = rng.choice([0, 1, 1, 1, 2, 5, num // 4])
            grower = rng.choice(owned) if owned and rng.random() < 0.7 else []
            after = grower[-1] if grower else rng.choice([None, num - 1])
            if n > len(plain.free):
                with pytest.raises(OutOfPages):
                    pages.take(n, after)
            else:
                taken = pages.take(n, after)
                assert taken == plain.take(n, after)
                owned.append(taken)
        pages.check(owned, [])
        assert pages.num_free == len(plain.free)
        assert pages.num_held == num - len(plain.free)


def test_a_sequence_grows_into_consecutive_pages_while_they_are_free():
    pages = Pages(16)
    sequence = pages.take(3)
    for _ in range(13):
        sequence += pages.take(1, after=sequence[-1])
    assert sequence == list(range(16))


def test_four_sequences_that_grow_in_turn_each_keep_one_run():
    pages = Pages(64)
    sequences = [pages.take(1) for _ in range(4)]
    for _ in range(12):
        for sequence in sequences:
            sequence += pages.take(1, after=sequence[-1])
    assert all(sequence == list(range(sequence[0], sequence[0] + 13)) for sequence in sequences)


def test_a_take_that_fails_takes_nothing():
    pages = Pages(4)
    first = pages.take(2)
    with pytest.raises(OutOfPages, match="3 pages are wanted and 2 of 4 are free"):
        pages.take(3, after=first[-1])
    pages.check([first], [])
    assert pages.num_free == 2


def test_a_page_is_free_when_neither_held_nor_kept():
    pages = Pages(2)
    (page,) = pages.take(1)
    pages.share(page)
    pages.keep(page)
    pages.release(page)
    assert (pages.holds(page), pages.num_idle, pages.num_free) == (1, 0, 1)
    pages.release(page)
    assert (pages.holds(page), pages.num_idle, pages.num_free) == (0, 1, 1)
    pages.share(page)
    assert pages.num_idle == 0
    pages.drop(page)
    assert pages.num_free == 1
    pages.release(page)
    assert pages.num_free == 2


def test_bug_kind_19_a_page_taken_again_carries_no_hold_of_its_last_owner():
    pages = Pages(1)
    for _ in range(3):
        (page,) = pages.take(1)
        pages.share(page)
        pages.keep(page)
        pages.release(page)
        pages.release(page)
        pages.drop(page)
        (page,) = pages.take(1)
        assert pages.holds(page) == 1
        assert not pages.is_kept(page)
        pages.release(page)


def test_bug_kind_17_takes_and_releases_leave_no_fragments():
    rng = random.Random(4)
    pages = Pages(48)
    owned: list[int] = []
    for _ in range(2000):
        if owned and rng.random() < 0.5:
            pages.release(owned.pop(rng.randrange(len(owned))))
        elif pages.num_free:
            owned += pages.take(1, after=rng.choice([None, *owned]))
    for page in owned:
        pages.release(page)
    assert pages.take(48) == list(range(48))


@pytest.mark.parametrize("misuse", ["share", "release", "keep", "drop"])
def test_bug_kind_20_a_page_that_went_back_is_refused(misuse):
    pages = Pages(3)
    (page,) = pages.take(1)
    pages.release(page)
    with pytest.raises(AssertionError):
        getattr(pages, misuse)(page)


@pytest.mark.parametrize("fault", ["leak", "double", "stranger"])
def test_the_check_finds_a_wrong_owner(fault):
    pages = Pages(4)
    taken = pages.take(2)
    owned = {"leak": [taken[:1]], "double": [taken, taken[:1]], "stranger": [[*taken, 3]]}[fault]
    with pytest.raises(AssertionError, match="holds differ"):
        pages.check(owned, [])
    pages.check([taken], [])


def test_a_snapshot_goes_when_neither_held_nor_kept_and_its_owner_hears_of_it():
    freed: list[int] = []
    snapshots = Snapshots(200, 100, freed.append)
    handle = snapshots.take()
    snapshots.keep(handle)
    snapshots.release(handle)
    assert handle in snapshots
    assert snapshots.num_bytes == 100
    snapshots.share(handle)
    snapshots.drop(handle)
    assert freed == []
    snapshots.release(handle)
    assert freed == [handle]
    assert handle not in snapshots
    assert snapshots.num_bytes == 0
    assert snapshots.num_evictions == 0


def _kept(snapshots):
    handle = snapshots.take()
    snapshots.keep(handle)
    snapshots.release(handle)
    return handle


def test_a_full_budget_gives_up_the_least_recently_used_idle_snapshot():
    freed: list[int] = []
    snapshots = Snapshots(350, 100, freed.append)
    oldest, middle, newest = (_kept(snapshots) for _ in range(3))
    snapshots.share(oldest)
    snapshots.release(oldest)
    _kept(snapshots)
    assert freed == [middle]
    snapshots.share(newest)
    _kept(snapshots)
    assert freed == [middle, oldest]
    assert newest in snapshots
    assert snapshots.num_evictions == 2


def test_no_snapshot_is_given_where_all_are_held_or_the_budget_is_too_small():
    snapshots = Snapshots(100, 100)
    handle = snapshots.take()
    assert snapshots.take() is None
    snapshots.release(handle)
    assert snapshots.take() is not None
    assert Snapshots(99, 100).take() is None


def test_bug_kind_19_a_handle_is_never_given_twice():
    snapshots = Snapshots(200, 100)
    assert len({_kept(snapshots) for _ in range(50)}) == 50
    assert len(snapshots) == 2


def test_the_check_finds_a_leaked_snapshot():
    snapshots = Snapshots(200, 100)
    handle = snapshots.take()
    snapshots.check([handle], [])
    with pytest.raises(AssertionError, match="leaked"):
        snapshots.check([], [])
