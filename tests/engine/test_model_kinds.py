"""The engine on models of other shapes than the usual one: each mode answers as it should, on the least memory."""

import pytest
import torch

from fourleaf.engine.core import Core, Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.pages import PAGE_SIZE
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import RequestError
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.text.chat import ChatTemplate

KINDS = {
    "blocks of 1": {"block_size": 1},
    "blocks of 7": {"block_size": 7},
    "blocks of 32": {"block_size": 32},
    "blocks of 48": {"block_size": 48},
    "no attention": {"layer_types": ("linear_attention",) * 2},
    "no GDN": {"layer_types": ("full_attention",) * 2},
    "experts": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "coreset_top_p": 0.6,
        "coreset_min": 2,
    },
}
CONTEXT = 4 * PAGE_SIZE  # whole pages: nothing is left over for a block behind the context's end
MODES = ("ar", "draft", "diffuse")


def made(tokenizer, **changes) -> Engine:
    fields = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 6,
        "intermediate_size": 16,
        "initializer_range": 0.4,
        "max_position_embeddings": CONTEXT,
        "block_size": 8,
        "mask_token_id": tokenizer.mask_id,
    }
    torch.manual_seed(3)
    model = Transformer(ModelConfig(**{**fields, **changes})).to(torch.float64).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(4.0)
        model.lm_head.weight[tokenizer.end_id] *= 2.0
    chat = ChatTemplate("{{ messages[0].content }}", tokenizer)
    return Engine("kind", model, tokenizer, chat, Limits(num_pages=4, max_rows=64), checks=True)


def asked(length: int, mode: str, **fields) -> tuple[list[int], GenerateParams]:
    params = GenerateParams(mode=mode, threshold=0.3, **fields)
    return [20 + (7 * i) % 150 for i in range(length)], params


def run(engine: Engine, requests) -> list[tuple[list[int], str, int, int]]:
    """(tokens, how it ended, tokens counted, forwards) of requests that share a core."""
    core, heard = Core(engine.model, engine.core.limits, checks=True), [[] for _ in requests]
    for (prompt, params), deltas in zip(requests, heard, strict=True):
        core.submit(engine.admit(prompt, params), deltas.append)
    for _ in range(2_000):
        if not core.step():
            break
    assert core.is_idle, "it does not end"
    assert core.cache.pages.num_held == 0
    return [
        ([t for d in deltas for t in d.tokens], ds.finish_reason, ds.usage.completion_tokens, ds.usage.forwards)
        for deltas, ds in ((deltas, deltas[-1]) for deltas in heard)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_bug_kinds_6_7_and_31_every_kind_of_model_answers_in_every_mode(kind, byte_tokenizer):
    """Prompts of 1, a page, a page and one, and all of the context but one; blocks that the context cuts short."""
    engine = made(byte_tokenizer, **KINDS[kind])
    requests = [
        asked(length, mode, max_tokens=limit)
        for mode in MODES
        for length, limit in ((1, 40), (32, 9), (33, 1), (CONTEXT - 20, 50), (CONTEXT - 1, 50))
    ]
    together = run(engine, requests)
    for request, answer in zip(requests, together, strict=True):
        assert run(engine, [request])[0] == answer
    num = len(requests) // len(MODES)
    assert [answer[:3] for answer in together[:num]] == [answer[:3] for answer in together[num : 2 * num]]
    for (prompt, params), (tokens, end, counted, _) in zip(requests, together, strict=True):
        limit = min(params.max_tokens, CONTEXT - len(prompt))
        assert (counted == limit == len(tokens)) if end == "length" else counted == len(tokens) + 1 <= limit


def test_kind_66_an_ar_model_answers_in_ar_and_says_why_in_no_other_mode(byte_tokenizer):
    engine = made(byte_tokenizer, block_size=None, mask_token_id=None)
    ((tokens, _, counted, forwards),) = run(engine, [asked(33, "ar", max_tokens=12)])
    assert tokens
    assert forwards == counted - 1
    for mode in ("draft", "diffuse", "auto"):
        with pytest.raises(RequestError, match="is an AR model") as caught:
            engine.admit(*asked(3, mode))
        assert caught.value.param == "mode"


def test_kind_15_a_cache_without_room_for_one_request_of_full_length_is_refused(byte_tokenizer):
    with pytest.raises(AssertionError, match="3 pages hold no request of full length, 4"):
        Core(made(byte_tokenizer).model, Limits(num_pages=3))


def test_a_model_without_attention_runs_as_many_requests_as_any(byte_tokenizer):
    core = Core(made(byte_tokenizer, **KINDS["no attention"]).model)
    assert core.cache.num_pages * PAGE_SIZE >= core.limits.max_running * CONTEXT
