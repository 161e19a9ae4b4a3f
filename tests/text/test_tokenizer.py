import json
import re
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.text.tokenizer import SPECIAL_TOKENS, Tokenizer, train_tokenizer


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_spelled_control_tokens_stay_text(tokenizer: Tokenizer, token: str) -> None:
    for text in (token, f"say {token} please", token * 3, token[:-1], f"{token[0]}{token}"):
        assert tokenizer.special_ids.isdisjoint(tokenizer.encode(text))
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_have_the_first_ids_and_bytes_follow(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_id(token) for token in SPECIAL_TOKENS] == list(range(11))
    assert (tokenizer.end_id, tokenizer.mask_id, tokenizer.gap_end_id) == (0, 1, 2)
    assert tokenizer.vocab_size == 1024
    assert {tokenizer.token_bytes(i) for i in range(11, 267)} == {bytes([byte]) for byte in range(256)}
    assert all(len(tokenizer.token_bytes(i)) > 1 for i in range(267, 1024))


def test_rows_come_back(tokenizer: Tokenizer, corpus: list[str]) -> None:
    for text, ids in zip(corpus, tokenizer.encode_batch(corpus), strict=True):
        assert ids == tokenizer.encode(text)
        assert tokenizer.decode(ids) == text


_SPELLING_PIECES = st.sampled_from(
    [*SPECIAL_TOKENS, "<|", "|>", "<", ">", "</", "think", "tool_call", '"}}', '": "', " "]
)


@given(st.lists(st.text() | _SPELLING_PIECES).map("".join))
def test_any_text_comes_back_without_control_ids(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.special_ids.isdisjoint(ids)


@given(st.lists(st.text(max_size=5) | st.sampled_from(SPECIAL_TOKENS)).map("".join))
def test_markup_comes_back_with_one_id_for_each_spelling(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_markup(text)
    assert tokenizer.decode(ids) == text
    spelled = re.findall("|".join(map(re.escape, SPECIAL_TOKENS)), text)
    assert [i for i in ids if i in tokenizer.special_ids] == [tokenizer.token_id(token) for token in spelled]


def test_a_lone_surrogate_becomes_the_replacement_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b\udc01")) == "a\ufffdb\ufffd"


def _contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[i : i + len(part)] == part for i in range(len(ids) - len(part) + 1))


@pytest.mark.parametrize(
    "name", ["Sunniva", "Nguyen Thi Mai", "Åse", "O'Brien", "iPhone", "Łódź", "Zoë-Marie", "St. Ives", "東京"]
)
@pytest.mark.parametrize("said", ["call {}", "call {}'s", "text {}, please", "ring {}!", "{}"])
def test_a_name_has_the_same_tokens_in_words_and_in_json(tokenizer: Tokenizer, name: str, said: str) -> None:
    call = json.dumps({"name": "call_contact", "arguments": {"name": name}}, ensure_ascii=False)
    assert _contains(tokenizer.encode(call), tokenizer.encode(name))
    assert _contains(tokenizer.encode(said.format(name)), tokenizer.encode(name))


@given(st.integers(0, 1000))
def test_a_number_has_the_same_tokens_in_words_and_in_json(tokenizer: Tokenizer, number: int) -> None:
    ids = tokenizer.encode(f" {number}")
    assert len(ids) == len(str(number))
    for text in (
        json.dumps({"level": number}),
        json.dumps({"level": number, "on": True}),
        f"set it to {number}, please",
    ):
        assert _contains(tokenizer.encode(text), ids)


def test_pieces(tokenizer: Tokenizer) -> None:
    call = {"name": "set_window", "arguments": {"window": "rear_left", "position": 20}}
    pieces = [text for text, _ in tokenizer._inner.pre_tokenizer.pre_tokenize_str(json.dumps(call))]
    assert [piece.replace("Ġ", " ") for piece in pieces] == [
        '{"', "name", '": "', "set_window", '", "', "arguments", '": {"', "window", '": "', "rear_left", '", "',
        "position", '":', " 2", "0", "}}",
    ]  # fmt: skip
    message = '"text": "I\'m late."}}'
    pieces = [text for text, _ in tokenizer._inner.pre_tokenizer.pre_tokenize_str(message)]
    assert [piece.replace("Ġ", " ") for piece in pieces] == ['"', "text", '": "', "I", "'m", " late", ".", '"}}']


def test_tool_names_and_arguments_are_single_tokens(tokenizer: Tokenizer, tools: list[dict]) -> None:
    for tool in tools:
        for word in (tool["function"]["name"], *tool["function"]["parameters"]["properties"]):
            assert len(tokenizer.encode(word)) <= 2, word


def test_saved_file_is_the_same_bytes_and_reads_with_the_library(
    tokenizer: Tokenizer, corpus: list[str], tmp_path: Path
) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    train_tokenizer(iter(corpus)).save(tmp_path / "again.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == (tmp_path / "again.json").read_bytes()

    text = f"call Åse {SPECIAL_TOKENS[1]}"
    assert Tokenizer.from_file(tmp_path / "tokenizer.json").encode(text) == tokenizer.encode(text)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode(text).ids == tokenizer.encode(text)
    ids = [*tokenizer.encode(text), tokenizer.end_id]
    assert library.decode(ids, skip_special_tokens=False) == tokenizer.decode(ids) == f"{text}<|end|>"


def test_a_file_that_matches_control_tokens_in_text_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    library = tokenizers.Tokenizer.from_file(str(path))
    library.add_special_tokens(["<|mask|>"])
    library.save(str(path))
    with pytest.raises(CheckpointError, match=r"<\|mask\|>"):
        Tokenizer.from_file(path)


def test_a_file_without_a_control_token_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    path.write_text(path.read_text(encoding="utf-8").replace("<|gap_end|>", "<|other|>"), encoding="utf-8")
    with pytest.raises(CheckpointError, match="gap_end"):
        Tokenizer.from_file(path)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Cannot read"):
        Tokenizer.from_file(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text('{"model"')
    with pytest.raises(CheckpointError, match="not a tokenizer"):
        Tokenizer.from_file(tmp_path / "broken.json")


def test_training_refuses_sizes_it_cannot_give() -> None:
    with pytest.raises(ConfigError, match="below the 267"):
        train_tokenizer(["hello"], vocab_size=266)
    with pytest.raises(ConfigError, match="fewer than vocab_size 1024"):
        train_tokenizer(["hello there"])
    assert train_tokenizer(["hello there"], vocab_size=267).vocab_size == 267


def test_training_takes_no_merges_from_control_tokens() -> None:
    trained = train_tokenizer(["<tool_call>abab</tool_call>"] * 50 + ["<|mask|>"] * 50, vocab_size=268)
    assert trained.decode([267]) == "ab"
