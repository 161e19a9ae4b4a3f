"""Perplexity of a text along a model's clean path: what quantising costs, in a number that needs no task.

The text is cut into windows that overlap by half. Each is read from its own start, and only the second half of its
tokens is scored, so that every scored token has at least half a window before it and, but for the text's first half
window and its rest, every token is scored once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fourleaf.errors import ConfigError
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work
from fourleaf.text.foreign import read_tokenizer

WINDOW = 512
# Rows whose logits are in memory at a time: a vocabulary of 248,320 takes a megabyte a row.
_ROWS = 128


def token_ids(folder: Path, text: str, most: int) -> Tensor:
    """The first `most` tokens of a text [T], in the words of a checkpoint folder. Raises CheckpointError for a broken
    tokenizer."""
    return torch.tensor(read_tokenizer(folder).encode(text)[:most])


def windows(ids: Tensor, window: int = WINDOW) -> list[Tensor]:
    """Pieces [window + 1] of a text [T], half a window apart; a rest that is shorter is left out.

    Raises ConfigError where the window is odd or below 2, or where the text does not fill one.
    """
    if window < 2 or window % 2:
        raise ConfigError(f"window is {window}; it must be even and at least 2")
    if len(ids) <= window:
        raise ConfigError(f"the text has {len(ids)} tokens; a window of {window} needs {window + 1}")
    return [ids[at : at + window + 1] for at in range(0, len(ids) - window, window // 2)]


@torch.inference_mode()
def losses(model: Transformer, pieces: list[Tensor], progress: Callable[[int, int], None] | None = None) -> list[float]:
    """Mean loss in nats of the second half of each of `windows`' pieces; the exponential of their mean is the
    perplexity. `progress` is told (pieces done, pieces in all)."""
    found = []
    for number, piece in enumerate(pieces):
        half = (len(piece) - 1) // 2
        hidden, _ = model(Work(piece[:-1], Segments([len(piece) - 1]), [0]))
        rows = zip(hidden[half:].split(_ROWS), piece[half + 1 :].split(_ROWS), strict=True)
        total = sum(F.cross_entropy(model.head(part).float(), wanted, reduction="sum").item() for part, wanted in rows)
        found.append(total / (len(piece) - 1 - half))
        if progress is not None:
            progress(number + 1, len(pieces))
    return found
