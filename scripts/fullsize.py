"""Runs a model of Clover-35B-A3B's size from INT4 files on this machine, and says what it takes.

    python scripts/fullsize.py --folder /somewhere/large [--coreset 0.5] [--json found.json]
    python scripts/fullsize.py --folder /tmp/x --layers 4 --experts 16 --hidden 64 --vocab 1000    # a tiny one

Weights are random: levels of INT4 are drawn as such, so that no larger tensor is ever made, and the rest in bf16,
spread so that rows keep their size from layer to layer. What is measured does not depend on their values: memory, disk,
time. Which experts rows choose does depend on them; a random router spreads rows more evenly than a trained one.

The files are written one after another (1.2 times their size must be free), dropped from the page cache, mapped,
run, and removed. Reported: seconds of the first time and the median of the others, distinct experts a layer, and memory
above a process that has imported torch: of its own (anonymous), mapped from files, major faults, swap.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch  # imported before memory is first measured

from fourleaf.measure.memory import Memory, memory, reset_peak

IMPORTED = memory()

import numpy as np  # noqa: E402
from torch import Tensor  # noqa: E402

from fourleaf.checkpoint.footprint import TOKEN_BYTES, stored_bytes  # noqa: E402
from fourleaf.checkpoint.names import own_shapes  # noqa: E402
from fourleaf.checkpoint.plan import GIB, plan  # noqa: E402
from fourleaf.checkpoint.quantised import KEY, load_checkpoint  # noqa: E402
from fourleaf.checkpoint.shards import ShardWriter  # noqa: E402
from fourleaf.errors import FourleafError  # noqa: E402
from fourleaf.measure.tables import table  # noqa: E402
from fourleaf.model.config import ModelConfig  # noqa: E402
from fourleaf.model.deltanet import block_softmax_start  # noqa: E402
from fourleaf.model.moe import MixtureOfExperts  # noqa: E402
from fourleaf.model.state import State  # noqa: E402
from fourleaf.model.transformer import Transformer  # noqa: E402
from fourleaf.model.work import Segments, Work  # noqa: E402
from fourleaf.quant.backends import BACKENDS, chosen  # noqa: E402
from fourleaf.quant.int4 import Int4Config, Packed, num_groups  # noqa: E402
from fourleaf.quant.linear import QuantExperts, is_quantised  # noqa: E402

DTYPE, BLOCK, SHARD_BYTES = torch.bfloat16, 32, 1 << 30
MARGIN, MOST_ANONYMOUS = 1.2, 4 * GIB


def clover(layers: int, experts: int, hidden: int, vocab: int) -> ModelConfig:
    """Clover-35B-A3B's shape by default: 40 layers, 256 experts, 2,048 wide, 248,320 tokens."""
    return ModelConfig(
        model_type="clover",
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        num_experts=experts,
        num_experts_per_tok=min(8, experts),
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        max_position_embeddings=131_072,
        block_size=BLOCK,
        mask_token_id=vocab - 1,
    )


def size_of_files(config: ModelConfig, scheme: Int4Config) -> int:
    """Bytes that the files will hold."""
    return sum(stored_bytes(name, shape, DTYPE, scheme) for name, shape in own_shapes(config).items())


def write(folder: Path, config: ModelConfig, scheme: Int4Config, seed: int) -> None:
    """A random checkpoint, one file after another. CheckpointError where less than 1.2 times its size is free."""
    numbers = np.random.Generator(np.random.SFC64(seed))
    start = block_softmax_start(config)
    with ShardWriter(folder, shard_bytes=SHARD_BYTES) as out:
        out.needs(int(MARGIN * size_of_files(config, scheme)))
        for name, shape in own_shapes(config).items():
            if is_quantised(name):
                for suffix, part in random_packed(shape, scheme, numbers).tensors().items():
                    out.add(f"{name}.{suffix}", part)
            else:
                out.add(name, random_plain(name, shape, start, numbers).to(DTYPE))
        out.finish({**config.to_dict(), KEY: scheme.to_dict()})
        out.publish()


def random_packed(shape: tuple[int, ...], scheme: Int4Config, numbers: np.random.Generator) -> Packed:
    """Levels evenly spread over 0..15 about 7 or 8, in steps that make weights' deviation 1/sqrt(inputs)."""
    *outer, width = shape
    groups = (*outer, num_groups(width, scheme.group_size))
    values = np.frombuffer(numbers.bytes(math.prod(outer) * (-(-width // 2))), dtype=np.uint8)
    step = 1 / math.sqrt(width) / math.sqrt((16**2 - 1) / 12)
    scales = torch.full(groups, step, dtype=scheme.dtype)
    zeros = torch.from_numpy(7 + numbers.integers(0, 2, math.prod(groups), dtype=np.uint8)).view(groups)
    packed = torch.from_numpy(values.copy()).view(*outer, -1)
    return Packed(packed, scales, None if scheme.symmetric else zeros.to(scheme.dtype), width, scheme.group_size)


def random_plain(name: str, shape: tuple[int, ...], start: dict[str, Tensor], numbers: np.random.Generator) -> Tensor:
    """Norms and gates as in a fresh model, the rest with deviation 1/sqrt(inputs)."""
    last = name.rpartition(".")[2]
    if last in start:
        return start[last]
    if last == "A_log":
        return torch.from_numpy(np.log(numbers.uniform(1, 16, shape)))
    if last == "dt_bias":
        return torch.full(shape, -4.0)  # time steps of about 0.02
    if name.endswith("norm.weight"):
        return torch.full(shape, 1.0 if name.endswith("linear_attn.norm.weight") else 0.0)
    out = torch.empty(shape, dtype=DTYPE)
    for rows in out.view(-1, shape[-1]).split(1 << 14):  # an embedding in fp32 would be 2 GB
        rows.copy_(torch.from_numpy(numbers.standard_normal(rows.shape, dtype=np.float32))).div_(math.sqrt(shape[-1]))
    return out


def drop_from_cache(folder: Path) -> None:
    """Lets the next read of each file come from the disk."""
    for file in folder.glob("*.safetensors"):
        handle = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One kind of work. experts: distinct ones of a layer that a forward touched, on average."""

    first_s: float
    median_s: float | None
    rows: int
    experts: float
    memory: Memory


class Runs:
    """Forwards of one sequence, timed, with the experts they touch."""

    def __init__(self, model: Transformer, prompt: int, seed: int) -> None:
        self.model, self.prompt = model, prompt
        self.tokens = np.random.Generator(np.random.SFC64(seed)).integers(0, model.config.vocab_size - 1, 4096)
        self.stages: dict[str, Stage] = {}
        self.experts = [m for m in model.modules() if isinstance(m, QuantExperts)]

    def stage(
        self, name: str, rows: int, logits: int, times: int, work: Callable[[State], Work], state: State
    ) -> State:
        """Runs a forward of `rows` several times, each from a copy of `state`, with the logits of its last rows. -> the
        state behind it."""
        fresh, seconds, before = state, [], sum(m.num_touched for m in self.experts)
        with torch.inference_mode():
            for _ in range(times):
                fresh, started = state.clone(), time.perf_counter()
                hidden, _ = self.model(work(fresh), fresh)
                last = self.model.head(hidden[rows - logits :])
                seconds.append(time.perf_counter() - started)
                assert torch.isfinite(hidden.float()).all()
                assert torch.isfinite(last.float()).all()
        touched = (sum(m.num_touched for m in self.experts) - before) / times / len(self.experts)
        later = statistics.median(seconds[1:]) if times > 1 else None
        self.stages[name] = Stage(seconds[0], later, rows, touched, memory() - IMPORTED)
        return fresh

    def canvas(self, state: State, revealed: int) -> Work:
        """A block behind `state`, with no causal rows; `revealed` rows, every other one, hold tokens."""
        tokens = np.full(BLOCK, self.model.config.mask_token_id)
        tokens[: 2 * revealed : 2] = self.tokens[:revealed]
        rows = torch.from_numpy(tokens)
        return Work(rows, Segments([0]), list(state.lengths), Segments([BLOCK]), [0], list(state.lengths))

    def causal(self, state: State, rows: int) -> Work:
        """Rows behind `state`: a prompt, a finished block, a token."""
        first = state.lengths[0]
        return Work(torch.from_numpy(self.tokens[first : first + rows]), Segments([rows]), list(state.lengths))

    def fused(self, state: State) -> Work:
        """The commit of a block and the first pass on the next."""
        tokens = np.concatenate((self.tokens[:BLOCK], np.full(BLOCK, self.model.config.mask_token_id)))
        after = [length + BLOCK for length in state.lengths]
        return Work(torch.from_numpy(tokens), Segments([BLOCK]), list(state.lengths), Segments([BLOCK]), [0], after)


def set_coreset(model: Transformer, top_p: float | None) -> None:
    """From now on canvas rows choose among all experts (None) or among their block's coreset."""
    config = dataclasses.replace(model.config, coreset_top_p=top_p)
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            module.config = config


def run(model: Transformer, prompt: int, coreset: float, times: int, seed: int) -> dict[str, Stage]:
    """Everything an answer is made of, in the order in which it comes."""
    runs, empty = Runs(model, prompt, seed), State.empty(model.config, dtype=DTYPE)
    state = runs.stage("prefill", prompt, 1, 2, partial(runs.causal, rows=prompt), empty)
    for top_p, kind in ((None, "all experts"), (coreset, f"coreset {coreset:g}")):
        set_coreset(model, top_p)
        for revealed, what in ((0, "first pass"), (BLOCK // 2, "half revealed")):
            work = partial(runs.canvas, revealed=revealed)
            runs.stage(f"{what}, {kind}", BLOCK, BLOCK - revealed, times, work, state)
        runs.stage(f"commit and pass, {kind}", 2 * BLOCK, BLOCK, times, runs.fused, state)
    runs.stage("commit", BLOCK, 0, times, partial(runs.causal, rows=BLOCK), state)
    runs.stage("ar step", 1, 1, times, partial(runs.causal, rows=1), state)
    return runs.stages


def break_even(stages: dict[str, Stage], passes: int = 4) -> dict[str, float]:
    """Mean cost of a block's forwards, `passes` of which the first rides on a commit, in `ar` steps."""
    cost = {name: stage.median_s or stage.first_s for name, stage in stages.items()}
    kinds = [name.partition(", ")[2] for name in stages if name.startswith("commit and pass")]
    return {
        kind: (cost[f"commit and pass, {kind}"] + (passes - 1) * cost[f"half revealed, {kind}"])
        / passes
        / cost["ar step"]
        for kind in kinds
    }


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Writes, loads and runs. Everything in the result is in bytes and seconds."""
    config = clover(options.layers, options.experts, options.hidden, options.vocab)
    scheme = Int4Config(group_size=options.group, symmetric=options.symmetric)
    started = time.perf_counter()
    write(folder, config, scheme, options.seed)
    written = memory() - IMPORTED
    found: dict[str, Any] = {"write_s": time.perf_counter() - started, "write_peak": written.peak}
    found["file_bytes"] = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    found["predicted"] = plan(
        folder, memory=24 * GIB, context=options.prompt + BLOCK, batch=1, dtype="bfloat16"
    ).document()
    found["tokenizer"] = TOKEN_BYTES * config.vocab_size  # planned for, and not loaded here
    drop_from_cache(folder)
    reset_peak()
    started = time.perf_counter()
    choose = BACKENDS["plain"].make if options.plain else chosen
    model = load_checkpoint(folder, DTYPE, choose)
    found |= {"load_s": time.perf_counter() - started, "parameters": model.num_parameters}
    loaded = memory() - IMPORTED
    stages = run(model, options.prompt, options.coreset, options.times, options.seed)
    ended = memory() - IMPORTED
    return found | {
        "loaded": dataclasses.asdict(loaded),
        "stages": {name: dataclasses.asdict(stage) for name, stage in stages.items()},
        "memory": dataclasses.asdict(ended),
        "break_even_tpf": break_even(stages),
        "anonymous_within_limit": ended.anonymous <= MOST_ANONYMOUS,
        "swapped": ended.swapped,
        "threads": torch.get_num_threads(),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The result as text."""
    rows = [["", "first s", "median s", "rows", "experts", "anonymous", "mapped", "faults"]]
    for name, stage in found["stages"].items():
        later = "" if stage["median_s"] is None else f"{stage['median_s']:.3f}"
        held = stage["memory"]
        sizes = [f"{held[kind] / GIB:.2f}" for kind in ("anonymous", "mapped")]
        cells = [f"{stage['first_s']:.3f}", later, str(stage["rows"]), f"{stage['experts']:.1f}"]
        rows.append([name, *cells, *sizes, f"{held['major_faults']:,}"])
    held, asked = found["memory"], found["predicted"]["bytes"]
    planned = asked["anonymous"] - found["tokenizer"]
    even = ", ".join(f"{value:.2f} with {kind}" for kind, value in found["break_even_tpf"].items())
    return [
        f"{found['parameters'] / 1e9:.2f}B parameters, {found['file_bytes'] / GIB:.2f} GiB of files; written in "
        f"{found['write_s']:.0f} s with at most {found['write_peak'] / GIB:.2f} GiB, loaded in {found['load_s']:.1f} s "
        f"on {found['threads']} threads",
        "",
        *table(rows),
        "",
        f"anonymous {held['anonymous'] / GIB:.2f} GiB (planned {planned / GIB:.2f} without a tokenizer), mapped "
        f"{held['mapped'] / GIB:.2f} GiB (planned up to {asked['mapped'] / GIB:.2f}), at most "
        f"{held['peak'] / GIB:.2f} GiB together; {held['major_faults']:,} major faults; "
        f"{held['swapped'] / GIB:.2f} GiB swapped",
        f"break-even TPF, four passes a block: {even}",
    ]


def main(words: list[str] | None = None) -> int:
    """Reads the command line; the folder is gone afterwards, whatever happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="new folder for the files; it is removed at the end")
    for name, value in (("layers", 40), ("experts", 256), ("hidden", 2048), ("vocab", 248_320), ("prompt", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--symmetric", action="store_true")
    parser.add_argument("--plain", action="store_true", help="linears unpacked for each product: no copies in memory")
    parser.add_argument("--coreset", type=float, default=0.5, help="top-p of a block's coreset")
    parser.add_argument("--times", type=int, default=5, help="forwards of each kind")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(words)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.folder.exists():
        print(f"{options.folder} exists; name a new folder, because it is removed at the end", file=sys.stderr)
        return 2
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        found = measure(options.folder, options)
    except FourleafError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
    print("\n".join(lines(found)))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
