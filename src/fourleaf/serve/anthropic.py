"""Anthropic's messages on the wire: what a request may say, brought to the shape of a chat request."""

from __future__ import annotations

import json
from typing import Any

from fourleaf.errors import RequestError
from fourleaf.serve.body import Wire, parse, refuse, renamed, shown
from fourleaf.serve.decoding import stops
from fourleaf.serve.openai import ChatRequest, Function, Tool, check_chat_request

# Field -> the values beside null that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],), "prefill": ()}
# Fields of the chat request -> what an Anthropic client called them.
NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_effort": "thinking",
}


class MessagesRequest(Wire):
    """The honoured fields; mode, policy and the like are ours, as in a chat request."""

    model: str
    messages: list[Any]
    max_tokens: int | None = None
    system: Any = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    mode: str | None = None
    policy: str | None = None
    threshold: float | None = None
    lossless: bool | None = None
    grammar: bool | None = None


_SAME = (
    "model", "stream", "temperature", "top_p", "top_k", "seed", "mode", "policy", "threshold", "lossless",
    "grammar",
)  # fmt: skip


def parse_messages_request(body: bytes, *, counts: bool = False) -> ChatRequest:
    """Reads a body as a chat request. counts: for count_tokens, which has no limit on the answer.

    Raises RequestError, with `param` naming the field.
    """
    request = parse(MessagesRequest, body, NEUTRAL)
    if request.max_tokens is None and not counts:
        refuse("max_tokens", "is missing", "missing_required_parameter")
    if not request.messages:
        refuse("messages", "must not be empty", "invalid_value")
    messages = _system(request.system)
    for at, message in enumerate(request.messages):
        messages += _messages(message, f"messages[{at}]")
    if messages[-1]["role"] == "assistant":
        refuse("messages", "ends with the assistant's own words, which are not continued here; end with the user's")
    choice, parallel = _choice(request.tool_choice)
    chat = ChatRequest(
        messages=messages,
        max_tokens=request.max_tokens,
        stop=list(stops(request.stop_sequences, "stop_sequences") or ()),
        tools=None if request.tools is None else [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)],
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_format=_format(request.output_config),
        reasoning_effort=_effort(request.thinking),
        **{name: getattr(request, name) for name in _SAME},
    )
    try:
        check_chat_request(chat)
    except RequestError as error:
        raise renamed(error, NAMES) from None
    return chat


def _system(system: Any) -> list[dict[str, Any]]:
    if system is None:
        return []
    return [{"role": "system", "content": _text(system, "system")}]


def _messages(message: Any, where: str) -> list[dict[str, Any]]:
    """One message as one or several: results of tools are messages of their own."""
    if not isinstance(message, dict):
        refuse(where, f"must be an object, not {shown(message)}", "invalid_type")
    role, content = message.get("role"), message.get("content")
    if role == "system":
        return [{"role": "system", "content": _text(content, f"{where}.content")}]
    if role not in ("user", "assistant"):
        refuse(f"{where}.role", f'must be "user", "assistant" or "system", not {shown(role)}', "invalid_value")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        refuse(f"{where}.content", f"must be a text or a list of blocks, not {shown(content)}", "invalid_type")
    blocks = [_block(block, f"{where}.content[{at}]") for at, block in enumerate(content)]
    return _assistant(blocks, where) if role == "assistant" else _user(blocks, where)


def _block(block: Any, where: str) -> tuple[str, dict[str, Any], str]:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        refuse(where, f"must be a block with a type, not {shown(block)}", "invalid_type")
    return block["type"], block, where


def _user(blocks: list[tuple[str, dict[str, Any], str]], where: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    texts: list[str] = []
    for kind, block, place in blocks:
        if kind == "text":
            texts.append(_string(block, "text", place))
        elif kind == "tool_result":
            made = _string(block, "tool_use_id", place)
            content = block.get("content")
            text = "" if content is None else _text(content, f"{place}.content")
            if _flag(block, "is_error", place):
                text = f"Error: {text}"
            messages.append({"role": "tool", "tool_call_id": made, "content": text})
        else:
            refuse(f"{place}.type", f"is {shown(kind)}; only text and tool_result are read here")
    if texts or not messages:
        messages.append({"role": "user", "content": [{"type": "text", "text": text} for text in texts]})
    return messages


def _assistant(blocks: list[tuple[str, dict[str, Any], str]], where: str) -> list[dict[str, Any]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for kind, block, place in blocks:
        if kind == "text":
            texts.append(_string(block, "text", place))
        elif kind == "thinking":
            thoughts.append(_string(block, "thinking", place))
        elif kind == "tool_use":
            given = block.get("input")
            if not isinstance(given, dict):
                refuse(f"{place}.input", f"must be an object, not {shown(given)}", "invalid_type")
            function = {"name": _string(block, "name", place), "arguments": json.dumps(given)}
            calls.append({"id": _string(block, "id", place), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            refuse(f"{place}.type", f"is {shown(kind)}; only text, thinking and tool_use are read here")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _text(value: Any, where: str) -> str:
    """A text, or the texts of a list of text blocks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        refuse(where, f"must be a text or a list of text blocks, not {shown(value)}", "invalid_type")
    texts: list[str] = []
    for at, part in enumerate(value):
        kind, block, place = _block(part, f"{where}[{at}]")
        if kind != "text":
            refuse(f"{place}.type", f"is {shown(kind)}; only text is read here")
        texts.append(_string(block, "text", place))
    return "\n".join(texts)


def _string(block: dict[str, Any], key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        refuse(f"{where}.{key}", f"must be a text, not {shown(value)}", "invalid_type")
    return value


def _flag(block: dict[str, Any], key: str, where: str) -> bool | None:
    value = block.get(key)
    if value is not None and not isinstance(value, bool):
        refuse(f"{where}.{key}", f"must be true or false, not {shown(value)}", "invalid_type")
    return value


def _tool(tool: Any, where: str) -> Tool:
    if not isinstance(tool, dict):
        refuse(where, f"must be an object, not {shown(tool)}", "invalid_type")
    if tool.get("type") not in (None, "custom"):
        refuse(f"{where}.type", f"is {shown(tool['type'])}; only tools of your own are known here")
    schema, description = tool.get("input_schema"), tool.get("description")
    if not isinstance(schema, dict):
        refuse(f"{where}.input_schema", f"must be a JSON schema, not {shown(schema)}", "invalid_type")
    if description is not None and not isinstance(description, str):
        refuse(f"{where}.description", f"must be a text, not {shown(description)}", "invalid_type")
    name = _string(tool, "name", where)
    return Tool(type="function", function=Function(name=name, description=description, parameters=schema))


def _choice(choice: dict[str, Any] | None) -> tuple[Any, bool | None]:
    """tool_choice, and whether calls may be several, in OpenAI's words."""
    if choice is None:
        return None, None
    alone = _flag(choice, "disable_parallel_tool_use", "tool_choice")
    parallel = None if alone is None else not alone
    kind = choice.get("type")
    if kind == "tool":
        name = _string(choice, "name", "tool_choice")
        return {"type": "function", "function": {"name": name}}, parallel
    words = {"auto": "auto", "any": "required", "none": "none"}
    if not isinstance(kind, str) or kind not in words:
        refuse("tool_choice.type", f'must be "auto", "any", "tool" or "none", not {shown(kind)}', "invalid_value")
    return words[kind], parallel


def _format(config: dict[str, Any] | None) -> dict[str, Any] | None:
    form = (config or {}).get("format")
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        refuse("output_config.format", f'must have the type "json_schema", not {shown(form)}')
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema")}}


def _effort(thinking: dict[str, Any] | None) -> str | None:
    """Thinking on or off; "adaptive" leaves it to the model, and a budget of tokens is the model's own affair."""
    if thinking is None:
        return None
    kind = thinking.get("type")
    if kind not in ("enabled", "disabled", "adaptive"):
        refuse("thinking.type", f'must be "enabled", "disabled" or "adaptive", not {shown(kind)}', "invalid_value")
    return {"enabled": "high", "disabled": "none"}.get(kind)
