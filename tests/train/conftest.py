"""A toy to train on: repeat the letters of the prompt. And the tokenizer and template of what is really trained on."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import pytest
import tiny

from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.model.config import ModelConfig
from fourleaf.tasks.cabin.generator import stream
from fourleaf.tasks.cabin.schema import answer_text
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import SPECIAL_TOKENS, Tokenizer, train_tokenizer
from fourleaf.train.config import Stage, TrainConfig
from fourleaf.train.data import Batch, Document, Source, collate
from fourleaf.train.recipes import template_path
from fourleaf.train.sheets import sheet_texts
from fourleaf.train.trainer import Ids, Trainer

END, MASK, ASK, ANSWER, LETTERS, VOCAB, BLOCK = 0, 1, 2, 3, 4, 16, 8


def _copies(seed: int, max_calls: int) -> Iterator[Document]:
    """Prompts of up to twice `max_calls` letters, answered by the same letters."""
    rng = np.random.default_rng(seed)
    while True:
        letters = rng.integers(LETTERS, VOCAB, rng.integers(1, 2 * max_calls + 1))
        yield Document(np.array([ASK, *letters, ANSWER, *letters, END]), len(letters) + 2)


def _tiny_trunk(**options) -> ModelConfig:
    settings = tiny.TWO | {"vocab_size": VOCAB, "intermediate_size": 24, "tie_word_embeddings": True}
    return ModelConfig(**(settings | options))


_STAGES = (
    Stage(objective="ar", share=0.5, curriculum=((0.0, 1), (0.5, 3)), rows=64, warmup_steps=2),
    Stage(objective="joint", share=0.5, curriculum=((0.0, 3),), rows=128, warmup_steps=2),
)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Of the texts that the bundled model's training sees, of few of them."""
    texts = [text for e in islice(stream(1), 300) for text in (e.utterance, answer_text(e))]
    return train_tokenizer([*texts, *sheet_texts(1, 50)], len(SPECIAL_TOKENS) + 500)


@pytest.fixture(scope="session")
def chat(tokenizer) -> ChatTemplate:
    return ChatTemplate(template_path().read_text(encoding="utf-8"), tokenizer)


@pytest.fixture(scope="session")
def copies() -> Source:
    return _copies


@pytest.fixture(scope="session")
def tiny_trunk() -> Callable[..., ModelConfig]:
    return _tiny_trunk


@pytest.fixture(scope="session")
def collated() -> Callable[..., Batch]:
    """Documents as a batch; `noise` are fields of NoiseConfig."""

    def make(
        documents: Sequence[Document],
        rng: np.random.Generator,
        objective: str = "joint",
        *,
        block_size: int = BLOCK,
        prompt_weight: float = 0.0,
        **noise,
    ) -> Batch:
        return collate(
            documents,
            objective=objective,
            end_id=END,
            mask_id=MASK,
            block_size=block_size,
            noise=NoiseConfig(**noise),
            fill_weight=0.1,
            prompt_weight=prompt_weight,
            rng=rng,
        )

    return make


@pytest.fixture(scope="session")
def make_trainer() -> Callable[..., Trainer]:
    """A trainer of the toy. `options` are fields of TrainConfig; the rest goes to the trainer."""

    def make(
        out, *, trunk=None, source=_copies, evaluate=None, report=None, mask=MASK, workers=1, **options
    ) -> Trainer:
        settings = {"stages": _STAGES, "pool_size": 24, "log_every": 1, "noise": NoiseConfig()} | options
        if "minutes" not in settings:
            settings.setdefault("steps", 20)
        ids = Ids(end=END, mask=mask, block_size=BLOCK)
        return Trainer(TrainConfig(**settings), trunk or _tiny_trunk(), source, ids, out, evaluate, report, workers)

    return make
