"""Runs that can be repeated: the bundled model's.

The recipe is data; the command line only chooses the budget.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from fourleaf.checkpoint.files import save_model, write_json
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.kernels.fuse import use_compiled
from fourleaf.model.config import ModelConfig
from fourleaf.tasks.cabin.generator import stream
from fourleaf.tasks.cabin.schema import TOOLS, Example, answer_text, messages
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer, train_tokenizer
from fourleaf.train.config import Stage, TrainConfig
from fourleaf.train.data import Document, Source
from fourleaf.train.folder import Line, RunFolder
from fourleaf.train.trainer import Evaluate, Ids, Trainer

BLOCK_SIZE = 32
VOCAB_SIZE = 1024
DEFAULT_MINUTES = 30.0
_TOKENIZER_EXAMPLES = 20_000
_TOKENIZER_SEED = 1_000_003

CABIN_STAGES = (
    Stage(
        objective="ar",
        share=0.4,
        curriculum=((0.0, 1), (0.25, 2), (0.4, 4), (0.55, 8)),
        rows=768,
        peak=2e-3,
        decay_from=0.8,
        floor=0.6,
    ),
    Stage(objective="joint", share=0.6, rows=1536, peak=1.5e-3, decay_from=0.4),
)


def cabin_trunk(vocab_size: int = VOCAB_SIZE) -> ModelConfig:
    """The AR trunk of the bundled model: dense, 6 layers, every second one attention (decision 002)."""
    return ModelConfig(
        model_type="clover",
        vocab_size=vocab_size,
        hidden_size=160,
        num_hidden_layers=6,
        full_attention_interval=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=40,
        rope_theta=10_000.0,
        partial_rotary_factor=0.5,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=40,
        intermediate_size=416,
        max_position_embeddings=4096,
        eos_token_id=0,
    )


def cabin_tokenizer() -> Tokenizer:
    """Trained on the task's own corpus: utterances and answers of the training stream."""
    examples = itertools.islice(stream(_TOKENIZER_SEED), _TOKENIZER_EXAMPLES)
    return train_tokenizer((text for e in examples for text in (e.utterance, answer_text(e))), VOCAB_SIZE)


def document(example: Example, tokenizer: Tokenizer, chat: ChatTemplate) -> Document:
    """An example as ids."""
    prompt = chat.render(messages(example))
    answer = [*tokenizer.encode_markup(answer_text(example)), tokenizer.end_id]
    return Document(np.array(prompt + answer, dtype=np.int64), len(prompt))


def cabin_source(tokenizer: Tokenizer, chat: ChatTemplate) -> Source:
    """The training stream as documents."""

    def source(seed: int, max_calls: int) -> Iterator[Document]:
        for example in stream(seed, max_calls=max_calls):
            yield document(example, tokenizer, chat)

    return source


def template_path() -> Path:
    """The bundled model's chat template, which its training uses too."""
    return Path(__file__).parents[1] / "models" / "cabin" / "chat_template.jinja"


def train_cabin(
    out: Path,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    resume: bool = True,
    compiled: bool = True,
    num_threads: int | None = None,
    evaluate: Callable[[Tokenizer, ChatTemplate], Evaluate] | None = None,
    report: Callable[[Line], None] | None = None,
    overrides: dict[str, object] | None = None,
) -> Path:
    """Trains the bundled model from nothing, or goes on where the run in `out` stands, and writes `out`/model.

    Without `minutes` and `steps` a run keeps the budget that it was started with, and a new one has 30 minutes.
    `overrides` are fields of TrainConfig. Raises ConfigError where `out` holds a run that `resume` or the settings
    forbid to go on with, CheckpointError where it is broken.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    folder = RunFolder(out)
    if not resume and folder.checkpoint.exists():
        raise ConfigError(f"{out} holds a run; go on with it or choose another folder")
    if minutes is None and steps is None:
        minutes, steps = _own_budget(folder)
    config = TrainConfig(stages=CABIN_STAGES, minutes=minutes, steps=steps, seed=seed)
    config = dataclasses.replace(config, **(overrides or {}))  # type: ignore[arg-type]
    tokenizer = _own_tokenizer(folder, report)
    template = template_path().read_text(encoding="utf-8")
    chat = ChatTemplate(template, tokenizer)
    trainer = Trainer(
        config,
        cabin_trunk(tokenizer.vocab_size),
        cabin_source(tokenizer, chat),
        Ids(end=tokenizer.end_id, mask=tokenizer.mask_id, block_size=BLOCK_SIZE),
        out,
        None if evaluate is None else evaluate(tokenizer, chat),
        report,
    )
    trainer.resume()
    use_compiled(compiled)
    try:
        model = trainer.run()
    finally:
        use_compiled(False)
    save_model(model, out / "model", torch.bfloat16)
    tokenizer.save(out / "model" / "tokenizer.json")
    (out / "model" / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_json(out / "model" / "tools.json", TOOLS)  # they are in the weights; servers read here which they are
    return out / "model"


def _own_budget(folder: RunFolder) -> tuple[float | None, int | None]:
    """(minutes, steps) of the run in the folder, or the default."""
    snapshot = folder.load()
    settings = {} if snapshot is None else snapshot.settings
    if not settings:
        return DEFAULT_MINUTES, None
    return settings["minutes"], settings["steps"]


def _own_tokenizer(folder: RunFolder, report: Callable[[Line], None] | None) -> Tokenizer:
    """The run's tokenizer; a new run trains it first. Raises CheckpointError where a run has lost it."""
    path = folder.path / "tokenizer.json"
    if not path.exists():
        if folder.checkpoint.exists():
            raise CheckpointError(f"there is no {path}, whose ids the run's weights know; put it back or start anew")
        if report is not None:
            report({"note": f"training a tokenizer on {_TOKENIZER_EXAMPLES:,} examples"})
        folder.path.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        cabin_tokenizer().save(temporary)
        temporary.replace(path)
    return Tokenizer.from_file(path)
