"""Sampled `draft` through the whole engine has the distribution of `ar`, computed exactly from uncached forwards."""

from dataclasses import replace

import pytest
import torch

from fourleaf.diffusion.draft import Draws
from fourleaf.diffusion.sampling import Sampling, adjust, probabilities
from fourleaf.engine.core import Core
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

PROMPT = [40, 90, 60, 133]
LENGTH = 4  # the first token by `ar`, two proposals, and the one behind them
SAMPLES = 500
SIGNIFICANCE = 1e-4


# Three tokens at each place, for p and for q alike: most proposals are possible, and some of them stand.
BASE = GenerateParams(
    mode="draft", temperature=0.8, max_tokens=LENGTH, logit_bias=((40, 100.0), (77, 100.0), (140, 100.0))
)


@pytest.fixture(scope="module")
def flat_engine(random_engine) -> Engine:
    """Logits that differ by about one, so that every answer is likely enough to be counted."""
    model = Transformer(random_engine.model.config).to(torch.float64).eval()
    model.load_state_dict(random_engine.model.state_dict())
    with torch.no_grad():
        model.lm_head.weight.mul_(0.15)
    return Engine("flat", model, random_engine.tokenizer, random_engine.chat)


PENALTIES = {"frequency_penalty": 1.0, "repetition_penalty": 1.01}


@torch.inference_mode()
def next_p(engine: Engine, params: GenerateParams, answer: tuple[int, ...]) -> dict[int, float]:
    """What may follow, with its probability."""
    ids = torch.tensor([*PROMPT, *answer])
    hidden, _ = engine.model(Work(ids, Segments([len(ids)]), [0]))
    sampling = Sampling.of(params)
    counts = torch.bincount(ids[len(PROMPT) :], minlength=engine.model.config.vocab_size)
    found = probabilities(adjust(engine.model.head(hidden[-1:]), sampling, engine.mask_id, counts), sampling)[0]
    return {int(token): float(found[token]) for token in (found > 1e-12).nonzero()[:, 0]}


def exact(engine: Engine, params: GenerateParams) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        found = {
            (*answer, token): so_far * p
            for answer, so_far in found.items()
            for token, p in next_p(engine, params, answer).items()
        }
    assert sum(found.values()) == pytest.approx(1)
    return found


def answers(engine: Engine, params: GenerateParams) -> list[tuple[int, ...]]:
    """Of as many seeds, all in one core."""
    core = Core(engine.model)
    heard = [[] for _ in range(SAMPLES)]
    for seed, deltas in enumerate(heard):
        core.submit(engine.admit(PROMPT, replace(params, seed=seed)), deltas.append)
    while core.step():
        pass
    return [tuple(token for delta in deltas for token in delta.tokens) for deltas in heard]


def chi_square_p(found: list[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> float:
    """How probable counts as far off as these are. Answers expected fewer than five times count as one."""
    assert set(found) <= set(wanted)
    cells = [(found.count(answer), SAMPLES * p) for answer, p in wanted.items()]
    common = [cell for cell in cells if cell[1] >= 5]
    rare = [cell for cell in cells if cell[1] < 5]
    if rare:
        common.append((sum(count for count, _ in rare), sum(expected for _, expected in rare)))
    assert len(common) > 8, "too few kinds of answers to tell anything"
    statistic = sum((count - expected) ** 2 / expected for count, expected in common)
    return torch.special.gammaincc(torch.tensor((len(common) - 1) / 2), torch.tensor(statistic / 2)).item()


@pytest.mark.parametrize("fields", [{}, PENALTIES], ids=["plain", "penalties"])
def test_sampled_drafts_have_the_distribution_of_ar(flat_engine, fields):
    params = replace(BASE, **fields)
    assert chi_square_p(answers(flat_engine, params), exact(flat_engine, params)) > SIGNIFICANCE


def test_a_draft_that_keeps_what_it_should_not_is_noticed(flat_engine, monkeypatch):
    wanted = exact(flat_engine, BASE)
    monkeypatch.setattr(Draws, "stands", lambda self, row, p, q: p > 0)
    assert chi_square_p(answers(flat_engine, BASE), wanted) < SIGNIFICANCE
