"""What each request has in memory: the prefix tree's numbers and the tensors they stand for, kept in step.

A request's life here: `admit` finds what earlier ones left, `grow` gives it pages before a forward, `settle` offers
what the forward committed to later requests, `release` ends it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fourleaf.engine.memory import Memory
from fourleaf.engine.pages import PAGE_SIZE, OutOfPages, Pages, Snapshots
from fourleaf.engine.prefix import Node, PrefixTree, snapshot_ends, snapshot_grid
from fourleaf.engine.scheduler import MAX_RUNNING
from fourleaf.engine.sequence import Sequence
from fourleaf.model.config import ModelConfig

DEFAULT_CACHE_BYTES = 256 << 20
# Of the budget, what snapshots may take; the rest is pages.
SNAPSHOT_SHARE = 0.25


@dataclass
class _Held:
    """One request's pages, by position, and the tree's node of its last whole settled page."""

    pages: list[int]
    node: Node


class Cache:
    """Pages, snapshots and states of all requests."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        *,
        num_pages: int | None = None,
        device: str = "cpu",
        reuse: bool = True,
    ) -> None:
        """cache_bytes: of pages and snapshots; but never less than what one request of full length needs. num_pages:
        instead of what the budget gives. reuse: whether requests find what earlier ones left."""
        page_bytes, state_bytes = Memory.page_bytes(config, dtype), Memory.state_bytes(config, dtype)
        self._page_bytes = page_bytes
        longest = -(-config.max_position_embeddings // PAGE_SIZE)
        pages_bytes = int(cache_bytes * (1 - SNAPSHOT_SHARE))
        # Pages of a model without attention take no memory: there are enough for all.
        affordable = pages_bytes // page_bytes if page_bytes else longest * MAX_RUNNING
        self.num_pages = num_pages or max(longest, affordable)
        assert self.num_pages >= longest, f"{self.num_pages} pages hold no request of full length, {longest}"
        self.memory = Memory(config, dtype, self.num_pages, device)
        self.pages = Pages(self.num_pages)
        self.snapshots = None
        if state_bytes:
            budget = max(state_bytes, int(cache_bytes * SNAPSHOT_SHARE)) if reuse else 0
            self.snapshots = Snapshots(budget, state_bytes, self.memory.free)
        self.tree = PrefixTree(self.pages, self.snapshots)
        self.grid = snapshot_grid(page_bytes, state_bytes, longest)
        self._reuse = reuse
        self._held: dict[int, _Held] = {}

    @property
    def used_bytes(self) -> int:
        """Of pages that are held or kept, and of snapshots."""
        stored = 0 if self.snapshots is None else self.snapshots.num_bytes
        return (self.num_pages - self.pages.num_free) * self._page_bytes + stored

    def admit(self, key: int, sequence: Sequence) -> None:
        """Gives a request what the cache has of its known tokens, and room for the rest and a block.

        Raises OutOfPages, with nothing taken, where there is no room.
        """
        assert key not in self._held
        known = sequence.known[: max(1, sequence.num_pending)]
        match = self.tree.match(known if self._reuse else known[:1])
        held = self._held[key] = _Held(list(match.pages), match.node)
        try:
            self._reserve(held, sequence.num_wanted_positions)
        except OutOfPages:
            self.tree.release(match)
            del self._held[key]
            raise
        self.tree.record(match)
        self.memory.open(key, match.snapshot)
        if match.snapshot is not None and self.snapshots is not None:
            self.snapshots.release(match.snapshot)
        sequence.num_cached = match.num_hit
        if sequence.cached_tokens is None:  # after a preemption it may find its own pages
            sequence.cached_tokens = match.num_hit
        if self._reuse and self.snapshots is not None:
            stop = min(len(sequence.prompt), len(known))
            sequence.splits = snapshot_ends(match.num_hit, stop, self.grid, match.fork)

    def grow(self, key: int, num_positions: int) -> None:
        """Pages for the first `num_positions` positions. Raises OutOfPages, with nothing taken."""
        self._reserve(self._held[key], num_positions)

    def table(self, key: int) -> list[int]:
        """A request's pages, by position."""
        return self._held[key].pages

    def settle(self, key: int, sequence: Sequence) -> None:
        """After a forward: whole committed pages go to the tree, and a snapshot where one is due."""
        if not self._reuse:
            return
        held, cached = self._held[key], sequence.num_cached
        if cached - held.node.end >= PAGE_SIZE:
            settled = sequence.known[: cached // PAGE_SIZE * PAGE_SIZE]
            held.pages, held.node = self.tree.insert(settled, held.pages, held.node)
        if sequence.splits and cached >= sequence.splits[0]:
            due = sequence.splits.pop(0)
            assert self.snapshots is not None
            if due == cached == held.node.end and not self.tree.has_state(held.node):
                handle = self.snapshots.take()
                if handle is not None:
                    self.memory.store(handle, key)
                    self.tree.attach(held.node, handle)

    def release(self, key: int, has_no_numbers: bool = False) -> None:
        """Ends a request: what it alone holds is free. has_no_numbers: what it wrote may be NaN; the tree forgets it,
        so that no later request hits it, and it is cleared, as NaN would pass through the masks of whoever is next."""
        held = self._held.pop(key)
        spoilt = [page for page in held.pages if not self.pages.is_kept(page)] if has_no_numbers else []
        for page in held.pages:
            self.pages.release(page)
        self.memory.close(key)
        if has_no_numbers:
            self.memory.scrub([*spoilt, *self.tree.forget(held.node)])

    def check(self) -> None:
        """Asserts that every page and snapshot is accounted for. Costs as much as the whole cache: for tests."""
        self.tree.check({key: held.pages for key, held in self._held.items()})
        assert self.memory.num_open == len(self._held), "a request's states have leaked"
        stored = 0 if self.snapshots is None else len(self.snapshots)
        assert self.memory.num_snapshots == stored, "a snapshot's tensors have leaked"

    def _reserve(self, held: _Held, num_positions: int) -> None:
        more = -(-num_positions // PAGE_SIZE) - len(held.pages)
        if more > 0:
            held.pages += self.tree.take(more, held.pages[-1] if held.pages else None)
