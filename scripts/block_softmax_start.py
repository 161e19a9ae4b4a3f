"""Where the block softmax of a freshly converted trunk should start: what its canvas knows before any training.

    python scripts/block_softmax_start.py FOLDER [--starts 4,6.5,1 8,8,1 ...] [--steps 60] [--json FILE]

FOLDER holds a checkpoint of the bundled model's kind or a training run. Its AR half is converted once for each start of
a grid (scale of the cosines inside the block, the history slot's bias in a full block, its slope). If it was a block
diffusion model, the mask's embedding is drawn anew, as AR training would have left it. Each start then denoises,
untrained, the same blocks of held-out examples:

- loss: cross-entropy of masked rows against their own token, in nats, by the share of rows that is masked.
- first: how often the first masked row's first choice is what the AR trunk would say next there.
- kept: blocks with nothing masked. How far what a canvas row says lies from what the same row says on the clean path
  (KL, nats a row), and how often the first choice is the same: what of the trunk survives in the canvas.
- short: the same for canvases of 4 rows, which the slope is for.

--starts names those to measure beside the present one, in place of the grid. With --steps each is trained on under the
joint objective, that many steps of the same batches, and measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fourleaf.checkpoint.convert import convert
from fourleaf.checkpoint.files import load_model
from fourleaf.checkpoint.names import CLOVER_TENSORS
from fourleaf.checkpoint.shards import CONFIG
from fourleaf.diffusion.noise import block_lengths
from fourleaf.engine.engine import bundled_path
from fourleaf.errors import CheckpointError, FourleafError
from fourleaf.measure.circumstances import Ticker
from fourleaf.measure.tables import table
from fourleaf.model.deltanet import DeltaNet, block_softmax_start
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer
from fourleaf.train.config import TrainConfig
from fourleaf.train.data import Document, Source
from fourleaf.train.folder import RunFolder
from fourleaf.train.recipes import BLOCK_SIZE, CABIN_STAGES, cabin_source
from fourleaf.train.trainer import Ids, Trainer

RATIOS = (0.25, 0.5, 0.75, 1.0)
SHORT = 4
SCALES, BIASES = (1.0, 2.0, 4.0, 8.0, 12.0, 16.0), (round(math.log(BLOCK_SIZE), 6), 5.0, 6.5, 8.0, 10.0, 12.0)
_SEED = 900_001  # of the examples that are denoised; no run draws its pools from it


class Start(NamedTuple):
    """The same for every layer and head."""

    scale: float
    bias: float
    slope: float

    def __str__(self) -> str:
        return f"{self.scale:.1f}  {self.bias:.2f}  {self.slope:.0f}"


@dataclass(frozen=True)
class Blocks:
    """The canvas rows of one kind in a forward, [R] each. masked: bool. rows: their flat rows. clean: the flat row of
    the same position on the clean path. target: true ids. is_first: the first masked row of its canvas."""

    masked: Tensor
    rows: Tensor
    clean: Tensor
    target: Tensor
    is_first: Tensor


def trunk_of(folder: Path, mask_id: int) -> Transformer:
    """The AR half of a checkpoint or of a run."""
    if (folder / CONFIG).is_file():
        model = load_model(folder)
    elif (snapshot := RunFolder(folder).load()) is not None:
        model = Transformer(snapshot.model_config)
        model.load_state_dict(snapshot.weights, strict=False)
    else:
        raise CheckpointError(f"{folder} holds neither a checkpoint nor a training run")
    if not model.config.is_block_diffusion:
        return model.eval()
    trunk = Transformer(dataclasses.replace(model.config, block_size=None, mask_token_id=None))
    kept = {name: t for name, t in model.named_tensors() if not name.endswith(CLOVER_TENSORS)}
    with torch.no_grad():
        for name, tensor in trunk.named_tensors():
            tensor.copy_(kept[name])
        embedding = trunk.model.embed_tokens.weight
        random = torch.Generator().manual_seed(0)
        embedding[mask_id] = torch.randn(embedding.shape[1], generator=random) * embedding.std()
    return trunk.eval()


def canvases(documents: list[Document], mask_id: int) -> tuple[Work, dict[str, Blocks]]:
    """One forward: the clean rows of all documents, and their blocks masked by each ratio, not at all, and short."""
    rng = np.random.default_rng(0)
    lengths = [len(d.ids) - 1 for d in documents]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows, found, owners, starts, sizes = int(offsets[-1]), {}, [], [], []
    tokens = [np.concatenate([d.ids[:-1] for d in documents])]
    for kind, size, ratio in (
        ("kept", BLOCK_SIZE, 0.0),
        *((f"{r:.0%}", BLOCK_SIZE, r) for r in RATIOS),
        ("short", SHORT, 0.0),
    ):
        parts = []
        for seq, document in enumerate(documents):
            start, end = document.answer_start, len(document.ids) - 1
            for length in block_lengths(end - start, size, size):
                block = document.ids[start : min(start + length, end)]
                masked = rng.random(len(block)) < ratio
                masked[rng.integers(len(block))] |= ratio > 0
                tokens.append(np.where(masked, mask_id, block))
                first = masked & (np.cumsum(masked) == 1)
                at = np.arange(len(block))
                parts.append((masked, rows + at, offsets[seq] + start + at, block, first))
                owners, starts, sizes = [*owners, seq], [*starts, start], [*sizes, len(block)]
                rows, start = rows + len(block), start + len(block)
        found[kind] = Blocks(*(torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True)))
    work = Work(
        torch.from_numpy(np.concatenate(tokens)),
        Segments(lengths),
        [0] * len(documents),
        Segments(sizes),
        owners,
        starts,
    )
    return work, found


def begin_at(model: Transformer, start: Start) -> None:
    """Sets the block softmax of every GDN layer."""
    with torch.no_grad():
        for layer in (m for m in model.modules() if isinstance(m, DeltaNet)):
            layer.bd_softmax_logit_scale.fill_(start.scale)
            layer.bd_softmax_history_bias.fill_(start.bias)
            layer.bd_softmax_history_c.fill_(start.slope)
    model.refresh()


@torch.inference_mode()
def measure(model: Transformer, work: Work, kinds: dict[str, Blocks], mask_id: int) -> dict[str, float]:
    """What the docstring above lists."""
    hidden, _ = model(work)
    found, firsts = {}, []
    for kind, blocks in kinds.items():
        said, clean = model.head(hidden[blocks.rows]), model.head(hidden[blocks.clean])
        if kind in ("kept", "short"):
            given, wanted = said.log_softmax(-1), clean.log_softmax(-1)
            found[kind] = F.kl_div(given, wanted, reduction="batchmean", log_target=True).item()
            found[f"{kind} same"] = (given.argmax(-1) == wanted.argmax(-1)).float().mean().item()
            continue
        said[:, mask_id] = float("-inf")
        found[kind] = F.cross_entropy(said[blocks.masked], blocks.target[blocks.masked]).item()
        before = model.head(hidden[blocks.clean[blocks.is_first] - 1])
        firsts.append(said[blocks.is_first].argmax(-1) == before.argmax(-1))
    found["first"] = torch.cat(firsts).float().mean().item()
    return found


def trained(model: Transformer, source: Source, tokenizer: Tokenizer, steps: int) -> Transformer:
    """The model after some steps of the recipe's joint stage."""
    stage = dataclasses.replace(CABIN_STAGES[-1].at_full_length(), share=1.0)
    config = TrainConfig(stages=(stage,), steps=steps, save_every_s=1e9)
    trunk = dataclasses.replace(model.config, block_size=None, mask_token_id=None)
    ids = Ids(end=tokenizer.end_id, mask=tokenizer.mask_id, block_size=BLOCK_SIZE)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(config, trunk, source, ids, Path(scratch))
        trainer.begin_with(model, Path(scratch))
        done = trainer.run()
    done.refresh()
    return done


def starts() -> list[Start]:
    """The grid with slope 1, and two scales without a slope."""
    grid = [Start(scale, bias, 1.0) for scale, bias in itertools.product(SCALES, BIASES)]
    return grid + [Start(scale, bias, 0.0) for scale, bias in itertools.product((1.0, 8.0), BIASES)]


def _start(text: str) -> Start:
    scale, bias, slope = map(float, text.split(","))
    return Start(scale, bias, slope)


def present(model: Transformer) -> Start:
    """What `convert` writes."""
    new = block_softmax_start(model.config)
    return Start(*(round(float(new[name][0]), 6) for name in CLOVER_TENSORS[1:]))


def lines(found: dict[Start, dict[str, float]], now: Start) -> list[str]:
    """As a table, the present start marked."""
    names = [f"{ratio:.0%}" for ratio in RATIOS]
    rows = [["scale, bias, slope", *(f"loss {n}" for n in names), "first", "kept, KL", "same", "short, KL", "same"]]
    for start, values in found.items():
        cells = [f"{values[n]:.3f}" for n in names] + [f"{values['first']:.1%}"]
        for kind in ("kept", "short"):
            cells += [f"{values[kind]:.3f}", f"{values[f'{kind} same']:.1%}"]
        rows.append([f"{start}{' *' if start == now else ''}", *cells])
    return table(rows)


def main() -> None:
    """Reads the command line, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=int, default=24)
    parser.add_argument("--starts", type=_start, nargs="+", help="scale,bias,slope of each")
    parser.add_argument("--steps", type=int, default=0, help="of joint training behind the first table")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write every number to this file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    tokenizer = Tokenizer.from_file(given.folder / "tokenizer.json")
    chat = ChatTemplate((bundled_path() / "chat_template.jinja").read_text(encoding="utf-8"), tokenizer)
    source, mask_id, ticker = cabin_source(tokenizer, chat), tokenizer.mask_id, Ticker(sys.stderr)
    trunk = trunk_of(given.folder, mask_id)
    work, kinds = canvases(list(itertools.islice(source(_SEED, 2), given.examples)), mask_id)

    def fresh(start: Start) -> Transformer:
        model = convert(trunk, block_size=BLOCK_SIZE, mask_token_id=mask_id).eval()
        begin_at(model, start)
        return model

    now, untrained, after = present(fresh(Start(0, 0, 0))), {}, {}
    grid = list(dict.fromkeys([now, *(given.starts or starts())]))
    for number, start in enumerate(grid):
        untrained[start] = measure(fresh(start), work, kinds, mask_id)
        ticker(number + 1, len(grid), "starts")
    for start in grid if given.steps else ():
        model = trained(fresh(start), source, tokenizer, given.steps)
        after[start] = measure(model.eval(), work, kinds, mask_id)
        ticker(len(after), len(grid), f"starts, {given.steps} steps each")
        if given.json is not None:  # what is done is kept, however the rest ends
            _write(given.json, untrained, after)
    ticker.close()
    num = sum(sum(blocks.masked.tolist()) for blocks in kinds.values())
    print(f"{given.examples} examples, {num} masked rows; * is where `convert` starts; untrained:")
    print("\n".join(lines(untrained, now)))
    if after:
        print(f"\nafter {given.steps} joint steps:")
        print("\n".join(lines(after, now)))
    if given.json is not None:
        _write(given.json, untrained, after)


def _write(file: Path, untrained: dict[Start, dict[str, float]], after: dict[Start, dict[str, float]]) -> None:
    tables = {"untrained": untrained, "trained": after}
    found = {name: [{**start._asdict(), **v} for start, v in part.items()] for name, part in tables.items()}
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except FourleafError as error:
        sys.exit(f"block_softmax_start: {error}")
