"""A GGUF file's vocabulary as the tokenizer.json and tokenizer_config.json of a Hugging Face checkpoint.

The file has the tokens, their kinds and the merges of a byte-level BPE, and names the rule that cuts text into pieces
beforehand; the rule itself is in the programs that read such files. Those known here are the originals' own.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from fourleaf.checkpoint.gguf import GgufFile
from fourleaf.errors import CheckpointError

# Kinds of tokens, as in GGUF's tokenizer.ggml.token_type.
_CONTROL, _USER_DEFINED = 3, 4

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Rule(NamedTuple):
    """How text is cut before merges apply. pieces: the expression, or None for GPT-2's own, which `ByteLevel` has.

    digits: each digit alone. composed: text is brought to NFC first. whole: a piece that is a token is taken as it is,
    whatever its merges say.
    """

    pieces: str | None = None
    digits: bool = False
    composed: bool = False
    whole: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The steps, as `tokenizers` has them."""
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pieces is None)
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pieces is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pieces), behavior="isolated"))
        return pre_tokenizers.Sequence([*steps, bytes_]) if steps else bytes_


RULES = {
    "gpt-2": Rule(),
    "smollm": Rule(digits=True),
    "llama-bpe": Rule(_LLAMA3, whole=True),
    "qwen2": Rule(_QWEN2, composed=True),
    "qwen35": Rule(_QWEN35, composed=True),
}


def tokenizer_files(file: GgufFile) -> dict[str, str]:
    """Texts by file name: tokenizer.json, tokenizer_config.json and, where the file has one, chat_template.jinja.

    Raises CheckpointError for a vocabulary that is no byte-level BPE or is cut by a rule that is not known here.
    """
    template = file.value("tokenizer.chat_template", "")
    found = {
        "tokenizer.json": build(file).to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(_settings(file), indent=2, ensure_ascii=False) + "\n",
    }
    return found | ({"chat_template.jinja": template} if template else {})


def build(file: GgufFile) -> tokenizers.Tokenizer:
    """The tokenizer; ids are the positions in the file's list. Raises CheckpointError as above."""
    kind, name = file.value("tokenizer.ggml.model"), file.value("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise CheckpointError(f"{file.path} has a vocabulary of kind {kind!r}; only byte-level BPE, 'gpt2', is known")
    if name not in RULES:
        known = ", ".join(RULES)
        raise CheckpointError(f"{file.path} cuts text by the rule {name!r}; known are {known}")
    rule = RULES[name]
    tokens = file.value("tokenizer.ggml.tokens")
    merges = [_pair(merge, file) for merge in file.value("tokenizer.ggml.merges")]
    try:
        model = models.BPE({token: i for i, token in enumerate(tokens)}, merges, ignore_merges=rule.whole)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"the vocabulary of {file.path} does not fit together: {error}") from error
    made = tokenizers.Tokenizer(model)
    if rule.composed:
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = rule.pre_tokenizer()
    made.decoder = decoders.ByteLevel()
    kinds = file.value("tokenizer.ggml.token_type", [1] * len(tokens))
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    made.add_tokens(added)
    assert made.get_vocab_size() == len(tokens)
    if file.value("tokenizer.ggml.add_bos_token", False):
        begin = _token(file, "bos")
        template = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1", special_tokens=[(begin, tokens.index(begin))]
        )
        made.post_processor = template
    return made


def _pair(merge: str, file: GgufFile) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise CheckpointError(f"{file.path} has the merge {merge!r}; it must be two tokens with a space between them")
    return left, right


def _token(file: GgufFile, kind: str) -> str | None:
    """The token for this purpose, "bos" for one; None where the file names none."""
    token_id = file.value(f"tokenizer.ggml.{kind}_token_id", -1)
    tokens = file.value("tokenizer.ggml.tokens")
    return tokens[token_id] if 0 <= token_id < len(tokens) else None


def _settings(file: GgufFile) -> dict[str, Any]:
    """What transformers asks of a tokenizer_config.json."""
    tokens = {kind: _token(file, kind) for kind in ("bos", "eos", "unknown", "padding")}
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.value(f"{file.architecture}.context_length"),
        **{names[kind]: token for kind, token in tokens.items() if token is not None},
    }
