"""Which memory is whose: pages of keys and values, and snapshots of states. Numbers alone, no tensors.

Both are counted by **hold** (a request that reads or writes it) and by whether the prefix tree **keeps** it. What is
neither held nor kept is free; what is kept and not held is **idle**: worth having, and the first to go.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

PAGE_SIZE = 32
"""Positions in a page."""


class OutOfPages(Exception):
    """More pages were asked for than can be freed. The scheduler catches it and makes a request wait."""


class Pages:
    """The ids 0..num-1, given out and taken back.

    A sequence whose pages are consecutive is read in place, without a gather. So `take` continues a run where it can,
    and begins a new one in the middle of the longest free run, where it and who holds the page below have room to grow.
    Free runs are known by both their ends, so that taking and releasing a page cost O(log num).
    """

    def __init__(self, num: int) -> None:
        """`num` at least 1."""
        assert num >= 1
        self.num = num
        self.num_free = num
        self.num_idle = 0
        """Pages that the tree keeps and no request holds."""
        self._holds = [0] * num
        self._kept = bytearray(num)
        self._run_len: dict[int, int] = {}  # first page of a free run -> its length
        self._run_first: dict[int, int] = {}  # last page of a free run -> its first
        self._longest: list[tuple[int, int]] = []  # heap of (-length, first); outdated entries stay a while
        self._add_run(0, num)

    @property
    def num_held(self) -> int:
        """Pages that some request holds."""
        return self.num - self.num_free - self.num_idle

    def holds(self, page: int) -> int:
        """How many times requests hold `page`."""
        return self._holds[page]

    def is_kept(self, page: int) -> bool:
        """Whether the prefix tree has `page`."""
        return bool(self._kept[page])

    def take(self, n: int, after: int | None = None) -> list[int]:
        """`n` free pages, each held once: those behind page `after` while they are free, the rest in as few runs as
        there can be.

        Raises OutOfPages, with nothing taken, where fewer than `n` are free.
        """
        if n > self.num_free:
            raise OutOfPages(f"{n} pages are wanted and {self.num_free} of {self.num} are free")
        taken: list[int] = []
        if n and after is not None and after + 1 in self._run_len:
            taken += self._cut(after + 1, 0, min(n, self._run_len[after + 1]))
        while len(taken) < n:
            first = self._longest_run()
            length = self._run_len[first]
            size = min(n - len(taken), length)
            # Whoever holds the page below may want to grow into this run too: leave it half of what remains.
            skipped = (length - size) // 2 if first > 0 and self._holds[first - 1] else 0
            taken += self._cut(first, skipped, size)
        for page in taken:
            self._holds[page] = 1
        return taken

    def share(self, page: int) -> None:
        """Holds once more a page that is held or kept."""
        assert self._holds[page] or self._kept[page], f"page {page} is free"
        if not self._holds[page]:
            self.num_idle -= 1
        self._holds[page] += 1

    def release(self, page: int) -> None:
        """Ends one hold."""
        assert self._holds[page] > 0, f"page {page} is not held"
        self._holds[page] -= 1
        if not self._holds[page]:
            if self._kept[page]:
                self.num_idle += 1
            else:
                self._free(page)

    def keep(self, page: int) -> None:
        """The tree's own hold. For `PrefixTree` alone."""
        assert self._holds[page] and not self._kept[page], f"page {page} is not a request's own"
        self._kept[page] = 1

    def drop(self, page: int) -> None:
        """Ends the tree's hold. For `PrefixTree` alone."""
        assert self._kept[page], f"page {page} is not kept"
        self._kept[page] = 0
        if not self._holds[page]:
            self.num_idle -= 1
            self._free(page)

    def check(self, owned: Iterable[Iterable[int]], kept: Iterable[int]) -> None:
        """Asserts that held + kept + free is all there is, given what each request holds and what the tree keeps."""
        holds = Counter(page for pages in owned for page in pages)
        assert all(self._holds[page] == holds[page] for page in range(self.num)), "holds differ from what requests own"
        in_tree = list(kept)
        assert len(in_tree) == len(set(in_tree)), "two nodes have one page"
        assert {page for page in range(self.num) if self._kept[page]} == set(in_tree), "kept differs from the tree"
        free = [page for first, length in self._run_len.items() for page in range(first, first + length)]
        assert len(free) == len(set(free)) == self.num_free, "free runs overlap, or their count is wrong"
        assert set(free) == set(range(self.num)) - set(holds) - set(in_tree), "owned + kept + free is not all"
        assert self.num_idle == len(set(in_tree) - set(holds)), "the count of idle pages is wrong"
        lasts = {first + length - 1: first for first, length in self._run_len.items()}
        assert lasts == self._run_first, "the two ends of a free run disagree"
        assert not any(last + 1 in self._run_len for last in lasts), "two free runs touch"

    def _free(self, page: int) -> None:
        self.num_free += 1
        first, length = page, 1
        if page - 1 in self._run_first:
            first = self._run_first.pop(page - 1)
            length += self._run_len.pop(first)
        if page + 1 in self._run_len:
            behind = self._run_len.pop(page + 1)
            del self._run_first[page + behind]
            length += behind
        self._add_run(first, length)

    def _cut(self, first: int, skipped: int, size: int) -> range:
        """Takes `size` pages out of the free run that begins at `first`, from its `skipped`-th on."""
        length = self._run_len.pop(first)
        del self._run_first[first + length - 1]
        self._add_run(first, skipped)
        self._add_run(first + skipped + size, length - skipped - size)
        self.num_free -= size
        return range(first + skipped, first + skipped + size)

    def _add_run(self, first: int, length: int) -> None:
        if not length:
            return
        self._run_len[first] = length
        self._run_first[first + length - 1] = first
        heappush(self._longest, (-length, first))
        if len(self._longest) > 4 * len(self._run_len) + 64:
            self._longest = [(-length, first) for first, length in self._run_len.items()]
            heapify(self._longest)

    def _longest_run(self) -> int:
        while True:
            length, first = self._longest[0]
            if self._run_len.get(first) == -length:
                return first
            heappop(self._longest)


class Snapshots:
    """Handles of stored states, within a budget of bytes. The tensors live elsewhere, keyed by handle.

    A handle is never given out twice, so that one that has gone can be told from every other. `freed` is called with
    each handle that goes, whoever ended it; its tensors may be overwritten from then on.
    """

    def __init__(self, budget_bytes: int, bytes_each: int, freed: Callable[[int], None] | None = None) -> None:
        """bytes_each: one snapshot of all states; 0 for a model without states, which gets none."""
        assert bytes_each >= 0
        assert budget_bytes >= 0
        self.bytes_each = bytes_each
        self.capacity = budget_bytes // bytes_each if bytes_each else 0
        self.num_evictions = 0
        """Snapshots that went to make room for others."""
        self._freed = freed
        self._next = 0
        self._holds: dict[int, int] = {}
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept and not held, least recently used first

    def __len__(self) -> int:
        return len(self._holds)

    def __contains__(self, handle: int | None) -> bool:
        """Whether `handle` still stands for something."""
        return handle in self._holds

    @property
    def num_bytes(self) -> int:
        """Bytes of the snapshots that there are."""
        return len(self) * self.bytes_each

    def holds(self, handle: int | None) -> int:
        """How many times requests hold `handle`; 0 for one that has gone."""
        return self._holds.get(handle, 0) if handle is not None else 0

    def take(self) -> int | None:
        """A new handle, held once, at the price of the least recently used idle one; None where every snapshot is held
        or the budget allows none."""
        if len(self) >= self.capacity:
            if not self._idle:
                return None
            self.num_evictions += 1
            self.drop(next(iter(self._idle)))
        handle = self._next
        self._next += 1
        self._holds[handle] = 1
        return handle

    def share(self, handle: int) -> None:
        """Holds once more. A held snapshot is never evicted."""
        self._holds[handle] += 1
        self._idle.pop(handle, None)

    def release(self, handle: int) -> None:
        """Ends one hold."""
        assert self._holds[handle] > 0, f"snapshot {handle} is not held"
        self._holds[handle] -= 1
        self._settle(handle)

    def keep(self, handle: int) -> None:
        """The tree's own hold. For `PrefixTree` alone."""
        assert self._holds[handle] and handle not in self._kept, f"snapshot {handle} is not a request's own"
        self._kept.add(handle)

    def drop(self, handle: int) -> None:
        """Ends the tree's hold. For `PrefixTree` alone."""
        self._kept.remove(handle)
        self._idle.pop(handle, None)
        self._settle(handle)

    def check(self, held: Iterable[int], kept: Iterable[int]) -> None:
        """Asserts that held + kept is all there is, within the budget."""
        holds = Counter(held)
        in_tree = list(kept)
        assert len(in_tree) == len(set(in_tree)), "two nodes have one snapshot"
        assert self._kept == set(in_tree), "kept snapshots differ from the tree's"
        assert set(self._holds) == set(holds) | set(in_tree), "a snapshot has leaked"
        assert all(count == holds[handle] for handle, count in self._holds.items()), "holds differ from requests'"
        assert set(self._idle) == set(in_tree) - set(holds), "idle snapshots are wrong"
        assert len(self) <= self.capacity, "snapshots exceed their budget"

    def _settle(self, handle: int) -> None:
        """Files `handle` anew where its last hold has ended."""
        if self._holds[handle]:
            return
        if handle in self._kept:
            self._idle[handle] = None
            return
        del self._holds[handle]
        if self._freed is not None:
            self._freed(handle)
