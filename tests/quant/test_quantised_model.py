"""A model that runs from packed weights is the model with the weights that they mean, in every kind of forward."""

import pytest
import torch
from torch import Tensor

from fourleaf.model.state import State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work
from fourleaf.quant.int4 import Int4Config, Packed, quantise
from fourleaf.quant.linear import QuantExperts, QuantLinear, install, is_quantised

KINDS = pytest.mark.parametrize(
    "options",
    [{}, {"attention_bias": True}, {"moe": True}, {"moe": True, "coreset_top_p": 0.5}],
    ids=["dense", "biased", "experts", "coreset"],
)


def packed_of(model: Transformer, **options) -> dict[str, Packed]:
    config = Int4Config(**({"group_size": 32} | options))
    return {name: quantise(t, config) for name, t in model.named_tensors() if is_quantised(name)}


def draw(count: int, seed: int) -> Tensor:
    return torch.randint(2, 61, (count,), generator=torch.Generator().manual_seed(seed))


def test_plain_layers_keep_their_linears_and_pack_their_experts():
    for name, plain, packed in (
        ("model.layers.0.mlp.down_proj.weight", 1, False),
        ("model.layers.1.mlp.down_proj.weight", 1, True),
        ("model.layers.10.self_attn.q_proj.weight", 2, True),
        ("model.layers.0.mlp.experts.down_proj", 1, True),
        ("lm_head.weight", 0, False),
    ):
        assert is_quantised(name, plain) is packed


def test_what_is_quantised_is_the_matrices_of_the_layers_and_nothing_else(make_model):
    names = {name for moe in (False, True) for name, _ in make_model(moe=moe, attention_bias=True).named_tensors()}
    taken = {name for name in names if is_quantised(name)}
    parts = {name.split(".", 3)[-1] for name in taken if name.startswith("model.layers.")}
    assert parts == {
        *(f"self_attn.{p}_proj.weight" for p in "qkvo"),
        *(f"linear_attn.{p}.weight" for p in ("in_proj_qkv", "in_proj_z", "out_proj")),
        *(f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
        *(f"mlp.shared_expert.{p}_proj.weight" for p in ("gate", "up", "down")),
        "mlp.experts.gate_up_proj",
        "mlp.experts.down_proj",
    }
    kept = {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.gate.weight"}
    kept |= {f"model.layers.0.linear_attn.{p}" for p in ("in_proj_a.weight", "conv_right_weight", "A_log")}
    assert kept <= names - taken


@KINDS
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_training_rows_equal_those_of_the_dequantised_weights(
    symmetric, options, make_model, make_work, with_dequantised
):
    model, work = make_model(**options), make_work((30, 7), (19, 4), (25, 20))
    packed = packed_of(model, symmetric=symmetric)
    plain = with_dequantised(model, packed)
    unchanged = model(work)[0].detach()
    install(model, packed)
    with torch.no_grad():
        found = model(work)[0]
    torch.testing.assert_close(found, plain(work)[0], rtol=0, atol=1e-9)
    assert float((found - unchanged).detach().abs().max()) > 1e-3, "INT4 that changes nothing was not run"


@KINDS
@torch.inference_mode()
def test_decoding_equals_that_of_the_dequantised_weights(options, make_model, with_dequantised):
    """Prefill with a first pass, a pass alone, a fused commit, a single step: against the path that serving takes."""
    model = make_model(**options)
    packed = packed_of(model)
    plain = with_dequantised(model, packed)
    install(model, packed)
    states = [State.empty(model.config, 1, torch.float64) for _ in range(2)]
    shapes = [(11, 8), (0, 8), (8, 5), (1, 0)]
    at = 0
    for number, (causal, canvas) in enumerate(shapes):
        held = (Segments([canvas]), [0], [at + causal]) if canvas else ()
        work = Work(draw(causal + canvas, number), Segments([causal]), [at], *held)
        found, wanted = (m.head(m(work, s)[0]) for m, s in zip((model, plain), states, strict=True))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
        at += causal


@KINDS
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=str)
@torch.inference_mode()
def test_a_fused_forward_is_commit_then_pass(dtype, atol, options, make_model):
    model = make_model(**options, dtype=dtype)
    install(model, packed_of(model))
    state = State.empty(model.config, 2, dtype)
    model(Work(draw(17, 0), Segments([12, 5]), [0, 0]), state)
    singles = [state.clone() for _ in range(2)]
    commits, canvases = [draw(8, 1), draw(3, 2)], [draw(8, 3), draw(6, 4)]
    work = Work(torch.cat([*commits, *canvases]), Segments([8, 3]), [12, 5], Segments([8, 6]), [0, 1], [12 + 8, 5 + 3])
    fused = model.head(model(work, state)[0]).split([8, 3, 8, 6])
    for b, alone in enumerate(singles):
        lengths = [0, 0]
        lengths[b] = len(commits[b])
        committed = model.head(model(Work(commits[b], Segments(lengths), [12, 5]), alone)[0])
        held = Segments([len(canvases[b])]), [b], [alone.lengths[b]]
        passed = model.head(model(Work(canvases[b], Segments([0, 0]), list(alone.lengths), *held), alone)[0])
        torch.testing.assert_close(fused[b], committed, rtol=0, atol=atol)
        torch.testing.assert_close(fused[2 + b], passed, rtol=0, atol=atol)


def test_only_the_experts_that_a_row_uses_are_dequantised(make_model):
    model = make_model(moe=True)
    packed = packed_of(model)
    experts = QuantExperts(*(packed[f"model.layers.0.mlp.experts.{part}"] for part in ("gate_up_proj", "down_proj")))
    x, chosen = torch.randn(5, 40, dtype=torch.float64), torch.tensor([[4, 1], [1, 4], [4, 2], [2, 1], [1, 2]])
    weight = torch.rand(5, 2, dtype=torch.float64)
    experts.gate_up.scales[[0, 3, 5]] = float("nan")  # were one of them read, it would show
    found = experts(x, chosen, weight)
    assert experts.num_touched == 3
    assert bool(found.isfinite().all())


def test_parameters_are_counted_as_before(make_model):
    for moe in (False, True):
        model = make_model(moe=moe)
        before = model.num_parameters
        install(model, packed_of(model))
        assert model.num_parameters == before
        assert isinstance(model.get_submodule("model.layers.1.self_attn.q_proj"), QuantLinear)
        assert not any(p.requires_grad for p in model.parameters())
