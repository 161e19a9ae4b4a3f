"""Runs that can be repeated: the bundled model's.

The recipe is data; the command line only chooses the budget.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from fourleaf.checkpoint.convert import BLOCK_SIZE
from fourleaf.checkpoint.files import load_model, save_model, write_json
from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.kernels.fuse import use_compiled
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.tasks.cabin.generator import stream
from fourleaf.tasks.cabin.schema import TOOLS, Example, answer_text, messages
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer, train_tokenizer
from fourleaf.train.config import Stage, TrainConfig
from fourleaf.train.data import Document, Source, mixed
from fourleaf.train.drills import drill_source
from fourleaf.train.folder import Line, RunFolder
from fourleaf.train.grids import puzzle_source
from fourleaf.train.heldout import judging
from fourleaf.train.kept import Kept, own_budget, own_noise, own_share, own_stages
from fourleaf.train.sheets import sheet_source, sheet_texts
from fourleaf.train.trainer import Evaluate, Ids, Trainer
from fourleaf.train.workers import default_workers

VOCAB_SIZE = 1024
DEFAULT_MINUTES = 30.0
_TOKENIZER_EXAMPLES = 20_000
_TOKENIZER_GROUPS = 2_000
_TOKENIZER_SEED = 1_000_003
_DRILL_SHARE = 0.2  # of the tokens that judgements get

CABIN_STAGES = (
    Stage(
        objective="ar",
        share=0.35,
        curriculum=((0.0, 1), (0.15, 2), (0.25, 4), (0.35, 8)),
        rows=640,
        peak=2.5e-3,
        decay_from=0.7,
        floor=0.5,
    ),
    Stage(objective="joint", share=0.65, rows=1024, peak=2e-3, decay_from=0.4),
)


# For weights that know the task: no easy beginning, and a rate that they survive (2.5e-3 doubled their loss at once).
CONTINUED_STAGES = (
    Stage(objective="ar", share=0.45, rows=1280, peak=1.2e-3, decay_from=0.5, floor=0.4),
    Stage(objective="joint", share=0.55, rows=2048, peak=1.2e-3, decay_from=0.25, floor=0.02),
)
# Two noisy copies: the canvas learns more slowly than the causal path, and both copies read the same clean rows.
CABIN_NOISE = NoiseConfig(copies=2)


def cabin_trunk(vocab_size: int = VOCAB_SIZE) -> ModelConfig:
    """The AR trunk of the bundled model: dense, 6 layers, every second one attention (decisions 002 and 030)."""
    return ModelConfig(
        model_type="clover",
        vocab_size=vocab_size,
        hidden_size=256,
        num_hidden_layers=6,
        full_attention_interval=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=40,
        rope_theta=10_000.0,
        partial_rotary_factor=0.5,
        linear_num_key_heads=3,
        linear_num_value_heads=6,
        linear_key_head_dim=32,
        linear_value_head_dim=40,
        intermediate_size=704,
        max_position_embeddings=4096,
        eos_token_id=0,
    )


def cabin_tokenizer(*, with_judgements: bool = False) -> Tokenizer:
    """Trained on the task's own corpus: utterances and answers of the training stream, and question sheets."""
    examples = itertools.islice(stream(_TOKENIZER_SEED), _TOKENIZER_EXAMPLES)
    texts: Iterator[str] = (text for e in examples for text in (e.utterance, answer_text(e)))
    if with_judgements:
        texts = itertools.chain(texts, sheet_texts(_TOKENIZER_SEED, _TOKENIZER_GROUPS))
    return train_tokenizer(texts, VOCAB_SIZE)


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


def training_source(tokenizer: Tokenizer, chat: ChatTemplate, judgements: float, puzzles: float = 0.0) -> Source:
    """Cabin alone, or with judgements (question sheets and their drills) and Sudoku grids as these shares of tokens."""
    sources = [(cabin_source(tokenizer, chat), 1 - judgements - puzzles)]
    if judgements > 0:
        sources.append((sheet_source(tokenizer, chat), judgements * (1 - _DRILL_SHARE)))
        sources.append((drill_source(tokenizer, chat), judgements * _DRILL_SHARE))
    if puzzles > 0:
        sources.append((puzzle_source(tokenizer, chat), puzzles))
    return sources[0][0] if len(sources) == 1 else mixed(sources)


def _evaluation(evaluate: Evaluate, tokenizer: Tokenizer, chat: ChatTemplate, judgements: float) -> Evaluate:
    return evaluate if judgements == 0 else judging(evaluate, tokenizer, chat)


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
    num_workers: int | None = None,
    evaluate: Callable[[Tokenizer, ChatTemplate], Evaluate] | None = None,
    report: Callable[[Line], None] | None = None,
    start: Path | None = None,
    judgements: float | None = None,
    puzzles: float | None = None,
    overrides: dict[str, object] | None = None,
) -> Path:
    """Trains the bundled model, or goes on where the run in `out` stands, and writes `out`/model.

    A new run begins with nothing or, where `start` names a checkpoint folder, with its weights and tokenizer and with
    CONTINUED_STAGES. A run keeps its stages and noise, and where they are not given the budget (30 minutes by default),
    `judgements` and `puzzles` (0; the shares of the tokens that are question sheets and Sudoku grids). `overrides` are
    fields of TrainConfig. Raises ConfigError where `out` holds a run that `resume` or the settings forbid to go on
    with, or `start` a shape that cannot grow to this one, CheckpointError where either is broken.
    """
    folder = RunFolder(out)
    if not resume and folder.checkpoint.exists():
        raise ConfigError(f"{out} holds a run; go on with it or choose another folder")
    kept = folder.settings()
    if minutes is None and steps is None:
        minutes, steps = own_budget(kept, DEFAULT_MINUTES)
    judgements, puzzles = own_share(kept, "judgements", judgements), own_share(kept, "puzzles", puzzles)
    config = TrainConfig(
        stages=cabin_stages(kept, start),
        minutes=minutes,
        steps=steps,
        seed=seed,
        micro_batches=2,
        noise=own_noise(kept, CABIN_NOISE),
        judgements=judgements,
        puzzles=puzzles,
    )
    config = dataclasses.replace(config, **(overrides or {}))  # type: ignore[arg-type]
    workers = default_workers(config.micro_batches) if num_workers is None else num_workers
    torch.set_num_threads(num_threads or (1 if workers > 1 else torch.get_num_threads()))
    tokenizer = _own_tokenizer(folder, start, report, with_judgements=judgements > 0)
    chat = ChatTemplate(template_path().read_text(encoding="utf-8"), tokenizer)
    trainer = Trainer(
        config,
        cabin_trunk(tokenizer.vocab_size),
        training_source(tokenizer, chat, judgements, puzzles),
        Ids(end=tokenizer.end_id, mask=tokenizer.mask_id, block_size=BLOCK_SIZE),
        out,
        None if evaluate is None else _evaluation(evaluate(tokenizer, chat), tokenizer, chat, judgements),
        report,
        workers,
    )
    if not trainer.resume() and start is not None:
        trainer.begin_with(load_model(start), start)
    return _save(_trained(trainer, compiled), tokenizer, out / "model")


def _trained(trainer: Trainer, compiled: bool) -> Transformer:
    use_compiled(compiled)
    try:
        return trainer.run()
    finally:
        use_compiled(False)


def _save(model: Transformer, tokenizer: Tokenizer, folder: Path) -> Path:
    save_model(model, folder, torch.bfloat16)
    tokenizer.save(folder / "tokenizer.json")
    shutil.copyfile(template_path(), folder / "chat_template.jinja")
    write_json(folder / "tools.json", TOOLS)  # they are in the weights; servers read here which they are
    return folder


def cabin_stages(kept: Kept, start: Path | None) -> tuple[Stage, ...]:
    """The stages of the run; of a new one (`kept` is None), by whether it begins with nothing."""
    return own_stages(kept, CABIN_STAGES if start is None else CONTINUED_STAGES)


def _own_tokenizer(
    folder: RunFolder, start: Path | None, report: Callable[[Line], None] | None, *, with_judgements: bool
) -> Tokenizer:
    """The run's tokenizer; a new run takes that of `start` or trains one. Raises CheckpointError where it is lost."""
    path = folder.path / "tokenizer.json"
    if not path.exists():
        if folder.checkpoint.exists():
            raise CheckpointError(f"there is no {path}, whose ids the run's weights know; put it back or start anew")
        if start is None and report is not None:
            report({"note": f"training a tokenizer on {_TOKENIZER_EXAMPLES:,} examples"})
        if start is None:
            tokenizer = cabin_tokenizer(with_judgements=with_judgements)
        else:
            tokenizer = Tokenizer.from_file(start / "tokenizer.json")
        folder.path.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        tokenizer.save(temporary)
        temporary.replace(path)
    return Tokenizer.from_file(path)
