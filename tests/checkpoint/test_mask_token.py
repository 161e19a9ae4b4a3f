"""The mask token that `convert` picks from a checkpoint's own vocabulary."""

import re

import pytest

from fourleaf.checkpoint.convert import convert_folder
from fourleaf.checkpoint.files import load_model, read_json, write_json
from fourleaf.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "settings", "chosen"),
    [
        ({}, {}, "'<|vision_start|>', id 93"),
        ({}, {"pad_token": "<|vision_start|>"}, "'<|fim_pad|>', id 94"),
        ({"90": "<mask>"}, {}, "'<mask>', id 90"),
        ({"94": "<|reserved_special_token_0|>"}, {}, "'<|reserved_special_token_0|>', id 94"),
        (
            {"93": "<|eot|>", "94": "<|end|>"},
            {},
            "id 96 (a row of the vocabulary behind the tokenizer's last token, 94)",
        ),
    ],
)
def test_the_mask_token_is_one_that_nothing_uses(changes, settings, chosen, source, tmp_path):
    before = source("llama")
    raw = read_json(before / "tokenizer.json")
    added = [t | {"content": changes.get(str(t["id"]), t["content"])} for t in raw["added_tokens"]]
    write_json(before / "tokenizer.json", raw | {"added_tokens": added})
    write_json(before / "tokenizer_config.json", settings)
    assert str(convert_folder(before, tmp_path / "after").mask).startswith(chosen)


@pytest.mark.parametrize(("wanted", "found"), [("<think>", 92), ("17", 17), ("96", 96), ("!", 0)])
def test_a_mask_token_can_be_named_by_spelling_or_id(wanted, found, source, tmp_path):
    done = convert_folder(source("llama"), tmp_path / "after", mask_token=wanted)
    assert done.mask is not None
    assert done.mask.id == load_model(tmp_path / "after").config.mask_token_id == found


@pytest.mark.parametrize("wanted", ["<|nothing|>", "97", "-1", ""])
def test_a_mask_token_that_is_none_is_refused(wanted, source, tmp_path):
    with pytest.raises(ConfigError, match=rf"--mask-token is '{re.escape(wanted)}'.*0\.\.96"):
        convert_folder(source("llama"), tmp_path / "after", mask_token=wanted)
    assert not (tmp_path / "after").exists()


def test_without_a_free_token_one_must_be_named(source, tmp_path):
    before = source("llama")
    (before / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="name one with --mask-token"):
        convert_folder(before, tmp_path / "after")
    convert_folder(before, tmp_path / "after", mask_token="5")
