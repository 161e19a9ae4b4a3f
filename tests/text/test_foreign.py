"""Tokenizers and templates of other projects' checkpoints: used as they are, but for control tokens in text."""

import json

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from fourleaf.errors import CheckpointError
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.foreign import read_tokenizer
from fourleaf.text.router import Message, Router, fold

CONTROLS = ["<|begin|>", "<|im_start|>", "<|im_end|>", "<|im_end|><|more|>"]
TEMPLATE = """\
{{- bos_token }}
{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


@pytest.fixture
def library() -> tokenizers.Tokenizer:
    """As checkpoints have it: control tokens added behind the vocabulary, a piece of white space among them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({char: i for i, char in enumerate([*alphabet, "Ġa"])}, [("Ġ", "a")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in CONTROLS])
    made.add_tokens([AddedToken("<think>"), AddedToken("    ", normalized=False), AddedToken("</think>")])
    first = made.token_to_id(CONTROLS[0])
    made.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", first)])
    return made


@pytest.fixture
def folder(library, tmp_path):
    library.save(str(tmp_path / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|begin|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_plain_text_has_the_ids_of_the_library(library, folder):
    tokenizer = read_tokenizer(folder)
    assert tokenizer.vocab_size == library.get_vocab_size()
    for text in ("a cat's naïve 日本", "    x = a", " a a\n\n"):
        assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert library.token_to_id("    ") in tokenizer.encode("    x")


@pytest.mark.parametrize("token", [*CONTROLS, "<think>", "</think>"])
def test_a_spelled_control_token_is_text(token, library, folder):
    tokenizer = read_tokenizer(folder)
    assert library.encode(token, add_special_tokens=False).ids == [tokenizer.controls[token]]
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode(f"say {token}"))
    assert tokenizer.decode(tokenizer.encode(token)) == token == tokenizer.decode([tokenizer.controls[token]])


def test_markup_takes_the_longest_of_tokens_that_begin_alike(folder):
    tokenizer = read_tokenizer(folder)
    found = tokenizer.encode_markup("<|im_end|><|more|><|im_end|>")
    assert found == [tokenizer.controls["<|im_end|><|more|>"], tokenizer.controls["<|im_end|>"]]


def test_the_template_writes_control_tokens_and_users_do_not(library, folder):
    tokenizer = read_tokenizer(folder)
    chat = ChatTemplate(TEMPLATE, tokenizer)
    written = chat.render([{"role": "user", "content": "a<|im_end|>"}])
    begin, start, end = (tokenizer.controls[token] for token in CONTROLS[:3])
    assert written == [
        begin,
        start,
        *tokenizer.encode("user\na<|im_end|>"),
        end,
        *tokenizer.encode("\n"),
        start,
        *tokenizer.encode("assistant\n"),
    ]
    assert (
        chat.render([{"role": "user", "content": "a"}])
        == library.encode(
            "<|begin|><|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
        ).ids
    )
    assert tokenizer.end_id == end


def test_an_answer_without_tags_is_content(folder):
    tokenizer = read_tokenizer(folder)
    tokenizer.controls.pop("<think>")
    router = Router(tokenizer)
    ids = tokenizer.encode("hi <tool_call>")
    assert fold([*router.feed([*ids, tokenizer.vocab_size + 7]), *router.finish()]) == Message("hi <tool_call>")
    thinking = Router(read_tokenizer(folder))
    ids = read_tokenizer(folder).encode_markup("<think>hm</think>yes")
    assert fold([*thinking.feed(ids), *thinking.finish()]) == Message("yes", "hm")


def test_a_token_beyond_the_tokenizer_has_no_text(folder):
    tokenizer = read_tokenizer(folder)
    assert tokenizer.token_bytes(tokenizer.vocab_size + 3) == b""
    assert tokenizer.decode([*tokenizer.encode("a"), tokenizer.vocab_size]) == "a"


def test_faults_are_named(folder):
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with pytest.raises(CheckpointError, match="eos_token '</s>'"):
        read_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="no JSON object"):
        read_tokenizer(folder)
    (folder / "tokenizer.json").write_text('{"model": 3}')
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"is not a tokenizer\.json"):
        read_tokenizer(folder)


def test_a_vocabulary_of_words_is_refused(folder):
    words = tokenizers.Tokenizer(models.BPE({"▁the": 0, "▁": 1}, []))
    words.add_special_tokens(["<|im_end|>"])
    words.save(str(folder / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="no byte-level token"):
        read_tokenizer(folder)
