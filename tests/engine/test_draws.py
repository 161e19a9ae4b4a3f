"""Requests whose rows are chosen at once get what each would choose alone."""

from dataclasses import replace

import torch
from asking import Client, alone, remade

from fourleaf.diffusion.policy import Noise
from fourleaf.diffusion.sampling import Sampling, adjust, choose
from fourleaf.engine import core as core_module
from fourleaf.engine.draws import Draw, draw_together
from fourleaf.engine.request import GenerateParams

SETTINGS = (Sampling(), Sampling(temperature=1.3, top_p=0.9, logit_bias=((3, 2.0),)), Sampling(temperature=0.7))


def company(num: int = 9) -> tuple[list[Draw], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    draws = [
        Draw(SETTINGS[i % 3], 5 if i % 2 else None, Noise(i, i % 4), list(range(i, 2 * i + 1)), i % 5)
        for i in range(num)
    ]
    return draws, [3 * torch.randn(len(one.positions), 40, generator=generator) for one in draws]


def test_rows_of_many_become_what_they_become_alone():
    draws, logits = company()
    found = draw_together([*draws, None], [*(rows.clone() for rows in logits), torch.zeros(0, 40)])
    assert found[-1] is None
    assert sum(one is not None for one in found) >= 6
    for one, rows, drawn in zip(draws, logits, found, strict=False):
        if drawn is not None:
            adjusted = adjust(rows.clone(), one.sampling, one.mask)
            wanted = choose(adjusted, one.sampling, one.positions, one.pass_index, one.noise)
            assert drawn.tokens == wanted[0]
            assert torch.tensor(drawn.confidence).allclose(torch.tensor(wanted[1]))
            assert torch.equal(drawn.adjusted, adjusted)


def test_who_shares_his_sampling_with_nobody_chooses_by_himself():
    draws, logits = company(3)
    assert draw_together(draws, logits) == [None] * 3


def test_rows_without_numbers_leave_their_company_to_choose_alone():
    draws, logits = company(4)
    alike = [replace(one, sampling=SETTINGS[1], mask=None) for one in draws]
    logits[2][:] = float("nan")
    assert draw_together(alike, logits) == [None] * 4


def test_what_fails_for_a_company_is_left_to_each_alone(monkeypatch):
    """There may be memory for each one's rows and not for all of them at once."""
    draws, logits = company(6)
    alike = [replace(one, mask=None) for one in draws]
    assert all(draw_together(alike, logits))

    def small(rows):
        raise torch.OutOfMemoryError("no memory for a copy of all rows")

    monkeypatch.setattr(torch, "cat", small)
    assert draw_together(alike, logits) == [None] * 6


def test_answers_of_requests_that_draw_together_are_those_of_each_alone(random_engine, monkeypatch):
    engine, shared = remade(random_engine), []

    def counted(draws, logits):
        found = draw_together(draws, logits)
        shared.append(sum(one is not None for one in found))
        return found

    monkeypatch.setattr(core_module, "draw_together", counted)
    prompt = list(range(40, 60))
    asked = [
        GenerateParams(mode=mode, temperature=t, seed=seed, max_tokens=20, logprobs=1 if seed else None)
        for mode in ("ar", "draft", "diffuse")
        for t in (0.0, 1.0)
        for seed in (0, 1)
    ]
    clients = [Client(engine, engine.core, prompt, params) for params in asked]
    while engine.core.step():
        pass
    assert max(shared) > 2
    for client, params in zip(clients, asked, strict=True):
        assert client.answer == alone(random_engine, prompt, params)
