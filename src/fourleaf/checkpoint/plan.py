"""What a checkpoint will take in memory, before it is loaded: from config.json and the headers of its files alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from fourleaf.checkpoint.disk import num_bytes, read_json
from fourleaf.checkpoint.families import read_config
from fourleaf.checkpoint.footprint import CACHE_BYTES, PARTS, Footprint, num_pages, part_of, stored_bytes
from fourleaf.checkpoint.names import own_shapes
from fourleaf.checkpoint.quantised import KEY
from fourleaf.checkpoint.shards import CONFIG, Shards, weight_files
from fourleaf.errors import ConfigError
from fourleaf.quant.int4 import Int4Config

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MAX_BATCH = 4096
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": GIB,
    "ti": 1 << 40,
}
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Plan:
    """Bytes for `batch` sequences of `context` tokens, prompt and answer.

    in_files: by part of the model, what the weights take on disk; counted from the config where has_files is False.
    cache: bytes of the engine's prefix cache. limit: the memory asked about, None where none was.
    """

    footprint: Footprint
    in_files: dict[str, int]
    has_files: bool
    context: int
    batch: int
    limit: int | None
    cache: int = CACHE_BYTES

    @property
    def pages(self) -> int:
        """Pages of the sequences that run."""
        return self.batch * num_pages(self.context)

    def held(self) -> dict[str, int]:
        """By purpose, what must be in memory."""
        of, weights = self.footprint, self.footprint.weights
        return {
            "weights": weights.anonymous,
            "copies of weights in another order": weights.copies,
            "states and convolution tails": of.recurrent() * self.batch,
            "keys and values, in pages": of.page() * self.pages,
            "workspace of the widest forward": of.workspace(self.context, self.batch),
            "program and tokenizer": of.program(),
        }

    @property
    def kept(self) -> int:
        """Pages and snapshots of requests that have ended, once the cache is full: beside `total`."""
        return self.footprint.cached(self.cache, self.pages)

    @property
    def anonymous(self) -> int:
        """What must be in memory. Beside it lies `mapped`."""
        return sum(self.held().values())

    @property
    def mapped(self) -> int:
        """Weights in pages of the files: the system may drop them and read them again, at the cost of speed."""
        return self.footprint.weights.mapped

    @property
    def total(self) -> int:
        return self.anonymous + self.mapped

    @property
    def verdict(self) -> str:
        """Whether it fits: "yes", "no", "from disk" where only the mapped weights do not; "" where no limit is set."""
        if self.limit is None:
            return ""
        return "yes" if self.total <= self.limit else "from disk" if self.anonymous <= self.limit else "no"

    def document(self) -> dict[str, Any]:
        """Everything, as JSON."""
        of = self.footprint
        return {
            "dtype": str(of.dtype).removeprefix("torch."),
            "int4": of.scheme is not None,
            "context": self.context,
            "batch": self.batch,
            "cache": self.cache,
            "bytes": {
                "weights_in_files": self.in_files | {"total": sum(self.in_files.values())},
                "held": self.held(),
                "page": of.page(),
                "snapshot": of.recurrent(),
                "pages_of_1000_tokens": of.page() * num_pages(1000),
                "anonymous": self.anonymous,
                "mapped": self.mapped,
                "total": self.total,
                "kept_for_later_requests": self.kept,
            },
            "pages_between_snapshots": of.grid() if of.recurrent() else None,
            "memory": self.limit,
            "fits": self.verdict or None,
            "advice": advice(self),
        }


def plan(
    folder: Path,
    *,
    memory: int | None,
    context: int | None,
    batch: int,
    dtype: str = "float32",
    cache: int = CACHE_BYTES,
) -> Plan:
    """Reads config.json and, where the weights are there, their headers.

    context: tokens of prompt and answer, by default 4,096 or what the model takes. cache: bytes of the engine's prefix
    cache, which never holds fewer pages than the longest sequence needs. Raises ConfigError for a number out
    of limits or an architecture that is not known, CheckpointError for a file that is missing or broken.
    """
    raw = read_json(folder / CONFIG)
    scheme = Int4Config.from_dict(raw[KEY]) if KEY in raw else None
    config = read_config({key: value for key, value in raw.items() if key != KEY})
    longest = config.max_position_embeddings
    context = min(4096, longest) if context is None else context
    if not 1 <= context <= longest:
        raise ConfigError(f"context is {context}; the model takes 1 to {longest} tokens")
    if not 1 <= batch <= MAX_BATCH:
        raise ConfigError(f"batch is {batch}; it must be in 1..{MAX_BATCH}")
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; it must be one of {', '.join(_DTYPES)}")
    dtypes: dict[str, torch.dtype] = {}
    in_files = dict.fromkeys(PARTS, 0)
    has_files = bool(weight_files(folder))
    if has_files:
        shards = Shards(folder)
        dtypes = shards.dtypes
        for name, shape in shards.shapes.items():
            in_files[part_of(name)] += num_bytes(shape, dtypes[name])
        shards.close()
    else:
        stored = _DTYPES.get(str(raw.get("dtype", raw.get("torch_dtype", "bfloat16"))), torch.bfloat16)
        shapes = own_shapes(config)
        dtypes = dict.fromkeys(shapes, stored)
        for name, shape in shapes.items():
            in_files[part_of(name)] += stored_bytes(name, shape, stored, scheme)
    of = Footprint(config, _DTYPES[dtype], scheme, dtypes)
    return Plan(of, {part: size for part, size in in_files.items() if size}, has_files, context, batch, memory, cache)


def quantised(made: Plan) -> Plan:
    """The same in INT4, as `fourleaf quantize` makes it unasked (a test compares)."""
    return replace(made, footprint=replace(made.footprint, scheme=Int4Config(group_size=32, plain_layers=1)))


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number in 1..most that fits, 0 where none does; if one fits, so do all below it."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def advice(made: Plan) -> list[str]:
    """What fits, and what to change where it does not; nothing where no limit is set."""
    limit, of = made.limit, made.footprint
    if limit is None:
        return []
    fixed = made.total <= limit
    contexts = largest(lambda n: replace(made, context=n).total <= limit, of.config.max_position_embeddings)
    batches = largest(lambda n: replace(made, batch=n).total <= limit, MAX_BATCH)
    said = []
    if fixed:
        said.append(f"up to {contexts:,} tokens for {_sequences(made.batch)} fit")
        said.append(f"up to {_sequences(batches)} of {made.context:,} tokens fit")
        if made.total + made.kept > limit:
            said.append(
                f"{amount(limit - made.total)} are left for what is kept for later requests, which may grow to "
                f"{amount(made.kept)}: a smaller cache (`--cache`), or a smaller max_position_embeddings"
            )
        return said
    if contexts:
        said.append(f"shorter context: {contexts:,} tokens fit")
    if batches and batches < made.batch:
        said.append(f"smaller batch: {_sequences(batches)} of {made.context:,} tokens fit")
    if of.scheme is None:
        smaller = quantised(made)
        does = "fits" if smaller.total <= limit else "does not fit either"
        said.append(f"INT4 (`fourleaf quantize`): {amount(smaller.total)}, which {does}")
    if of.config.num_experts:
        said += _offloading(made if of.scheme is not None else quantised(made), limit)
    if of.scheme is not None and made.anonymous <= limit:
        said.append(
            f"as it is: {amount(made.anonymous)} are held and {amount(limit - made.anonymous)} are left for "
            f"{amount(made.mapped)} of mapped weights; what is missing is read from disk again and again"
        )
    return said or [f"nothing brings it below {amount(limit)}: {amount(made.footprint.weights.anonymous)} are weights"]


def _offloading(made: Plan, limit: int) -> list[str]:
    """Experts of as few layers as will do, kept elsewhere: in the computer's memory for a GPU, on disk for a CPU."""
    layers, each = made.footprint.config.num_hidden_layers, made.footprint.experts()
    needed = max(0, math.ceil((made.total - limit) / each))
    if needed == 0 or needed > layers:
        return []
    what = f"offloading INT4 experts: those of {needed} of {layers} layers ({amount(needed * each)}) elsewhere"
    return [f"{what}, {amount(made.total - needed * each)} stay"]


def parse_bytes(text: str) -> int:
    """ "16GB" (10^9 each), "16GiB" (2^30 each), "16G", or bytes. Raises ConfigError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?", text.strip().lower())
    if found is None:
        raise ConfigError(f"memory is {text!r}; write it like 16GB or 24GiB")
    return int(float(found.group(1)) * _UNITS[found.group(2)])


def amount(size: float) -> str:
    """Bytes to read: "1.38 GiB", "61.40 MiB", "512 bytes"."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:,.2f} {name}"
    return f"{size:,.0f} bytes"


def _sequences(num: int) -> str:
    return f"{num:,} sequence{'s' if num != 1 else ''}"


def lines(made: Plan) -> list[str]:
    """The plan as text."""
    of, files = made.footprint, made.in_files
    kind = "INT4" if of.scheme is not None else "weights"
    said = [f"in its files{'' if made.has_files else ', by its config (they are not here)'} ({kind}):"]
    said += [_row(part, size) for part, size in files.items()] + [_row("all", sum(files.values()))]
    said.append("")
    what = f"{_sequences(made.batch)} of {made.context:,} tokens, {str(of.dtype).removeprefix('torch.')}"
    said.append(f"in memory, {what}:")
    said += [_row(name, size) for name, size in made.held().items() if size]
    said += [_row("held, together", made.anonymous)]
    if made.mapped:
        said += [_row("weights mapped from files", made.mapped), _row("all", made.total)]
    pages = num_pages(1000)
    said += ["", f"1,000 tokens of a sequence: {pages} pages of {amount(of.page())}, {amount(pages * of.page())}"]
    if of.recurrent():
        often = f"one every {of.grid()} pages of a long text, and where texts part"
        said += [f"a snapshot of all states: {amount(of.recurrent())}; {often}"]
    said += [
        f"pages{' and snapshots' if of.recurrent() else ''} kept for later requests: up to {amount(made.kept)} more"
    ]
    if made.limit is not None:
        answers = {"yes": "fits", "no": "does not fit", "from disk": "does not fit whole"}
        said += ["", f"{answers[made.verdict]} in {amount(made.limit)}", *(f"  {line}" for line in advice(made))]
    return said


def _row(name: str, size: int) -> str:
    return f"  {name:<36} {amount(size):>14}"


def main_plan(
    folder: Path,
    *,
    memory: str | None,
    context: int | None,
    batch: int,
    dtype: str,
    as_json: bool,
    out: TextIO,
    cache: str | None = None,
) -> None:
    """Prints the plan of a checkpoint folder. Raises as `plan` and `parse_bytes` do."""
    limit = parse_bytes(memory) if memory is not None else None
    budget = parse_bytes(cache) if cache is not None else CACHE_BYTES
    made = plan(folder, memory=limit, context=context, batch=batch, dtype=dtype, cache=budget)
    text = json.dumps(made.document(), indent=2) if as_json else "\n".join(lines(made))
    print(text, file=out)
