"""What a request is held against before it runs: the model's abilities, its context, and a template's grammar."""

from __future__ import annotations

from collections.abc import Sequence

from fourleaf.diffusion.constraint import Matcher, first_unreachable
from fourleaf.engine.need import Vocabulary
from fourleaf.engine.request import GenerateParams
from fourleaf.engine.template import Gap, Part, num_open, num_pinned
from fourleaf.errors import ContextLengthError, RequestError
from fourleaf.model.config import ModelConfig


def check_request(prompt_ids: list[int], params: GenerateParams, name: str, config: ModelConfig) -> None:
    """Raises RequestError for what the model called `name` cannot do, and ContextLengthError where the prompt leaves no
    room for an answer."""
    if not prompt_ids:
        raise RequestError("the prompt is empty; give at least one message", param="messages")
    if len(prompt_ids) >= config.max_position_embeddings:
        raise ContextLengthError(
            f"the prompt has {len(prompt_ids)} tokens; this model's context is {config.max_position_embeddings}, and "
            "an answer needs at least 1 of them. Shorten the messages.",
            param="messages",
            code="context_length_exceeded",
        )
    if params.mode != "ar" and not config.is_block_diffusion:
        raise RequestError(
            f"{name} is an AR model, as its checkpoint lacks block diffusion's tensors or settings: mode 'ar' works, "
            f"{params.mode!r} does not. Use the complete checkpoint, or `fourleaf convert` and training.",
            param="mode",
        )
    if params.policy == "edit" and params.mode in ("diffuse", "auto") and not config.bd_edits:
        raise RequestError(
            f"{name} was not trained to mend revealed tokens (its config lacks bd_edits): policy 'edit' would spoil "
            "its answers. Use threshold, fixed or entropy.",
            param="policy",
            code="unsupported_value",
        )
    if not 0 <= min(prompt_ids) <= max(prompt_ids) < config.vocab_size:
        limits = f"from 0 to {config.vocab_size - 1}, not {min(prompt_ids)} to {max(prompt_ids)}"
        raise RequestError(f"the prompt's token ids must be {limits}.", param="prompt", code="invalid_value")
    params.check_ids(config.vocab_size)


def check_fits(
    parts: Sequence[Part], prompt_tokens: int, max_context: int, vocabulary: Vocabulary, matcher: Matcher | None
) -> None:
    """Holds a template against the model, its context and the grammar. Raises ContextLengthError, RequestError."""
    total = prompt_tokens + num_pinned(parts) + num_open(parts)
    if total > max_context:
        raise ContextLengthError(
            f"This model's maximum context length is {max_context} tokens, but {total} were asked for: "
            f"{prompt_tokens} in the prompt, {num_pinned(parts)} pinned and {num_open(parts)} in gaps. "
            "Ask for shorter gaps.",
            param="infill",
            code="context_length_exceeded",
        )
    for part in parts:
        for token in () if isinstance(part, Gap) else part:
            if not 0 <= token < vocabulary.size or token in (vocabulary.end, vocabulary.mask):
                raise RequestError(
                    f"infill must pin token ids below {vocabulary.size} that are neither mask nor end, not {token}.",
                    param="infill",
                    code="invalid_value",
                )
    if matcher is None:
        return
    told = [part.limit if isinstance(part, Gap) else list(part) for part in parts]
    if isinstance(told[-1], list):
        told[-1] = [*told[-1], vocabulary.end]
    index = first_unreachable(matcher, told)
    if index is not None:
        raise RequestError(
            f"infill cannot satisfy the constraint: no filling was found with which part {index} would be legal.",
            param="infill",
            code="invalid_value",
        )
