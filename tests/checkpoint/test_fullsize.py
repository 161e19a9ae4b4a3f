"""The full-size run, at a tiny size: everything happens, is measured, and is gone afterwards."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import script
import torch

from fourleaf.checkpoint import shards
from fourleaf.checkpoint.names import own_shapes
from fourleaf.checkpoint.plan import GIB, plan
from fourleaf.checkpoint.quantised import load_checkpoint
from fourleaf.measure.memory import settled
from fourleaf.quant.int4 import Int4Config, dequantise

TINY = ["--layers", "4", "--experts", "12", "--hidden", "32", "--vocab", "300", "--prompt", "40", "--times", "2"]

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured through /proc")


@pytest.fixture(scope="module")
def fullsize() -> ModuleType:
    """It counts from what is resident when it is loaded. What earlier tests left in the heap goes before: loading a
    checkpoint gives it back, and it is more than so small a model takes."""
    settled()
    return script.load("fullsize")


def test_a_run_measures_every_stage_and_leaves_nothing(fullsize, tmp_path, capsys):
    folder, out = tmp_path / "large", tmp_path / "found.json"
    assert fullsize.main(["--folder", str(folder), "--json", str(out), *TINY]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["found.json"]
    found = json.loads(out.read_text())
    stages = found["stages"]
    assert [name for name in stages if "coreset" not in name] == [
        "prefill", "first pass, all experts", "half revealed, all experts", "commit and pass, all experts", "commit",
        "ar step",
    ]  # fmt: skip
    assert stages["ar step"]["experts"] == 8
    assert stages["prefill"]["experts"] == 12
    assert 8 <= stages["half revealed, coreset 0.5"]["experts"] < stages["half revealed, all experts"]["experts"] <= 12
    assert all(stage["first_s"] > 0 and stage["memory"]["anonymous"] > 0 for stage in stages.values())
    assert found["anonymous_within_limit"]
    assert found["predicted"]["bytes"]["weights_in_files"]["total"] <= found["file_bytes"]
    assert set(found["break_even_tpf"]) == {"all experts", "coreset 0.5"}
    assert "break-even TPF" in capsys.readouterr().out


@pytest.mark.parametrize("symmetric", [True, False])
def test_what_is_written_is_a_quantised_checkpoint_of_that_shape(symmetric, fullsize, tmp_path):
    config, scheme = fullsize.clover(4, 8, 32, 300), Int4Config(group_size=32, symmetric=symmetric)
    fullsize.write(tmp_path / "made", config, scheme, 0)
    model = load_checkpoint(tmp_path / "made", torch.bfloat16)
    assert model.config == config
    asked = plan(tmp_path / "made", memory=None, context=64, batch=1)
    assert sum(asked.in_files.values()) == fullsize.size_of_files(config, scheme)
    experts = model.get_submodule("model.layers.0.mlp.experts")
    weight = dequantise(experts.gate_up)
    assert weight.shape == (8, 1024, 32)
    assert 0.9 < weight.std() * 32**0.5 < 1.1
    assert abs(weight.mean()) < 0.02


def test_the_default_shape_is_clovers(fullsize):
    config = fullsize.clover(40, 256, 2048, 248_320)
    assert config.layer_types.count("linear_attention") == 30
    assert (config.conv_dim, config.value_dim, config.rotary_dim) == (8192, 4096, 64)
    total = sum(torch.Size(shape).numel() for shape in own_shapes(config).values())
    assert 34.6e9 < total < 34.8e9  # 69.38 GB in bf16, says the public GGUF
    assert 15 * GIB < fullsize.size_of_files(config, Int4Config()) < 21 * GIB


def test_too_little_disk_is_said_before_the_first_byte(fullsize, tmp_path, monkeypatch, capsys):
    needed = fullsize.size_of_files(fullsize.clover(4, 12, 32, 300), Int4Config())
    monkeypatch.setattr(shards, "free_bytes", lambda path: int(1.19 * needed))
    monkeypatch.setattr(fullsize, "random_plain", lambda *given: pytest.fail("nothing may be written"))
    assert fullsize.main(["--folder", str(tmp_path / "large"), *TINY]) == 2
    assert "Free some space" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_leaves_nothing_and_a_folder_of_others_is_refused(fullsize, tmp_path, monkeypatch, capsys):
    def stop(*given, **more):
        assert (tmp_path / "large" / "config.json").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr(fullsize, "load_checkpoint", stop)
    with pytest.raises(KeyboardInterrupt):
        fullsize.main(["--folder", str(tmp_path / "large"), *TINY])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    assert fullsize.main(["--folder", str(tmp_path / "mine"), *TINY]) == 2
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "mine").is_dir()
