"""Every command that makes a checkpoint folder has one rule for where it may, and holds it before anything is read."""

import pytest
import torch

from fourleaf.checkpoint.convert import convert_folder, export_folder
from fourleaf.checkpoint.files import write_json, write_tensors
from fourleaf.checkpoint.pull import PUBLISHED, pull, unpack
from fourleaf.checkpoint.quantised import quantise_checkpoint
from fourleaf.checkpoint.shards import CONFIG, STAGE, WEIGHTS, refuse_taken
from fourleaf.errors import ConfigError
from fourleaf.quant.int4 import Int4Config

WRITERS = {
    "convert": convert_folder,
    "convert --to hf": export_folder,
    "quantize": lambda source, target: quantise_checkpoint(source, target, Int4Config()),
    "pull a file": unpack,
    "pull a name": lambda source, target: pull(next(iter(PUBLISHED)), target, source),
}


def a_file(folder):
    folder.write_text("keep me")
    return folder, "is a file"


def with_config(folder):
    folder.mkdir()
    write_json(folder / CONFIG, {"model_type": "llama"})
    return folder / CONFIG, "holds a checkpoint already"


def with_weights(folder):
    folder.mkdir()
    write_tensors(folder / WEIGHTS, {"a": torch.ones(1)})
    return folder / WEIGHTS, "holds a checkpoint already"


def with_some_text(folder):
    folder.mkdir()
    (folder / "tokenizer.json").write_text("keep me")
    return folder / "tokenizer.json", r"is not empty \(it holds tokenizer.json\)"


@pytest.mark.parametrize("fill", [a_file, with_config, with_weights, with_some_text])
@pytest.mark.parametrize("command", WRITERS)
def test_a_folder_that_is_taken_is_refused_before_the_source_is_read(command, fill, tmp_path):
    kept, message = fill(tmp_path / "target")
    before = kept.read_bytes()
    with pytest.raises(ConfigError, match=rf"target {message}; name a new folder, or remove it first"):
        WRITERS[command](tmp_path / "no such source", tmp_path / "target")
    assert kept.read_bytes() == before


@pytest.mark.parametrize(
    "left", [(), (f"{STAGE}/0.part",), (f"{STAGE}/{CONFIG}", WEIGHTS, "tokenizer.json"), (".git",)]
)
def test_a_folder_is_free_when_it_holds_nothing_or_what_a_kill_left(left, tmp_path):
    refuse_taken(tmp_path / "new")
    for name in left:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("half a file")
    refuse_taken(tmp_path)


def test_a_whole_checkpoint_is_kept_though_its_hidden_folder_is_still_there(tmp_path):
    with_config(tmp_path / "target")
    (tmp_path / "target" / STAGE).mkdir()
    with pytest.raises(ConfigError, match="holds a checkpoint already"):
        refuse_taken(tmp_path / "target")
