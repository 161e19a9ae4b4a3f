"""What a step descends: no split of its documents changes it, and it reaches every tensor."""

import math
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from fourleaf.checkpoint.convert import BLOCK_SIZE, convert
from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.errors import ConfigError
from fourleaf.model.transformer import Transformer
from fourleaf.train.config import Stage
from fourleaf.train.data import Batch, Document
from fourleaf.train.gradients import Counts, losses, objective
from fourleaf.train.recipes import CABIN_STAGES, cabin_trunk
from fourleaf.train.trainer import Trainer
from fourleaf.train.workers import Workers

END, MASK = 0, 1
AR, JOINT = Stage(objective="ar", share=0.5), Stage(objective="joint", share=0.5)


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def terms_of(trainer: Trainer, batch: Batch) -> dict[str, Tensor]:
    """The objective's terms where this batch is the whole step."""
    return losses(trainer.model, batch, Counts.of([batch]), MASK)


def gradients(trainer: Trainer, stage: Stage, batches: list[Batch]) -> tuple[dict[str, float], list[Tensor]]:
    """(sums of the terms, gradients) of one step over micro-batches."""
    sums = Workers(trainer.model, MASK).gradients(batches, trainer._weights(stage))
    parameters = list(trainer.model.parameters())
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    trainer.model.zero_grad()
    return sums, found


@pytest.mark.parametrize("stage", [AR, JOINT], ids=["ar", "joint"])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_batch_is_the_sum_of_its_micro_batches_by_global_counts(
    size, stage, make_trainer, tmp_path, copies, collated
):
    """Packed or alone, in one step or accumulated: by global counts the same losses and the same gradient."""
    trainer = make_trainer(tmp_path)
    trainer._enter(stage)
    trainer.model.double()
    documents = list(islice(copies(0, 6), 7))
    settings = {"objective": stage.objective, "prompt_weight": 0.3}
    whole = collated(documents, random(), **settings)
    rng = random()  # noise is drawn document by document, so the micro-batches get the same
    parts = [collated(documents[i : i + size], rng, **settings) for i in range(0, len(documents), size)]
    assert Counts.of(parts) == Counts(whole.num_next, whole.num_masked, len(parts))
    assert (whole.num_masked > 0) == (stage is JOINT)
    ours, ours_grad = gradients(trainer, stage, parts)
    theirs, theirs_grad = gradients(trainer, stage, [whole])
    assert ours == pytest.approx(theirs, rel=0, abs=1e-12)
    assert set(ours) == ({"next"} if stage is AR else {"next", "masked"})
    for our, their in zip(ours_grad, theirs_grad, strict=True):
        torch.testing.assert_close(our, their, rtol=0, atol=1e-12)


def test_noisy_copies_are_further_noisy_batches_over_the_same_clean_rows(make_trainer, tmp_path, copies, collated):
    """Three copies at once: the same losses and gradient as three batches of one, for fewer rows."""
    trainer = make_trainer(tmp_path)
    trainer._enter(JOINT)
    trainer.model.double()
    documents = list(islice(copies(0, 6), 5))
    whole = collated(documents, random(), copies=3)
    rng = random()
    parts = [collated(documents, rng) for _ in range(3)]
    num_clean = whole.work.num_causal
    assert len(whole.work.tokens) == num_clean + sum(len(part.work.tokens) - num_clean for part in parts)
    assert whole.num_next == parts[0].num_next
    ours, ours_grad = gradients(trainer, JOINT, [whole])
    theirs, theirs_grad = gradients(trainer, JOINT, parts)
    assert ours == pytest.approx(theirs, rel=0, abs=1e-12)
    for our, their in zip(ours_grad, theirs_grad, strict=True):
        torch.testing.assert_close(our, their, rtol=0, atol=1e-12)
    for count in (0, -2):
        with pytest.raises(ConfigError, match=rf"copies is {count}"):
            NoiseConfig(copies=count)


def test_each_term_is_a_mean_over_what_it_predicts(make_trainer, tmp_path, collated):
    """A model that knows nothing pays ln of the ids it may choose from for each target."""
    trainer = make_trainer(tmp_path, next_weight=0.25)
    trainer._enter(JOINT)
    with torch.no_grad():
        trainer.model.model.norm.weight.fill_(-1.0)  # (1 + weight): every logit is 0
    documents = [Document(np.array([2, 5, 6, 7, END]), 2)]
    batch = collated(documents, random(), prompt_weight=0.3, shifted=0.0, full=1.0)
    terms = terms_of(trainer, batch)
    # The prompt's one target weighs 0.3, five rows of fill 0.1 each; the counts leave both out.
    assert terms["next"].item() == pytest.approx(math.log(16) * (3 + 0.3) / 3, rel=1e-5)
    assert terms["masked"].item() == pytest.approx(math.log(15) * (3 + 5 * 0.1) / 3, rel=1e-5)
    total = objective(terms, trainer._weights(JOINT)).item()
    assert total == pytest.approx(0.25 * terms["next"].item() + terms["masked"].item())
    assert objective({"next": terms["next"]}, trainer._weights(AR)).item() == terms["next"].item()


def test_experts_add_a_balance_term(make_trainer, tmp_path, copies, collated, tiny_trunk):
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    trunk = tiny_trunk(shared_expert_intermediate_size=8, intermediate_size=0, **experts)
    trainer = make_trainer(tmp_path, trunk=trunk)
    trainer._enter(JOINT)
    batch = collated(list(islice(copies(0, 6), 7)), random())
    terms = terms_of(trainer, batch)
    assert set(terms) == {"next", "masked", "balance"}
    assert terms["balance"].item() >= 2, "top-k, if all experts are used alike"
    weights = trainer._weights(JOINT)
    without = objective({name: terms[name] for name in ("next", "masked")}, weights)
    assert (objective(terms, weights) - without).item() == pytest.approx(0.01 * terms["balance"].item(), rel=1e-3)
    objective(terms, weights).backward()
    assert all(p.grad is not None and p.grad.any() for p in trainer.model.parameters())


CLOVER = ("conv_right_weight", "bd_softmax_logit_scale", "bd_softmax_history_bias", "bd_softmax_history_c")


@pytest.fixture(scope="module")
def cabin_gradients(make_trainer, tmp_path_factory, collated):
    """Gradients by name of one joint step of the bundled model's shapes, from where conversion leaves it."""

    def step(lengths: list[int], **noise) -> dict[str, Tensor]:
        trainer = make_trainer(tmp_path_factory.mktemp("cabin"), trunk=cabin_trunk())
        trainer.model = convert(trainer.model, block_size=BLOCK_SIZE, mask_token_id=MASK)
        rng = random()
        documents = [Document(np.array([*rng.integers(2, 1024, 10 + n - 1), END]), 10) for n in lengths]
        stage = CABIN_STAGES[-1]
        batch = collated(documents, rng, block_size=BLOCK_SIZE, **noise)
        objective(terms_of(trainer, batch), trainer._weights(stage)).backward()
        return {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}

    return step


def test_every_tensor_gets_a_gradient_from_the_recipes_noise(cabin_gradients):
    found = cabin_gradients([20, 30, 40, 50, 33, 12, 25, 60])
    whole = convert(Transformer(cabin_trunk()), block_size=BLOCK_SIZE, mask_token_id=MASK)
    names = [name for name, _ in whole.named_tensors()]
    assert set(found) == set(names)
    assert all(gradient.any() for gradient in found.values())
    clover = [name for name in names if name.endswith(CLOVER)]
    assert len(clover) == 4 * cabin_trunk().layer_types.count("linear_attention") > 0
    for name in clover:
        assert (found[name] != 0).all(), name


def test_whole_blocks_alone_would_leave_the_block_size_calibration_untrained(cabin_gradients):
    found = cabin_gradients([32, 64, 32], shifted=0.0)
    assert all(not g.any() for name, g in found.items() if name.endswith("history_c"))
    assert all(g.any() for name, g in found.items() if not name.endswith("history_c"))
