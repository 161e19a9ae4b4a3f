"""What requests may hold, for the OpenAPI document: the models' fields, and what code reads out of those it is left."""

from __future__ import annotations

from collections.abc import Sequence

from fourleaf.decide.questions import MAX_JOINT, MAX_LEVELS, MAX_OPTIONS, MAX_ROTATIONS
from fourleaf.engine.request import FIXED_MODES, MAX_LOGPROBS, MAX_SEED
from fourleaf.serve import anthropic, completions, fim, infill, openai, responses
from fourleaf.serve.decoding import MAX_STOPS
from fourleaf.serve.schema import (
    ANY_OBJECT,
    BOOLEAN,
    COUNT,
    NULL,
    STRING,
    Schema,
    any_of,
    array,
    between,
    given,
    json_text,
    of_shape,
    one_of,
    or_null,
    ref,
    told,
)
from fourleaf.serve.systemone import ALIAS
from fourleaf.serve.template import MAX_ITEMS, TAGS
from fourleaf.text.messages import ROLES

_SCHEMA = any_of(ANY_OBJECT, BOOLEAN)  # a JSON schema
_TEXTS = ("input_text", "output_text", "text")


def request_schemas(names: Sequence[str]) -> dict[str, Schema]:
    """Schemas by name. names: the models that the server knows."""
    model = {"enum": list(names), "description": "Of the models that this server knows."}
    any_model = {"model": or_null(model)}
    made: dict[str, Schema] = {
        "ModelRequest": given({"model": model}),
        "TokenizeRequest": given({"prompt": STRING}, any_model | {"add_special_tokens": or_null(BOOLEAN)}),
        "DetokenizeRequest": given({"tokens": array(COUNT)}, any_model),
    }
    shapes = {
        "ChatRequest": (openai.ChatRequest, openai.NEUTRAL, _chat(), ()),
        "CompletionRequest": (completions.CompletionRequest, completions.NEUTRAL, _completion(), ()),
        "FimRequest": (fim.FimRequest, fim.NEUTRAL, _fim(), ()),
        "InfillRequest": (infill.InfillRequest, infill.NEUTRAL, _infill(), ()),
        "ResponsesRequest": (responses.ResponsesRequest, responses.NEUTRAL, _responses(), ()),
        "MessagesRequest": (anthropic.MessagesRequest, anthropic.NEUTRAL, _messages(), ("max_tokens",)),
        "CountRequest": (
            anthropic.MessagesRequest,
            anthropic.NEUTRAL,
            _messages() | {"max_tokens": or_null(between(1, None, kind="integer"))},
            (),
        ),
    }
    for name, (shape, neutral, fields, required) in shapes.items():
        made[name], inner = of_shape(shape, neutral, fields | {"model": model}, required)
        made |= inner
    made["InfillRequest"]["anyOf"] = [
        given({"prompt": STRING}, {"messages": NULL}),
        given({"messages": {"type": "array"}}, {"prompt": NULL}),
    ]
    return made | {"Template": _template()} | _parts() | _decision(names)


def _chat() -> dict[str, Schema]:
    return {
        "messages": array(ref("ChatMessage"), minItems=1),
        "tool_choice": or_null(ref("ToolChoice")),
        "response_format": or_null(ref("ResponseFormat")),
        "reasoning_effort": one_of(*openai.EFFORTS, None),
        "infill": or_null(ref("Template")),
        "chat_template_kwargs": or_null(
            {"type": "object", "properties": {"enable_thinking": BOOLEAN}, "additionalProperties": False}
        ),
    }


def _completion() -> dict[str, Schema]:
    ids = array(between(0, None, kind="integer"), minItems=1)
    text = STRING | {"minLength": 1}
    return {
        "prompt": any_of(text, ids, array(any_of(text, ids), minItems=1, maxItems=completions.MAX_PROMPTS)),
        "max_tokens": or_null(between(0, None, kind="integer")) | {"description": "0 only with echo."},
        "logprobs": or_null(between(0, MAX_LOGPROBS, kind="integer")),
    }


def _fim() -> dict[str, Schema]:
    seed = or_null(between(-MAX_SEED - 1, MAX_SEED, kind="integer"))
    prompt = STRING | {"description": "Empty at the top of a file."}
    return {"prompt": prompt, "random_seed": seed | {"description": "Mistral's word for seed."}}


def _infill() -> dict[str, Schema]:
    return {
        "template": ref("Template"),
        "prompt": or_null(STRING | {"minLength": 1}) | {"description": "This or messages."},
        "messages": or_null(array(ref("ChatMessage"), minItems=1)),
        "response_format": or_null(ref("ResponseFormat")),
        "mode": one_of(*FIXED_MODES, None),
    }


def _template() -> Schema:
    limit = told({"max_tokens": between(1, None, kind="integer")})
    item = any_of(STRING, told({"gap": limit}), told({"tag": one_of(*TAGS)}))
    limits = {"minItems": 1, "maxItems": MAX_ITEMS, "contains": {"type": "object", "required": ["gap"]}}
    return {"type": "array", "items": item, **limits, "description": "Texts, tags and at least one gap."}


def _responses() -> dict[str, Schema]:
    return {
        "input": any_of(STRING, array(ref("InputItem"), minItems=1)),
        "tools": or_null(array(ref("ResponsesTool"))),
        "tool_choice": or_null(ref("ToolChoice")),
        "text": or_null(given({}, {"format": or_null(ref("ResponseFormat"))})),
        "reasoning": or_null(given({}, {"effort": one_of(*openai.EFFORTS, None)})),
    }


def _messages() -> dict[str, Schema]:
    alone = {"disable_parallel_tool_use": or_null(BOOLEAN)}
    form = given({"type": one_of("json_schema"), "schema": _SCHEMA})
    return {
        "messages": array(ref("AnthropicMessage"), minItems=1),
        "max_tokens": between(1, None, kind="integer"),
        "system": or_null(any_of(STRING, array(ref("TextBlock")))),
        "stop_sequences": or_null(array(STRING | {"minLength": 1}, maxItems=MAX_STOPS)),
        "tools": or_null(array(ref("AnthropicTool"))),
        "tool_choice": or_null(
            any_of(
                given({"type": one_of("auto", "any", "none")}, alone),
                given({"type": one_of("tool"), "name": STRING}, alone),
            )
        ),
        "thinking": or_null(given({"type": one_of("enabled", "disabled", "adaptive")})),
        "output_config": or_null(given({}, {"format": or_null(form)})),
    }


def _parts() -> dict[str, Schema]:
    """What messages, inputs and choices are made of."""
    text_part = given({"type": one_of("text"), "text": STRING})
    call = given(
        {"function": given({"name": STRING, "arguments": any_of(json_text(ANY_OBJECT), ANY_OBJECT)})},
        {"id": or_null(STRING), "type": one_of("function", "", None)},
    )
    text, calls = any_of(STRING, array(ref("TextPart"))), ref("ToolCall")
    more = dict.fromkeys(("name", "tool_call_id", "reasoning_content", "reasoning"), or_null(STRING))
    no_calls = {"tool_calls": NULL}
    parts = any_of(
        given({"type": one_of(*_TEXTS), "text": STRING}),
        given({"type": one_of("refusal"), "refusal": STRING}),
    )
    said = any_of(STRING, array(parts))
    tool = given({"name": STRING}, {"description": or_null(STRING)})
    tool["properties"] |= {"type": one_of("function"), "parameters": or_null(ANY_OBJECT)}
    return {
        "ChatMessage": any_of(
            given({"role": one_of(*(role for role in ROLES if role != "assistant")), "content": text}, more | no_calls),
            given({"role": one_of("assistant"), "content": text}, more | {"tool_calls": or_null(array(calls))}),
            given({"role": one_of("assistant"), "tool_calls": array(calls, minItems=1)}, more | {"content": NULL}),
        ),
        "TextPart": text_part,
        "ToolCall": call,
        "ToolChoice": any_of(
            one_of("auto", "none", "required"),
            given({"type": one_of("function"), "function": given({"name": STRING})}),
            given({"type": one_of("function"), "name": STRING}),
        ),
        "ResponseFormat": any_of(
            given({"type": one_of("text", "json_object")}),
            given({"type": one_of("json_schema"), "json_schema": given({"schema": _SCHEMA})}),
            given({"type": one_of("json_schema"), "schema": _SCHEMA}),
        ),
        "InputItem": any_of(
            given(
                {"role": one_of("user", "assistant", "system", "developer"), "content": said},
                {"type": one_of("message", None)},
            ),
            given(
                {"type": one_of("function_call"), "call_id": STRING, "name": STRING, "arguments": json_text(ANY_OBJECT)}
            ),
            given({"type": one_of("function_call_output"), "call_id": STRING, "output": said}),
            given(
                {"type": one_of("reasoning")},
                dict.fromkeys(("content", "summary"), or_null(array(given({"text": STRING})))),
            ),
        ),
        "ResponsesTool": any_of(
            tool | {"required": ["type", "name"]},
            {"type": "object", "not": {"properties": {"type": one_of("function")}, "required": ["type"]}},
        ),
        **_blocks(text_part),
    }


def _blocks(text: Schema) -> dict[str, Schema]:
    result = given(
        {"type": one_of("tool_result"), "tool_use_id": STRING},
        {"content": or_null(any_of(STRING, array(ref("TextBlock")))), "is_error": or_null(BOOLEAN)},
    )
    use = given({"type": one_of("tool_use"), "id": STRING, "name": STRING, "input": ANY_OBJECT})
    thought = given({"type": one_of("thinking"), "thinking": STRING})
    hidden = given({"type": one_of("redacted_thinking")})
    plain = any_of(STRING, array(ref("TextBlock")))
    return {
        "TextBlock": text,
        "AnthropicMessage": any_of(
            given({"role": one_of("system"), "content": plain}),
            given({"role": one_of("user"), "content": any_of(STRING, array(any_of(ref("TextBlock"), result)))}),
            given(
                {
                    "role": one_of("assistant"),
                    "content": any_of(STRING, array(any_of(ref("TextBlock"), use, thought, hidden))),
                }
            ),
        ),
        "AnthropicTool": given(
            {"name": STRING, "input_schema": ANY_OBJECT},
            {"description": or_null(STRING), "type": one_of("custom", None)},
        ),
    }


def _decision(names: Sequence[str]) -> dict[str, Schema]:
    """`/v1/systemone`, as `decide.questions` reads it."""
    text = any_of(STRING, ANY_OBJECT, {"type": "array"})
    asked = {"instructions": or_null(text)}
    options = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": MAX_OPTIONS,
        "additionalProperties": or_null(text),
    }
    sides = given({}, {"true": or_null(text), "false": or_null(text)})
    question = any_of(
        given({"type": one_of("noul")}, asked | {"criteria": or_null(sides)}),
        given({"type": one_of("choice"), "criteria": options}, asked),
        given({"type": one_of("score"), "criteria": array(text, minItems=1, maxItems=MAX_LEVELS)}, asked),
    )
    questions = {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"minLength": 1},
        "additionalProperties": ref("Question"),
    }
    request = given(
        {"model": one_of(*names, ALIAS), "state": text, "questions": questions},
        {
            "assets": NULL,
            "x_joint": or_null(BOOLEAN),
            "x_enforce": or_null(BOOLEAN),
            "x_rules": or_null({"type": "array"}),
            "x_passes": or_null(between(1, MAX_JOINT, kind="integer")),
            "x_rotations": or_null(between(1, MAX_ROTATIONS, kind="integer")),
            "x_threshold": or_null(between(0, 1)),
        },
    )
    return {"Question": question, "DecisionRequest": request}
