"""The prefix cache: a tree of committed pages, with snapshots of the recurrent states at some of their ends.

A node is one whole page of committed tokens behind those of its parent. A request may reuse the keys and values of
every node that its prompt matches, but only behind a snapshot can it go on: the recurrent state cannot be rewound, so a
hit is the deepest matching node *with a snapshot*. No tensors here; `pages.py` counts what is whose.

How a request uses it: `match` its tokens; `record` the match once, when the request is admitted; restore the snapshot
and release it; `take` pages; run rows; `insert` what has settled, behind every chunk and block; at each of
`snapshot_ends` store the states under a handle of `Snapshots.take` and `attach` it; at the end release every page.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from fourleaf.engine.pages import PAGE_SIZE, OutOfPages, Pages, Snapshots

MIN_GRID = 16


def snapshot_grid(page_bytes: int, snapshot_bytes: int, max_pages: int) -> int:
    """Pages between two snapshots of the grid: the fewest, from 16 on, that take at least a snapshot's bytes.

    So a cached token costs at most twice its keys and values. Where the longest sequence, `max_pages`, is shorter than
    that (large states, or no attention layer at all), it is `max_pages`, or 16: then the byte budget is the limit.
    """
    assert max_pages >= 1
    pages = -(-snapshot_bytes // page_bytes) if page_bytes else max_pages
    return max(MIN_GRID, min(pages, max_pages))


def snapshot_ends(start: int, stop: int, grid: int, fork: int | None) -> list[int]:
    """Ends of pages, in tokens, at which causal rows start..stop-1 should leave a snapshot: those on the grid, and
    the fork of the request's match. A prefill is split at each of them."""
    step = grid * PAGE_SIZE
    ends = set(range((start // step + 1) * step, stop + 1, step))
    if fork is not None and start < fork <= stop:
        ends.add(fork)
    return sorted(ends)


@dataclass(eq=False, slots=True)
class Node:
    """One page of committed tokens. `end`: tokens from the start of the text to this page's end. `snapshot` counts
    only while the handle is alive."""

    tokens: tuple[int, ...]
    page: int
    end: int
    parent: Node | None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    snapshot: int | None = None
    used: int = 0  # tick of the last use of this node or of one that was below it

    def above(self, end: int) -> Node:
        """This node or the one above it whose page ends at `end` tokens."""
        node = self
        while node.end > end and node.parent is not None:
            node = node.parent
        assert node.end == end, f"no page ends at {end}"
        return node


@dataclass(frozen=True)
class Match:
    """What the cache has of a prompt, in tokens. Its pages and its snapshot are held for the caller, once each.

    pages              page ids of the first num_hit tokens
    num_hit            tokens that need not run: whole pages, fewer than the prompt has, up to a snapshot
    num_attention_hit  as far as the keys and values alone would have reached; at least num_hit
    snapshot           handle of the states behind num_hit tokens; None where num_hit is 0 or there are no states
    fork               end of the page where the request should store a snapshot, because another one came this far
                       and left none: num_attention_hit where that exceeds num_hit, else None
    node               where `insert` may go on
    """

    pages: tuple[int, ...]
    num_hit: int
    num_attention_hit: int
    snapshot: int | None
    fork: int | None
    node: Node


class Inserted(NamedTuple):
    """The pages that the sequence is to use from now on, one for one, and the node of its last whole page."""

    pages: list[int]
    node: Node


@dataclass
class Counters:
    """For metrics; they only rise. Evicted snapshots are counted by `Snapshots`."""

    num_lookups: int = 0
    num_hits: int = 0
    num_hit_tokens: int = 0
    num_stateless_tokens: int = 0  # attention would have hit, but there was no state
    num_inserted_pages: int = 0
    num_duplicate_pages: int = 0
    num_evicted_pages: int = 0
    num_snapshots: int = 0


class PrefixTree:
    """The cache. For a model without recurrent states, whose snapshots have 0 bytes, a hit may end with any page.

    Whoever holds a node's page holds those of all nodes above it. So an idle page has idle pages alone below it, and
    `pages.num_free + pages.num_idle` is what `take` can give.
    """

    def __init__(self, pages: Pages, snapshots: Snapshots | None = None, evict_ahead: int = 8) -> None:
        """snapshots: None for a model without states. evict_ahead: pages that go together when any must, so that a
        growing sequence finds several in a row."""
        self.pages = pages
        self.snapshots = Snapshots(0, 0) if snapshots is None else snapshots
        self.counters = Counters()
        self.root = Node((), -1, 0, None)
        self.num_nodes = 0
        self._evict_ahead = evict_ahead
        self._clock = 0
        self._serial = count()
        self._leaves: list[tuple[int, int, Node]] = []  # heap of (used, serial, node); outdated entries stay a while

    def match(self, tokens: Sequence[int]) -> Match:
        """What can be reused of a prompt of at least one token. At least one row is left to run: its logits are needed.

        Counts nothing, so that a waiting request may ask again; give an unused match back with `release`.
        """
        assert len(tokens) >= 1
        path = self._path(tokens, (len(tokens) - 1) // PAGE_SIZE)
        deepest = path[-1] if path else self.root
        node = next((node for node in reversed(path) if self.has_state(node)), self.root)
        if path:
            self._touch(deepest)
        hit = path[: node.end // PAGE_SIZE]
        for above in hit:
            self.pages.share(above.page)
        if node.snapshot is not None:
            self.snapshots.share(node.snapshot)
        return Match(
            pages=tuple(above.page for above in hit),
            num_hit=node.end,
            num_attention_hit=deepest.end,
            snapshot=node.snapshot,
            fork=deepest.end if deepest.end > node.end else None,
            node=node,
        )

    def release(self, match: Match) -> None:
        """Gives back everything that an unused match holds."""
        for page in match.pages:
            self.pages.release(page)
        if match.snapshot is not None:
            self.snapshots.release(match.snapshot)

    def record(self, match: Match) -> None:
        """Counts a match: once for each request that is admitted."""
        self.counters.num_lookups += 1
        self.counters.num_hits += match.num_hit > 0
        self.counters.num_hit_tokens += match.num_hit
        self.counters.num_stateless_tokens += match.num_attention_hit - match.num_hit

    def take(self, n: int, after: int | None = None) -> list[int]:
        """`Pages.take`, after evicting least recently used leaves where too few pages are free.

        Raises OutOfPages, with nothing evicted, where requests hold too many.
        """
        missing = n - self.pages.num_free
        if missing > self.pages.num_idle:
            raise OutOfPages(
                f"{n} pages are wanted; {self.pages.num_free} are free, {self.pages.num_idle} idle, "
                f"and requests hold {self.pages.num_held} of {self.pages.num}"
            )
        if missing > 0:
            self.evict(max(missing, self._evict_ahead))
        return self.pages.take(n, after)

    def insert(self, settled: Sequence[int], pages: Sequence[int], node: Node | None = None) -> Inserted:
        """Enters the whole pages of `settled`: a sequence's tokens from position 0 whose keys and values come from
        causal rows of the final tokens, and that nothing can change any more. The only way into the tree.

        pages: all of the sequence's, from position 0, at least as many as whole pages have settled; what lies behind
        those stays the sequence's alone. Where the tree has an equal page already, the sequence's own is released and
        the tree's is held and returned in its place.
        node: of an earlier `match` or `insert` of this sequence, to go on from; its tokens are not looked at again.
        """
        node = node or self.root
        num_done, num_whole = node.end // PAGE_SIZE, len(settled) // PAGE_SIZE
        assert num_done <= num_whole <= len(pages), f"{len(pages)} pages for {len(settled)} settled tokens"
        assert not num_done or pages[num_done - 1] == node.page, "the sequence does not hold the page to go on from"
        used = list(pages)
        for i in range(num_done, num_whole):
            key = tuple(settled[i * PAGE_SIZE : (i + 1) * PAGE_SIZE])
            child = node.children.get(key)
            if child is None:
                self.pages.keep(used[i])
                child = node.children[key] = Node(key, used[i], node.end + PAGE_SIZE, node)
                self.num_nodes += 1
                self.counters.num_inserted_pages += 1
            elif child.page != used[i]:
                self.pages.share(child.page)
                self.pages.release(used[i])
                used[i] = child.page
                self.counters.num_duplicate_pages += 1
            node = child
        if node is not self.root:
            self._touch(node)
        return Inserted(used, node)

    def has_state(self, node: Node) -> bool:
        """Whether a request can go on from the end of `node`."""
        return node is self.root or not self.snapshots.bytes_each or node.snapshot in self.snapshots

    def attach(self, node: Node, handle: int) -> bool:
        """Puts a snapshot, stored in full, on the node at whose end it was taken. The caller's hold passes to the tree;
        where the node has a state already, the newcomer goes and the answer is False."""
        assert node is not self.root
        assert self.pages.is_kept(node.page), "a snapshot may not outlive its page"
        is_wanted = not self.has_state(node)
        if is_wanted:
            self.snapshots.keep(handle)
            node.snapshot = handle
            self.counters.num_snapshots += 1
        self.snapshots.release(handle)
        return is_wanted

    def evict(self, n: int) -> int:
        """Gives up `n` leaves that no request holds, least recently used first, with their snapshots; returns how many
        there were."""
        num_evicted = 0
        spared = []
        while num_evicted < n and self._leaves:
            entry = heappop(self._leaves)
            node = entry[-1]
            if not self._is_current(entry):
                continue
            if self._is_held(node):
                spared.append(entry)
                continue
            self._remove(node)
            num_evicted += 1
        for entry in spared:
            heappush(self._leaves, entry)
        return num_evicted

    def forget(self, node: Node) -> list[int]:
        """Gives up `node` and those above it, up to the first that a request holds or that others lie below. -> their
        pages, which are free now."""
        pages = []
        while node.parent is not None and not node.children and not self._is_held(node):
            above = node.parent
            pages.append(node.page)
            self._remove(node)
            node = above
        return pages

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, parents before children."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def check(self, owned: Mapping[Hashable, Iterable[int]], pinned: Iterable[int] = ()) -> None:
        """Asserts all that must hold between two steps, at a cost of the whole tree. For tests and a flag.

        owned: each request's pages. pinned: the handles that requests hold, each as often as it is held.
        """
        nodes = []
        for node in self.nodes():
            nodes.append(node)
            assert len(nodes) <= self.num_nodes, "the tree has a cycle, or a node too many"
            assert len(node.tokens) == PAGE_SIZE, "a node is not a whole page"
            above = node.parent
            assert above is not None, "a child has outlived its parent"
            assert above.children[node.tokens] is node, "a child is filed wrongly"
            assert node.end == above.end + PAGE_SIZE, "a node ends in the wrong place"
            is_covered = above is self.root or self.pages.holds(above.page) or not self.pages.holds(node.page)
            assert is_covered, "a page is held, and one above it is not"
        assert len(nodes) == self.num_nodes, "a node is lost"
        self.pages.check(owned.values(), (node.page for node in nodes))
        current = [entry[-1] for entry in self._leaves if self._is_current(entry)]
        assert set(current) == {node for node in nodes if not node.children}, "a leaf cannot be found for eviction"
        handles = (node.snapshot for node in nodes)
        self.snapshots.check(pinned, (h for h in handles if h is not None and h in self.snapshots))

    def _path(self, tokens: Sequence[int], max_pages: int) -> list[Node]:
        """Nodes from the root down that equal `tokens`, compared token by token (the key of a child is its tokens)."""
        path, node = [], self.root
        for start in range(0, max_pages * PAGE_SIZE, PAGE_SIZE):
            child = node.children.get(tuple(tokens[start : start + PAGE_SIZE]))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _touch(self, node: Node) -> None:
        """Marks `node`, and so all above it, as just used: a parent takes over its last child's tick when that goes."""
        self._clock += 1
        node.used = self._clock
        if not node.children:
            self._queue(node)

    def _queue(self, leaf: Node) -> None:
        heappush(self._leaves, (leaf.used, next(self._serial), leaf))
        if len(self._leaves) > 2 * self.num_nodes + 64:
            self._leaves = [entry for entry in self._leaves if self._is_current(entry)]
            heapify(self._leaves)

    def _is_current(self, entry: tuple[int, int, Node]) -> bool:
        used, _, node = entry
        return node.parent is not None and not node.children and node.used == used

    def _is_held(self, node: Node) -> bool:
        return self.pages.holds(node.page) > 0 or self.snapshots.holds(node.snapshot) > 0

    def _remove(self, leaf: Node) -> None:
        above = leaf.parent
        assert above is not None
        assert not leaf.children
        del above.children[leaf.tokens]
        leaf.parent = None
        self.num_nodes -= 1
        self.counters.num_evicted_pages += 1
        if leaf.snapshot is not None and leaf.snapshot in self.snapshots:
            self.snapshots.drop(leaf.snapshot)
        self.pages.drop(leaf.page)
        above.used = max(above.used, leaf.used)
        if above is not self.root and not above.children:
            self._queue(above)
