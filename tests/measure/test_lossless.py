from collections.abc import Iterator

import pytest
import torch

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import Delta, GenerateParams
from fourleaf.engine.score import score
from fourleaf.measure import equality
from fourleaf.measure.equality import Difference, Equality
from fourleaf.measure.workloads import workload

LENGTH = 20


@pytest.fixture(scope="module")
def engine(tiny, known_costs) -> Iterator[Engine]:
    before = torch.get_num_threads()
    yield Engine.load(tiny, num_threads=1)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def work(engine):
    return workload(engine, "patterns", 5, GenerateParams(max_tokens=LENGTH))


@pytest.mark.parametrize("name", ["patterns", "random"])
def test_drafting_is_lossless_on_every_workload(engine, name, monkeypatch):
    monkeypatch.setattr(equality, "BATCH", 3)
    seen = []
    work = workload(engine, name, 5, GenerateParams(max_tokens=LENGTH))
    found = equality.verify(engine, work, progress=lambda *at: seen.append(at))
    assert [one.arm for one in found] == ["draft", "auto"]
    assert [at[:2] for at in seen] == [(3, 5), (5, 5)]
    for one in found:
        assert one.is_lossless
        assert one.prompts == 5
        assert one.equal + one.ties == 5
        assert one.positions <= 5 * LENGTH
    if name == "random":  # where a logit bias forbids the end
        assert found[0].positions == 5 * LENGTH


def falsify(engine, work, monkeypatch, change):
    """The answers of `draft` go through `change(index, tokens)` before they are compared."""
    true = engine.generate_many

    def generate_many(prompts, params):
        answers = true(prompts, params)
        if params.mode == "draft":
            answers = [(change(i, tokens), last) for i, (tokens, last) in enumerate(answers)]
        return answers

    monkeypatch.setattr(engine, "generate_many", generate_many)
    return equality.verify(engine, work, arms=("draft",))[0]


def test_another_token_is_found_with_the_margin_of_a_plain_forward(engine, work, monkeypatch):
    found = falsify(engine, work, monkeypatch, lambda i, t: [*t[:4], (t[4] + 1) % 200, *t[5:]] if i == 2 else t)
    assert (found.equal, found.ties, found.is_lossless) == (4, 0, False)
    (one,) = found.differences
    assert (one.prompt, one.position) == (2, 4)
    ((tokens, _),) = engine.generate_many([work.prompts[2]], GenerateParams(mode="ar", max_tokens=LENGTH))
    assert one.ar == tokens[4]
    last = score(engine.model, [*work.prompts[2], *tokens[:4]], 4, engine.mask_id)[-1]
    assert last is not None
    best = [logprob for token, logprob in last.top if token != engine.mask_id]
    assert one.margin == pytest.approx(best[0] - best[1], rel=1e-4)
    assert "prompt 2, token 4" in "\n".join(equality.lines("patterns", [found]))


def test_an_answer_that_ends_early_is_a_difference(engine, work, monkeypatch):
    found = falsify(engine, work, monkeypatch, lambda i, t: t[:7] if i == 0 else t)
    (one,) = found.differences
    assert (one.position, one.other) == (7, None)
    assert one.ar is not None


def test_a_lost_end_token_is_a_difference(engine):
    found = Equality("draft")
    ended = equality._whole(engine, [5, 6], Delta((), "stop"))
    cut = equality._whole(engine, [5, 6], Delta((), "length"))
    equality._compare(engine, found, 0, [7, 8, 9], ended, cut, {engine.mask_id})
    (one,) = found.differences
    assert (one.position, one.ar, one.other) == (2, engine.end_id, None)


def test_near_ties_are_excused_up_to_a_thousandth_of_the_positions():
    tie = Difference(0, 3, equality.MARGIN / 2, 1, 2)
    assert Equality("draft", 10, 9, 1000, [tie]).is_lossless
    assert not Equality("draft", 10, 9, 999, [tie]).is_lossless
    assert not Equality("draft", 10, 9, 10**6, [Difference(0, 3, equality.MARGIN, 1, 2)]).is_lossless
