"""What a checkpoint will take: weights to the byte, states as the model makes them, advice that holds."""

import dataclasses
import inspect
import io
import json

import pytest
import torch

from fourleaf.checkpoint import footprint
from fourleaf.checkpoint.files import save_model
from fourleaf.checkpoint.footprint import part_of
from fourleaf.checkpoint.plan import GIB, amount, largest, main_plan, parse_bytes, plan, quantised
from fourleaf.checkpoint.quantised import quantise_checkpoint
from fourleaf.conversions import quantize
from fourleaf.engine import cache, pages, prefix, scheduler
from fourleaf.engine.cache import Cache
from fourleaf.engine.memory import Memory
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.kernels.delta import CHUNK
from fourleaf.model.config import ModelConfig
from fourleaf.model.state import State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work
from fourleaf.quant.int4 import Int4Config
from fourleaf.quant.linear import is_quantised

DENSE = {"intermediate_size": 24}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
}
KINDS = {
    "dense": DENSE,
    "tied": DENSE | {"tie_word_embeddings": True},
    "experts": EXPERTS | {"block_size": 8, "mask_token_id": 1},
    "attention alone": DENSE | {"layer_types": ("full_attention",) * 2},
}


def made(folder, shapes, *, dtype=None, **options) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**(shapes | {"max_position_embeddings": 2048} | options)))
    save_model(model, folder, dtype, shard_bytes=4000)
    return model


def planned(folder, **asked):
    return plan(folder, **({"memory": None, "context": 64, "batch": 1} | asked))


def bytes_in(folder) -> int:
    """Of the tensors in all files: each file without its header."""
    sizes = [p.read_bytes() for p in folder.glob("*.safetensors")]
    return sum(len(text) - 8 - int.from_bytes(text[:8], "little") for text in sizes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_the_bytes_in_the_files(kind, dtype, shapes, tmp_path):
    model = made(tmp_path, shapes, dtype=dtype, **KINDS[kind])
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    found = planned(tmp_path)
    assert sum(found.in_files.values()) == bytes_in(tmp_path)
    for part, size in found.in_files.items():
        assert size == sum(t.numel() for name, t in model.named_tensors() if part_of(name) == part) * dtype.itemsize
    assert ("head" in found.in_files) != model.config.tie_word_embeddings
    assert ("experts" in found.in_files) == bool(model.config.num_experts)
    assert "left out" not in found.in_files


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_files_the_config_gives_the_same(kind, shapes, tmp_path):
    made(tmp_path, shapes, dtype=torch.bfloat16, **KINDS[kind])
    whole = planned(tmp_path)
    for file in [*tmp_path.glob("*.safetensors"), *tmp_path.glob("*.index.json")]:
        file.unlink()
    alone = planned(tmp_path)
    assert not alone.has_files
    assert alone.in_files == whole.in_files
    assert alone.held() == whole.held()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_quantised_weights_are_the_bytes_in_the_files(kind, symmetric, shapes, tmp_path):
    model = made(tmp_path / "whole", shapes, **KINDS[kind])
    small = tmp_path / "small"
    quantise_checkpoint(tmp_path / "whole", small, Int4Config(group_size=32, symmetric=symmetric))
    found = planned(small)
    assert sum(found.in_files.values()) == bytes_in(small)
    assert found.mapped == bytes_in(small)
    assert found.footprint.weights.anonymous == 0  # fp32 here and there: nothing needs converting
    narrow = planned(small, dtype="bfloat16").footprint.weights
    assert narrow.anonymous == 2 * sum(t.numel() for n, t in model.named_tensors() if not is_quantised(n))
    assert narrow.mapped == found.mapped
    linears = sum(t.numel() for n, t in model.named_tensors() if is_quantised(n) and ".experts." not in n)
    assert narrow.copies == 2 * linears  # as small as these, they are unpacked
    assert narrow.sessions == 0


def test_larger_linears_are_copied_for_their_product_where_it_is_here(shapes, tmp_path, monkeypatch):
    wide = DENSE | {"intermediate_size": 10_000}
    made(tmp_path / "whole", shapes, **wide)
    quantise_checkpoint(tmp_path / "whole", tmp_path / "small", Int4Config(group_size=32))
    monkeypatch.setattr(footprint, "_has_runtime", lambda: True)
    here = planned(tmp_path / "small").footprint.weights
    monkeypatch.setattr(footprint, "_has_runtime", lambda: False)
    missing = planned(tmp_path / "small").footprint.weights
    assert (here.sessions, missing.sessions) == (2 * 3, 0)
    weights, groups = 3 * 2 * 16 * 10_000, 2 * (2 * 10_000 * 1 + 16 * 313)
    assert here.copies - missing.copies == weights // 2 + groups * 33 // 2


def test_plain_layers_are_counted_as_they_lie(shapes, tmp_path):
    made(tmp_path / "whole", shapes, dtype=torch.bfloat16, **DENSE)
    quantise_checkpoint(tmp_path / "whole", tmp_path / "small", Int4Config(plain_layers=1))
    found = planned(tmp_path / "small")
    assert found.mapped == bytes_in(tmp_path / "small")
    for file in (tmp_path / "small").glob("*.safetensors*"):
        file.unlink()
    assert planned(tmp_path / "small").mapped == found.mapped


@pytest.mark.parametrize("kind", KINDS)
def test_an_unquantised_model_holds_its_weights_and_joined_copies(kind, shapes, tmp_path):
    model = made(tmp_path, shapes, **KINDS[kind])
    weights = planned(tmp_path).footprint.weights
    assert weights.anonymous == sum(t.nbytes for _, t in model.named_tensors())
    assert weights.mapped == 0
    run(model, State.empty(model.config), 9)
    products = model.products()
    joined = [p for p in products if p.weight.is_contiguous()]
    blocked = [p for p in products if p.blocked is not None]
    assert weights.copies == sum(p.weight.nbytes for p in joined + blocked)


def run(model: Transformer, state: State, rows: int) -> None:
    with torch.inference_mode():
        model(Work(torch.arange(rows) % 20, Segments([rows]), list(state.lengths)), state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pages_and_states_are_those_that_the_engine_makes(kind, dtype, shapes, tmp_path):
    config = made(tmp_path, shapes, **KINDS[kind]).config
    memory = Memory(config, getattr(torch, dtype), num_pages=3)
    pools = [pool for layer in memory._attention if layer is not None for pool in (layer.keys, layer.values)]
    memory.open(0)
    states = sum(part.nbytes for layer in memory._alone[0] for part in layer)
    for context, num in ((5, 1), (32, 1), (33, 2), (96, 3)):
        held = planned(tmp_path, context=context, dtype=dtype).held()
        assert held["keys and values, in pages"] == num * sum(pool.nbytes for pool in pools) // 3
        assert held["states and convolution tails"] == states
    found = planned(tmp_path, context=33, batch=5, dtype=dtype).held()
    assert found["keys and values, in pages"] == 5 * 2 * sum(pool.nbytes for pool in pools) // 3
    assert found["states and convolution tails"] == 5 * states


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [0, 1 << 16, 1 << 20, 100 << 20])
def test_what_is_kept_is_what_a_full_cache_of_the_engine_has(kind, budget, shapes, tmp_path):
    config = made(tmp_path, shapes, **KINDS[kind]).config
    made_by_engine = Cache(config, torch.float32, budget)
    page, state = Memory.page_bytes(config, torch.float32), Memory.state_bytes(config, torch.float32)
    snapshots = 0 if made_by_engine.snapshots is None else made_by_engine.snapshots.capacity
    found = planned(tmp_path, context=70, batch=2, cache=budget)
    assert found.kept == (made_by_engine.num_pages - 2 * 3) * page + snapshots * state
    assert found.footprint.grid() == made_by_engine.grid
    busy = planned(tmp_path, context=2048, batch=9, cache=0)
    assert busy.kept == state, "more pages run than the least cache has: nothing is kept but one snapshot"


def test_the_plan_and_the_engine_have_the_same_numbers():
    assert footprint.PAGE_SIZE == pages.PAGE_SIZE
    assert footprint.FORWARD_ROWS == scheduler.MAX_ROWS
    assert (footprint.CACHE_BYTES, footprint.SNAPSHOT_SHARE) == (cache.DEFAULT_CACHE_BYTES, cache.SNAPSHOT_SHARE)
    assert footprint.LEAST_GRID == prefix.MIN_GRID


def test_the_workspace_grows_by_the_row_and_never_with_what_is_narrower(shapes, tmp_path):
    model = made(tmp_path, shapes, **KINDS["experts"])
    of = planned(tmp_path).footprint
    # Rows of a prefill, all but the block of 8, in front of rotary tables of 1,024 positions that all have.
    each = (of.workspace(504, 1) - of.workspace(248, 1)) / 256
    assert each > 0
    assert of.workspace(248, 1) - of.workspace(120, 1) == pytest.approx(128 * each, abs=2)
    # Two more sequences: their rows, keys and values out of their pages, and their states as they were.
    numbers = 2 * model.config.num_key_value_heads * model.config.head_dim * 4
    copied = footprint.ALLOCATOR * (3 * 128 * numbers)
    more = 2 * 128 * each + copied + 2 * of.recurrent()
    assert of.workspace(136, 3) - of.workspace(136, 1) == pytest.approx(more, abs=2)
    assert of.workspace(520, 1) - of.workspace(504, 1) == pytest.approx(16 * each, abs=2), "512 rows of a prompt of 512"
    assert of.workspace(521, 1) - of.workspace(520, 1) == of._masks(521, 1), "and no more"
    # Longer prompts take several forwards, whose rows see keys of earlier ones by a mask.
    assert of.workspace(1024, 1) - of.workspace(521, 1) == 2 * 512 * 503 * (1 + 4)
    # So do several that fill more than one forward together; the shorter rows are filled up.
    assert (of._masks(508, 1), of._masks(264, 2)) == (0, 0)
    assert of._masks(508, 2) == (512 + 500) * 508 * (1 + 4)
    linear = dataclasses.replace(model.config, layer_types=("linear_attention",) * 2)
    alone = dataclasses.replace(of, config=linear)
    assert (alone._masks(1024, 1), alone._gathered(1024, 3, 8)) == (0, 0)
    # A canvas reads one text in place and copies its keys to stand before its own; of several, twice.
    assert of._gathered(100, 1, 8) == 108 * numbers
    assert of._gathered(100, 3, 8) == 2 * 3 * 108 * numbers
    wide = dataclasses.replace(of, config=dataclasses.replace(model.config, linear_value_head_dim=64))
    assert wide.workspace(520, 1) > of.workspace(520, 1)
    shared = dataclasses.replace(of, config=dataclasses.replace(model.config, shared_expert_intermediate_size=9))
    assert shared.workspace(520, 1) == of.workspace(520, 1)
    assert CHUNK == 32  # the formula counts three squares of it


def test_advice_names_a_context_and_a_batch_that_fit_and_no_larger(shapes, tmp_path):
    made(tmp_path, shapes, **DENSE)
    limit = planned(tmp_path, context=1000, batch=2).total
    fits = planned(tmp_path, context=1000, batch=2, memory=limit)
    assert fits.verdict == "yes"
    assert "up to 2 sequences of 1,000 tokens fit" in fits.document()["advice"]
    tight = planned(tmp_path, context=1000, batch=3, memory=limit)
    assert tight.verdict == "no"
    said = " ".join(tight.document()["advice"])
    assert "smaller batch: 2 sequences of 1,000 tokens fit" in said
    context = largest(lambda n: planned(tmp_path, context=n, batch=3).total <= limit, 2048)
    assert 0 < context < 1000
    assert f"shorter context: {context:,} tokens fit" in said
    assert planned(tmp_path, context=context + 1, batch=3).total > limit
    assert "INT4" in said


def test_advice_means_what_quantize_does_unasked(shapes, tmp_path):
    made(tmp_path, shapes, **DENSE)
    unasked = {name: inspect.signature(quantize).parameters[name].default for name in ("group", "plain_layers")}
    scheme = quantised(planned(tmp_path)).footprint.scheme
    assert scheme is not None
    assert {"group": scheme.group_size, "plain_layers": scheme.plain_layers} == unasked


def test_advice_counts_the_layers_whose_experts_must_go(shapes, tmp_path):
    made(tmp_path, shapes, **(EXPERTS | {"num_experts": 64, "moe_intermediate_size": 64}))
    small = quantised(planned(tmp_path))
    each = small.footprint.experts()
    asked = planned(tmp_path, memory=small.total - each - each // 2)
    assert any("those of 2 of 2 layers" in line for line in asked.document()["advice"])
    hopeless = planned(tmp_path, memory=small.total - 3 * each)
    assert not any("offloading" in line for line in hopeless.document()["advice"])


def test_mapped_weights_may_stay_on_disk(shapes, tmp_path):
    made(tmp_path / "whole", shapes, **KINDS["experts"])
    quantise_checkpoint(tmp_path / "whole", tmp_path / "small", Int4Config())
    found = planned(tmp_path / "small")
    asked = planned(tmp_path / "small", memory=found.anonymous + 1)
    assert asked.verdict == "from disk"
    assert "read from disk again" in asked.document()["advice"][-1]
    assert planned(tmp_path / "small", memory=found.anonymous - 1).verdict == "no"


def test_the_command_prints_gib_and_json(shapes, tmp_path):
    made(tmp_path, shapes, **DENSE)
    found = planned(tmp_path)
    out = io.StringIO()
    main_plan(tmp_path, memory="16GB", context=64, batch=1, dtype="float32", as_json=True, out=out)
    document = json.loads(out.getvalue())
    assert document["bytes"]["total"] == found.total == sum(document["bytes"]["held"].values())
    assert (document["memory"], document["fits"]) == (16_000_000_000, "yes")
    out = io.StringIO()
    main_plan(tmp_path, memory="16GB", context=64, batch=1, dtype="float32", as_json=False, out=out)
    assert "fits in 14.90 GiB" in out.getvalue()
    lines = out.getvalue().splitlines()
    assert f"  {'held, together':<36} {amount(found.anonymous):>14}" in lines
    assert f"1,000 tokens of a sequence: 32 pages of {amount(found.footprint.page())}, " in out.getvalue()
    assert any(line.startswith("a snapshot of all states: ") for line in lines)
    assert lines[-1].startswith("  up to "), "nothing is said of the cache where all of it fits"
    out = io.StringIO()
    tight = str(found.total + 1000)
    main_plan(tmp_path, memory=tight, context=64, batch=1, dtype="float32", as_json=False, out=out)
    assert "1,000 bytes are left for what is kept for later requests" in out.getvalue()


def test_amounts_are_written_in_the_unit_that_suits():
    assert [amount(n) for n in (0, 1000, 5 << 10, 3 << 20, GIB, 1500 * GIB)] == [
        "0 bytes", "1,000 bytes", "5.00 KiB", "3.00 MiB", "1.00 GiB", "1,500.00 GiB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GB", 16 * 10**9), ("24 GiB", 24 * GIB), ("1.5g", 15 * 10**8), ("512MiB", 512 << 20), ("1000", 1000)],
)
def test_sizes_are_read_as_they_are_written(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "16 gallons", "-1GB", "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="write it like 16GB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"context": 0}, "context is 0; the model takes 1 to 2048"),
        ({"context": 2049}, "context is 2049"),
        ({"batch": 0}, "batch is 0"),
        ({"dtype": "int3"}, "dtype is 'int3'"),
    ],
)
def test_what_is_out_of_limits_is_named(asked, message, shapes, tmp_path):
    made(tmp_path, shapes, **DENSE)
    with pytest.raises(ConfigError, match=message):
        planned(tmp_path, **asked)


def test_a_broken_file_is_named_before_anything_is_said(shapes, tmp_path):
    made(tmp_path, shapes, **DENSE)
    file = next(tmp_path.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=file.name):
        planned(tmp_path)
