"""The clean path is Qwen3.5's text model: same weights, same logits as `transformers` at every position."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5MoeTextConfig, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM, load_balancing_loss_func

from fourleaf.model.config import ModelConfig
from fourleaf.model.moe import balance_loss
from fourleaf.model.state import State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

LENGTH = 75
SHAPES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 24,
}


def oracle(*, moe: bool, spread: float, tied: bool = False) -> Qwen3_5ForCausalLM | Qwen3_5MoeForCausalLM:
    """`transformers`' model with random weights: norms, gates and decays too."""
    own = EXPERTS if moe else {"intermediate_size": 64}
    config = (Qwen3_5MoeTextConfig if moe else Qwen3_5TextConfig)(
        **SHAPES, **own, initializer_range=spread, tie_word_embeddings=tied
    )
    config._attn_implementation = "eager"
    if moe:
        config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = (Qwen3_5MoeForCausalLM if moe else Qwen3_5ForCausalLM)(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if any(part in name for part in ("norm", "gate.weight", "A_log", "dt_bias", "conv1d")):
                tensor.add_(0.3 * torch.randn_like(tensor))
    return model


def ours(model: Qwen3_5ForCausalLM | Qwen3_5MoeForCausalLM) -> Transformer:
    """Our model of the same config and weights. Loading is strict: every name is known and none is missing."""
    found = Transformer(ModelConfig.from_dict(model.config.to_dict())).to(model.lm_head.weight.dtype).eval()
    found.load_state_dict(model.state_dict())
    return found


def stepwise(model: Transformer, ids: Tensor, prefill: int) -> Tensor:
    """A prefill of `prefill` rows, then one row a forward. ids: [T] -> logits [T, Y]."""
    state = State.empty(model.config, dtype=model.lm_head.weight.dtype)
    parts = [ids[:prefill], *ids[prefill:, None]]
    logits, start = [], 0
    for part in parts:
        hidden, _ = model(Work(part, Segments([len(part)]), [start]), state)
        logits.append(model.head(hidden))
        start += len(part)
    return torch.cat(logits)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, SHAPES["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def widened(monkeypatch) -> Iterator[Callable[[], None]]:
    """Once called, code that asks for fp32 by name gets fp64: `transformers` without its inner casts."""

    def widen() -> None:
        monkeypatch.setattr(torch, "float32", torch.float64)
        monkeypatch.setattr(torch, "float", torch.float64)
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)

    yield widen
    monkeypatch.undo()


def trained(model: Transformer, ids: Tensor) -> Tensor:
    """Logits as training computes them, which is with gradients on. ids: [T] -> [T, Y]."""
    with torch.enable_grad():
        hidden, _ = model(Work(ids, Segments([len(ids)]), [0]))
        return model.head(hidden).detach()


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "experts"])
@torch.no_grad()
def test_every_logit_equals_transformers_in_fp32(moe, ids):
    theirs = oracle(moe=moe, spread=0.05)
    model = ours(theirs)
    wanted = theirs(input_ids=ids[None]).logits[0]
    assert wanted.abs().max() > 1
    torch.testing.assert_close(trained(model, ids), wanted, rtol=0, atol=1e-4)
    for prefill in (LENGTH, 40, 1):
        torch.testing.assert_close(stepwise(model, ids, prefill), wanted, rtol=0, atol=1e-4)


@torch.no_grad()
def test_steps_equal_transformers_steps(ids):
    theirs = oracle(moe=True, spread=0.05)
    found = stepwise(ours(theirs), ids, prefill=40)
    out = theirs(input_ids=ids[None, :40], use_cache=True)
    wanted = [out.logits[0]]
    for token in ids[40:]:
        out = theirs(input_ids=token.view(1, 1), cache=out.cache, use_cache=True)
        wanted.append(out.logits[0])
    torch.testing.assert_close(found, torch.cat(wanted), rtol=0, atol=1e-4)


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "experts"])
@torch.no_grad()
def test_every_logit_equals_transformers_without_its_casts_to_fp32(moe, ids, widened):
    """At weights four times as wide, where rounding to fp32 alone moves logits by 1e-3: true differences would show."""
    narrow = oracle(moe=moe, spread=0.2)
    model = ours(narrow.double())
    found = trained(model, ids), stepwise(model, ids, prefill=LENGTH), stepwise(model, ids, prefill=40)
    widened()
    theirs = type(narrow)(narrow.config).double().eval()  # anew, so that its rotary frequencies are fp64 too
    theirs.load_state_dict(narrow.state_dict())
    wanted = theirs(input_ids=ids[None]).logits[0]
    assert wanted.abs().max() > 4
    for logits in found:
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-10)


@torch.no_grad()
def test_tied_embeddings_load_and_give_the_same_logits(ids):
    theirs = oracle(moe=False, spread=0.05, tied=True)
    model = ours(theirs)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    hidden, _ = model(Work(ids, Segments([LENGTH]), [0]))
    torch.testing.assert_close(model.head(hidden), theirs(input_ids=ids[None]).logits[0], rtol=0, atol=1e-4)


def test_gradients_equal_transformers_in_fp32(ids):
    theirs = oracle(moe=True, spread=0.05)
    model = ours(theirs)
    for logits in (theirs(input_ids=ids[None]).logits[0], model.head(model(Work(ids, Segments([LENGTH]), [0]))[0])):
        torch.nn.functional.cross_entropy(logits[:-1], ids[1:]).backward()
    wanted = dict(theirs.named_parameters())
    for name, tensor in model.named_parameters():
        found, there = tensor.grad, wanted[name].grad
        assert found is not None
        assert there is not None
        assert (found - there).abs().max() < 1e-3 * there.abs().max(), name


def test_balance_loss_equals_transformers():
    logits = [torch.randn(rows, 7, generator=torch.Generator().manual_seed(rows)) * 2 for rows in (50, 50, 50)]
    wanted = load_balancing_loss_func(tuple(logits), num_experts=7, top_k=3)
    torch.testing.assert_close(balance_loss(logits, 3), wanted, rtol=1e-6, atol=0)
