from fourleaf.engine.reach import Reach
from fourleaf.engine.request import GenerateParams

BLOCK = 32


def test_a_first_canvas_is_whole_and_later_ones_follow_the_rounds():
    reach = Reach(BLOCK)
    assert reach.rows == BLOCK
    seen = []
    for tokens in (20, 3, 3, 3):
        reach.add(tokens)
        seen.append(reach.rows)
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == 22
    assert seen[-1] == BLOCK // 4


def test_a_round_that_held_whole_is_followed_by_a_longer_one():
    reach = Reach(BLOCK)
    for _ in range(4):
        reach.add(2)
    short = reach.rows
    reach.add(short)
    assert short < reach.rows < BLOCK
    for _ in range(4):
        reach.add(reach.rows)
    assert reach.rows == BLOCK


def test_a_canvas_of_draft_is_never_longer_than_its_reach(random_engine):
    sequence = random_engine.admit(list(range(40, 60)), GenerateParams(mode="draft", max_tokens=60))
    rows = []
    need = sequence.need

    def noted(most):
        found = need(most)
        if found.canvas is not None:
            rows.append((len(found.canvas), sequence._reach.rows))
        return found

    sequence.need = noted
    random_engine.core.submit(sequence, lambda delta: None)
    while random_engine.core.step():
        pass
    assert len(rows) > 3
    assert all(canvas <= reach for canvas, reach in rows)
    assert min(canvas for canvas, _ in rows) < 8
