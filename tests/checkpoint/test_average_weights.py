"""The script that averages two checkpoints' weights."""

import shutil

import pytest
import script
import torch
from safetensors.torch import load_file, save_file

from fourleaf.engine.engine import Engine, bundled_path


@pytest.fixture
def folders(tmp_path):
    for name in ("earlier", "later"):
        shutil.copytree(bundled_path(), tmp_path / name)
    weights = load_file(tmp_path / "later" / "model.safetensors")
    changed = {name: x + (0.5 if x.ndim == 1 else 0) for name, x in weights.items()}
    save_file(changed, tmp_path / "later" / "model.safetensors")
    return tmp_path / "earlier", tmp_path / "later", tmp_path / "out"


def test_the_mean_lies_between_the_two_and_loads(folders):
    earlier, later, out = folders
    script.load("average_weights").average(earlier, later, out, 0.25)
    first, second, mean = (load_file(folder / "model.safetensors") for folder in (earlier, later, out))
    for name, x in mean.items():
        expected = (0.75 * first[name].double() + 0.25 * second[name].double()).to(x.dtype)
        torch.testing.assert_close(x, expected, rtol=0.01, atol=0)
        assert x.dtype == second[name].dtype
    assert Engine.load(out).model.config == Engine.load(earlier).model.config


def test_other_shapes_are_refused(folders):
    earlier, later, out = folders
    weights = load_file(later / "model.safetensors")
    weights.pop(next(iter(weights)))
    save_file(weights, later / "model.safetensors")
    with pytest.raises(ValueError, match="same tensors"):
        script.load("average_weights").average(earlier, later, out, 0.5)
