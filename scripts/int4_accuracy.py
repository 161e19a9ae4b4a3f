"""What INT4 costs in accuracy and gives in size and speed: paired exact match against the weights it was made from.

    python scripts/int4_accuracy.py [--n 4000] [--model FOLDER] [--threads 1] [--json int4.json]

The checkpoint (bf16 weights, computed in fp32) and its INT4 versions, rounded to nearest and calibrated, answer the
same generated utterances, of patterns that no training draws, in `ar` and in `diffuse`. Differences are paired, with
bootstrap intervals. Beside it, less noisy: the mean KL divergence from the original's next-token distributions on clean
rows and from its denoised ones on canvas rows, in nats, and how often the likeliest token is the same.

Speed: one request at a time on the first `--timed` utterances, every arm on each before the next, in an order that
rotates; read the ratios. `--packed` lets every matrix run packed, however small it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import GenerateParams
from fourleaf.measure import bootstrap
from fourleaf.measure.circumstances import Ticker, circumstances
from fourleaf.measure.evaluate import decode_all
from fourleaf.measure.tables import percent, points, table, times
from fourleaf.measure.timing import timed
from fourleaf.quant import backends
from fourleaf.tasks.cabin.schema import Example, messages
from fourleaf.train.calibration import cabin_documents, main_quantise, works
from fourleaf.train.heldout import examples

BASE, MODES = "bf16", ("ar", "diffuse")
MAX_TOKENS = 512
UNSEEN = 99  # a seed beside calibration's


@dataclass(frozen=True)
class Arm:
    """A checkpoint that answers. num_bytes: of its weights' files."""

    name: str
    folder: Path
    engine: Engine
    num_bytes: int


def arms(source: Path, work: Path, given: argparse.Namespace) -> list[Arm]:
    """The source and its INT4 versions, made anew in `work`."""
    folders = {BASE: source}
    for method in ("rtn", "gptq"):
        plain = f", first {given.plain_layers} plain" if given.plain_layers else ""
        name = f"{method} g{given.group}{' symmetric' if given.symmetric else ''}{plain}"
        folders[name] = work / method
        main_quantise(
            source,
            folders[name],
            group_size=given.group,
            method=method,
            symmetric=given.symmetric,
            plain_layers=given.plain_layers,
            examples=given.examples,
            seed=given.seed,
            num_threads=given.threads,
            out=sys.stderr,
            progress=sys.stderr,
        )
    return [
        Arm(name, path, Engine.load(path), sum(f.stat().st_size for f in path.glob("*.safetensors")))
        for name, path in folders.items()
    ]


def accuracy(chosen: Sequence[Arm], asked: Sequence[Example], seed: int, ticker: Ticker) -> dict[str, dict[str, Any]]:
    """By mode and arm: exact match, and the paired difference from the first arm."""
    found: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        params = GenerateParams(mode=mode, max_tokens=MAX_TOKENS)  # type: ignore[arg-type]
        right: dict[str, list[bool]] = {}
        found[mode] = {}
        for arm in chosen:
            what = f"{mode}, {arm.name}"
            outcomes = decode_all(arm.engine, asked, params, lambda done, what=what: ticker(done, len(asked), what))
            right[arm.name] = [outcome.is_right for outcome in outcomes]
            exact = bootstrap.mean([float(is_right) for is_right in right[arm.name]], seed)
            forwards = sum(outcome.usage.forwards for outcome in outcomes) / len(asked)
            found[mode][arm.name] = {
                "exact": exact,
                "paired": bootstrap.paired(right[chosen[0].name], right[arm.name], seed),
                "forwards": forwards,
            }
    return found


@torch.inference_mode()
def divergence(chosen: Sequence[Arm], seed: int, num: int = 128) -> dict[str, dict[str, tuple[float, float]]]:
    """By kind of row and arm: (mean KL(first arm || arm) in nats, share of rows with the same likeliest token)."""
    config = chosen[0].engine.model.config
    documents = cabin_documents(chosen[0].folder, num, seed + UNSEEN)
    found: dict[str, dict[str, list[Tensor]]] = {kind: {arm.name: [] for arm in chosen} for kind in ("clean", "canvas")}
    for work in works(config, documents, seed + UNSEEN):
        logits = {arm.name: arm.engine.model.head(arm.engine.model(work)[0]).log_softmax(-1) for arm in chosen}
        truth = logits[chosen[0].name]
        for name, ours in logits.items():
            off = (truth.exp() * (truth - ours)).sum(-1)
            rows = torch.stack((off, (truth.argmax(-1) == ours.argmax(-1)).float()), -1)
            found["clean"][name].append(rows[: work.num_causal])
            found["canvas"][name].append(rows[work.num_causal :])
    means = {kind: {name: torch.cat(rows).mean(0).tolist() for name, rows in of.items()} for kind, of in found.items()}
    return {kind: {name: (off, same) for name, (off, same) in of.items()} for kind, of in means.items()}


def speed(chosen: Sequence[Arm], asked: Sequence[Example], seed: int, ticker: Ticker) -> dict[str, dict[str, Any]]:
    """By mode and arm: tokens a second, as a multiple of the first arm's."""
    spent: dict[tuple[str, str], list[tuple[int, float]]] = {}
    pairs = [(mode, arm) for mode in MODES for arm in chosen]
    for number, example in enumerate(asked):
        turn = number % len(pairs)
        for mode, arm in pairs[turn:] + pairs[:turn]:
            prompt = arm.engine.chat.render(messages(example))
            params = GenerateParams(mode=mode, max_tokens=MAX_TOKENS)  # type: ignore[arg-type]
            if not number:
                timed(arm.engine, prompt, params)  # what is derived and cached on a first answer
            answer = timed(arm.engine, prompt, params)
            spent.setdefault((mode, arm.name), []).append((len(answer.tokens), answer.seconds))
        ticker(number + 1, len(asked), "speed")
    found: dict[str, dict[str, Any]] = {mode: {} for mode in MODES}
    for (mode, name), answers in spent.items():
        base = spent[mode, chosen[0].name]
        columns = [[column[i] for column in answers] for i in range(2)]
        against = [[column[i] for column in base] for i in range(2)]
        ratio = bootstrap.ratio_of_ratios((against[0], against[1]), (columns[0], columns[1]), seed)
        found[mode][name] = {"tokens_per_s": sum(columns[0]) / sum(columns[1]), "speed_up": ratio}
    return found


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=bundled_path(), help="folder; the bundled one by default")
    parser.add_argument("--n", type=int, default=4000, help="utterances")
    parser.add_argument("--timed", type=int, default=50, help="utterances that speed is measured on; 0 for none")
    parser.add_argument("--group", type=int, default=32)
    parser.add_argument("--symmetric", action="store_true")
    parser.add_argument("--plain-layers", type=int, default=1, help="first layers whose linears stay as they are")
    parser.add_argument("--examples", type=int, default=256, help="that calibration sees")
    parser.add_argument("--packed", action="store_true", help="unpack no matrix, however small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of calibration and of the bootstrap")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    given = parser.parse_args()
    if given.packed:
        backends.MOST_UNPACKED = 0
    ticker, asked = Ticker(sys.stderr), list(examples(given.n))
    with tempfile.TemporaryDirectory() as work:
        chosen = arms(given.model, Path(work), given)
        exact = accuracy(chosen, asked, given.seed, ticker)
        apart = divergence(chosen, given.seed)
        fast = speed(chosen, asked[: given.timed], given.seed, ticker)
        ticker.close()
        about = circumstances(chosen[0].engine, given.model)
    sizes = {arm.name: arm.num_bytes for arm in chosen}
    rows = [["mode", "weights", "MB", "exact match", f"minus {BASE}", "only it : only bf16", "forwards", "speed"]]
    for mode in MODES:
        for name, size in sizes.items():
            line, pair = exact[mode][name], exact[mode][name]["paired"]
            only = f"{pair.only_second} : {pair.only_first}"
            shown = times(fast[mode][name]["speed_up"]) if name in fast[mode] else "-"
            cells = [percent(line["exact"]), points(pair.difference), only, f"{line['forwards']:.1f}", shown]
            rows.append([mode, name, f"{size / 1e6:.2f}", *cells])
    print("\n".join(table(rows)))
    rows = [["", *(f"{what} {kind}" for kind in apart for what in ("KL,", "same token,"))]]
    for name in sizes:
        pairs = [of[name] for of in apart.values()]
        rows.append([name, *(cell for off, same in pairs for cell in (f"{off:.4f}", f"{100 * same:.1f}%"))])
    print("\n".join(table(rows)))
    print(f"n = {given.n}, 95% bootstrap intervals; speed on {given.timed} of them; {about}")
    if given.json is not None:
        settings = {name: str(value) for name, value in vars(given).items()}
        found = {"settings": settings, **about, "bytes": sizes, "exact": exact, "divergence": apart, "speed": fast}
        given.json.write_text(json.dumps(found, indent=2, default=lambda it: it.document()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
