"""`POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`: a model's tokenizer for clients that count or score.

Paths, fields and answers are vLLM's, which lm-eval looks for: where it finds them it needs no tokenizer of its own. A
text is read as the model's own: control tokens that it spells become their ids, as in a prompt that a client's copy of
the chat template has written. (Texts of `/v1/completions` never become control tokens; ids may be any.)
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from fourleaf.serve.body import Wire, parse, refuse
from fourleaf.serve.models import NotReadyError, Served
from fourleaf.serve.server import Server


class TokenizeRequest(Wire):
    """`add_special_tokens` makes no difference: no tokenizer here adds any."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None


class DetokenizeRequest(Wire):
    """Ids of any kind, the mask's and those that no text has among them."""

    tokens: list[int]
    model: str | None = None


async def tokenize(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError."""
    asked = parse(TokenizeRequest, await server.body(request), {})
    served = find(server, asked.model)
    ids = await run_in_threadpool(served.engine.tokenizer.encode_markup, asked.prompt)
    return JSONResponse({"count": len(ids), "max_model_len": served.engine.max_context, "tokens": ids})


async def detokenize(server: Server, request: Request) -> Response:
    """The endpoint. Raises RequestError for an id that the model does not have."""
    asked = parse(DetokenizeRequest, await server.body(request), {})
    tokenizer = find(server, asked.model).engine.tokenizer
    for token in asked.tokens:
        if not 0 <= token < tokenizer.vocab_size:
            refuse("tokens", f"must hold ids from 0 to {tokenizer.vocab_size - 1}, not {token}", "invalid_value")
    return JSONResponse({"prompt": await run_in_threadpool(tokenizer.decode, asked.tokens)})


def tokenizer_info(server: Server, model: str | None) -> dict[str, Any]:
    """What a client needs to write prompts as the model reads them. Raises ModelNotFoundError, NotReadyError."""
    engine = find(server, model).engine
    return {
        "model": engine.name,
        "vocab_size": engine.tokenizer.vocab_size,
        "max_model_len": engine.max_context,
        "bos_token": engine.tokenizer.begin,
        "eos_token": engine.tokenizer.end,
        "pad_token": None,
        "chat_template": engine.chat.source,
    }


def find(server: Server, name: str | None) -> Served:
    """The model of that name; without one, the first that is loaded. Raises ModelNotFoundError, NotReadyError."""
    if name is not None:
        return server.find(name)
    loaded = server.models.served()
    if not loaded:
        raise NotReadyError("No model is loaded.", param="model", code="model_not_loaded")
    return server.find(loaded[0].engine.name)
