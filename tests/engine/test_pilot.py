"""What `auto` learns from a request is what its rounds and blocks came to."""

from collections import Counter
from itertools import pairwise

import pytest
from asking import remade

from fourleaf.engine.cost import CostTable
from fourleaf.engine.request import GenerateParams

CHEAP, DEAR = ((1, 1.0), (512, 40.0)), ((1, 100.0), (512, 100.0))


@pytest.mark.parametrize("prompt", [[40] * 20, list(range(40, 60))], ids=["one word", "many"])
def test_what_is_told_of_rounds_are_the_tokens_that_they_decided(random_engine, prompt):
    """And not the token before the first one, which came with the prefill: as much as such text decides in a round."""
    engine, told = remade(random_engine), []
    fleet = engine._fleet
    # By which a cold start tries `draft`.
    fleet.table = CostTable({"step": CHEAP, "pass": CHEAP, "fused": DEAR, "verify": CHEAP})
    add = fleet.everyone.add

    def noted(outcome, choice):
        told.append(outcome)
        add(outcome, choice)

    fleet.everyone.add = noted
    *_, last = engine.generate(prompt, GenerateParams(mode="auto", max_tokens=60))
    assert last.usage is not None
    rounds = [outcome.tokens for outcome in told if outcome.mode == "draft"]
    modes = last.usage.modes
    assert (modes[0], modes[-1]) == ("draft", "ar"), "the case must begin with rounds, and have all of them told"
    assert len(rounds) == last.usage.blocks > 0
    assert sum(rounds) == last.usage.stood + len(rounds)


def test_a_pass_that_the_prefill_carries_and_one_behind_a_step_are_no_fused_forwards(random_engine):
    """`fused` stands for the commit of a block with a pass on the next: twice the rows of what the others cost."""
    engine, told, frames = remade(random_engine), [], []
    fleet = engine._fleet
    # By which a cold start tries `diffuse`.
    fleet.table = CostTable({"step": CHEAP, "pass": ((1, 0.4), (512, 0.6)), "fused": CHEAP, "verify": DEAR})
    fleet.everyone.add = lambda outcome, choice: told.append(outcome)
    params = GenerateParams(mode="auto", lossless=False, max_tokens=60, logit_bias=((engine.end_id, -100.0),))
    *_, last = engine.generate([40] * 20, params, frames.append)
    assert last.usage is not None
    modes = last.usage.modes
    assert modes[0] == "diffuse"
    assert {("diffuse", "diffuse"), ("ar", "diffuse")} & set(pairwise(modes)), "the case must come back to it"
    assert [outcome.mode for outcome in told] == list(modes[:-1])
    blocks = Counter(frame.block_index for frame in frames)
    canvases, before = 0, None
    for outcome in told:
        if outcome.mode == "diffuse":
            passes = blocks[canvases]
            assert outcome.fused == (before == "diffuse")
            assert outcome.passes == passes - (before in (None, "diffuse"))
            canvases += 1
        before = outcome.mode
