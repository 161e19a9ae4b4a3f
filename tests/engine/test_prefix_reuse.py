"""What later requests find of earlier ones: how few rows they run, and that they answer as if cold."""

from dataclasses import replace

import pytest
import torch

from fourleaf.engine.core import Core, Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.memory import Memory
from fourleaf.engine.request import GenerateParams
from fourleaf.model.transformer import Transformer

SHARED = [20 + (13 * i) % 150 for i in range(2_000)]
MODES = pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])


@pytest.fixture(scope="module")
def long_engine(random_engine) -> Engine:
    config = replace(random_engine.model.config, max_position_embeddings=4096)
    model = Transformer(config).to(torch.float64).eval()
    model.load_state_dict(random_engine.model.state_dict())
    return Engine("long", model, random_engine.tokenizer, random_engine.chat)


def run(engine: Engine, core: Core, prompt: list[int], params: GenerateParams) -> tuple[list[int], int, int]:
    """(tokens, rows of the prefill, tokens of the prompt that were cached)."""
    deltas: list = []
    sequence = engine.admit(prompt, params)
    core.submit(sequence, deltas.append)
    rows = 0
    while core.step():
        (part,) = core.last
        if part.need.causal and sequence.num_cached <= len(prompt) and not part.need.is_held:
            rows += len(part.need.causal)
    return [t for d in deltas for t in d.tokens], rows, deltas[-1].usage.cached_tokens


@MODES
def test_the_third_request_of_a_prefix_runs_its_suffix(long_engine, mode):
    """The second one discovers the fork and leaves a snapshot there; bug kinds 22, 24, 25, 26."""
    core = Core(long_engine.model, Limits(num_pages=256), checks=True)
    params = GenerateParams(mode=mode, max_tokens=12, threshold=0.3)
    found = []
    for i in range(4):
        suffix = [180 + i] * (9 + i)
        prompt = SHARED + suffix
        tokens, rows, cached = run(long_engine, core, prompt, params)
        cold, all_rows, none = run(long_engine, Core(long_engine.model, Limits(reuse=False)), prompt, params)
        assert (all_rows, none) == (len(prompt), 0)
        assert tokens == cold
        assert rows + cached == len(prompt)
        found.append((rows, len(suffix)))
    assert found[0][0] == 2_009, "nothing was there"
    assert found[1][0] < 2_010 - 1_500, "the grid's snapshot at 1,536"
    for rows, suffix in found[2:]:
        assert rows <= 32 + suffix
    counters = core.cache.tree.counters
    assert counters.num_stateless_tokens == 1_984 - 1_536
    assert core.cache.pages.num_held == 0


def test_a_snapshot_budget_of_one_still_answers_as_if_cold(long_engine):
    size = Memory.state_bytes(long_engine.model.config, torch.float64)
    core = Core(long_engine.model, Limits(cache_bytes=4 * size + 4), checks=True)
    assert core.cache.snapshots is not None
    assert core.cache.snapshots.capacity == 1
    params = GenerateParams(mode="ar", max_tokens=5)
    for i in range(5):
        prompt = SHARED[: 600 + 200 * (i % 2)] + [190 + i] * 5
        tokens, _, _ = run(long_engine, core, prompt, params)
        assert tokens == run(long_engine, Core(long_engine.model, Limits(reuse=False)), prompt, params)[0]


def test_two_that_start_together_share_pages_afterwards(long_engine):
    core = Core(long_engine.model, Limits(num_pages=256), checks=True)
    params = GenerateParams(mode="ar", max_tokens=3)
    answers: list[list] = [[], []]
    for answer in answers:
        core.submit(long_engine.admit(SHARED[:200], params), answer.append)
    while core.step():
        pass
    assert [d.tokens for d in answers[0]] == [d.tokens for d in answers[1]]
    assert core.cache.tree.counters.num_duplicate_pages == 6
    assert core.cache.pages.num_idle == 6
