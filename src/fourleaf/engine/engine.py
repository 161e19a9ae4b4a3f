"""The front door to a model: load it once, generate answers.

Requests run one at a time here; `generate` has the signature that a batching engine keeps (`request.Decoder`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from fourleaf.checkpoint.quantised import load_checkpoint
from fourleaf.engine.decode import Decoding, Request
from fourleaf.engine.request import Delta, Frame, GenerateParams
from fourleaf.errors import CheckpointError, ContextLengthError, RequestError
from fourleaf.model.transformer import Transformer
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.foreign import read_tokenizer
from fourleaf.text.tokenizer import MASK, Tokenizer


def bundled_path() -> Path:
    """The checkpoint that ships in the package."""
    return Path(__file__).parents[1] / "models" / "cabin"


class Engine:
    """A model with its tokenizer and chat template."""

    def __init__(self, name: str, model: Transformer, tokenizer: Tokenizer, chat: ChatTemplate) -> None:
        self.name, self.model, self.tokenizer, self.chat = name, model, tokenizer, chat
        self.max_context = model.config.max_position_embeddings
        self.folder: Path | None = None

    @classmethod
    def load(cls, path: Path, *, num_threads: int | None = None, dtype: torch.dtype = torch.float32) -> Engine:
        """Reads a checkpoint folder; its name is the model's id. Raises CheckpointError for what is missing or broken.

        `num_threads` sets torch's threads for the whole process.
        """
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        template = path / "chat_template.jinja"
        if not template.is_file():
            raise CheckpointError(f"there is no {template}; is {path} a checkpoint folder?")
        tokenizer = read_tokenizer(path)
        chat = ChatTemplate(template.read_text(encoding="utf-8"), tokenizer)
        model = load_checkpoint(path, dtype)
        # Public models round their vocabulary up: rows behind the tokenizer's last token mean nothing.
        if model.config.vocab_size < tokenizer.vocab_size:
            sizes = f"{tokenizer.vocab_size} tokens, its model {model.config.vocab_size}"
            raise CheckpointError(f"{path} does not fit together: its tokenizer has {sizes}")
        engine = cls(path.resolve().name, model, tokenizer, chat)
        engine.folder = path
        return engine

    def generate(
        self, prompt_ids: list[int], params: GenerateParams, observe: Callable[[Frame], None] | None = None
    ) -> Iterator[Delta]:
        """Yields the answer as it becomes final. Closing the iterator, or raising from `observe`, ends the request.

        Raises ContextLengthError for a prompt that leaves no room to answer, RequestError for an empty one or for
        `diffuse` on a model that cannot denoise.
        """
        decoding = Decoding(self.model, [self.admit(prompt_ids, params, observe)], self.end_id, self.mask_id)
        return _deltas(decoding)

    def generate_many(self, prompts: list[list[int]], params: GenerateParams) -> list[tuple[list[int], Delta]]:
        """Answers to many prompts whose forwards are shared: (tokens, last delta) of each, for measurements."""
        requests = [self.admit(ids, params) for ids in prompts]
        decoding = Decoding(self.model, requests, self.end_id, self.mask_id)
        answers: list[list[int]] = [[] for _ in prompts]
        last: list[Delta | None] = [None] * len(prompts)
        while any(delta is None for delta in last):
            for i, delta in decoding.step():
                answers[i] += delta.tokens
                if delta.finish_reason is not None:
                    last[i] = delta
        return [(tokens, delta) for tokens, delta in zip(answers, last, strict=True) if delta is not None]

    def admit(
        self, prompt_ids: list[int], params: GenerateParams, observe: Callable[[Frame], None] | None = None
    ) -> Request:
        """Checks a request against the model; the limit on tokens shrinks to what the context leaves."""
        if not prompt_ids:
            raise RequestError("the prompt is empty; give at least one message", param="messages")
        room = self.max_context - len(prompt_ids)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(prompt_ids)} tokens; this model's context is {self.max_context}, and an answer "
                "needs at least 1 of them. Shorten the messages.",
                param="messages",
                code="context_length_exceeded",
            )
        if params.mode == "diffuse" and not self.model.config.is_block_diffusion:
            raise RequestError(
                f"{self.name} is an AR model, as its checkpoint lacks block diffusion's tensors or settings: mode 'ar' "
                "works, 'diffuse' does not. Use the complete checkpoint, or `fourleaf convert` and training.",
                param="mode",
            )
        return Request(prompt_ids, params, min(params.max_tokens, room), observe)

    @property
    def end_id(self) -> int:
        return self.tokenizer.end_id

    @property
    def mask_id(self) -> int | None:
        """Stands in masked positions and is never an answer's token; an AR model of another project has none."""
        mask = self.model.config.mask_token_id
        return self.tokenizer.controls.get(MASK) if mask is None else mask


def _deltas(decoding: Decoding) -> Iterator[Delta]:
    while decoding.requests[0].finish_reason is None:
        for _, delta in decoding.step():
            yield delta
