"""What a calibrated quantisation sees: training's own batches, clean rows and canvases at mixed noise."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from fourleaf.checkpoint.quantised import Sizes, quantise_checkpoint
from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Work
from fourleaf.quant.calibrate import calibrate
from fourleaf.quant.int4 import Int4Config, Packed
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.foreign import read_tokenizer
from fourleaf.text.tokenizer import Tokenizer
from fourleaf.train.data import Document, batches, collate, num_rows
from fourleaf.train.recipes import cabin_source

# Apart from every seed that training counts up from.
_SEED = 7_000_003
_MAX_CALLS = 8
_ROWS = 1024
# Tokens of a paragraph that count; of these the first quarter is prompt, the rest is denoised.
_MOST_TOKENS = 512


def cabin_documents(folder: Path, num: int, seed: int) -> list[Document]:
    """Examples of the cabin task in the words of the checkpoint's own tokenizer and template."""
    template = folder / "chat_template.jinja"
    if not template.is_file():
        raise CheckpointError(f"there is no {template}; calibration renders chats with it")
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    source = cabin_source(tokenizer, ChatTemplate(template.read_text(encoding="utf-8"), tokenizer))
    return list(itertools.islice(source(_SEED + seed, _MAX_CALLS), num))


def text_documents(folder: Path, text: Path, end_id: int, num: int, seed: int) -> list[Document]:
    """Paragraphs of a plain text, at most `num` of them, drawn by the seed. What is spelled like a control token in
    them is text, as it is when the model is served.

    Raises ConfigError where the text cannot be read or has no paragraph, CheckpointError for a broken tokenizer.
    """
    try:
        paragraphs = [p.strip() for p in re.split(r"\n\s*\n", text.read_text(encoding="utf-8")) if p.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {text}: {error}") from error
    if not paragraphs:
        raise ConfigError(f"{text} holds no text to calibrate on")
    tokenizer = read_tokenizer(folder)
    order = np.random.default_rng(seed).permutation(len(paragraphs))[:num]
    rows = [tokenizer.encode(paragraphs[i])[:_MOST_TOKENS] for i in order]
    return [Document(np.array([*ids, end_id], dtype=np.int64), max(1, len(ids) // 4)) for ids in rows if len(ids) > 1]


def works(config: ModelConfig, documents: list[Document], seed: int) -> Iterator[Work]:
    """Forwards over [clean | noisy] as the joint objective makes them; clean rows alone for a model without blocks."""
    rng = np.random.default_rng(seed)
    objective, block_size = ("joint", config.block_size) if config.block_size is not None else ("ar", 1)
    for group in batches(documents, _ROWS, rng, lambda document: num_rows(document, objective, block_size)):
        yield collate(
            group,
            objective=objective,
            end_id=int(group[0].ids[-1]),
            mask_id=config.mask_token_id or 0,
            block_size=block_size,
            noise=NoiseConfig(),
            fill_weight=0.0,
            prompt_weight=0.0,
            rng=rng,
        ).work


def _end_id(config: ModelConfig) -> int:
    end = config.eos_token_id[0] if isinstance(config.eos_token_id, tuple) else config.eos_token_id
    if end is None:
        raise ConfigError("the checkpoint's config.json has no eos_token_id, which calibration ends documents with")
    return end


def main_quantise(
    source: Path,
    target: Path,
    *,
    group_size: int,
    method: str,
    symmetric: bool,
    plain_layers: int = 0,
    text: Path | None = None,
    examples: int,
    seed: int,
    num_threads: int | None,
    out: TextIO,
    progress: TextIO,
) -> None:
    """`fourleaf quantize`. Raises ConfigError for a setting outside its limits, CheckpointError for a broken source."""
    config = Int4Config(
        group_size=group_size,
        method=method,  # type: ignore[arg-type]
        symmetric=symmetric,
        plain_layers=plain_layers,
    )
    if text is not None and method != "gptq":
        raise ConfigError(f"scheme is {method!r}, which looks at no text; leave --text out or take --scheme gptq")
    if num_threads is not None:
        torch.set_num_threads(num_threads)

    def calibrated(model: Transformer, config: Int4Config) -> dict[str, Packed]:
        if text is None:
            documents = cabin_documents(source, examples, seed)
        else:
            documents = text_documents(source, text, _end_id(model.config), examples, seed)
        told = works(model.config, documents, seed)
        return calibrate(model, told, config, lambda done, all_: print(f"layer {done} of {all_}", file=progress))

    sizes = quantise_checkpoint(source, target, config, calibrated if method == "gptq" else None)
    print("\n".join(lines(sizes, target)), file=out)


def lines(sizes: Sizes, target: Path) -> list[str]:
    """What became of the weights."""
    before, after = sizes.bytes_before, sizes.bytes_after
    return [
        f"{sizes.num_quantised:,} weights in {sizes.bits:.2f} bits each, {sizes.num_kept:,} as they were",
        f"{before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB after ({100 * after / before:.0f}%)",
        str(target),
    ]
