"""`fourleaf convert`: what changes, what does not, and what a fault leaves behind."""

import errno
import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from transformers import AutoModelForCausalLM

from fourleaf import cli
from fourleaf.checkpoint import convert as conversion
from fourleaf.checkpoint import proof
from fourleaf.checkpoint.convert import convert_folder, export_folder
from fourleaf.checkpoint.files import load_model, read_json, write_json
from fourleaf.checkpoint.folder import CheckpointFolder
from fourleaf.checkpoint.names import CLOVER_TENSORS
from fourleaf.checkpoint.proof import ar_logits
from fourleaf.checkpoint.shards import CONFIG, STAGE, Shards
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.model.deltanet import block_softmax_start
from fourleaf.model.state import State
from fourleaf.model.work import Segments, Work

KINDS = ["qwen3_5_text", "qwen3_5_text tied", "qwen3_next", "llama tied, scaled, biased", "qwen3_5_moe"]
CONVERTED = ("qwen3_5_text", "qwen3_next", "llama tied, scaled, biased")


def tensors(folder) -> dict:
    stored = Shards(folder)
    return {name: stored.get(name) for name in stored.shapes}


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_the_clean_path_keeps_its_bits_and_gdn_layers_get_four_tensors(name, dtype, source, tmp_path, ids, logits):
    before, after = source(name, dtype), tmp_path / "after"
    done = convert_folder(before, after, block_size=16, shard_bytes=50_000)
    trunk, model = load_model(before), load_model(after)
    assert torch.equal(logits(model, ids, 40), logits(trunk, ids, 40))
    own, new = dict(trunk.named_tensors()), dict(model.named_tensors())
    assert all(torch.equal(new[key], tensor) for key, tensor in own.items())
    added = {key: new[key] for key in new.keys() - own.keys()}
    num_gdn = model.config.layer_types.count("linear_attention")
    assert done.num_new == len(added) == 4 * num_gdn
    start = block_softmax_start(model.config) if num_gdn else {}
    assert all(torch.equal(tensor, start[key.rpartition(".")[2]]) for key, tensor in added.items())
    assert done.mask is not None
    assert (model.config.block_size, model.config.mask_token_id) == (16, done.mask.id)
    assert model.config.trunk == trunk.config.trunk
    assert done.num_rows > 8


@pytest.mark.parametrize("name", KINDS)
def test_every_tensor_keeps_its_type_and_the_new_ones_are_fp32(name, source, tmp_path):
    convert_folder(source(name), tmp_path / "after")
    for key, tensor in tensors(tmp_path / "after").items():
        assert tensor.dtype == (torch.float32 if key.endswith(CLOVER_TENSORS) else torch.bfloat16), key


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_a_converted_model_denoises_as_it_would_train(name, source, tmp_path, ids):
    convert_folder(source(name), tmp_path / "after")
    model = load_model(tmp_path / "after")
    assert model.config.mask_token_id is not None
    tokens = torch.cat((ids[:20], torch.full((12,), model.config.mask_token_id)))
    work = Work(tokens, Segments([20]), [0], Segments([12]), [0], [20])
    served = model.head(model(work, State.empty(model.config))[0])
    with torch.enable_grad():
        trained = model.head(model(work)[0]).detach()
    assert torch.isfinite(served).all()
    torch.testing.assert_close(served, trained, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_what_reads_text_goes_along_as_it_is(name, source, tmp_path):
    before = source(name)
    write_json(before / "generation_config.json", {"eos_token_id": [3, 5], "temperature": 0.7})
    (before / "model.py").write_text("raise SystemExit")
    convert_folder(before, tmp_path / "after")
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "after" / file).read_bytes() == (before / file).read_bytes()
    assert not (tmp_path / "after" / "model.py").exists()
    assert load_model(tmp_path / "after").config.eos_token_id == (3, 5)


def test_a_template_inside_the_settings_comes_out_as_a_file(source, tmp_path):
    before = source("llama")
    template = (before / "chat_template.jinja").read_text()
    (before / "chat_template.jinja").unlink()
    write_json(before / "tokenizer_config.json", {"chat_template": template})
    convert_folder(before, tmp_path / "after")
    assert (tmp_path / "after" / "chat_template.jinja").read_text() == template


# Back to Hugging Face.


@pytest.mark.parametrize("name", CONVERTED)
@torch.no_grad()
def test_to_hf_gives_back_the_source(name, oracle, source, tmp_path, ids):
    before = source(name)
    convert_folder(before, tmp_path / "blocks")
    done = export_folder(tmp_path / "blocks", tmp_path / "back")
    assert done.architecture == read_json(before / CONFIG)["architectures"][0]
    assert done.num_dropped == (0 if "llama" in name else 12)
    found, wanted = tensors(tmp_path / "back"), tensors(before)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], tensor) and found[key].dtype == tensor.dtype for key, tensor in wanted.items())
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    wanted_logits = oracle(name, dtype=torch.bfloat16).model(input_ids=ids[None]).logits
    torch.testing.assert_close(theirs(input_ids=ids[None]).logits, wanted_logits, rtol=0, atol=1e-5)


def test_to_hf_of_a_wrapped_model_is_its_text_model(source, tmp_path, caplog):
    done = export_folder(source("qwen3_5_moe"), tmp_path / "text")
    assert done.architecture == "Qwen3_5MoeForCausalLM"
    assert "vision tensors left out" in caplog.text
    assert not any("visual" in name or "language_model" in name for name in tensors(tmp_path / "text"))
    _, report = AutoModelForCausalLM.from_pretrained(tmp_path / "text", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_a_trunk_of_no_known_architecture_is_named(shapes, tmp_path):
    from fourleaf.checkpoint.files import save_model
    from fourleaf.model.config import ModelConfig
    from fourleaf.model.transformer import Transformer

    save_model(Transformer(ModelConfig(**shapes, intermediate_size=24, qk_norm=False)), tmp_path / "odd")
    with pytest.raises(ConfigError, match=r"no Hugging Face architecture .* qk_norm False"):
        export_folder(tmp_path / "odd", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Faults.


@pytest.mark.parametrize("name", ["qwen3_5_text", "llama"])
def test_what_is_converted_already_is_refused(name, source, tmp_path):
    convert_folder(source(name), tmp_path / "after")
    with pytest.raises(ConfigError, match="already denoises blocks of 32"):
        convert_folder(tmp_path / "after", tmp_path / "twice")
    assert not (tmp_path / "twice").exists()


def test_quantised_weights_are_refused(source, tmp_path):
    before = source("llama")
    convert_folder(before, tmp_path / "after")
    raw = read_json(tmp_path / "after" / CONFIG)
    write_json(tmp_path / "after" / CONFIG, raw | {"quantization_config": {"quant_method": "fourleaf"}})
    with pytest.raises(ConfigError, match="holds quantised weights; name the folder that it was made from"):
        export_folder(tmp_path / "after", tmp_path / "out")


@pytest.mark.parametrize("write", [convert_folder, export_folder])
def test_a_checkpoint_is_not_converted_in_its_own_place(write, source):
    before = source("llama")
    kept = contents(before)
    with pytest.raises(ConfigError, match="holds a checkpoint already"):
        write(before, before)
    assert contents(before) == kept


def test_a_block_size_out_of_limits_is_named(source, tmp_path):
    with pytest.raises(ConfigError, match="block_size is 0; it must be at least 1"):
        convert_folder(source("llama"), tmp_path / "after", block_size=0)


def test_changed_weights_do_not_pass_the_proof(source, tmp_path, monkeypatch):
    """The proof can fail: one bit of one tensor is enough."""
    arrange = conversion.arrange

    def torn(own, stored):
        for name, tensor in arrange(own, stored):
            if name.endswith("layers.3.mlp.down_proj.weight"):
                tensor = tensor.clone()
                tensor[0, 0] += 0.5
            yield name, tensor

    monkeypatch.setattr(conversion, "arrange", torn)
    with pytest.raises(CheckpointError, match=r"ar logits of .* are not those of .*source; nothing is kept"):
        convert_folder(source("qwen3_5_text"), tmp_path / "after")
    assert not (tmp_path / "after").exists()


@pytest.mark.parametrize("name", KINDS)
def test_the_proof_computes_what_the_loaded_model_does(name, source, ids, logits):
    before = source(name, torch.float32)
    with CheckpointFolder(before) as opened:
        found = ar_logits(opened, ids)
    assert torch.equal(found, logits(load_model(before), ids, len(ids)))


def test_the_proof_holds_one_layer_at_a_time(source, monkeypatch):
    """Counted by the values of matrices that are alive when a layer is filled."""
    import weakref

    fill, alive, most = proof._fill, [], []

    def counted(part, prefix, *rest):
        fill(part, prefix, *rest)
        alive.extend((prefix, weakref.ref(tensor)) for tensor in part.parameters())
        most.append({prefix for prefix, ref in alive if ref() is not None and ".layers." in prefix})

    monkeypatch.setattr(proof, "_fill", counted)
    with CheckpointFolder(source("qwen3_next")) as opened:
        ar_logits(opened, torch.arange(5))
    assert most == [set()] * 3 + [{f"model.layers.{i}"} for i in range(4)]


@pytest.mark.parametrize("what", ["save_file", "copyfile"])
def test_a_full_disk_is_named_and_nothing_is_left(what, source, tmp_path, monkeypatch):
    before = source("llama")
    kept = contents(before)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    target = "fourleaf.checkpoint.disk.save_file" if what == "save_file" else "shutil.copyfile"
    monkeypatch.setattr(target, full)
    with pytest.raises(CheckpointError, match=r"no space left to write .*after.*MB free"):
        convert_folder(before, tmp_path / "after")
    assert not (tmp_path / "after").exists()
    assert contents(before) == kept


KILL = """
    import os, pathlib, sys
    from fourleaf.checkpoint import disk
    from fourleaf.checkpoint.convert import convert_folder

    source, target, at, count = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), 0, 0

    def noted(call):
        def run(*args, **kwargs):
            global count
            if count == at:
                os.kill(os.getpid(), 9)
            count += 1
            return call(*args, **kwargs)
        return run

    disk.save_file = noted(disk.save_file)
    pathlib.Path.replace, pathlib.Path.rename = noted(pathlib.Path.replace), noted(pathlib.Path.rename)
    while True:
        child = os.fork()
        if child == 0:
            convert_folder(source, target / str(at), shard_bytes=80_000)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status == 0:
            break
        assert os.WIFSIGNALED(status), status
        at += 1
    print(at)
"""


@pytest.mark.skipif(os.name != "posix", reason="fork and kill of POSIX systems")
def test_a_kill_at_any_write_leaves_the_source_whole_and_nothing_to_load(source, tmp_path):
    """One process forks a child for each point in turn, which kills itself there, until one comes through."""
    before = source("qwen3_5_text")
    kept = contents(before)
    script = textwrap.dedent(KILL)
    run = [sys.executable, "-c", script, str(before), str(tmp_path / "after")]
    out = subprocess.run(run, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    num_points = int(out.stdout)
    assert num_points > 12
    assert contents(before) == kept
    for at in range(num_points):
        assert (tmp_path / "after" / str(at) / STAGE).exists()
        with pytest.raises(ConfigError, match=r"there is no .*config\.json"):
            load_model(tmp_path / "after" / str(at))
    whole = contents(tmp_path / "after" / str(num_points))
    assert STAGE not in whole
    for at in (0, num_points // 2, num_points - 1):
        convert_folder(before, tmp_path / "after" / str(at), shard_bytes=80_000)
        assert contents(tmp_path / "after" / str(at)) == whole, "a later run begins anew and comes to the same"


def test_json_is_written_as_configs_are_read(source, tmp_path):
    convert_folder(source("qwen3_5_text"), tmp_path / "after")
    raw = json.loads((tmp_path / "after" / CONFIG).read_text())
    assert (raw["model_type"], raw["trunk"], raw["block_size"]) == ("clover", "qwen3_5_text", 32)


def run(capsys, *words) -> list[str]:
    """What the command prints."""
    with pytest.raises(SystemExit) as ended:
        cli.app(["convert", *map(str, words)])
    out = capsys.readouterr()
    assert (ended.value.code == 2) == bool(out.err), out.err
    return (out.err or out.out).splitlines()


def test_the_command_says_what_it_did(source, tmp_path, capsys):
    before, after, back = source("qwen3_next"), tmp_path / "after", tmp_path / "back"
    assert run(capsys, before, after, "--block-size", 16) == [
        f"{after}: blocks of 16, 12 new tensors",
        "mask token: '<|vision_start|>', id 93 (a special token for images and sound that the checkpoint's other files "
        "do not use)",
        "ar logits of 12 rows: the same bits before and after",
    ]
    assert run(capsys, after, back, "--to", "hf") == [
        f"{back}: Qwen3NextForCausalLM, 12 block diffusion tensors left out",
        "ar logits of 12 rows: the same bits before and after",
    ]
    (line,) = run(capsys, after, tmp_path / "twice")
    assert line == "fourleaf: the model already denoises blocks of 16; nothing to convert"
