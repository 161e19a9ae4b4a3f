"""The script that averages checkpoints' weights."""

import json
import shutil

import pytest
import script
import torch
from safetensors.torch import load_file, save_file

from fourleaf.engine.engine import Engine, bundled_path


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / name for name in ("earlier", "later", "latest")]
    for i, folder in enumerate(made):
        shutil.copytree(bundled_path(), folder)
        weights = load_file(folder / "model.safetensors")
        save_file(
            {name: x + (i / 2 if x.ndim == 1 else 0) for name, x in weights.items()}, folder / "model.safetensors"
        )
    return made


def test_the_mean_lies_between_them_and_loads(folders, tmp_path):
    out = tmp_path / "out"
    script.load("average_weights").average(folders, [1, 1, 2], out)
    *each, mean = (load_file(folder / "model.safetensors") for folder in (*folders, out))
    for name, x in mean.items():
        first, second, third = (tensors[name].double() for tensors in each)
        torch.testing.assert_close(x.double(), (first + second + 2 * third) / 4, rtol=0.01, atol=1e-6)
        assert x.dtype == each[0][name].dtype
    assert Engine.load(out).model.config == Engine.load(folders[0]).model.config
    assert (out / "tokenizer.json").read_bytes() == (folders[0] / "tokenizer.json").read_bytes()


def test_of_itself_it_is_the_same_file(folders, tmp_path):
    script.load("average_weights").average(folders[:1] * 2, [1, 3], tmp_path / "out")
    first, second = (load_file(folder / "model.safetensors") for folder in (folders[0], tmp_path / "out"))
    assert first.keys() == second.keys()
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def test_another_shape_is_refused(folders, tmp_path):
    config = json.loads((folders[1] / "config.json").read_text())
    (folders[1] / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    with pytest.raises(ValueError, match="same config"):
        script.load("average_weights").average(folders, [1, 1, 1], tmp_path / "out")
