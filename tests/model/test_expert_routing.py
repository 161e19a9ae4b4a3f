"""Coreset and balance loss: the rules by hand, against their plain twins, and where they hold."""

import pytest
import torch

from fourleaf.kernels import reference
from fourleaf.model.moe import balance_loss, coreset
from fourleaf.model.state import State
from fourleaf.model.work import Segments, Work


def kept(scores: list[list[float]], *, top_k: int, top_p: float, least: int) -> set[int]:
    """The coreset of one canvas, which both twins must agree on."""
    table = torch.tensor(scores, dtype=torch.float64)
    found = coreset(table, torch.zeros(len(scores), dtype=torch.long), 1, top_k, top_p, least)[0]
    plain = reference.coreset(table, top_k, top_p, least)
    assert set(found.nonzero()[:, 0].tolist()) == plain
    return plain


# Votes of the two rows with top-2: 0.5 + 0.5, 0.25, 0.25 of 1.5 in all: shares 2/3, 1/6, 1/6.
TWO_ROWS = [[0.5, 0.25, 0.125, 0.125], [0.5, 0.125, 0.25, 0.125]]


@pytest.mark.parametrize(
    ("top_p", "wanted"),
    [
        (0.1, {0}),  # the first one is always kept
        (0.6, {0}),
        (0.7, {0, 1}),  # 2/3 is short of 0.7: the expert that crosses it is kept
        (0.83, {0, 1}),
        (0.84, {0, 1, 2}),
        (1.0, {0, 1, 2}),  # the fourth has no vote: in no row's top-2
    ],
)
def test_experts_are_kept_until_their_share_reaches_top_p(top_p, wanted):
    assert kept(TWO_ROWS, top_k=2, top_p=top_p, least=1) == wanted


def test_a_share_that_meets_top_p_exactly_needs_no_further_expert():
    halves = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]
    assert kept(halves, top_k=1, top_p=0.5, least=1) == {0}


@pytest.mark.parametrize(("least", "wanted"), [(1, {0}), (2, {0, 1}), (3, {0, 1, 2}), (4, {0, 1, 2, 3})])
def test_never_fewer_experts_than_the_minimum(least, wanted):
    assert kept(TWO_ROWS, top_k=2, top_p=0.1, least=least) == wanted


def test_only_top_k_scores_vote():
    rows = [[0.4, 0.3, 0.3, 0.0], [0.3, 0.4, 0.3, 0.0]]  # expert 2 has 0.6 of all, but no first place
    assert kept(rows, top_k=1, top_p=1.0, least=1) == {0, 1}


@pytest.mark.parametrize("top_p", [0.2, 0.6, 0.9, 1.0])
def test_many_canvases_at_once_equal_the_plain_rule_on_each(top_p):
    lengths = [1, 7, 32, 5]
    scores = torch.softmax(2 * torch.randn(sum(lengths), 9, generator=torch.Generator().manual_seed(2)), -1).double()
    found = coreset(scores, Segments(lengths).owner, len(lengths), 3, top_p, 4)
    for mine, rows in zip(found, scores.split(lengths), strict=True):
        assert set(mine.nonzero()[:, 0].tolist()) == reference.coreset(rows, 3, top_p, 4)


def experts_run(model, work: Work, state: State | None = None) -> list[torch.Tensor]:
    """The experts that each row chose, by layer: [R, top-k] each."""
    chosen: list[torch.Tensor] = []
    hooks = [
        layer.mlp.experts.register_forward_hook(lambda _module, inputs, _out: chosen.append(inputs[1]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(work, state)
    for hook in hooks:
        hook.remove()
    return chosen


def test_canvas_rows_keep_to_one_coreset_and_clean_rows_do_not(make_model):
    model = make_model(num_experts=12, coreset_top_p=0.05, coreset_min=3)
    tokens = torch.randint(0, 61, (96,), generator=torch.Generator().manual_seed(1))
    work = Work(tokens, Segments([32]), [0], Segments([32, 32]), [0, 0], [32, 32])
    for chosen in experts_run(model, work):
        assert len(chosen[:32].unique()) > 3
        assert len(chosen[32:64].unique()) <= 3
        assert len(chosen[64:].unique()) <= 3
        assert all(len(set(row)) == 2 for row in chosen.tolist())


def test_a_canvas_has_its_coreset_whatever_shares_the_forward(make_model):
    model = make_model(num_experts=12, coreset_top_p=0.4)
    draws = torch.Generator().manual_seed(1)
    prompt, first, second = (torch.randint(0, 61, (n,), generator=draws) for n in (32, 32, 9))
    both = Work(torch.cat((prompt, first, second)), Segments([32]), [0], Segments([32, 9]), [0, 0], [32, 20])
    alone = Work(torch.cat((prompt, first)), Segments([32]), [0], Segments([32]), [0], [32])
    for together, single in zip(experts_run(model, both), experts_run(model, alone), strict=True):
        assert torch.equal(together[:64], single)


def test_clean_rows_alone_never_see_a_coreset(make_model):
    tokens = torch.randint(0, 61, (40,), generator=torch.Generator().manual_seed(1))
    work = Work(tokens, Segments([40]), [0])
    free, limited = make_model(), make_model(coreset_top_p=0.1)
    for wanted, found in zip(experts_run(free, work), experts_run(limited, work), strict=True):
        assert torch.equal(wanted, found)


def test_balance_loss_equals_its_plain_twin_with_gradients():
    logits = [torch.randn(n, 5, generator=torch.Generator().manual_seed(n)).double().requires_grad_() for n in (6, 9)]
    found, wanted = balance_loss(logits, 2), reference.balance_loss(torch.cat(logits), 2)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    for ours, theirs in zip(torch.autograd.grad(found, logits), torch.autograd.grad(wanted, logits), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_balance_loss_is_top_k_where_all_experts_are_alike():
    assert float(balance_loss([torch.zeros(8, 4)], 2)) == pytest.approx(2.0)
