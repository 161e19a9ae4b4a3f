"""Byte-level BPE with chat control tokens that no text can spell.

A control token has an id and a spelling, but the spelling is never matched in text: a user's "<|mask|>" is encoded as
the ordinary tokens of its characters. Control ids come from `token_id`, from `ChatTemplate` and from `encode_markup`,
which is for text that this program wrote itself.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from fourleaf.errors import CheckpointError, ConfigError

END, MASK, GAP_END = "<|end|>", "<|mask|>", "<|gap_end|>"
SYSTEM, USER, ASSISTANT, TOOL = "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"
TOOL_CALL, TOOL_CALL_END, THINK, THINK_END = "<tool_call>", "</tool_call>", "<think>", "</think>"

# Their ids, counted from 0, in this order.
SPECIAL_TOKENS = (
    END, MASK, GAP_END, SYSTEM, USER, ASSISTANT, TOOL, TOOL_CALL, TOOL_CALL_END, THINK, THINK_END,
)  # fmt: skip

# Pieces that BPE never merges across. First alternative that matches wins.
#  - What joins JSON keys and values is one piece, so that a value starts at a piece, as a word of the utterance does.
#  - A lowercase ASCII word takes its leading space along; identifiers (`rear_left`) are one word.
#  - Any other word (capital, accent, mixed) leaves the space outside: a name has the same tokens in "call Sunniva" and
#    in {"name": "Sunniva"}, so answering is copying. Its "'s" is a piece of its own for the same reason.
#  - Digits stand alone, with their leading space: " 20" is the same in "to 20" and in "position": 20.
#  - Quotes and braces stay out of punctuation runs, else the "." of a message would merge with the JSON behind it.
PIECES = "|".join(
    (
        r'": \{"',
        r'": "',
        r'", "',
        r', "',
        r'"\}\}',
        r'":',
        r'\{"',
        r"\}\}",
        r" ?[a-z']+(?:_[a-z]+)*(?![\p{L}\p{M}])",
        r"[\p{L}\p{M}]+",
        r" ?\p{N}",
        r" ?[^\s\p{L}\p{M}\p{N}\"{}']+",
        r" ?[\"{}']",
        r"\s",
    )
)

_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Text to ids and back. controls: spelling -> id of the tokens that no text becomes.

    In a tokenizer of this project they are `SPECIAL_TOKENS`, with the first ids, and the next 256 are single bytes;
    `text.foreign` reads those of other checkpoints.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        controls: Mapping[str, int] | None = None,
        *,
        end: str = END,
        begin: str | None = None,
    ) -> None:
        """controls: None for this project's. end, begin: spellings of the tokens that end an answer and begin a text.

        Raises CheckpointError when `inner` lacks one of this project's control tokens, would match one in text, or is
        no byte-level BPE.
        """
        self._inner = inner
        self.controls = dict(_own_controls(inner) if controls is None else controls)
        self.end, self.begin = end, begin
        self.special_ids = frozenset(self.controls.values())
        self._spelled = {token_id: token for token, token_id in self.controls.items()}
        self.vocab_size: int = max(inner.get_vocab_size(), 1 + max(self.special_ids))
        self._bytes = [self._bytes_of(token_id, controls is None) for token_id in range(self.vocab_size)]
        self._spellings = spellings(self.controls)

    @classmethod
    def from_file(cls, path: Path | str) -> "Tokenizer":
        """Read a tokenizer.json. Raises CheckpointError when it is missing, broken or unsafe."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"Cannot read the tokenizer {path}: {error}") from error
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{path} is not a tokenizer.json: {error}") from error
        return cls(inner)

    def save(self, path: Path | str) -> None:
        """Write a tokenizer.json that PyPI `tokenizers` reads; the same tokenizer gives the same bytes."""
        Path(path).write_text(self._inner.to_str(pretty=True) + "\n", encoding="utf-8")

    @property
    def end_id(self) -> int:
        """Ends an assistant turn."""
        return self.controls[self.end]

    @property
    def mask_id(self) -> int:
        """Stands in masked positions; never a token of the answer. This project's tokenizers alone have it."""
        return self.controls[MASK]

    @property
    def gap_end_id(self) -> int:
        """Ends an infilled gap."""
        return self.controls[GAP_END]

    def token_id(self, special: str) -> int:
        """Id of a control token by its spelling, such as "<|user|>". Raises KeyError for anything else."""
        return self.controls[special]

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: never a control id, whatever the text spells. A lone surrogate becomes U+FFFD."""
        return self._inner.encode(replace_surrogates(text), add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, faster."""
        clean = [replace_surrogates(text) for text in texts]
        return [encoding.ids for encoding in self._inner.encode_batch_fast(clean, add_special_tokens=False)]

    def encode_markup(self, text: str) -> list[int]:
        """Like `encode`, but spelled control tokens become their ids: for training answers, never for a user's text."""
        ids: list[int] = []
        start = 0
        for match in self._spellings.finditer(text):
            ids += self.encode(text[start : match.start()])
            ids.append(self.controls[match.group()])
            start = match.end()
        return ids + self.encode(text[start:])

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; control tokens are spelled out, bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes of one token, which may end inside a character; a control token's are its spelling. An id of the
        model's that no text has, such as those that round a vocabulary up, has none."""
        return self._bytes[token_id] if token_id < self.vocab_size else b""

    def _bytes_of(self, token_id: int, is_own: bool) -> bytes:
        if token_id in self._spelled:
            return self._spelled[token_id].encode()
        token = self._inner.id_to_token(token_id)
        if token is None and is_own:
            raise CheckpointError(f"The tokenizer's ids have a gap at {token_id} of {self.vocab_size}.")
        if token is None:
            return b""
        if token_id in self._inner.get_added_tokens_decoder():
            return token.encode()
        try:
            return bytes(_BYTES[char] for char in token)
        except KeyError as error:
            raise CheckpointError(f"Token {token_id} ({token!r}) is no byte-level token.") from error


def spellings(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the tokens, the longest where several begin alike."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))


def _own_controls(inner: tokenizers.Tokenizer) -> dict[str, int]:
    if added := inner.get_added_tokens_decoder():
        raise CheckpointError(
            f"The tokenizer matches {next(iter(added.values())).content!r} in text, so a user could write control"
            " tokens. Keep them in model.vocab and leave added_tokens empty."
        )
    found: dict[str, int] = {}
    for token in SPECIAL_TOKENS:
        token_id = inner.token_to_id(token)
        if token_id is None:
            raise CheckpointError(f"The tokenizer has no control token {token!r}; it needs {SPECIAL_TOKENS}.")
        found[token] = token_id
    return found


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte: itself, or the next one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def replace_surrogates(text: str) -> str:
    """Lone surrogates (JSON can carry them, UTF-8 cannot) become U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> Tokenizer:
    """Learn merges from `texts`; control tokens spelled in them are left out. The same texts give the same tokenizer.

    Raises ConfigError when `vocab_size` leaves no room for the bytes, or when the texts hold too few merges to fill it.
    """
    smallest = len(SPECIAL_TOKENS) + 256
    if vocab_size < smallest:
        raise ConfigError(f"vocab_size is {vocab_size}, below the {smallest} control tokens and bytes; raise it.")
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = _pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    control = spellings(SPECIAL_TOKENS)
    plain = (part for text in texts for part in control.split(replace_surrogates(text)) if part)
    learner.train_from_iterator(plain, trainer=trainer)
    if learner.get_vocab_size() < vocab_size:
        raise ConfigError(
            f"The texts give {learner.get_vocab_size()} tokens, fewer than vocab_size {vocab_size}; add to them."
        )
    # Training registers the control tokens as matched in text. A tokenizer built anew from vocabulary and merges does
    # not, and no merge can spell one: the pieces part words from brackets.
    learned = json.loads(learner.to_str())["model"]
    merges = [(left, right) for left, right in learned["merges"]]
    assert not any(left + right in SPECIAL_TOKENS for left, right in merges)
    inner = tokenizers.Tokenizer(models.BPE(vocab=learned["vocab"], merges=merges))
    inner.pre_tokenizer = _pre_tokenizer()
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner)


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
