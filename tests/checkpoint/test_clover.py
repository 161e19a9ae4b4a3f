"""Clover's files: Qwen3.5's mixture of experts under the public names, and four tensors more in each GDN layer."""

import json

import pytest
import tiny
import torch
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

from fourleaf.checkpoint.families import CLOVER, FAMILIES, ar_family
from fourleaf.checkpoint.files import load_model, save_model, write_json, write_tensors
from fourleaf.checkpoint.names import CLOVER_TENSORS, Layout
from fourleaf.checkpoint.shards import CONFIG, WEIGHTS, Shards
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import CheckpointError, ConfigError, RequestError
from fourleaf.model.config import ModelConfig
from fourleaf.model.state import State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work
from fourleaf.text.chat import ChatTemplate

BLOCKS = {"block_size": 32, "mask_token_id": 96, "coreset_top_p": 0.6, "coreset_min": 3}
SHAPES = tiny.FOUR | tiny.EXPERTS | {"vocab_size": 97} | BLOCKS
NAME = "model.layers.1.linear_attn.bd_softmax_history_c"


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    made = Transformer(ModelConfig(**SHAPES))
    with torch.no_grad():
        for tensor in made.parameters():
            tensor.add_(0.2 * torch.randn_like(tensor)).copy_(tensor.bfloat16())
    return made.eval()


@pytest.fixture(params=["fused", "each"])
def folder(request, model, tmp_path):
    layout = Layout(experts=request.param)
    save_model(model, tmp_path, torch.bfloat16, family=FAMILIES[CLOVER], layout=layout, shard_bytes=40_000)
    return tmp_path


def stored(folder) -> dict:
    shards = Shards(folder)
    return {name: shards.get(name) for name in shards.shapes}


def rewrite(folder, model, change) -> None:
    """The same checkpoint in one file, changed."""
    save_model(model, folder, family=FAMILIES[CLOVER])
    tensors = stored(folder)
    change(tensors)
    write_tensors(folder / WEIGHTS, {name: t.clone() for name, t in tensors.items()})


@torch.no_grad()
def canvas_logits(model) -> torch.Tensor:
    ids = torch.randint(0, 96, (40,), generator=torch.Generator().manual_seed(2))
    tokens = torch.cat((ids, torch.full((20,), 96)))
    state = State.empty(model.config)
    return model.head(model(Work(tokens, Segments([40]), [0], Segments([20]), [0], [40]), state)[0])


def test_a_folder_has_the_public_names(folder, model):
    raw = json.loads((folder / CONFIG).read_text())
    assert (raw["model_type"], raw["architectures"]) == ("clover_moe", ["CloverMoeModelLM"])
    assert (raw["block_size"], raw["mask_token_id"], raw["num_shared_experts"]) == (32, 96, 1)
    names = stored(folder)
    for layer in (0, 1, 2):
        assert {f"model.layers.{layer}.linear_attn.{name}" for name in CLOVER_TENSORS} <= names.keys()
    assert names["model.layers.0.linear_attn.conv_right_weight"].shape == (2 * 16 + 48, 3)


def test_it_loads_to_the_same_bits_and_denoises_alike(folder, model):
    loaded = load_model(folder)
    assert loaded.config.trunk == CLOVER
    assert all(torch.equal(t, dict(model.named_tensors())[name]) for name, t in loaded.named_tensors())
    assert torch.equal(canvas_logits(loaded), canvas_logits(model))


@torch.no_grad()
def test_its_ar_half_is_qwens_in_transformers(model, ids, logits, tmp_path):
    family = ar_family(model.config)
    assert family.model_type == "qwen3_5_moe_text"
    rewrite(tmp_path, model, lambda t: [t.pop(name) for name in list(t) if name.endswith(CLOVER_TENSORS)])
    write_json(tmp_path / CONFIG, family.raw(model.config))
    theirs = Qwen3_5MoeForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    wanted = theirs(input_ids=ids[None]).logits[0]
    torch.testing.assert_close(logits(model, ids, 40), wanted, rtol=0, atol=1e-4)


def test_without_the_four_tensors_it_is_an_ar_model_and_says_what_works(model, tmp_path, caplog, byte_tokenizer):
    rewrite(tmp_path, model, lambda t: [t.pop(name) for name in list(t) if name.endswith(CLOVER_TENSORS)])
    caplog.clear()
    loaded = load_model(tmp_path)
    (line,) = (record.getMessage() for record in caplog.records)
    assert "lacks the block diffusion tensors" in line
    assert "mode 'ar' works" in line
    assert not loaded.config.is_block_diffusion
    engine = Engine("half", loaded, byte_tokenizer, ChatTemplate("{{ messages[0].content }}", byte_tokenizer))
    engine.admit([1, 2], GenerateParams(mode="ar"))
    with pytest.raises(RequestError, match=r"half is an AR model.*mode 'ar' works.*fourleaf convert"):
        engine.admit([1, 2], GenerateParams(mode="diffuse"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NAME), rf"lacks {NAME}, expected with shape \(4,\)"),
        (lambda t: t.update({NAME: torch.ones(3)}), rf"{NAME} has shape \(3,\), expected \(4,\)"),
        (lambda t: t.update({NAME + "s": torch.ones(3)}), rf"holds {NAME}s \(1 in all\)"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change, message, model, tmp_path):
    rewrite(tmp_path, model, change)
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_shared_experts": 2}, "num_shared_experts is 2"),
        ({"block_size": None, "mask_token_id": None}, "lacks block_size and mask_token_id"),
        ({"mask_token_id": 97}, r"mask_token_id is 97; it must be in 0\.\.96"),
        ({"block_size": 0}, "block_size is 0"),
    ],
)
def test_settings_that_do_not_fit_are_named(changes, message, model, tmp_path):
    save_model(model, tmp_path, family=FAMILIES[CLOVER])
    raw = json.loads((tmp_path / CONFIG).read_text())
    write_json(tmp_path / CONFIG, raw | changes)
    with pytest.raises(ConfigError, match=message):
        load_model(tmp_path)
