import pytest

from fourleaf.engine.pages import PAGE_SIZE, OutOfPages, Pages, Snapshots
from fourleaf.engine.prefix import PrefixTree, snapshot_ends, snapshot_grid


class Cache(PrefixTree):
    """A tree that knows its runs, for the invariants."""

    def __init__(self, pages, snapshots, evict_ahead=0):
        super().__init__(pages, snapshots, evict_ahead)
        self.runs = []

    def check_runs(self):
        self.check({run: run.pages for run in self.runs})


def _tree(num_pages=32, num_snapshots=8):
    return Cache(Pages(num_pages), Snapshots(num_snapshots * 100, 100))


def _text(*words):
    """One page for each letter of each word, so that "abc" and "abd" fork at the end of the second page."""
    return [ord(letter) for word in words for letter in word for _ in range(PAGE_SIZE)]


class Run:
    """A request's use of the cache, without a model: what it holds, and the states that it leaves at page ends."""

    def __init__(self, tree, tokens):
        self.tree, self.tokens = tree, tokens
        self.match = tree.match(tokens)
        tree.record(self.match)
        self.pages = list(self.match.pages)
        num_pages = -(-len(tokens) // PAGE_SIZE)
        self.pages += tree.take(num_pages - len(self.pages), self.pages[-1] if self.pages else None)
        if self.match.snapshot is not None:
            tree.snapshots.release(self.match.snapshot)
        tree.runs.append(self)
        tree.check_runs()

    def settle(self, *ends):
        """Runs all rows; leaves snapshots at `ends`, in pages, and at the fork."""
        self.pages, self.node = self.tree.insert(self.tokens, self.pages, self.match.node)
        fork = [self.match.fork] if self.match.fork else []
        for end in [*(end * PAGE_SIZE for end in ends), *fork]:
            self.tree.attach(self.node.above(end), self.tree.snapshots.take())
        self.tree.check_runs()
        return self

    def end(self):
        for page in self.pages:
            self.tree.pages.release(page)
        self.tree.runs.remove(self)
        self.tree.check_runs()
        return self


def _hit(tree, tokens):
    """(tokens hit, tokens that attention would have hit, fork), and nothing stays held."""
    match = tree.match(tokens)
    tree.release(match)
    return match.num_hit, match.num_attention_hit, match.fork


def test_a_hit_is_the_deepest_page_with_a_snapshot():
    tree = _tree()
    Run(tree, _text("abcd")).settle(1, 3).end()
    assert _hit(tree, [*_text("abcd"), 0]) == (96, 128, 128)
    assert _hit(tree, _text("abx")) == (32, 64, 64)
    assert _hit(tree, _text("xbc")) == (0, 0, None)


def test_a_hit_gives_the_pages_and_the_snapshot_of_its_own_text():
    tree = _tree()
    first = Run(tree, _text("abc", "e")).settle(3)
    second = Run(tree, _text("xyz", "e")).settle(3)
    for run in (first, second):
        match = tree.match(run.tokens)
        assert match.pages == tuple(run.pages[:3])
        assert match.snapshot == run.node.above(96).snapshot
        assert match.node is run.node.above(96)
        tree.release(match)


def test_tokens_are_compared_and_not_only_their_hashes():
    tree = _tree()
    minus_one, minus_two = [-1] * PAGE_SIZE, [-2] * PAGE_SIZE
    assert hash(tuple(minus_one)) == hash(tuple(minus_two))
    Run(tree, minus_one).settle(1).end()
    assert _hit(tree, [*minus_two, 0]) == (0, 0, None)
    assert _hit(tree, [*minus_one, 0]) == (32, 32, None)


@pytest.mark.parametrize(
    ("length", "hit"), [(1, 0), (31, 0), (32, 0), (33, 32), (63, 32), (64, 32), (65, 64), (96, 64)]
)
def test_bug_kinds_3_and_22_a_hit_rounds_down_to_a_page_end_and_leaves_a_row_to_run(length, hit):
    tree = _tree()
    text = _text("abc")
    Run(tree, text).settle(1, 2, 3).end()
    assert _hit(tree, text[:length]) == (hit, hit, None)


def test_bug_kind_3_what_stands_behind_the_prompt_is_no_part_of_the_key():
    tree = _tree()
    padded = [5] * 40 + [99] * 24  # a prompt of 40 tokens, filled up with masks
    Run(tree, padded).settle(2).end()
    assert _hit(tree, padded[:40]) == (0, 32, 32)


def test_bug_kind_22_a_preempted_request_with_one_token_behind_a_page_goes_on_from_its_committed_tokens():
    tree = _tree(num_pages=4)
    run = Run(tree, [*_text("ab"), 7]).settle(2).end()
    again = Run(tree, run.tokens)
    assert (again.match.num_hit, len(again.pages)) == (64, 3)
    assert len(again.tokens) - again.match.num_hit == 1
    again.settle().end()


def test_bug_kind_4_asking_again_changes_neither_the_answer_nor_the_counters():
    tree = _tree()
    Run(tree, _text("abc")).settle(2).end()
    before = vars(tree.counters).copy()
    assert {_hit(tree, _text("abcd")) for _ in range(10)} == {(64, 96, 96)}
    assert vars(tree.counters) == before
    tree.check({})


def test_a_request_that_waits_and_asks_again_and_again_takes_no_memory():
    tree = _tree()
    Run(tree, _text("ab")).settle(1).end()
    for _ in range(1000):
        _hit(tree, [*_text("ab"), 0])
    assert len(tree._leaves) <= 64 + 2 * tree.num_nodes
    tree.check_runs()
    assert tree.evict(2) == 2


def test_bug_kind_12_an_aborted_request_gives_back_its_pages_by_ownership():
    tree = _tree(num_pages=8)
    run = Run(tree, _text("ab"))
    run.pages += tree.take(2, run.pages[-1])  # an unfinished block, past what prompt and answer came to
    run.settle()
    assert tree.pages.num_held == 4
    run.end()
    assert (tree.pages.num_free, tree.pages.num_idle) == (6, 2)


def test_a_request_cancelled_in_the_queue_leaves_no_snapshot_held():
    tree = _tree(num_snapshots=1)
    Run(tree, _text("ab")).settle(1).end()
    match = tree.match(_text("ab"))
    tree.check({0: match.pages}, [match.snapshot])
    assert tree.snapshots.take() is None
    tree.release(match)
    tree.check({})
    assert tree.snapshots.take() is not None


def test_bug_kinds_13_and_14_only_whole_settled_pages_enter():
    tree = _tree()
    pages = tree.take(4)
    settled = _text("ab")[:50]
    assert tree.insert(settled, pages).pages == pages
    assert [node.page for node in tree.nodes()] == pages[:1]
    tree.check({0: pages})
    for _ in range(3):  # passes on the block in flight settle nothing
        tree.insert(settled, pages)
    assert tree.counters.num_inserted_pages == 1
    assert _hit(tree, _text("ab")) == (0, 32, 32)


def test_pages_that_have_not_settled_are_refused():
    tree = _tree()
    pages = tree.take(1)
    with pytest.raises(AssertionError, match="1 pages for 64 settled tokens"):
        tree.insert(_text("ab"), pages)


def test_an_equal_page_is_shared_and_the_duplicate_is_free_again():
    tree = _tree(num_pages=8)
    first, second = Run(tree, _text("abc")), Run(tree, _text("abd"))
    first.settle()
    second.pages, _ = tree.insert(second.tokens, second.pages)
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]
    assert tree.counters.num_duplicate_pages == 2
    assert (tree.pages.num_free, tree.pages.num_held) == (4, 4)
    tree.check_runs()


def test_bug_kind_25_three_requests_and_a_fork():
    tree = _tree()
    Run(tree, _text("abcd")).settle(4).end()
    second = Run(tree, _text("abxy"))
    assert (second.match.num_hit, second.match.num_attention_hit, second.match.fork) == (0, 64, 64)
    assert tree.counters.num_stateless_tokens == 64
    second.settle().end()
    third = Run(tree, _text("abz"))
    assert (third.match.num_hit, third.match.fork) == (64, None)
    assert tree.counters.num_stateless_tokens == 64
    assert (tree.counters.num_lookups, tree.counters.num_hits, tree.counters.num_hit_tokens) == (3, 1, 64)


def test_bug_kind_25_the_same_prompt_again_hits_from_the_third_time_on():
    tree = _tree()
    forks = []
    for _ in range(3):
        run = Run(tree, _text("abc")).settle().end()
        forks.append((run.match.num_hit, run.match.fork))
    assert forks == [(0, None), (0, 64), (64, None)]


def test_bug_kind_25_a_state_lost_to_the_budget_is_counted_and_stored_again():
    tree = _tree(num_snapshots=1)
    Run(tree, _text("ab")).settle(1).end()
    Run(tree, _text("xy")).settle(1).end()
    assert _hit(tree, _text("ab")) == (0, 32, 32)
    assert tree.snapshots.num_evictions == 1
    Run(tree, _text("ab")).settle().end()
    assert _hit(tree, _text("ab")) == (32, 32, None)
    assert tree.num_nodes == 4


def test_bug_kind_24_a_snapshot_dies_with_its_page_and_its_handle_stands_for_nothing_else():
    freed: list[int] = []
    tree = Cache(Pages(2), Snapshots(1000, 100, freed.append))
    run = Run(tree, _text("ab")).settle(1, 2).end()
    handles = [node.snapshot for node in (run.node.above(32), run.node)]
    other = Run(tree, _text("xy")).settle(2)
    assert sorted(freed) == handles
    assert other.node.snapshot not in handles
    other.end()
    assert _hit(tree, [*_text("ab"), 0]) == (0, 0, None)


def test_a_second_snapshot_of_one_page_is_declined_and_freed():
    tree = _tree()
    run = Run(tree, _text("ab")).settle(2)
    first = run.node.snapshot
    second = tree.snapshots.take()
    assert not tree.attach(run.node, second)
    assert run.node.snapshot == first
    assert second not in tree.snapshots
    run.end()


def test_a_snapshot_cannot_be_attached_to_a_page_that_has_gone():
    tree = _tree(num_pages=1)
    run = Run(tree, _text("a")).settle().end()
    tree.evict(1)
    with pytest.raises(AssertionError):
        tree.attach(run.node, tree.snapshots.take())


def test_leaves_go_least_recently_used_first_and_parents_after_their_children():
    tree = _tree(num_pages=6)
    Run(tree, _text("ab")).settle().end()
    Run(tree, _text("ac")).settle().end()
    Run(tree, _text("x")).settle().end()
    _hit(tree, [*_text("ab"), 0])
    order = []
    while tree.num_nodes:
        before = {node: node.tokens for node in tree.nodes()}
        assert tree.evict(1) == 1
        (gone,) = set(before) - set(tree.nodes())
        order.append(chr(before[gone][0]))
        tree.check({})
    assert order == ["c", "x", "b", "a"]


def test_a_held_page_or_snapshot_is_never_evicted():
    tree = _tree(num_pages=4, num_snapshots=1)
    Run(tree, _text("abcd")).settle(2).end()
    match = tree.match(_text("abx"))
    assert tree.take(2) == [2, 3]
    with pytest.raises(OutOfPages, match="1 pages are wanted; 0 are free, 0 idle, and requests hold 4 of 4"):
        tree.take(1)
    assert tree.snapshots.take() is None
    assert match.snapshot in tree.snapshots
    for page in match.pages:
        tree.pages.release(page)
    assert tree.evict(2) == 0  # the leaf's snapshot is being read
    tree.snapshots.release(match.snapshot)
    assert tree.evict(2) == 2


def test_a_take_that_cannot_succeed_evicts_nothing():
    tree = _tree(num_pages=4)
    Run(tree, _text("ab")).settle().end()
    held = tree.take(1)
    with pytest.raises(OutOfPages):
        tree.take(4)
    assert tree.num_nodes == 2
    tree.check({0: held})


def test_eviction_ahead_leaves_a_growing_sequence_a_run_of_pages():
    tree = Cache(Pages(16), None, evict_ahead=8)
    Run(tree, _text("abcdefghijklmnop")).settle().end()
    sequence = tree.take(1)
    for _ in range(7):
        sequence += tree.take(1, after=sequence[-1])
    assert sequence == list(range(8, 16))
    tree.check({0: sequence})


@pytest.mark.parametrize("snapshots", [None, Snapshots(100, 0)])
def test_a_model_without_states_hits_as_deep_as_its_pages(snapshots):
    tree = Cache(Pages(8), snapshots)
    Run(tree, _text("abc")).settle().end()
    match = tree.match(_text("abx"))
    assert (match.num_hit, match.num_attention_hit, match.fork, match.snapshot) == (64, 64, None, None)
    tree.release(match)
    tree.check({})


def test_a_sequence_goes_on_from_its_node_without_looking_at_earlier_tokens():
    tree = _tree()
    run = Run(tree, _text("ab")).settle(2)
    run.pages += tree.take(1, run.pages[-1])
    tail = [None] * 64 + _text("c")
    pages, node = tree.insert(tail, run.pages, run.node)
    assert (pages, node.end, node.parent) == (run.pages, 96, run.node)
    assert _hit(tree, [*_text("abc"), 0]) == (64, 96, 96)


def test_a_node_whose_page_the_sequence_does_not_hold_is_refused():
    tree = _tree()
    first, second = Run(tree, _text("a")).settle(), Run(tree, _text("bc"))
    with pytest.raises(AssertionError, match="does not hold"):
        tree.insert(second.tokens, second.pages, first.node)


@pytest.mark.parametrize(
    ("page_bytes", "snapshot_bytes", "max_pages", "grid"),
    [
        (32_768, 170_000, 64, 16),  # the bundled model: a snapshot is 5 pages
        (100, 1600, 64, 16),
        (100, 1601, 64, 17),
        (655_360, 63_000_000, 8192, 97),  # 35B: 30 GDN layers in fp32 against 10 attention layers in 16 bits
        (655_360, 63_000_000, 32, 32),
        (100, 10**9, 4, 16),
        (0, 100, 64, 64),
        (100, 0, 64, 16),
    ],
)
def test_the_grid_is_as_wide_as_a_snapshot_is_large(page_bytes, snapshot_bytes, max_pages, grid):
    assert snapshot_grid(page_bytes, snapshot_bytes, max_pages) == grid


@pytest.mark.parametrize(
    ("start", "stop", "fork", "ends"),
    [
        (0, 511, None, []),
        (0, 512, None, [512]),
        (512, 1024, None, [1024]),
        (1, 1500, 96, [96, 512, 1024]),
        (0, 600, 512, [512]),
        (96, 600, 96, [512]),
        (0, 64, 96, []),
        (0, 96, 96, [96]),
        (100, 100, None, []),
    ],
)
def test_snapshots_are_left_on_the_grid_and_at_the_fork(start, stop, fork, ends):
    assert snapshot_ends(start, stop, 16, fork) == ends
