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
from fourleaf.checkpoint.footprint import PARTS, Footprint, part_of, stored_bytes
from fourleaf.checkpoint.names import own_shapes
from fourleaf.checkpoint.quantised import KEY
from fourleaf.checkpoint.shards import CONFIG, Shards, weight_files
from fourleaf.errors import ConfigError
from fourleaf.quant.int4 import Int4Config

GIB = 1 << 30
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
    limit: the memory asked about, None where none was.
    """

    footprint: Footprint
    in_files: dict[str, int]
    has_files: bool
    context: int
    batch: int
    limit: int | None

    def held(self) -> dict[str, int]:
        """By purpose, what must be in memory."""
        of, weights = self.footprint, self.footprint.weights
        return {
            "weights": weights.anonymous,
            "copies of weights in another order": weights.copies,
            "states and convolution tails": of.recurrent() * self.batch,
            "keys and values": of.keys_values(of.reserved(self.context)) * self.batch,
            "workspace of the widest forward": of.workspace(self.context, self.batch),
            "program and tokenizer": of.program(),
        }

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
            "bytes": {
                "weights_in_files": self.in_files | {"total": sum(self.in_files.values())},
                "held": self.held(),
                "keys_and_values_of_1000_tokens": of.keys_values(1000),
                "anonymous": self.anonymous,
                "mapped": self.mapped,
                "total": self.total,
            },
            "memory": self.limit,
            "fits": self.verdict or None,
            "advice": advice(self),
        }


def plan(folder: Path, *, memory: int | None, context: int | None, batch: int, dtype: str = "float32") -> Plan:
    """Reads config.json and, where the weights are there, their headers.

    context: tokens of prompt and answer, by default 4,096 or what the model takes. Raises ConfigError for a number out
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
    return Plan(of, {part: size for part, size in in_files.items() if size}, has_files, context, batch, memory)


def quantised(made: Plan) -> Plan:
    """The same in INT4, in groups of 64."""
    return replace(made, footprint=replace(made.footprint, scheme=Int4Config()))


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
        return said
    if contexts:
        said.append(f"shorter context: {contexts:,} tokens fit")
    if batches and batches < made.batch:
        said.append(f"smaller batch: {_sequences(batches)} of {made.context:,} tokens fit")
    if of.scheme is None:
        smaller = quantised(made)
        does = "fits" if smaller.total <= limit else "does not fit either"
        said.append(f"INT4 (`fourleaf quantize`): {_gib(smaller.total)}, which {does}")
    if of.config.num_experts:
        said += _offloading(made if of.scheme is not None else quantised(made), limit)
    if of.scheme is not None and made.anonymous <= limit:
        said.append(
            f"as it is: {_gib(made.anonymous)} are held and {_gib(limit - made.anonymous)} are left for "
            f"{_gib(made.mapped)} of mapped weights; what is missing is read from disk again and again"
        )
    return said or [f"nothing brings it below {_gib(limit)}: {_gib(made.footprint.weights.anonymous)} are weights"]


def _offloading(made: Plan, limit: int) -> list[str]:
    """Experts of as few layers as will do, kept elsewhere: in the computer's memory for a GPU, on disk for a CPU."""
    layers, each = made.footprint.config.num_hidden_layers, made.footprint.experts()
    needed = max(0, math.ceil((made.total - limit) / each))
    if needed == 0 or needed > layers:
        return []
    what = f"offloading INT4 experts: those of {needed} of {layers} layers ({_gib(needed * each)}) elsewhere"
    return [f"{what}, {_gib(made.total - needed * each)} stay"]


def parse_bytes(text: str) -> int:
    """ "16GB" (10^9 each), "16GiB" (2^30 each), "16G", or bytes. Raises ConfigError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?", text.strip().lower())
    if found is None:
        raise ConfigError(f"memory is {text!r}; write it like 16GB or 24GiB")
    return int(float(found.group(1)) * _UNITS[found.group(2)])


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


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
    said += ["", f"1,000 more tokens of one sequence: {_gib(of.keys_values(1000))} of keys and values"]
    if made.limit is not None:
        answers = {"yes": "fits", "no": "does not fit", "from disk": "does not fit whole"}
        said += ["", f"{answers[made.verdict]} in {_gib(made.limit)}", *(f"  {line}" for line in advice(made))]
    return said


def _row(name: str, size: int) -> str:
    return f"  {name:<36} {size / GIB:>9.3f} GiB"


def main_plan(
    folder: Path, *, memory: str | None, context: int | None, batch: int, dtype: str, as_json: bool, out: TextIO
) -> None:
    """Prints the plan of a checkpoint folder. Raises as `plan` and `parse_bytes` do."""
    limit = parse_bytes(memory) if memory is not None else None
    made = plan(folder, memory=limit, context=context, batch=batch, dtype=dtype)
    text = json.dumps(made.document(), indent=2) if as_json else "\n".join(lines(made))
    print(text, file=out)
