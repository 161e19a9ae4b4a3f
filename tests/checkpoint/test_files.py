"""Checkpoint folders: what was written is read, half a file is never seen, faults are named."""

import json
import os
import stat

import pytest
import torch

from fourleaf.checkpoint import disk, files
from fourleaf.checkpoint.files import CONFIG, WEIGHTS, load_model, read_tensors, save_model, write_json, write_tensors
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

DENSE = {"intermediate_size": 24}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
}


@pytest.fixture
def model(shapes):
    """Makes a small block diffusion model."""

    def make(**options) -> Transformer:
        torch.manual_seed(0)
        return Transformer(ModelConfig(**(shapes | DENSE | {"block_size": 8, "mask_token_id": 1} | options)))

    return make


@pytest.fixture
def folder(tmp_path, model):
    save_model(model(), tmp_path)
    return tmp_path


@pytest.mark.parametrize("options", [{}, {"tie_word_embeddings": True}, EXPERTS], ids=["dense", "tied", "experts"])
def test_a_saved_model_is_loaded_bit_for_bit(options, tmp_path, model):
    saved = model(**options)
    save_model(saved, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == saved.config
    assert not loaded.training
    theirs = dict(saved.named_tensors())
    assert {name: t.shape for name, t in loaded.named_tensors()} == {name: t.shape for name, t in theirs.items()}
    assert all(torch.equal(t, theirs[name]) for name, t in loaded.named_tensors())
    stored, _ = read_tensors(tmp_path / WEIGHTS)
    assert ("lm_head.weight" in stored) != saved.config.tie_word_embeddings


def test_half_precision_in_the_file_is_full_precision_in_memory(tmp_path, model):
    saved = model()
    save_model(saved, tmp_path, torch.bfloat16)
    stored, _ = read_tensors(tmp_path / WEIGHTS)
    assert {t.dtype for t in stored.values()} == {torch.bfloat16}
    for dtype in (torch.float32, torch.float64):
        for name, tensor in load_model(tmp_path, dtype).named_tensors():
            assert tensor.dtype == dtype
            assert torch.equal(tensor, stored[name].to(dtype))


def rewrite(folder, change) -> None:
    tensors, _ = read_tensors(folder / WEIGHTS)
    change(tensors)
    write_tensors(folder / WEIGHTS, tensors)


NAME = "model.layers.0.linear_attn.bd_softmax_history_c"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NAME), rf"{WEIGHTS} lacks {NAME}, expected with shape \(2,\)"),
        (lambda t: t.update({NAME: torch.ones(3, 1)}), rf"{NAME} has shape \(3, 1\), expected \(2,\)"),
        (lambda t: t.update({"model.extra": torch.ones(1), "model.more": torch.ones(1)}), r"model\.extra \(2 in all\)"),
        (lambda t: t.clear(), "lacks model"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change, message, folder):
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message) as raised:
        load_model(folder)
    assert str(folder) in str(raised.value)


def test_a_model_that_a_file_does_not_fit_keeps_its_weights(folder, model):
    rewrite(folder, lambda t: t.update({NAME: torch.ones(3)}))
    other = model()
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.fill_(7.0)
    with pytest.raises(CheckpointError):
        files.fill_model(other, read_tensors(folder / WEIGHTS)[0], folder)
    assert all((tensor == 7).all() for tensor in other.parameters())


@pytest.mark.parametrize("keep", [0, 4, 50, -1])
def test_a_truncated_file_is_named(keep, folder):
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=f"{WEIGHTS} is broken or truncated"):
        load_model(folder)


def test_a_file_of_another_kind_is_named(folder):
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n" * 9)
    with pytest.raises(CheckpointError, match="is broken or truncated"):
        load_model(folder)


def test_missing_files_are_named(folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=f"there is no .*{WEIGHTS}"):
        load_model(folder)
    (folder / CONFIG).unlink()
    with pytest.raises(ConfigError, match=CONFIG):
        load_model(folder)


def test_a_configuration_of_other_shapes_is_held_against_the_file(folder):
    raw = json.loads((folder / CONFIG).read_text())
    write_json(folder / CONFIG, raw | {"intermediate_size": 32})
    with pytest.raises(CheckpointError, match=r"has shape \(24, 16\), expected \(32, 16\)"):
        load_model(folder)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=["stop", "full"])
@pytest.mark.parametrize("place", ["save_file", "os.fsync"])
def test_an_interrupted_write_leaves_the_old_file(place, error, folder, monkeypatch):
    before = (folder / WEIGHTS).read_bytes()

    def torn(*given, **more):
        if place == "save_file":
            given[1].write_bytes(b"half a fi")
        raise error

    monkeypatch.setattr(*((disk, "save_file") if place == "save_file" else (os, "fsync")), torn)
    with pytest.raises((KeyboardInterrupt, CheckpointError)):
        write_tensors(folder / WEIGHTS, {"a": torch.ones(3)})
    assert (folder / WEIGHTS).read_bytes() == before
    assert names(folder) == [CONFIG, WEIGHTS]


def test_what_a_killed_process_left_behind_is_written_over(folder):
    (folder / f"{WEIGHTS}.tmp").write_bytes(b"half a file" * 10_000)
    write_tensors(folder / WEIGHTS, {"a": torch.ones(3)})
    assert names(folder) == [CONFIG, WEIGHTS]
    assert read_tensors(folder / WEIGHTS)[0]["a"].tolist() == [1, 1, 1]


def test_json_that_cannot_be_written_leaves_the_old_file(folder):
    before = (folder / CONFIG).read_text()
    with pytest.raises(TypeError):
        write_json(folder / CONFIG, {"a": object()})
    assert (folder / CONFIG).read_text() == before
    assert names(folder) == [CONFIG, WEIGHTS]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX systems")
def test_files_are_as_open_as_the_umask_says(tmp_path, model):
    """A package is installed by one user and read by others."""
    before = os.umask(0o022)
    try:
        save_model(model(), tmp_path)
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in (CONFIG, WEIGHTS)} == {0o644}
