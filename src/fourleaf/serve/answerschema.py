"""What answers hold, for the OpenAPI document: bodies, and the events of streams.

Objects are closed: a field that an answer has and its schema lacks fails the tests.
"""

from __future__ import annotations

from typing import Any

from fourleaf.engine.request import POLICIES, Usage
from fourleaf.serve.schema import (
    ANY_OBJECT,
    BOOLEAN,
    COUNT,
    NULL,
    NUMBER,
    STRING,
    Schema,
    any_of,
    array,
    given,
    json_text,
    of_dataclass,
    one_of,
    or_null,
    ref,
    told,
)

_SECONDS = NUMBER | {"minimum": 0}
_REASON = one_of("stop", "length", "tool_calls")


def answer_schemas() -> dict[str, Schema]:
    """Schemas by name."""
    return (
        _errors()
        | _about()
        | _usages()
        | _chat()
        | _completions()
        | _infills()
        | _messages()
        | _responses()
        | _decisions()
        | _events()
    )


def _errors() -> dict[str, Schema]:
    inner = {"message": STRING, "type": STRING, "param": or_null(STRING), "code": or_null(STRING)}
    fault = told({"loc": array(any_of(STRING, COUNT)), "msg": STRING, "type": STRING})
    return {
        "Error": told({"error": told(inner)}),
        "AnthropicError": told({"type": one_of("error"), "error": told({"type": STRING, "message": STRING})}),
        "DecisionError": told({"detail": told({"error_type": STRING, "message": STRING})}),
        "DecisionFaults": told({"detail": array(fault, minItems=1)}),
    }


def _about() -> dict[str, Schema]:
    status = one_of("unloaded", "loading", "loaded", "unloading", "failed")
    card = {"id": STRING, "object": one_of("model"), "created": COUNT, "owned_by": STRING, "status": status}
    listed = {"name": STRING, "description": STRING, "release_date": STRING | {"format": "date"}}
    able = {
        "id": STRING,
        "object": one_of("capabilities"),
        "max_context": COUNT,
        "modes": array(STRING),
        "default_mode": STRING,
        "policies": array(STRING),
        "fields": array(STRING),
        "constraints": array(STRING),
        "prompt_logprobs": BOOLEAN,
        "concurrent_requests": COUNT,
        "tools": one_of("fixed", "any"),
        "tool_markup": STRING,
        "reasoning": BOOLEAN,
        "decisions": or_null(ANY_OBJECT),
    }
    return {
        "Health": told({"status": one_of("ok")}),
        "Trouble": told({"status": STRING, "error": _inside("Error", "error")}),
        "Model": told(card),
        "ModelList": told({"object": one_of("list"), "data": array(ref("Model")), "models": array(told(listed))}),
        "Capabilities": given(able),  # open: what a model can do is still growing
        "Tokens": told({"count": COUNT, "max_model_len": COUNT, "tokens": array(COUNT)}),
        "TokensText": told({"prompt": STRING}),
        "TokenizerInfo": told(
            {"model": STRING, "vocab_size": COUNT, "max_model_len": COUNT, "chat_template": STRING, "eos_token": STRING}
            | {"bos_token": or_null(STRING), "pad_token": NULL}
        ),
        "CapabilitiesList": told({"object": one_of("list"), "data": array(ref("Capabilities"))}),
    }


def _inside(name: str, field: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}/properties/{field}"}


def _usages() -> dict[str, Schema]:
    counts = of_dataclass(Usage)["properties"]
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):  # said in the API's own words
        del counts[name]
    how = counts | {
        "mode": STRING,
        "tpf": _SECONDS,
        "rows_per_token": _SECONDS,
        "seconds": _SECONDS,
        "first_seconds": _SECONDS,
        "tokens_per_second": _SECONDS,
    }
    decoding = told(how, {"policy": one_of(*POLICIES), "threshold": NUMBER, "seed": COUNT})
    each = told({"choices": array(ref("Decoding"))})
    return {
        "Decoding": decoding | {"description": "How one answer was decoded."},
        "Usage": told(
            {
                "prompt_tokens": COUNT,
                "completion_tokens": COUNT,
                "total_tokens": COUNT,
                "prompt_tokens_details": told({"cached_tokens": COUNT}),
                "completion_tokens_details": told({"reasoning_tokens": COUNT}),
                "fourleaf": any_of(ref("Decoding"), each),
            }
        ),
    }


def _head(kind: str) -> dict[str, Schema]:
    return {"id": STRING, "object": one_of(kind), "created": COUNT, "model": STRING, "system_fingerprint": STRING}


def _chat() -> dict[str, Schema]:
    entry = {"token": STRING, "logprob": NUMBER, "bytes": array(COUNT)}
    scored = told(entry | {"top_logprobs": array(told(entry)), "pass": COUNT})
    logprobs = or_null(told({"content": array(scored), "refusal": NULL}))
    call = told({"id": STRING, "type": one_of("function"), "function": told({"name": STRING, "arguments": STRING})})
    message = told(
        {"role": one_of("assistant"), "content": or_null(STRING), "refusal": NULL},
        {"reasoning_content": STRING, "tool_calls": array(call, minItems=1)},
    )
    piece = told(
        {"index": COUNT, "function": told({"arguments": STRING}, {"name": STRING})},
        {"id": STRING, "type": one_of("function")},
    )
    delta = told(
        {},
        {
            "role": one_of("assistant"),
            "content": STRING,
            "reasoning_content": STRING,
            "tool_calls": array(piece, minItems=1),
        },
    )
    snapshot = told(
        {"provisional": BOOLEAN, "snapshot": one_of(True)}, {"block": COUNT, "pass": COUNT, "masked": COUNT}
    )
    choice = {"index": COUNT, "message": message, "logprobs": logprobs, "finish_reason": _REASON}
    part = {"index": COUNT, "delta": delta, "logprobs": logprobs, "finish_reason": or_null(_REASON)}
    chunk = _head("chat.completion.chunk") | {"choices": array(told(part, {"diffusion": snapshot}))}
    return {
        "ChatCompletion": told(_head("chat.completion") | {"choices": array(told(choice)), "usage": ref("Usage")}),
        "ChatChunk": any_of(told(chunk, {"usage": or_null(ref("Usage"))}), ref("Error")),
    }


def _completions() -> dict[str, Schema]:
    alternatives = or_null({"type": "object", "additionalProperties": NUMBER})
    logprobs = told(
        {
            "tokens": array(STRING),
            "token_logprobs": array(or_null(NUMBER)),
            "top_logprobs": array(alternatives),
            "text_offset": array(COUNT),
        }
    )
    choice = {"index": COUNT, "text": STRING, "logprobs": or_null(logprobs), "finish_reason": or_null(_REASON)}
    whole = _head("text_completion") | {"choices": array(told(choice))}
    return {
        "Completion": told(whole | {"usage": ref("Usage")}),
        "CompletionChunk": any_of(told(whole, {"usage": or_null(ref("Usage"))}), ref("Error")),
    }


def _infills() -> dict[str, Schema]:
    gaps = array(told({"index": COUNT, "text": STRING, "tokens": COUNT}))
    ended, piece = {"index": COUNT, "text": STRING, "gaps": gaps, "finish_reason": _REASON}, {"gap": or_null(COUNT)}
    running = {"index": COUNT, "text": STRING, "finish_reason": NULL}
    chunk = array(any_of(told(running | piece), told(ended | piece)))
    usage = ref("InfillUsage")
    message = told({"role": one_of("assistant"), "content": STRING})
    middle = {"index": COUNT, "text": STRING, "logprobs": NULL, "finish_reason": or_null(_REASON)}
    text = _head("text_completion")
    return {
        "InfillUsage": {
            **_usages()["Usage"],
            "properties": _usages()["Usage"]["properties"] | {"pinned_tokens": COUNT},
        },
        "Infill": told(_head("infill") | {"choices": array(told(ended)), "usage": usage}),
        "InfillChunk": any_of(
            told(_head("infill.chunk") | {"choices": chunk}, {"usage": or_null(usage)}), ref("Error")
        ),
        "FimCompletion": told(text | {"choices": array(told(middle | {"message": message})), "usage": ref("Usage")}),
        "FimChunk": any_of(
            told(text | {"choices": array(told(middle | {"delta": message}))}, {"usage": or_null(ref("Usage"))}),
            ref("Error"),
        ),
    }


def _messages() -> dict[str, Schema]:
    counts = dict.fromkeys(
        ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"), COUNT
    )
    usage = told(counts, {"fourleaf": ref("Decoding")})
    block = any_of(
        told({"type": one_of("text"), "text": STRING}),
        told({"type": one_of("thinking"), "thinking": STRING, "signature": STRING}),
        told({"type": one_of("tool_use"), "id": STRING, "name": STRING, "input": ANY_OBJECT}),
    )
    ended = {
        "stop_reason": one_of(
            "end_turn", "max_tokens", "model_context_window_exceeded", "tool_use", "stop_sequence", None
        ),
        "stop_sequence": or_null(STRING),
    }
    message = {
        "id": STRING,
        "type": one_of("message"),
        "role": one_of("assistant"),
        "model": STRING,
        "content": array(block),
        "usage": usage,
    }
    delta = any_of(
        told({"type": one_of("text_delta"), "text": STRING}),
        told({"type": one_of("thinking_delta"), "thinking": STRING}),
        told({"type": one_of("input_json_delta"), "partial_json": STRING}),
    )
    return {
        "Message": told(message | ended),
        "MessageEvent": any_of(
            _typed("message_start", message=ref("Message")),
            _typed("content_block_start", index=COUNT, content_block=block),
            _typed("content_block_delta", index=COUNT, delta=delta),
            _typed("content_block_stop", index=COUNT),
            _typed("message_delta", delta=told(ended), usage=usage),
            _typed("message_stop"),
            _typed("ping"),
            ref("AnthropicError"),
        ),
        "TokenCount": told({"input_tokens": COUNT}),
    }


def _typed(kind: str, **fields: Schema) -> Schema:
    return told({"type": one_of(kind), **fields})


def _responses() -> dict[str, Schema]:
    status = one_of("in_progress", "completed", "incomplete")
    words = {"type": one_of("output_text"), "text": STRING, "annotations": array({}), "logprobs": array({})}
    part = any_of(told(words), told({"type": one_of("reasoning_text"), "text": STRING}))
    item = {"id": STRING, "status": status}
    items = any_of(
        told({"type": one_of("message"), "role": one_of("assistant"), "content": array(part), **item}),
        told({"type": one_of("reasoning"), "summary": array({}), "content": array(part), **item}),
        told({"type": one_of("function_call"), "call_id": STRING, "name": STRING, "arguments": STRING, **item}),
    )
    usage = {
        "input_tokens": COUNT,
        "input_tokens_details": told({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": told({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
        "fourleaf": ref("Decoding"),
    }
    body = {
        "id": STRING,
        "object": one_of("response"),
        "created_at": COUNT,
        "status": status,
        "error": NULL,
        "incomplete_details": or_null(told({"reason": one_of("max_output_tokens")})),
        "instructions": or_null(STRING),
        "max_output_tokens": or_null(COUNT),
        "metadata": ANY_OBJECT,
        "model": STRING,
        "output": array(items),
        "reasoning": ANY_OBJECT,
        "temperature": NUMBER,
        "text": ANY_OBJECT,
        "tool_choice": ref("ToolChoice"),
        "tools": array(ANY_OBJECT),
        "top_p": NUMBER,
        "usage": or_null(told(usage)),
        # What a stateless server always says.
        "background": one_of(False),
        "parallel_tool_calls": BOOLEAN,
        "previous_response_id": NULL,
        "service_tier": one_of("default"),
        "store": one_of(False),
        "truncation": one_of("disabled"),
        "user": NULL,
    }
    return {
        "Response": told(body, {"completed_at": COUNT}),
        "ResponseEvent": any_of(*_response_events(part, items)),
    }


def _response_events(part: Schema, items: Schema) -> list[Schema]:
    def event(kind: str, **fields: Schema) -> Schema:
        return _typed(f"response.{kind}", sequence_number=COUNT, **fields)

    def about(kind: str, **fields: Schema) -> Schema:
        return event(kind, item_id=STRING, output_index=COUNT, **fields)

    at = {"content_index": COUNT}
    logprobs = {"logprobs": array({})}
    events = [event(kind, response=ref("Response")) for kind in ("created", "in_progress", "completed", "incomplete")]
    events += [event(f"output_item.{kind}", output_index=COUNT, item=items) for kind in ("added", "done")]
    events += [about(f"content_part.{kind}", part=part, **at) for kind in ("added", "done")]
    for name, more in (("output_text", logprobs), ("reasoning_text", {})):
        events.append(about(f"{name}.delta", delta=STRING, **at, **more))
        events.append(about(f"{name}.done", text=STRING, **at, **more))
    events.append(about("function_call_arguments.delta", delta=STRING))
    events.append(about("function_call_arguments.done", name=STRING, arguments=STRING))
    fault = {"sequence_number": COUNT, "code": STRING, "message": STRING, "param": or_null(STRING)}
    return [*events, _typed("error", **fault)]


def _decisions() -> dict[str, Schema]:
    share = NUMBER | {"minimum": 0, "maximum": 1.000001}
    shares = {"type": "object", "additionalProperties": share}
    ours = {"x_answer": any_of(BOOLEAN, COUNT, STRING), "x_first": array(share)}
    sure = {"probabilities": shares, "confidence": share, "x_option_mass": share}
    answer = any_of(
        told({"type": one_of("noul"), "noul": share, "x_option_mass": share}, ours),
        told({"type": one_of("choice"), "choice": STRING, **sure}, ours),
        told({"type": one_of("score"), "score": _SECONDS, "legend": ANY_OBJECT, **sure}, ours),
    )
    joint = told({"p": or_null(share), "passes": COUNT, "order": array(array(STRING))})
    body = {
        "model": STRING,
        "answers": {"type": "object", "additionalProperties": answer},
        "usage": told({"input_tokens": COUNT, "output_tokens": COUNT}),
        "x_forwards": COUNT,
    }
    rules = told({"obeyed": BOOLEAN, "broken": array(COUNT)})
    return {"Decision": told(body, {"x_joint": joint, "x_rules": rules})}


def _events() -> dict[str, Schema]:
    """`/v1/chat/events`: each event's name and data."""
    commit: dict[str, Any] = {"position": COUNT, "tokens": COUNT, "cells": array(STRING)}
    commit |= {"content": STRING, "reasoning": STRING}
    cell = array(any_of(COUNT, STRING, NULL), minItems=2, maxItems=2)  # row, text
    frame = {"block": COUNT, "pass": COUNT, "position": COUNT, "rows": COUNT, "cells": array(cell)}
    events = {
        "start": told({"id": STRING, "model": STRING, "mode": STRING, "prompt_tokens": COUNT}),
        "frame": told(frame),
        "commit": told(commit, {"confidence": array(NUMBER), "passes": array(COUNT)}),
        "tool_call": told({"index": COUNT, "id": STRING, "name": STRING, "arguments": STRING}),
        "usage": ref("Usage"),
        "done": told({"finish_reason": _REASON}),
        "error": ref("Error"),
    }
    return {"ChatEvent": any_of(*(given({"event": one_of(name), "data": json_text(d)}) for name, d in events.items()))}
