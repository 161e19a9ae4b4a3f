"""The model against its slow twin: every row of [clean | noisy], the losses, and the gradient of every tensor."""

import pytest
import torch
from torch import Tensor

from fourleaf.diffusion.objective import cross_entropy_sum, masked_cross_entropy_sum
from fourleaf.kernels import reference
from fourleaf.kernels.rotary import Llama3Scaling
from fourleaf.model.moe import balance_loss
from fourleaf.model.transformer import Transformer
from fourleaf.train.data import Batch

MASK = 1
SHAPES = ((20, 10), (8, 6))


def twin_rows(twin, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """The twin's logits for all rows of a batch, in the batch's order, and its router logits by layer."""
    work = batch.work
    assert work.canvas is not None
    assert work.canvas_seq is not None
    assert work.canvas_start is not None
    clean = work.tokens[: work.num_causal].split(work.causal.lengths)
    noisy = work.tokens[work.num_causal :].split(work.canvas.lengths)
    causal, canvases, routers = [], {}, []
    for seq, ids in enumerate(clean):
        mine = [c for c, owner in enumerate(work.canvas_seq) if owner == seq]
        (first, *rest), logits = twin.run(ids.tolist(), [(work.canvas_start[c], noisy[c].tolist()) for c in mine])
        causal.append(first)
        canvases |= dict(zip(mine, rest, strict=True))
        routers.append(logits)
    rows = torch.cat([*causal, *(canvases[c] for c in range(len(noisy)))])
    return rows, [torch.cat(layer) for layer in zip(*routers, strict=True)]


def joint_loss(logits: Tensor, batch: Batch) -> Tensor:
    following = cross_entropy_sum(logits[batch.next_rows], batch.next_target, batch.next_weight)
    masked = masked_cross_entropy_sum(logits[batch.masked_rows], batch.masked_target, batch.masked_weight, MASK)
    return masked / batch.num_masked + 0.5 * following / batch.num_next


def model_rows(model: Transformer, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    hidden, routers = model(batch.work)
    return model.head(hidden), routers


CONFIGS = {
    "dense": {"moe": False},
    "experts": {},
    "coreset": {"coreset_top_p": 0.7},
    "coreset of at least 3": {"coreset_top_p": 0.4, "coreset_min": 3},
    "other choices": {"bd_readout_scale": "none", "bd_history_decay": "row", "bd_value_beta": "row"},
    "plain attention": {
        "moe": False,
        "layer_types": ("full_attention",) * 2,
        "num_hidden_layers": 2,
        "attn_output_gate": False,
        "qk_norm": False,
        "qkv_bias": True,
        "norm_weights": "plain",
        "partial_rotary_factor": 1.0,
        "rope_scaling": Llama3Scaling(4.0, 1.0, 4.0, 24),
    },
    "normed attention without a gate, biases everywhere": {
        "moe": False,
        "attn_output_gate": False,
        "attention_bias": True,
        "norm_weights": "plain",
    },
    "gated attention without norms": {"moe": False, "qk_norm": False},
}


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_every_gradient_equal_the_twins(options, make_model, make_twin, make_documents, joint_batch):
    model = make_model(**options)
    twin = make_twin(model)
    batch = joint_batch(make_documents(SHAPES), block_size=7, shifted=1.0)
    assert len(set(batch.work.canvas.lengths)) > 1

    logits, routers = model_rows(model, batch)
    wanted, wanted_routers = twin_rows(twin, batch)
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-9)

    loss, wanted_loss = joint_loss(logits, batch), joint_loss(wanted, batch)
    if routers:
        loss = loss + 0.3 * balance_loss(routers, 2)
        wanted_loss = wanted_loss + 0.3 * reference.balance_loss(torch.cat(wanted_routers), 2)
    model.zero_grad()
    loss.backward()
    wanted_loss.backward()
    names = dict(model.named_parameters())
    assert names.keys() == twin.tensors.keys()
    for name, tensor in names.items():
        assert tensor.grad.abs().max() > 0, name
        torch.testing.assert_close(
            tensor.grad, twin.tensors[name].grad, rtol=1e-9, atol=1e-9, msg=f"gradient of {name}"
        )


def test_only_canvases_shorter_than_a_block_train_history_c(make_model, make_documents, joint_batch):
    model = make_model()
    norms = {}
    for rows in (32, 31):
        batch = joint_batch(make_documents(((50, 10),)), block_size=rows)
        model.zero_grad()
        joint_loss(model_rows(model, batch)[0], batch).backward()
        norms[rows] = [float(t.grad.norm()) for name, t in model.named_parameters() if name.endswith("history_c")]
    assert len(norms[32]) == 3
    assert max(norms[32]) == 0
    assert min(norms[31]) > 0


@pytest.mark.parametrize(
    ("choice", "value"), [("bd_readout_scale", "none"), ("bd_history_decay", "row"), ("bd_value_beta", "row")]
)
def test_each_open_choice_changes_canvas_rows_and_no_clean_row(choice, value, make_model, make_documents, joint_batch):
    batch = joint_batch(make_documents(SHAPES), block_size=7)
    split = batch.work.num_causal
    with torch.no_grad():
        default, _ = model_rows(make_model(moe=False), batch)
        changed, _ = model_rows(make_model(moe=False, **{choice: value}), batch)
    assert torch.equal(default[:split], changed[:split])
    assert (default[split:] - changed[split:]).abs().amax(-1).min() > 1e-4


def test_a_coreset_changes_canvas_rows_and_no_clean_row(make_model, make_documents, joint_batch):
    batch = joint_batch(make_documents(SHAPES), block_size=7)
    split = batch.work.num_causal
    with torch.no_grad():
        free, _ = model_rows(make_model(), batch)
        limited, _ = model_rows(make_model(coreset_top_p=0.3), batch)
    # Clean rows share no product of experts with canvas rows but run in one call with them: not bit for bit.
    torch.testing.assert_close(free[:split], limited[:split], rtol=0, atol=1e-12)
    assert (free[split:] - limited[split:]).abs().max() > 1e-3
