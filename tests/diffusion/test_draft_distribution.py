"""Sampled drafts against the exact distribution of an AR model that is written down: every prefix has its logits."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from fourleaf.diffusion import draft
from fourleaf.diffusion.draft import Draws, accept
from fourleaf.diffusion.policy import Noise, Purpose
from fourleaf.diffusion.sampling import Sampling, adjust, draw, probabilities

MASK, END, SIZE = 3, 2, 4
LENGTH, START = 3, 20
SAMPLES = 800
SIGNIFICANCE = 1e-4


@cache
def ar_logits(prefix):
    """[SIZE] of the next token behind `prefix`."""
    index = 1 + sum((token + 1) * 10**i for i, token in enumerate(prefix))
    logits = 1.2 * torch.randn(SIZE, generator=torch.Generator().manual_seed(index), dtype=torch.float64)
    logits[MASK] = 3.0  # must not matter
    logits[END] -= 1.5
    return logits


def no_repeats(prefix):
    """A grammar: token 0 never follows token 0."""
    return torch.tensor([not prefix or prefix[-1] != 0, True, True, True])


@dataclass(frozen=True)
class Case:
    """sees: how many of the answer's tokens count for penalties; all of them where it is right."""

    sampling: Sampling
    grammar: bool = False
    is_drawn: bool = True
    has_q: bool = True
    sees: int = LENGTH

    @property
    def depends_on_prefix(self):
        return self.grammar or self.sampling.has_penalties


@cache
def adjusted_logits(case, prefix):
    """[1, SIZE] of the next token behind `prefix`."""
    counts = torch.bincount(torch.tensor(prefix[: case.sees], dtype=torch.long), minlength=SIZE)
    return adjust(
        ar_logits(prefix)[None].clone(), case.sampling, MASK, counts, no_repeats(prefix) if case.grammar else None
    )


@cache
def exact_p(case, prefix):
    return probabilities(adjusted_logits(case, prefix), case.sampling)


@cache
def drafter_q(case, prefix):
    """A bad drafter, as a canvas is: it knows the prefix alone, and its rows not of each other. -> [LENGTH, SIZE]"""
    raw = torch.stack([ar_logits((*prefix[-1:], i)).flip(0) for i in range(LENGTH)])
    counts = torch.bincount(torch.tensor(prefix, dtype=torch.long), minlength=SIZE)
    allowed = no_repeats(prefix) if case.grammar else None
    loose = replace(case.sampling, min_p=0.0, top_k=0)
    return probabilities(adjust(raw, case.sampling, MASK, counts, allowed), loose)


EVERYTHING = Sampling(
    temperature=1.3,
    top_p=0.97,
    top_k=3,
    min_p=0.02,
    presence_penalty=0.5,
    frequency_penalty=0.7,
    repetition_penalty=1.3,
    logit_bias=((1, 0.4),),
)
WARM = Sampling(temperature=1.0)
CASES = {
    "plain": Case(WARM),
    "cuts": Case(Sampling(temperature=0.8, top_p=0.9, logit_bias=((0, 0.5),))),
    "penalties": Case(EVERYTHING),
    "grammar": Case(WARM, grammar=True),
    "everything": Case(EVERYTHING, grammar=True),
    "greedy proposals": Case(WARM, is_drawn=False, has_q=False),
    "drawn proposals without their q": Case(WARM, has_q=False),
}


def exact(case):
    """Probability of every answer: at most LENGTH tokens, or up to the end token."""
    found: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 1.0}
    while open_:
        prefix, so_far = open_.popitem()
        for token, p in enumerate(exact_p(case, prefix)[0].tolist()):
            answer, joint = (*prefix, token), so_far * p
            if p > 0 and (token == END or len(answer) == LENGTH):
                found[answer] = joint
            elif p > 0:
                open_[answer] = joint
    assert abs(sum(found.values()) - 1) < 1e-12
    return found


def propose(case, prefix, noise, pass_index):
    """-> (proposals for all that is left of the answer, q)"""
    q = drafter_q(case, prefix)[: LENGTH - len(prefix)]
    if not case.is_drawn:
        return q.argmax(-1).tolist(), None
    positions = [START + len(prefix) + i for i in range(len(q))]
    proposals = draw(q, noise.keys(positions, pass_index, Purpose.PROPOSE)).tolist()
    return proposals, q if case.has_q else None


def drafted(case, seed):
    """One answer by rounds of drafting, as the engine makes them."""
    noise = Noise(seed)
    answer = (int(draw(exact_p(case, ()), noise.keys([START], 0, Purpose.PROPOSE))[0]),)
    pass_index = 1
    while answer[-1] != END and len(answer) < LENGTH:
        proposals, q = propose(case, answer, noise, pass_index)
        logits = torch.stack([ar_logits((*answer, *proposals[:i])) for i in range(len(proposals) + 1)])

        def row(i, raw, answer=answer, proposals=proposals):
            return adjusted_logits(case, (*answer, *proposals[:i]))[0]

        found = accept(
            logits,
            proposals,
            q,
            row if case.depends_on_prefix else None,
            case.sampling,
            start=START + len(answer),
            pass_index=pass_index + 1,
            noise=noise,
            mask_id=MASK,
            end_id=END,
        )
        answer = (*answer, *found.decided)[:LENGTH]
        pass_index += 2
    return answer


def chi_square_p(case, seeds, used=None):
    """How probable counts as far off as these are, if the answers had the exact distribution of `case`. Answers that
    are expected fewer than five times count as one. used: the case that the drafts follow, by default `case`."""
    wanted = exact(case)
    counts = {}
    for seed in seeds:
        answer = drafted(used or case, seed)
        assert answer in wanted, f"{answer} is impossible"
        counts[answer] = counts.get(answer, 0) + 1
    cells = [(counts.get(a, 0), len(seeds) * p) for a, p in wanted.items()]
    common = [cell for cell in cells if cell[1] >= 5]
    rare = [cell for cell in cells if cell[1] < 5]
    if rare:
        common.append((sum(c for c, _ in rare), sum(e for _, e in rare)))
    statistic = sum((count - expected) ** 2 / expected for count, expected in common)
    return torch.special.gammaincc(torch.tensor((len(common) - 1) / 2), torch.tensor(statistic / 2)).item()


@pytest.mark.parametrize("name", CASES)
def test_drafts_have_the_distribution_of_ar(name):
    found = chi_square_p(CASES[name], range(SAMPLES))
    print(f"{name}: p = {found:.3f}")
    assert found > SIGNIFICANCE


def test_drafts_have_the_distribution_of_ar_with_other_seeds():
    assert chi_square_p(CASES["plain"], range(SAMPLES, 3 * SAMPLES)) > SIGNIFICANCE


# The test must be able to fail: each of these is a rule that is wrong.


def test_drawing_what_fell_from_p_instead_of_the_residual_is_noticed(monkeypatch):
    monkeypatch.setattr(draft, "residual", lambda p, q: p)
    assert chi_square_p(CASES["plain"], range(SAMPLES)) < SIGNIFICANCE


def test_accepting_everything_that_is_possible_is_noticed(monkeypatch):
    monkeypatch.setattr(Draws, "stands", lambda self, row, p, q: p > 0)
    assert chi_square_p(CASES["plain"], range(SAMPLES)) < SIGNIFICANCE


def test_penalties_without_the_accepted_prefix_are_noticed():
    strong = Case(replace(EVERYTHING, presence_penalty=2.0, top_p=1.0, min_p=0.0))
    assert chi_square_p(strong, range(SAMPLES)) > SIGNIFICANCE
    assert chi_square_p(strong, range(SAMPLES), used=replace(strong, sees=1)) < SIGNIFICANCE
