"""Several files of weights: read lazily with faults named, written so that all of them are there or none."""

import errno
import json
import os
import shutil

import pytest
import torch

from fourleaf.checkpoint import disk
from fourleaf.checkpoint.files import load_model, read_json, save_model, write_json, write_tensors
from fourleaf.checkpoint.shards import CONFIG, INDEX, STAGE, WEIGHTS, Shards, ShardWriter
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

NUM = 20
LATE = "model.norm.weight"


@pytest.fixture(scope="module")
def model(shapes) -> Transformer:
    torch.manual_seed(0)
    return Transformer(ModelConfig(**shapes, intermediate_size=24, block_size=8, mask_token_id=1))


@pytest.fixture
def folder(model, tmp_path):
    save_model(model, tmp_path / "model", shard_bytes=2_000)
    return tmp_path / "model"


def same(model, other) -> bool:
    theirs = dict(other.named_tensors())
    return all(torch.equal(tensor, theirs[name]) for name, tensor in model.named_tensors())


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_stay_below_their_limit_and_the_index_names_them_all(folder, model):
    index = json.loads((folder / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 4
    assert names(folder) == sorted([CONFIG, INDEX, *files])
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    for file in files:
        with disk.opened(folder / file) as held:
            tensors = [held.get_tensor(name) for name in held.keys()]  # noqa: SIM118
        assert len(tensors) == 1 or sum(t.nbytes for t in tensors) <= 2_000
    assert index["metadata"]["total_size"] == sum(t.nbytes for _, t in model.named_tensors())
    assert Shards(folder).num_bytes == index["metadata"]["total_size"]
    assert same(model, load_model(folder))


def test_opening_reads_headers_alone(folder, monkeypatch):
    opened = Shards(folder)
    assert opened.shapes[LATE] == (16,)
    monkeypatch.setattr(disk, "safe_open", None)
    with pytest.raises(TypeError):
        opened.get(LATE)


def test_loading_holds_one_tensor_of_the_file_at_a_time(folder, monkeypatch):
    """Counted where tensors leave the file: each is gone before the next comes."""
    import weakref

    alive: list[weakref.ref] = []
    most = 0
    get = Shards.get

    def counted(self, name):
        nonlocal most
        tensor = get(self, name)
        alive.append(weakref.ref(tensor))
        most = max(most, sum(ref() is not None for ref in alive))
        return tensor

    monkeypatch.setattr(Shards, "get", counted)
    load_model(folder)
    assert len(alive) > NUM
    assert most <= 2  # the one being copied, and the one that the loop's variable still names


def test_a_missing_file_is_named_with_what_it_holds(folder):
    file = json.loads((folder / INDEX).read_text())["weight_map"][LATE]
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=rf"there is no .*{file}, which holds \d+ of the \d+ tensors"):
        load_model(folder)


@pytest.mark.parametrize("keep", [0, 7, 60, -1])
def test_a_truncated_file_is_named(keep, folder):
    file = json.loads((folder / INDEX).read_text())["weight_map"][LATE]
    (folder / file).write_bytes((folder / file).read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=f"{file} is broken or truncated"):
        load_model(folder)


def test_an_index_and_its_files_are_held_against_each_other(folder):
    index = read_json(folder / INDEX)
    first, last = index["weight_map"]["model.embed_tokens.weight"], index["weight_map"][LATE]
    moved = index["weight_map"] | {LATE: first}
    write_json(folder / INDEX, index | {"weight_map": moved})
    with pytest.raises(CheckpointError, match=rf"{last} holds {LATE}, which {INDEX} expects in {first}"):
        load_model(folder)
    write_json(folder / INDEX, index | {"weight_map": index["weight_map"] | {"model.gone": first}})
    with pytest.raises(CheckpointError, match=rf"{first} lacks model\.gone, which {INDEX} expects there"):
        load_model(folder)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {}}, "has no weight_map"),
        ({"metadata": {}}, "has no weight_map"),
        ({"weight_map": {"a": "../elsewhere.safetensors"}}, "does not lie beside it"),
        ({"weight_map": {"a": 3}}, "does not lie beside it"),
    ],
)
def test_an_index_that_is_none_is_named(index, message, folder):
    write_json(folder / INDEX, index)
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


def test_pickled_weights_are_named_and_not_opened(folder):
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(CheckpointError, match=r"pickled weights \(pytorch_model\.bin\), which are never opened"):
        load_model(folder)


def test_a_type_that_is_not_known_is_named(folder):
    shutil.rmtree(folder)
    write_tensors(folder / WEIGHTS, {"a": torch.ones(2, dtype=torch.float8_e4m3fn)})
    with pytest.raises(CheckpointError, match=r"a in .* has type F8_E4M3"):
        Shards(folder)


# Writing.


def write_over(folder, model, shard_bytes: int = 9_000) -> None:
    save_model(model, folder, shard_bytes=shard_bytes)


def other(model) -> Transformer:
    made = Transformer(model.config)
    with torch.no_grad():
        for tensor in made.parameters():
            tensor.fill_(5.0)
    return made


@pytest.mark.parametrize(("before", "after"), [(2_000, 10**9), (10**9, 2_000), (2_000, 5_000), (10**9, 10**9)])
def test_a_new_checkpoint_takes_the_whole_place_of_the_old(before, after, model, tmp_path):
    write_over(tmp_path, other(model), before)
    write_over(tmp_path, model, after)
    assert same(model, load_model(tmp_path))
    assert (WEIGHTS in names(tmp_path)) == (after == 10**9)
    assert (INDEX in names(tmp_path)) == (after != 10**9)
    files = set(read_json(tmp_path / INDEX)["weight_map"].values()) | {INDEX} if after != 10**9 else {WEIGHTS}
    assert set(names(tmp_path)) == files | {CONFIG}


class Stop(BaseException):
    """What a test ends a write with, as Ctrl-C would."""


def count_writes(monkeypatch, at: int | None = None, error: BaseException | None = None) -> list[str]:
    """Notes every change that is made to the disk; change number `at` raises instead."""
    done: list[str] = []

    def noted(what, call):
        def run(*args, **kwargs):
            if len(done) == at:
                done.append(f"{what}!")
                raise error or AssertionError
            done.append(what)
            return call(*args, **kwargs)

        return run

    monkeypatch.setattr(disk, "save_file", noted("save_file", disk.save_file))
    for name in ("replace", "rename", "write_text"):
        monkeypatch.setattr(f"pathlib.Path.{name}", noted(name, getattr(disk.Path, name)))
    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
    return done


@pytest.mark.parametrize("error", [Stop(), OSError(errno.ENOSPC, "No space left on device")], ids=["stop", "full"])
def test_whatever_ends_a_first_write_leaves_nothing(error, model, tmp_path):
    with pytest.MonkeyPatch.context() as patched:
        done = count_writes(patched)
        write_over(tmp_path / "whole", model)
    assert len(done) > 12
    for at in range(len(done)):
        with pytest.MonkeyPatch.context() as patched:
            count_writes(patched, at, error)
            with pytest.raises((Stop, CheckpointError)) as raised:
                write_over(tmp_path / "new", model)
        if not isinstance(error, Stop):
            assert "no space left" in str(raised.value)
            assert str(tmp_path / "new") in str(raised.value)
        assert not (tmp_path / "new").exists(), (at, done[at])


def test_a_write_over_an_old_checkpoint_leaves_the_old_one_the_new_one_or_none(model, tmp_path):
    old = other(model)
    write_over(tmp_path / "model", old)
    with pytest.MonkeyPatch.context() as patched:
        done = count_writes(patched)
        write_over(tmp_path / "again", model)
    seen = set()
    for at in range(len(done)):
        write_over(tmp_path / "model", old)
        with pytest.MonkeyPatch.context() as patched:
            count_writes(patched, at, Stop())
            with pytest.raises(Stop):
                write_over(tmp_path / "model", model)
        try:
            found = load_model(tmp_path / "model")
        except ConfigError:
            seen.add("none")
        else:
            assert same(old, found)
            seen.add("old")
    assert seen == {"old", "none"}


def test_what_a_killed_process_left_is_removed_by_the_next(model, tmp_path):
    (tmp_path / STAGE).mkdir()
    (tmp_path / STAGE / "0.part").write_bytes(b"half a file")
    write_over(tmp_path, model)
    assert STAGE not in names(tmp_path)
    assert same(model, load_model(tmp_path))


def test_a_disk_that_is_too_small_is_named_before_the_first_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1_500_000_000))
    with (
        pytest.raises(CheckpointError, match=r"new needs 2\.00 GB and its disk has 1\.50 GB free"),
        ShardWriter(tmp_path / "new") as out,
    ):
        out.needs(2_000_000_000)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write to .*file"), ShardWriter(tmp_path / "file"):
        pass
