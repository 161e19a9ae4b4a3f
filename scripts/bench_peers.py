"""Our engine beside llama.cpp and vLLM, on the same weights and prompts: by loss first, then by speed.

    make bench-peers

is `python scripts/bench_peers.py --json docs/runs/peers.json` with the peers installed. It wants a machine that does
nothing else. Each engine is a process with one thread. What is compared is the AR half of a checkpoint, exported as
`fourleaf convert --to hf` does, and, where a peer refuses these shapes, the same function in wider heads
(`peers/widths.py`). Prompts are answered in waves of 1 and of 8 that come at once; every wave is answered by all
engines in turn, in an order that rotates. The figures go into docs/performance.md between its marks.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import ggufs, widths
from peers.lines import Peer, PeerRefusal, wave, waves

from fourleaf.checkpoint.convert import export_folder
from fourleaf.checkpoint.files import load_model, read_json, write_json
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import Delta, GenerateParams
from fourleaf.errors import ConfigError
from fourleaf.measure import bootstrap
from fourleaf.measure.circumstances import Ticker, circumstances
from fourleaf.measure.marks import filled, markdown
from fourleaf.measure.speed import ARMS
from fourleaf.measure.timing import TimedCore, core_of
from fourleaf.measure.workloads import Workload, workload
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work
from fourleaf.train.data import Document
from fourleaf.train.recipes import document

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
PROGRAMS = {name: ROOT / "scripts" / "peers" / name / "peer.py" for name in ("llama-cpp", "vllm")}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
STAMP = ".installed"  # make leaves it in an environment that is whole
OURS = ("ar", "draft", "diffuse", "auto")
SET = "patterns"
WAVES = (1, 8)
# vLLM 0.32's attention on a CPU knows these sizes of heads, and its linear attention multiples of 32. In bf16 positions
# turn 16 numbers at a time, whatever lies behind the last.
VLLM_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
VLLM_STEP = 32
VLLM_TURNED = 16
# Texts whose whole distributions are compared: each is as many numbers a token as there are words.
KEPT = 8
MOST_WORDS = 4096
_REFUSAL = 300

Answers = dict[str, Any]  # as `peers.lines.wave` has it
Scores = tuple[np.ndarray, np.ndarray]  # of each token given those before it [T], and of all words [T', V]
Runner = Callable[[Sequence[list[int]]], Answers]


@dataclass(frozen=True)
class Attempt:
    """A form of the weights that a peer may take: in words, and what it is asked to load."""

    form: str
    load: dict[str, Any]


@dataclass
class Standing:
    """A peer that runs, or does not: the form it took, what it said to those before it, its loss beside ours."""

    name: str
    form: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    refusals: list[dict[str, str]] = field(default_factory=list)
    loss: dict[str, float] = field(default_factory=dict)


def attempts(name: str, folder: Path, eager: bool) -> Iterator[Attempt]:
    """The forms of the Hugging Face folder that peer `name` is offered, written as they are asked for."""
    raw = read_json(folder / widths.CONFIG)
    head, size = raw["head_dim"], max(raw["linear_key_head_dim"], raw["linear_value_head_dim"])
    if name == "llama-cpp":
        ggufs.write(folder, folder.with_name("exported.gguf"))
        yield Attempt("as exported, float32", {"path": str(folder.with_name("exported.gguf"))})
        wide = folder.with_name("for-llama-cpp")
        widths.widen(folder, wide, attention=head, delta=size)
        ggufs.write(wide, wide.with_suffix(".gguf"))
        yield Attempt(f"keys and values of {size}, float32", {"path": str(wide.with_suffix(".gguf"))})
        return
    yield Attempt("as exported, float32", {"path": str(folder), "dtype": "float32", "eager": eager})
    turned = VLLM_TURNED * math.ceil(widths.turned_of(raw) / VLLM_TURNED)
    head = min(known for known in VLLM_HEADS if known >= head + turned - widths.turned_of(raw))
    size = VLLM_STEP * math.ceil(size / VLLM_STEP)
    wide = folder.with_name("for-vllm")
    widths.widen(folder, wide, attention=head, delta=size, turned=turned)
    for dtype in ("float32", "bfloat16"):
        asked = {"path": str(wide), "dtype": dtype, "eager": eager}
        yield Attempt(f"heads of {head}, keys and values of {size}, {dtype}", asked)


@torch.inference_mode()
def logprobs(model: Transformer, ids: list[int]) -> np.ndarray:
    """Of each token but the first, what the model expects of all words, in nats: [T-1, V]."""
    hidden, _ = model(Work(torch.tensor(ids), Segments([len(ids)]), [0]))
    return model.head(hidden[:-1]).float().log_softmax(-1).double().numpy()


def own_losses(model: Transformer, texts: list[list[int]]) -> Scores:
    """As a peer's `score`."""
    found = [logprobs(model, text) for text in texts]
    own = [rows[np.arange(len(rows)), text[1:]] for rows, text in zip(found, texts, strict=True)]
    kept = KEPT if found[0].shape[1] <= MOST_WORDS else 0
    full = np.concatenate(found[:kept]) if kept else np.zeros((0, found[0].shape[1]))
    return np.concatenate(own), full


def beside(ours: Scores, other: Scores, is_answer: np.ndarray) -> dict[str, float]:
    """Mean loss in nats, and that of the answers' tokens [T]; how far from ours a token's is on average and at most;
    the mean KL from us to them."""
    apart = np.abs(ours[0] - other[0])
    found = {"nats": -float(other[0].mean()), "nats_of_answers": -float(other[0][is_answer].mean())}
    found |= {"mean_apart": float(apart.mean()), "most_apart": float(apart.max())}
    if len(ours[1]):
        found["kl"] = float((np.exp(ours[1]) * (ours[1] - other[1])).sum(1).mean())
    return found


def stand(
    name: str, tries: Iterator[Attempt], python: Path, texts: list[list[int]], room: int, together: int, folder: Path
) -> tuple[Standing, Peer | None, Scores | None]:
    """Offers a peer one form after another until one loads, scores and answers."""
    standing = Standing(name)
    for attempt in tries:
        peer = Peer(python, PROGRAMS[name], ENVIRONMENT)
        try:
            standing.about = peer.ask("load", threads=1, room=room, together=together, **attempt.load)
            file = folder / f"{name}.npz"
            kept = KEPT if read_json(folder / "exported" / widths.CONFIG)["vocab_size"] <= MOST_WORDS else 0
            peer.ask("score", texts=texts, file=str(file), kept=kept)
            peer.ask("answer", prompts=[texts[0]] * together, max_tokens=2, stop=0, banned=[])
        except PeerRefusal as refusal:
            words = str(refusal).strip()[-_REFUSAL:]
            print(f"{name}, {attempt.form}: {words}", file=sys.stderr)
            standing.refusals.append({"form": attempt.form, "words": words})
            peer.close()
            continue
        standing.form = attempt.form
        with np.load(file) as found:
            return standing, peer, (found["own"], found["full"])
    return standing, None, None


def ours(engine: Engine, core: TimedCore, params: GenerateParams) -> Runner:
    """Answers a wave by our engine in one mode. Requests are checked inside the clock, as the peers' are."""

    def run(prompts: Sequence[list[int]]) -> Answers:
        news: list[tuple[int, Delta | BaseException]] = []
        sequences = []

        def steps() -> Iterator[list[tuple[int, list[int]]]]:
            for index, prompt in enumerate(prompts):
                sequences.append(engine.admit(prompt, params))
                core.submit(sequences[-1], lambda delta, index=index: news.append((index, delta)))
            while core.step():
                yield [(index, told(engine, delta)) for index, delta in news]
                news.clear()

        return wave(len(prompts), steps(), lambda: not any(one.is_prefilling for one in sequences))

    return run


def told(engine: Engine, delta: Delta | BaseException) -> list[int]:
    """A delta's tokens with the end token, which peers count, too. Raises what ended the request, if it was a fault."""
    if isinstance(delta, BaseException):
        raise delta
    return [*delta.tokens, engine.end_id] if delta.finish_reason == "stop" else list(delta.tokens)


def race(
    runners: dict[str, Runner], prompts: list[list[int]], together: int, ticker: Ticker
) -> dict[str, list[Answers]]:
    """Each wave by every engine in turn; the first one once more before, for nothing."""
    parts = list(waves(prompts, together))
    found: dict[str, list[Answers]] = {name: [] for name in runners}
    names = list(runners)
    for name in names:
        runners[name](parts[0])
    gc.collect()
    gc.disable()  # a collection in between would fall on one engine
    try:
        for number, part in enumerate(parts):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                found[name].append(runners[name](part))
            gc.collect()
            ticker(number + 1, len(parts), f"waves of {together}")
    finally:
        gc.enable()
    return found


def rates(found: dict[str, list[Answers]], seed: int = 0) -> dict[str, dict[str, Any]]:
    """By engine: tokens a second with prefill and after it, ms of a wave's prefill, answers with the tokens of `ar`."""
    made = {}
    for name, answers in found.items():
        tokens = [sum(map(len, one["tokens"])) for one in answers]
        base = [text for one in found["ar"] for text in one["tokens"]]
        same = [text for one in answers for text in one["tokens"]]
        after = [one["seconds"] - one["prefill_seconds"] for one in answers]
        made[name] = {
            "tokens": sum(tokens),
            "tokens_per_s": asdict(bootstrap.ratio(tokens, [one["seconds"] for one in answers], seed)),
            "after_prefill": asdict(bootstrap.ratio([one["later"] for one in answers], after, seed)),
            "prefill_ms": 1e3 * sum(one["prefill_seconds"] for one in answers) / len(answers),
            "same_as_ar": sum(a == b for a, b in zip(same, base, strict=True)),
            "answers": len(base),
        }
    return made


def texts_of(engine: Engine, work: Workload, count: int) -> list[Document]:
    """Prompts with their right answers, as they are trained on."""
    assert work.examples is not None
    return [document(example, engine.tokenizer, engine.chat) for example in work.examples[:count]]


def measured(asked: argparse.Namespace, engine: Engine, folder: Path) -> dict[str, Any]:
    """Everything that the page has of it. folder: an empty one, for weights in other forms."""
    params = GenerateParams(mode="ar", grammar=False, max_tokens=asked.max_tokens)
    work = workload(engine, SET, asked.prompts, params)
    documents = texts_of(engine, work, asked.texts)
    texts = [one.ids.tolist() for one in documents]
    room = 32 * math.ceil((max(map(len, [*texts, *work.prompts])) + asked.max_tokens) / 32)
    exported = folder / "exported"
    export_folder(asked.model, exported)
    reference = own_losses(load_model(exported, torch.float32), texts)
    is_answer = np.concatenate([np.arange(1, len(one.ids)) >= one.answer_start for one in documents])
    losses = {"fourleaf": beside(reference, reference, is_answer)}
    core = core_of(engine)
    runners = {mode: ours(engine, core, replace(params, **ARMS[mode])) for mode in OURS}
    stands, peers = [], []
    try:
        for name in asked.peer:
            python = asked.peers / name / "bin" / "python"
            tries = attempts(name, exported, not asked.compile_vllm)
            standing, peer, found = stand(name, tries, python, texts, room, max(WAVES), folder)
            stands.append(standing)
            if peer is None or found is None:
                continue
            peers.append(peer)
            losses[name] = standing.loss = beside(reference, found, is_answer)
            runners[name] = of_peer(peer, asked.max_tokens, engine)
            if standing.about["dtype"] == "bfloat16":
                rounded = own_losses(rounded_to_bf16(folder / "for-vllm"), texts)
                losses["fourleaf, weights rounded to bf16"] = beside(reference, rounded, is_answer)
        ticker = Ticker(sys.stderr)
        speeds = {str(n): rates(race(runners, work.prompts, n, ticker)) for n in WAVES}
        ticker.close()
    finally:
        for peer in peers:
            peer.close()
    about = {"set": SET, "prompts": len(work.prompts), "texts": len(texts), "tokens_scored": len(reference[0])}
    shown = {"peers": [asdict(one) for one in stands], "losses": losses, "speeds": speeds}
    return {**circumstances(engine, asked.model), **about, **shown}


def of_peer(peer: Peer, max_tokens: int, engine: Engine) -> Runner:
    """Answers a wave by a peer. The mask token is no word of a text, and where that costs nothing, it is forbidden."""
    banned = [] if engine.mask_id is None else [engine.mask_id]
    return lambda prompts: peer.ask("answer", prompts=prompts, max_tokens=max_tokens, stop=engine.end_id, banned=banned)


def rounded_to_bf16(folder: Path) -> Transformer:
    """The model of a folder, computing in fp32 with the weights that a bf16 engine has of it."""
    model = load_model(folder, torch.float32)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(tensor.bfloat16().float())
    return model


def section(found: dict[str, Any]) -> str:
    """The page's text: what was compared, losses, speeds, refusals."""
    where = f"{found['processor']}, a thread each, load {found['load'][0]:g} at the end" if found["load"] else ""
    model = f"{found['model']} (weights {found['weights_sha256'][:12]}, {found['parameters']:,} parameters)"
    scored = f"Loss on {found['texts']} texts of {found['set']}, {found['tokens_scored']:,} tokens"
    about = f"{model}; {where}. {scored}; speed on {found['prompts']} prompts."
    took = [
        f"- {one['name']} {one['about']['version']} ran the weights {one['form']}: {one['about']['about'].strip(' |')}."
        for one in found["peers"]
        if one["form"]
    ]
    refused = [
        f"- {one['name']} refused the weights {no['form']}: `{no['words'].replace('`', chr(39)).splitlines()[-1]}`"
        for one in found["peers"]
        for no in one["refusals"]
    ]
    rows = [
        [
            *(name, f"{one['nats']:.4f}", f"{one['nats_of_answers']:.5f}"),
            *(f"{one['mean_apart']:.4f}", f"{one['most_apart']:.3f}"),
            f"{one['kl']:.1e}" if "kl" in one else "-",
        ]
        for name, one in found["losses"].items()
    ]
    losses = markdown(["engine", "nats a token", "of answers", "apart from ours, mean", "most", "KL from ours"], rows)
    return "\n\n".join([about, "\n".join([*took, *refused]), losses, speeds(found)])


def speeds(found: dict[str, Any]) -> str:
    """A line for each number of requests at once and engine."""
    rows = []
    for together, arms in found["speeds"].items():
        base = arms["ar"]
        for name, one in arms.items():
            ratios = [one[key]["value"] / base[key]["value"] for key in ("tokens_per_s", "after_prefill")]
            rows.append(
                [
                    *(together, name if name in PROGRAMS else f"fourleaf, {name}"),
                    *(f"{one[key]['value']:.0f} ({one[key]['low']:.0f}-{one[key]['high']:.0f})" for key in
                      ("tokens_per_s", "after_prefill")),
                    *(f"{ratio:.2f}" for ratio in ratios),
                    f"{one['prefill_ms']:.1f}",
                    f"{one['same_as_ar']} of {one['answers']}",
                ]
            )  # fmt: skip
    head = ["at once", "engine", "tokens/s", "after prefill", "against our ar", "after prefill", "prefill ms"]
    return markdown([*head, "tokens as our ar"], rows)


def main() -> None:
    """Measures, prints, and fills the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=bundled_path())
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="folder of the peers' environments")
    parser.add_argument("--peer", action="append", choices=list(PROGRAMS), help="only this one; may be repeated")
    parser.add_argument("--prompts", type=int, default=48, help="a multiple of 8")
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--compile-vllm", action="store_true", help="let vLLM compile; it takes minutes to load")
    parser.add_argument("--json", type=Path, help="keeps the figures in this file")
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args()
    if asked.prompts < max(WAVES):
        raise ConfigError(f"--prompts is {asked.prompts}; a wave of {max(WAVES)} needs as many")
    there = [name for name in PROGRAMS if (asked.peers / name / STAMP).is_file()]
    asked.peer = asked.peer or there
    if missing := [name for name in asked.peer if name not in there]:
        raise ConfigError(f"{asked.peers} has no environment of {', '.join(missing)}; `make bench-peers` installs them")
    if not there:
        raise ConfigError(f"{asked.peers} has no peer's environment; `make bench-peers` installs them")
    engine = Engine.load(asked.model, num_threads=1)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(asked, engine, Path(folder))
    text = section(found)
    print(text)
    if asked.json is not None:
        write_json(asked.json, found)
    asked.page.write_text(filled(asked.page.read_text(encoding="utf-8"), {"peers": text}), encoding="utf-8")


if __name__ == "__main__":
    main()
