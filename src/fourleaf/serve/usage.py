"""What an answer took, as OpenAI's `usage` with our own block beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fourleaf.engine.request import GenerateParams
from fourleaf.serve.answer import Finish

_OPENAI = ("prompt_tokens", "completion_tokens", "cached_tokens")


def usage(finish: Finish, params: GenerateParams) -> dict[str, Any]:
    """OpenAI's counts, and under `fourleaf` how the answer was decoded."""
    return _counts([finish]) | {"fourleaf": how(finish, params)}


def usage_of_choices(finishes: Sequence[Finish], params: Sequence[GenerateParams]) -> dict[str, Any]:
    """Of several answers to one prompt, which is counted once."""
    if len(finishes) == 1:
        return usage(finishes[0], params[0])
    each = [how(finish, one) for finish, one in zip(finishes, params, strict=True)]
    return _counts(finishes) | {"fourleaf": {"choices": each}}


def _counts(finishes: Sequence[Finish]) -> dict[str, Any]:
    prompt = finishes[0].usage.prompt_tokens
    completion = sum(finish.usage.completion_tokens for finish in finishes)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached_tokens(finishes[0])},
        "completion_tokens_details": {"reasoning_tokens": sum(finish.reasoning_tokens for finish in finishes)},
    }


def cached_tokens(finish: Finish) -> int:
    """Prompt tokens that a prefix cache held already; 0 where the engine has none."""
    return getattr(finish.usage, "cached_tokens", 0)


def how(finish: Finish, params: GenerateParams) -> dict[str, Any]:
    """Mode, the settings that played a part, the engine's counts, speed."""
    said: dict[str, Any] = {"mode": params.mode}
    if params.mode in ("diffuse", "auto"):
        said["policy"] = params.policy
        if params.policy in ("threshold", "edit"):
            said["threshold"] = params.threshold
    if params.temperature > 0:
        said["seed"] = params.seed or 0
    counts = {name: value for name, value in asdict(finish.usage).items() if name not in _OPENAI}
    return (
        said
        | counts
        | {
            "tpf": round(finish.usage.tpf, 3),
            "rows_per_token": round(finish.usage.rows / max(1, finish.usage.completion_tokens), 3),
            "seconds": round(finish.seconds, 4),
            "first_seconds": round(finish.first_seconds, 4),
            "tokens_per_second": round(finish.tokens_per_second, 1),
        }
    )
