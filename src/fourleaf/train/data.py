"""Training batches: examples from a seed, cut into flat rows with no padding.

Pool p of a run is a function of (seed, p, most calls) alone, so that a run resumes at any batch without replaying
what came before. Shapes: R flat rows, B sequences, C noisy blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fourleaf.diffusion.noise import NoiseConfig, NoisyBlock, noisy_blocks, slot_block
from fourleaf.model.work import Segments, Work


@dataclass(frozen=True)
class Document:
    """One example as ids: prompt, answer, end token. `answer_start` is the answer's first position.

    slots: of an answer whose form is given, one canvas, which rows are to be found; the end token is not among them.
    hints: positions of the prompt whose tokens causal rows learn as they learn an answer's.
    """

    ids: NDArray[np.int64]
    answer_start: int
    slots: NDArray[np.bool_] | None = None
    hints: tuple[int, ...] = ()


# (seed, most calls) -> endless documents
Source = Callable[[int, int], Iterator[Document]]


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to run and what their logits should say.

    next_rows, next_target, next_weight: causal rows that predict a token, the id that follows, 1 or `prompt_weight`.
    masked_rows, masked_target, masked_weight: canvas rows (by flat row), their true id, the `row_weight` of their block
    (times `fill_weight` behind the end).
    num_next, num_masked: sums of the weights of answer tokens and hints, to be summed over all micro-batches and ranks.
    """

    work: Work
    next_rows: Tensor
    next_target: Tensor
    next_weight: Tensor
    num_next: int
    masked_rows: Tensor
    masked_target: Tensor
    masked_weight: Tensor
    num_masked: int

    @property
    def num_tokens(self) -> int:
        """Clean tokens of the batch."""
        return self.work.num_causal


def pool(source: Source, seed: int, index: int, size: int, max_calls: int) -> list[Document]:
    """Pool `index` of a run."""
    stream = source(int(np.random.SeedSequence([seed, index, max_calls]).generate_state(1)[0]), max_calls)
    return [next(stream) for _ in range(size)]


def mixed(sources: Sequence[tuple[Source, float]]) -> Source:
    """Documents of several sources, each with its share of the tokens: the one that lacks most is asked next."""

    def source(seed: int, max_calls: int) -> Iterator[Document]:
        streams = [one(seed, max_calls) for one, _ in sources]
        given = [0] * len(sources)
        while True:
            at = min(range(len(sources)), key=lambda i: given[i] / sources[i][1])
            document = next(streams[at])
            given[at] += len(document.ids)
            yield document

    return source


def batches(
    documents: Sequence[Document], rows_per_batch: int, rng: np.random.Generator, rows: Callable[[Document], int]
) -> list[list[Document]]:
    """Groups documents of like length into batches of at most `rows_per_batch` rows each, in random order."""
    order = sorted(range(len(documents)), key=lambda i: (len(documents[i].ids), i))
    groups: list[list[Document]] = [[]]
    filled = 0
    for i in order:
        cost = rows(documents[i])
        if groups[-1] and filled + cost > rows_per_batch:
            groups.append([])
            filled = 0
        groups[-1].append(documents[i])
        filled += cost
    return [groups[i] for i in rng.permutation(len(groups))]


def num_rows(document: Document, objective: str, block_size: int, copies: int = 1) -> int:
    """Rows that a document costs: its tokens, and under "joint" about as many block rows as its answer needs, for each
    noisy copy."""
    answer = len(document.ids) - document.answer_start
    blocks = -(-answer // block_size) if objective == "joint" else 0
    noisy = blocks * block_size if document.slots is None else bool(blocks) * len(document.slots)
    return len(document.ids) - 1 + copies * noisy


def _taught(document: Document) -> NDArray[np.bool_]:
    """[N - 1] clean rows whose next token is the answer's or a hint."""
    rows = np.arange(len(document.ids) - 1) >= document.answer_start - 1
    rows[[position - 1 for position in document.hints]] = True
    return rows


def collate(
    documents: Sequence[Document],
    *,
    objective: str,
    end_id: int,
    mask_id: int,
    block_size: int,
    noise: NoiseConfig,
    fill_weight: float,
    prompt_weight: float,
    rng: np.random.Generator,
) -> Batch:
    """One forward's rows over [clean | noisy]. The last token of a document is only ever a target."""
    lengths = [len(d.ids) - 1 for d in documents]
    clean = np.concatenate([d.ids[:-1] for d in documents])
    target = np.concatenate([d.ids[1:] for d in documents])
    is_answer = np.concatenate([_taught(document) for document in documents])
    weight = np.where(is_answer, 1.0, prompt_weight).astype(np.float32)
    rows = np.flatnonzero(weight)

    found: list[tuple[int, NoisyBlock]] = []
    if objective == "joint":
        for seq, document in list(enumerate(documents)) * noise.copies:
            if document.slots is None:
                blocks = noisy_blocks(document.ids, document.answer_start, end_id, block_size, noise, rng)
            else:
                blocks = [slot_block(document.ids, document.answer_start, document.slots, noise, rng)]
            found += [(seq, block) for block in blocks]
    canvas = [np.where(b.masked, mask_id, b.target) for _, b in found]
    masked = np.concatenate([b.masked for _, b in found]) if found else np.zeros(0, dtype=bool)
    truth = np.concatenate([b.target for _, b in found]) if found else np.zeros(0, dtype=np.int64)
    fill = np.concatenate([b.is_fill for _, b in found]) if found else masked
    scale = np.concatenate([np.full(len(b.target), b.row_weight) for _, b in found]) if found else np.zeros(0)
    masked_at = np.flatnonzero(masked)
    work = Work(
        torch.from_numpy(np.concatenate([clean, *canvas])),
        Segments(lengths),
        [0] * len(documents),
        Segments([len(b.target) for _, b in found]) if found else None,
        [seq for seq, _ in found] if found else None,
        [b.start for _, b in found] if found else None,
    )
    return Batch(
        work,
        torch.from_numpy(rows),
        torch.from_numpy(target[rows]),
        torch.from_numpy(weight[rows]),
        int(is_answer.sum()),
        torch.from_numpy(masked_at + len(clean)),
        torch.from_numpy(truth[masked_at]),
        torch.from_numpy((np.where(fill, fill_weight, 1.0) * scale)[masked_at].astype(np.float32)),
        sum(b.num_targets for _, b in found),
    )
