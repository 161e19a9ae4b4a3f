"""The script that says what an AR start buys: its scores are the objective's, its arms get the same compute."""

import numpy as np
import pytest
import script
import torch

from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.errors import FourleafError
from fourleaf.train.config import TrainConfig
from fourleaf.train.folder import RunFolder
from fourleaf.train.gradients import Counts, losses
from fourleaf.train.recipes import CABIN_NOISE


@pytest.fixture(scope="module")
def ar_start():
    return script.load("ar_start")


@pytest.fixture(scope="module")
def bundled():
    return Engine.load(bundled_path())


def test_scores_are_the_terms_of_the_objective(ar_start, bundled, collated, copies):
    documents = [next(copies(seed, 3)) for seed in range(5)]
    batch = collated(documents, np.random.default_rng(0))
    found = ar_start.scores(bundled.model, batch, bundled.mask_id)
    with torch.no_grad():
        terms = losses(bundled.model, batch, Counts.of([batch]), bundled.mask_id)
    assert {"next", "masked"} == set(terms)
    for name, term in terms.items():
        assert found[name] == pytest.approx(term.item(), abs=2e-5)


def test_scores_rise_with_what_a_model_knows(ar_start, bundled):
    score = ar_start.scorer(bundled.tokenizer, bundled.chat, num=6)
    trained = score(bundled.model, "joint", 0)
    assert trained == score(bundled.model, "joint", 0), "the same blocks every time"
    assert trained["next_right"] > 0.7
    assert trained["masked_right"] > 0.4
    torch.manual_seed(0)
    random = score(type(bundled.model)(bundled.model.config).eval(), "joint", 0)
    assert random["masked_right"] < 0.1
    assert random["masked"] > trained["masked"] + 1


def test_the_mask_is_never_counted_as_right(ar_start, bundled, collated, copies):
    batch = collated([next(copies(0, 3))], np.random.default_rng(0))
    model = type(bundled.model)(bundled.model.config).eval()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[bundled.mask_id] = 1.0
    batch.masked_target.fill_(bundled.mask_id)
    assert ar_start.scores(model, batch, bundled.mask_id)["masked_right"] == 0


@pytest.fixture
def budget(ar_start):
    return ar_start.Budget(3.0, {"ar": 6.0, "joint": 10.0})


def test_both_arms_have_the_recipe_and_the_same_compute(ar_start, budget):
    spent = []
    for arm in ar_start.ARMS:
        stages, steps = budget.stages(arm), budget.steps(arm)
        config = TrainConfig(stages=stages, steps=sum(steps))
        assert [config.stage_steps(i) for i in range(len(steps))] == steps
        assert stages[-1].objective == "joint"
        assert stages[-1].max_calls(1.0) == 2
        spent.append(budget.spent(arm, sum(steps)))
    assert spent == pytest.approx([3.0, 3.0], rel=0.01)
    first, second = ar_start.ARMS.values()
    assert first[0].objective == "ar"
    assert (first[-1].rows, first[-1].peak) == (second[-1].rows, second[-1].peak)


def test_an_evaluation_lies_at_the_compute_of_the_steps_before_it(ar_start, budget, tmp_path):
    run, arm = RunFolder(tmp_path), next(iter(ar_start.ARMS))
    for line in (
        {"step": 20, "seconds": 60.0},
        {"evaluation": "ar", "step": 200, "tokens": 1200, "next": 2.0, "next_right": 0.5},
        {"evaluation": "joint", "step": 300, "tokens": 2400, "next": 1.0, "next_right": 0.6, "masked": 3.0,
         "masked_right": 0.25},
    ):  # fmt: skip
        run.write(line)
    found = ar_start.curve(tmp_path, arm, budget)
    assert [line["tera"] for line in found] == [1.2, 2.0]  # 250 steps of ar at 6, then 50 of joint at 10
    printed = ar_start.lines({"an arm": found})
    assert [line.split() for line in printed[1:]] == [
        ["an", "arm:", "ar", "1.20", "200", "1,200", "2.0", "0.5"],
        ["an", "arm:", "joint", "2.00", "300", "2,400", "1.0", "0.6", "3.0", "0.25"],
    ]


def test_a_folder_keeps_its_budget(ar_start, bundled, tmp_path):
    (tmp_path / ar_start.PLAN).write_text('{"tera": 3.0, "cost": {"ar": 6.0, "joint": 10.0}}', encoding="utf-8")
    parts = bundled.tokenizer, bundled.chat
    assert ar_start.budget(tmp_path, 3.0, *parts).cost == {"ar": 6.0, "joint": 10.0}
    with pytest.raises(FourleafError, match="have 3 tera"):
        ar_start.budget(tmp_path, 4.0, *parts)


def test_the_steps_that_are_counted_have_the_recipes_rows(ar_start, bundled, monkeypatch):
    """As many noisy copies as a run reads, and no more rows than its batches hold."""
    collate, made = ar_start.collate, []

    def noted(documents, *, noise, **options):
        made.append((noise, collate(documents, noise=noise, **options)))
        return made[-1][1]

    monkeypatch.setattr(ar_start, "collate", noted)
    ar_start.cost(bundled.tokenizer, bundled.chat, ar_start.JOINT, num=1)
    ((noise, batch),) = made
    assert noise == CABIN_NOISE
    assert len(batch.work.tokens) < 1.2 * ar_start.JOINT.rows


def test_a_step_costs_three_times_the_products_of_its_rows(ar_start, bundled):
    """Forward, and twice that backward; two operations a weight and row, attention and the delta rule beside them."""
    counted = ar_start.cost(bundled.tokenizer, bundled.chat, ar_start.AR, num=1)
    weights = sum(p.numel() for name, p in bundled.model.named_parameters() if p.dim() == 2 and ".layers." in name)
    rows = ar_start.AR.rows
    assert 0.7 < counted * 1e9 / (6 * weights * rows) < 2.5
