"""What `auto` learns from a request is what its rounds came to."""

import pytest
from test_auto import TABLE
from test_batching import remade

from fourleaf.engine.request import GenerateParams


@pytest.mark.parametrize("prompt", [[40] * 20, list(range(40, 60))], ids=["one word", "many"])
def test_what_is_told_of_rounds_are_the_tokens_that_they_decided(random_engine, prompt):
    """And not the token before the first one, which came with the prefill: as much as such text decides in a round."""
    engine, told = remade(random_engine), []
    fleet = engine._fleet
    fleet.table = TABLE  # by which a cold start tries `draft`
    add = fleet.everyone.add

    def noted(outcome, choice):
        told.append(outcome)
        add(outcome, choice)

    fleet.everyone.add = noted
    *_, last = engine.generate(prompt, GenerateParams(mode="auto", max_tokens=60))
    rounds = [outcome.tokens for outcome in told if outcome.mode == "draft"]
    modes = last.usage.modes
    assert (modes[0], modes[-1]) == ("draft", "ar"), "the case must begin with rounds, and have all of them told"
    assert len(rounds) == last.usage.blocks > 0
    assert sum(rounds) == last.usage.stood + len(rounds)
