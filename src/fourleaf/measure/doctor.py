"""What this machine has, and whether the engine does here what it must: equalities on a small random model, exact to
rounding in fp64, and products in fp32 as they are served."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any, TextIO

import torch

from fourleaf.engine.cost import processor
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams, Mode
from fourleaf.engine.score import score
from fourleaf.kernels.products import Product
from fourleaf.measure.specimen import specimen
from fourleaf.text.tokenizer import SPECIAL_TOKENS, train_tokenizer

# Extra -> the module that tells whether it is installed.
EXTRAS = {"serve": "fastapi", "grammar": "llguidance", "int4": "onnxruntime", "gguf": "gguf", "bench": "transformers"}
TOLERANCE = 1e-9
ROUNDING = 1e-4  # of sums of 80 products in fp32


def machine() -> dict[str, Any]:
    """Versions, processor, devices, and which extras are installed."""
    return {
        "fourleaf": version("fourleaf"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "extras": {name: importlib.util.find_spec(module) is not None for name, module in EXTRAS.items()},
    }


def small_engine() -> Engine:
    """One that counts its pages after every forward."""
    return specimen(train_tokenizer([], vocab_size=len(SPECIAL_TOKENS) + 256), 7, checks=True)


PROMPTS = [list(range(20, 20 + length)) for length in (3, 33, 70)]


def stepping_agrees(engine: Engine) -> float:
    """A token's logprob in steps against the same text in one forward: the largest difference."""
    worst = 0.0
    for prompt in PROMPTS:
        deltas = list(engine.generate(prompt, GenerateParams(mode="ar", max_tokens=12, logprobs=0)))
        tokens = [token for delta in deltas for token in delta.tokens]
        stepped = [one.logprob for delta in deltas for one in delta.logprobs or ()]
        at_once = score(engine.model, prompt + tokens, 0, engine.mask_id)[len(prompt) : len(prompt) + len(tokens)]
        for one, other in zip(stepped, at_once, strict=True):
            assert other is not None
            worst = max(worst, abs(one - other.logprob))
    return worst


def drafting_agrees(engine: Engine) -> float:
    """Answers of `draft` that differ from those of `ar`."""
    return float(sum(_tokens(engine, prompt, "draft") != _tokens(engine, prompt, "ar") for prompt in PROMPTS))


def company_makes_no_difference(engine: Engine) -> float:
    """Sampled answers of requests that share their forwards, which differ from those of each alone."""
    params = GenerateParams(mode="diffuse", threshold=0.3, max_tokens=20, temperature=1.0, seed=3)
    together = engine.generate_many(PROMPTS, params)
    alone = [engine.generate_many([prompt], params)[0] for prompt in PROMPTS]
    return float(sum(one[0] != other[0] for one, other in zip(together, alone, strict=True)))


def cache_makes_no_difference(engine: Engine) -> float:
    """Answers to a prompt that the prefix cache holds, which differ from those of an engine that has never seen it."""
    cold = small_engine()
    return float(sum(_tokens(engine, prompt, "diffuse") != _tokens(cold, prompt, "diffuse") for prompt in PROMPTS))


def products_agree(_: Engine) -> float:
    """A product in fp32 as it is served, for each number of rows, against fp64: the largest error beyond rounding."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 80, generator=draw)
    product, worst = Product(weight, by_columns=True), 0.0
    for num in (1, *range(2, 71), 500):
        rows = torch.randn(num, 80, generator=draw)
        error = (product(rows).double() - rows.double() @ weight.double().t()).abs().max().item()
        worst = max(worst, error - ROUNDING)
    return worst


CHECKS: tuple[tuple[str, Callable[[Engine], float]], ...] = (
    ("tokens one by one are as probable as in one forward", stepping_agrees),
    ("draft says what ar says", drafting_agrees),
    ("an answer is the same in company", company_makes_no_difference),
    ("an answer is the same from the prefix cache", cache_makes_no_difference),
    ("products of few rows and of many are right in fp32", products_agree),
)


def _tokens(engine: Engine, prompt: list[int], mode: Mode) -> list[int]:
    params = replace(GenerateParams(mode=mode, max_tokens=20), threshold=0.3)
    return [token for delta in engine.generate(prompt, params) for token in delta.tokens]


def main_doctor(*, as_json: bool, out: TextIO) -> bool:
    """Prints what is here and whether it works. -> whether all checks passed."""
    engine = small_engine()
    checks = []
    for name, check in CHECKS:
        started = time.perf_counter()
        difference = check(engine)
        seconds = round(time.perf_counter() - started, 2)
        checks.append({"check": name, "ok": difference <= TOLERANCE, "difference": difference, "seconds": seconds})
    found = machine()
    if as_json:
        print(json.dumps(found | {"checks": checks}, indent=2), file=out)
    else:
        for name, value in found.items():
            if name == "extras":
                value = ", ".join(f"{extra} {'yes' if there else 'no'}" for extra, there in value.items())
            print(f"{name:<10} {value}", file=out)
        for one in checks:
            print(f"{'ok' if one['ok'] else 'FAILED':<10} {one['check']} ({one['seconds']} s)", file=out)
    return all(one["ok"] for one in checks)
