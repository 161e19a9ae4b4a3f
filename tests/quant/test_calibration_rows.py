"""What calibration sees: clean rows and canvases, of the checkpoint's own text, the same for the same seed."""

import json

import numpy as np
import pytest
import torch

from fourleaf import cli
from fourleaf.checkpoint.disk import read_json, write_json
from fourleaf.checkpoint.files import CONFIG
from fourleaf.checkpoint.quantised import KEY, load_checkpoint
from fourleaf.engine.engine import bundled_path
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.train.calibration import cabin_documents, main_quantise, text_documents, works

TEXT = "A first paragraph, of\ntwo lines.\n\n  \nThe second one is short.\n\n" + "Many words. " * 200


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_works_hold_clean_rows_and_canvases_at_mixed_noise():
    config = ModelConfig.from_dict(read_json(bundled_path() / CONFIG))
    documents = cabin_documents(bundled_path(), 40, seed=0)
    made = list(works(config, documents, seed=0))
    assert sum(work.num_causal for work in made) == sum(len(d.ids) - 1 for d in documents)
    shares = []
    for work in made:
        assert work.canvas is not None
        rows = work.tokens[work.num_causal :].split(work.canvas.lengths)
        shares += [float(torch.eq(ids, config.mask_token_id or -1).double().mean()) for ids in rows]
    assert min(shares) < 0.4
    assert max(shares) == 1.0
    assert sum(0 < share < 1 for share in shares) > len(shares) / 2


def test_the_same_seed_gives_the_same_rows():
    config = ModelConfig.from_dict(read_json(bundled_path() / CONFIG))

    def rows(seed: int) -> list[torch.Tensor]:
        return [work.tokens for work in works(config, cabin_documents(bundled_path(), 12, seed), seed)]

    assert all(torch.equal(a, b) for a, b in zip(rows(3), rows(3), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(rows(3), rows(4), strict=False))


def test_a_model_without_blocks_sees_clean_rows_alone(checkpoint):
    folder = checkpoint(block_size=None, mask_token_id=None)
    config = ModelConfig.from_dict(read_json(folder / CONFIG))
    made = list(works(config, cabin_documents(folder, 5, seed=0), seed=0))
    assert all(work.canvas is None and work.num_causal for work in made)


def test_a_text_is_cut_into_paragraphs(checkpoint, text, byte_tokenizer):
    documents = text_documents(checkpoint(), text, 0, num=9, seed=0)
    found = {byte_tokenizer.decode(d.ids[:-1].tolist()) for d in documents}
    assert {"A first paragraph, of\ntwo lines.", "The second one is short."} < found
    assert all(d.ids[-1] == 0 and 1 <= d.answer_start < len(d.ids) - 1 for d in documents)
    assert max(len(d.ids) for d in documents) == 513
    assert len(text_documents(checkpoint("other"), text, 0, num=2, seed=0)) == 2


def test_a_control_token_that_a_text_spells_is_text(checkpoint, tmp_path, byte_tokenizer):
    """As another project's tokenizer.json has it, the library alone would match it."""
    folder = checkpoint()
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["added_tokens"] = [
        {"id": 2, "content": "<|im_end|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False},
    ]  # fmt: skip
    raw["model"]["vocab"] = {w: i for w, i in raw["model"]["vocab"].items() if i != 2} | {"<|im_end|>": 2}
    write_json(folder / "tokenizer.json", raw)
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    (tmp_path / "text.txt").write_text("so <|im_end|> it goes")
    (document,) = text_documents(folder, tmp_path / "text.txt", 2, num=1, seed=0)
    assert byte_tokenizer.decode(document.ids[:-1].tolist()) == "so <|im_end|> it goes"
    assert not np.isin(2, document.ids[:-1])
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"is not a tokenizer.json"):
        text_documents(folder, tmp_path / "text.txt", 2, num=1, seed=0)


def test_calibrating_on_a_text_gives_other_levels_than_the_task(tmp_path, checkpoint, text, capsys):
    source = checkpoint(eos_token_id=0)
    for target, words in (("task", []), ("text", ["--text", str(text)])):
        with pytest.raises(SystemExit) as ended:
            cli.app(["quantize", str(source), str(tmp_path / target), "--scheme", "gptq", "--examples", "3", *words])
        assert not ended.value.code
        assert json.loads((tmp_path / target / CONFIG).read_text())[KEY]["method"] == "gptq"
    assert "layer 3 of 3" in capsys.readouterr().err
    task, other = (load_checkpoint(tmp_path / target) for target in ("task", "text"))
    pairs = list(zip(task.parameters(), other.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read"), (b"\xff\xfe\x80", "cannot read"), (b" \n\n ", "holds no text to calibrate on")],
)
def test_a_text_without_text_is_refused(content, message, tmp_path, checkpoint):
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        text_documents(checkpoint(), file, 0, num=2, seed=0)


def quantise_with(source, target, text, method: str) -> None:
    settings = {"group_size": 64, "symmetric": False, "examples": 2, "seed": 0, "num_threads": None}
    main_quantise(source, target, method=method, text=text, out=None, progress=None, **settings)


def test_a_text_that_would_have_no_effect_is_refused(tmp_path, checkpoint, text):
    with pytest.raises(ConfigError, match="scheme is 'rtn', which looks at no text"):
        quantise_with(checkpoint(), tmp_path / "new", text, "rtn")


def test_without_an_end_token_a_text_cannot_be_used(tmp_path, checkpoint, text):
    source = checkpoint()
    raw = json.loads((source / CONFIG).read_text())
    write_json(source / CONFIG, {key: value for key, value in raw.items() if key != "eos_token_id"})
    with pytest.raises(ConfigError, match="no eos_token_id"):
        quantise_with(source, tmp_path / "new", text, "gptq")
    assert not (tmp_path / "new").exists()


def test_rows_of_a_text_end_where_a_document_does(checkpoint, text):
    config = ModelConfig.from_dict(read_json(checkpoint() / CONFIG))
    documents = text_documents(checkpoint("other"), text, 5, num=3, seed=0)
    (work,) = works(config, documents, seed=0)
    assert work.num_causal == sum(len(d.ids) - 1 for d in documents)
    assert not np.isin(5, work.tokens[: work.num_causal].numpy())
