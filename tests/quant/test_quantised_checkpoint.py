"""Quantised folders: complete, whole or absent, run by the engine, and refused by name where they are not ours."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fourleaf import cli
from fourleaf.checkpoint import disk, shards
from fourleaf.checkpoint.families import FAMILIES
from fourleaf.checkpoint.files import CONFIG, WEIGHTS, load_model, read_tensors, save_model, write_json, write_tensors
from fourleaf.checkpoint.names import Layout
from fourleaf.checkpoint.quantised import KEY, load_checkpoint, quantise_checkpoint
from fourleaf.checkpoint.shards import INDEX, SHARD_BYTES, Shards
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import CheckpointError, ConfigError, FourleafError
from fourleaf.measure.baseline import Baseline
from fourleaf.model.work import Segments, Work
from fourleaf.quant import backends
from fourleaf.quant.backends import plain
from fourleaf.quant.int4 import Int4Config, dequantise, quantise
from fourleaf.quant.linear import QuantLinear, is_quantised

KINDS = pytest.mark.parametrize(
    "options",
    [{}, {"moe": True}, {"tie_word_embeddings": True}, {"block_size": None, "mask_token_id": None}],
    ids=["dense", "experts", "tied", "trunk"],
)
COMPANIONS = {"tokenizer.json", "chat_template.jinja", "tools.json", "README.md"}


def digest(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def rewrite(folder: Path, **changes) -> None:
    config = json.loads((folder / CONFIG).read_text())
    write_json(folder / CONFIG, config | {KEY: config[KEY] | changes})


@pytest.fixture
def quantised_folder(tmp_path, checkpoint) -> Path:
    quantise_checkpoint(checkpoint(), tmp_path / "int4", Int4Config(group_size=32))
    return tmp_path / "int4"


@KINDS
@pytest.mark.parametrize("shard_bytes", [20_000, SHARD_BYTES], ids=["sharded", "one file"])
@torch.inference_mode()
def test_a_quantised_folder_is_the_source_with_rounded_matrices(shard_bytes, options, tmp_path, checkpoint):
    source, target = checkpoint(**options), tmp_path / "deep" / "int4"
    before, config = digest(source), Int4Config(group_size=32)
    sizes = quantise_checkpoint(source, target, config, shard_bytes=shard_bytes)
    assert digest(source) == before
    stored = Shards(target)
    weights = set(stored.files.values()) | ({INDEX} if shard_bytes < 1e6 else set())
    assert {file.name for file in target.iterdir()} == weights | COMPANIONS | {CONFIG}
    assert {name: digest(target)[name] for name in COMPANIONS} == {name: before[name] for name in COMPANIONS}
    assert (len(weights) > 2) == (shard_bytes < 1e6)
    assert list(target.parent.iterdir()) == [target]

    wanted = load_model(source)
    for name, tensor in wanted.named_tensors():
        if is_quantised(name):
            tensor.copy_(dequantise(quantise(tensor.bfloat16(), config)))
    wanted.refresh()
    found = load_checkpoint(target, choose=plain)
    assert found.config == wanted.config
    assert not found.training
    assert found.num_parameters == wanted.num_parameters == sizes.num_quantised + sizes.num_kept
    work = Work(torch.arange(20), Segments([20]), [0])
    truth = wanted.head(wanted(work)[0])
    for model in (found, load_checkpoint(target)):  # matrices this small are unpacked by choice
        torch.testing.assert_close(model.head(model(work)[0]), truth, rtol=0, atol=1e-4)
    assert sizes.bytes_before == sum(t.nbytes for t in read_tensors(source / WEIGHTS)[0].values())
    assert sizes.bytes_after == stored.num_bytes
    kept = {name: t for name, t in stored.dtypes.items() if not name.endswith((".packed", ".scales", ".zeros"))}
    assert set(kept.values()) == {torch.bfloat16}


@pytest.mark.parametrize("family", ["clover_moe", "qwen3_5_moe_text", "qwen3_next"])
@torch.inference_mode()
def test_a_folder_of_another_architecture_is_quantised_under_our_names(family, tmp_path, make_model):
    trunk = {} if family == "clover_moe" else {"block_size": None, "mask_token_id": None}
    model = make_model(moe=True, dtype=torch.float32, **trunk)
    save_model(model, tmp_path / "source", family=FAMILIES[family], layout=Layout(experts="each"))
    quantise_checkpoint(tmp_path / "source", tmp_path / "int4", Int4Config(group_size=32))
    for name, tensor in model.named_tensors():
        if is_quantised(name):
            tensor.copy_(dequantise(quantise(tensor, Int4Config(group_size=32))))
    model.refresh()
    found = load_checkpoint(tmp_path / "int4", choose=plain)
    work = Work(torch.arange(20), Segments([20]), [0])
    torch.testing.assert_close(found.head(found(work)[0]), model.head(model(work)[0]), rtol=0, atol=1e-4)


@torch.inference_mode()
def test_plain_layers_come_back_bit_for_bit(tmp_path, checkpoint):
    source, config = checkpoint(), Int4Config(group_size=32, plain_layers=1)
    sizes = quantise_checkpoint(source, tmp_path / "int4", config)
    wanted, found = load_model(source), load_checkpoint(tmp_path / "int4")
    kept = dict(found.named_tensors())
    first = {n: t for n, t in wanted.named_tensors() if n.startswith("model.layers.0.")}
    assert any(is_quantised(name) for name in first)
    assert all(torch.equal(kept[name], tensor) for name, tensor in first.items())
    assert sizes.num_quantised == sum(t.numel() for n, t in wanted.named_tensors() if is_quantised(n, 1))
    work = Work(torch.arange(20), Segments([20]), [0])
    every = load_checkpoint(quantise_all(source, tmp_path / "every"))
    truth, ours, theirs = (m.head(m(work)[0]) for m in (wanted, found, every))
    assert (ours - truth).abs().mean() < (theirs - truth).abs().mean()


def quantise_all(source: Path, target: Path) -> Path:
    quantise_checkpoint(source, target, Int4Config(group_size=32))
    return target


def test_the_configuration_says_how_it_was_quantised(tmp_path, checkpoint):
    source = checkpoint()
    raw = json.loads((source / CONFIG).read_text())
    config = Int4Config(group_size=128, symmetric=True, scale_dtype="bfloat16")
    quantise_checkpoint(source, tmp_path / "int4", config)
    assert json.loads((tmp_path / "int4" / CONFIG).read_text()) == raw | {KEY: config.to_dict()}


def test_a_folder_that_is_not_quantised_loads_as_ever(checkpoint):
    source = checkpoint()
    ours, theirs = load_checkpoint(source, torch.float64), load_model(source, torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


PACKED_OR_NOT = pytest.mark.parametrize("most_unpacked", [0, backends.MOST_UNPACKED], ids=["packed", "unpacked"])


@PACKED_OR_NOT
@pytest.mark.parametrize("mode", ["ar", "diffuse"])
def test_the_engine_runs_a_quantised_folder(mode, most_unpacked, quantised_folder, monkeypatch):
    monkeypatch.setattr(backends, "MOST_UNPACKED", most_unpacked)
    engine = Engine.load(quantised_folder)
    assert engine.model.is_replaced == (most_unpacked == 0)
    prompt = engine.chat.render([{"role": "user", "content": "hello"}])
    (found,) = engine.generate_many([prompt], GenerateParams(mode=mode, max_tokens=20))
    alone = [t for delta in engine.generate(prompt, GenerateParams(mode=mode, max_tokens=20)) for t in delta.tokens]
    assert found[0] == alone
    assert found[1].usage is not None
    assert found[1].usage.completion_tokens > 0


@torch.inference_mode()
def test_a_quantised_model_computes_in_bf16(tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr(backends, "MOST_UNPACKED", 0)
    quantise_checkpoint(checkpoint(moe=True), tmp_path / "int4", Int4Config())
    work = Work(torch.arange(2, 22), Segments([12]), [0], Segments([8]), [0], [12])
    narrow, wide = (load_checkpoint(tmp_path / "int4", dtype) for dtype in (torch.bfloat16, torch.float32))
    found, wanted = (m.head(m(work)[0]) for m in (narrow, wide))
    assert found.dtype == torch.bfloat16
    off = (found - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert float(off.median()) < 0.05, "but for rows that bf16 sends to other experts"


def test_the_transformers_baseline_wants_ordinary_weights(quantised_folder, monkeypatch):
    monkeypatch.setattr(backends, "MOST_UNPACKED", 0)
    with pytest.raises(ConfigError, match="this model's are packed; add --no-transformers"):
        Baseline(Engine.load(quantised_folder))


@pytest.fixture(scope="module", params=["rtn", "gptq"])
def bundled_quantised(request, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("bundled") / "int4"
    with pytest.raises(SystemExit) as ended:
        cli.app(["quantize", str(bundled_path()), str(target), "--scheme", request.param, "--examples", "4"])
    assert not ended.value.code
    return target


def test_the_command_says_what_became_of_the_weights(tmp_path, checkpoint, capsys):
    source, target = checkpoint(), tmp_path / "int4"
    with pytest.raises(SystemExit) as ended:
        cli.app(["quantize", str(source), str(target), "--symmetric", "--group", "32"])
    assert not ended.value.code
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"[\d,]+ weights in [45]\.\d\d bits each, [\d,]+ as they were", printed[0])
    sizes = [Shards(folder).num_bytes / 1e6 for folder in (source, target)]
    assert printed[1].startswith(f"{sizes[0]:,.1f} MB before, {sizes[1]:,.1f} MB after")
    assert printed[2] == str(target)
    config = Int4Config.from_dict(json.loads((target / CONFIG).read_text())[KEY])
    assert config == Int4Config(group_size=32, symmetric=True, plain_layers=1)


@PACKED_OR_NOT
def test_the_bundled_model_quantised_answers_in_both_modes(most_unpacked, bundled_quantised, monkeypatch):
    monkeypatch.setattr(backends, "MOST_UNPACKED", most_unpacked)
    sizes = [(folder / WEIGHTS).stat().st_size for folder in (bundled_quantised, bundled_path())]
    assert sizes[0] < 0.55 * sizes[1]  # embeddings, head and the first layer stay
    ours, theirs = (Engine.load(path) for path in (bundled_quantised, bundled_path()))
    said = ["open the sunroof", "call Sunniva", "set the temperature to 21 degrees"]
    prompts = [ours.chat.render([{"role": "user", "content": text}]) for text in said]
    for mode in ("ar", "diffuse"):
        params = GenerateParams(mode=mode, max_tokens=60)
        begins = [
            [engine.tokenizer.decode(ids)[:20] for ids, _ in engine.generate_many(prompts, params)]
            for engine in (ours, theirs)
        ]
        assert sum(a == b for a, b in zip(*begins, strict=True)) >= 2, begins


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from fourleaf.checkpoint import disk, quantised, shards
from fourleaf.quant.int4 import Int4Config

left = {calls}
real = {owner}.{function}
def stop(*words, **named):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return real(*words, **named)
{owner}.{function} = stop
quantised.quantise_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), Int4Config(), shard_bytes=20_000)
"""


@pytest.mark.parametrize(
    ("owner", "function", "calls"),
    [
        ("quantised", "quantise", 5),
        ("disk", "save_file", 2),
        ("shards", "write_json", 1),
        ("shards.ShardWriter", "publish", 0),
    ],
    ids=["while rounding", "while writing", "before its config", "before it is published"],
)
def test_a_kill_leaves_nothing_that_loads(owner, function, calls, tmp_path, checkpoint):
    source, target = checkpoint(), tmp_path / "int4"
    before = digest(source)
    program = KILLED_AT.format(owner=owner, function=function, calls=calls)
    done = subprocess.run([sys.executable, "-c", program, source, target], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert digest(source) == before
    assert list(target.iterdir()), "nothing was begun, so nothing was interrupted"
    with pytest.raises(FourleafError):
        load_checkpoint(target)
    quantise_checkpoint(source, target, Int4Config())  # what the killed run left is in nobody's way
    assert {file.name for file in target.iterdir()} == COMPANIONS | {CONFIG, WEIGHTS}
    load_checkpoint(target)


def test_an_error_in_the_middle_leaves_nothing(tmp_path, checkpoint, monkeypatch):
    source = checkpoint()

    def full(tensors, path, metadata=None) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "save_file", full)
    with pytest.raises(CheckpointError, match="no space left to write"):
        quantise_checkpoint(source, tmp_path / "int4", Int4Config())
    assert list(tmp_path.iterdir()) == [source]


def test_a_disk_that_is_too_small_is_named_before_the_first_byte(tmp_path, checkpoint, monkeypatch):
    source = checkpoint()
    sizes = quantise_checkpoint(source, tmp_path / "fits", Int4Config())
    for free, fits in ((sizes.bytes_after, True), (sizes.bytes_after - 1, False)):
        monkeypatch.setattr(shards, "free_bytes", lambda path, free=free: free)
        if fits:
            quantise_checkpoint(source, tmp_path / "just", Int4Config())
            continue
        with pytest.raises(CheckpointError, match="Free some space or write elsewhere"):
            quantise_checkpoint(source, tmp_path / "short", Int4Config())
        assert not (tmp_path / "short").exists()


def test_a_source_that_is_broken_or_quantised_is_refused(tmp_path, checkpoint, quantised_folder):
    target = tmp_path / "again"
    with pytest.raises(CheckpointError, match="quantised already; quantise the original"):
        quantise_checkpoint(quantised_folder, target, Int4Config())
    source = checkpoint("broken")
    tensors, _ = read_tensors(source / WEIGHTS)
    name = "model.layers.2.mlp.down_proj.weight"
    for change, message in (
        ({name: tensors[name][:, :-1]}, rf"{name} has shape \(40, 70\), expected \(40, 71\)"),
        ({name: tensors[name] * torch.inf}, rf"{name}: a weight of magnitude (nan|inf) does not fit INT4"),
        ({"extra": torch.ones(2)}, r"holds extra \(1 in all\), unknown to its configuration"),
    ):
        write_tensors(source / WEIGHTS, tensors | change)
        with pytest.raises(CheckpointError, match=message):
            quantise_checkpoint(source, target, Int4Config())
    write_tensors(source / WEIGHTS, {n: t for n, t in tensors.items() if n != name})
    with pytest.raises(CheckpointError, match=rf"lacks {name}, expected with shape \(40, 71\)"):
        quantise_checkpoint(source, target, Int4Config())
    assert not target.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "gptq"}, "quant_method 'gptq'; this release of Fourleaf reads quant_method 'fourleaf'"),
        ({"scheme": "nf4"}, "scheme 'nf4'"),
        ({"version": 7}, "version 7"),
    ],
)
def test_an_unknown_quantisation_is_refused_by_name(changes, message, quantised_folder):
    rewrite(quantised_folder, **changes)
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(quantised_folder)


PACKED = "model.layers.0.mlp.gate_proj.weight.packed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(PACKED), rf"lacks {PACKED}, expected with shape \(71, 20\)"),
        (lambda t: t.update({PACKED: t[PACKED][1:]}), rf"{PACKED} has shape \(70, 20\), expected \(71, 20\)"),
        (lambda t: t.update({PACKED: t[PACKED].float()}), rf"{PACKED} is torch.float32, expected torch.uint8"),
        (lambda t: t.pop("model.norm.weight"), "lacks model.norm.weight"),
        (lambda t: t.update(stray=torch.ones(1)), "holds stray"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change, message, quantised_folder):
    tensors, _ = read_tensors(quantised_folder / WEIGHTS)
    change(tensors)
    write_tensors(quantised_folder / WEIGHTS, tensors)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(quantised_folder)


def test_a_scheme_that_the_file_does_not_hold_is_refused(quantised_folder):
    rewrite(quantised_folder, symmetric=True)
    with pytest.raises(CheckpointError, match=r"zeros .*unknown to its configuration"):
        load_checkpoint(quantised_folder)
    rewrite(quantised_folder, symmetric=False, group_size=64)
    with pytest.raises(CheckpointError, match=r"scales has shape"):
        load_checkpoint(quantised_folder)


def test_packed_weights_stay_in_the_file(quantised_folder):
    """Mapped, not read: memory that the system may take back at any time."""
    load_checkpoint(quantised_folder)
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        pytest.skip("only Linux says what is mapped")
    model = load_checkpoint(quantised_folder, choose=plain)
    mapped = [line for line in maps.read_text().splitlines() if line.endswith(os.fspath(quantised_folder / WEIGHTS))]
    assert mapped
    linear = model.get_submodule("model.layers.0.mlp.gate_proj")
    assert isinstance(linear, QuantLinear)
    address = linear.packed.values.data_ptr()
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in mapped]
    assert any(low <= address < high for low, high in ranges)
