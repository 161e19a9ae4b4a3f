"""OpenAI's responses on the wire: what a request may say, brought to the shape of a chat request.

Stateless: nothing is stored, so nothing can be referred to. Tools that are not functions are skipped, as clients that
offer their own expect.
"""

from __future__ import annotations

from typing import Any

from fourleaf.errors import RequestError
from fourleaf.serve.body import Wire, note_unknown, parse, refuse, renamed, shown
from fourleaf.serve.openai import ChatRequest, Function, Tool, check_chat_request

# Field -> the values beside null that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
    "background": (False,),
    "truncation": ("disabled",),
    "max_tool_calls": (),
    "top_logprobs": (0,),
    "context_management": ([],),
}
# Fields of the chat request -> what this API calls them.
NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
    "reasoning_effort": "reasoning.effort",
}
_TEXTS = ("input_text", "output_text", "text")


class ResponsesRequest(Wire):
    """The honoured fields; mode, policy and the like are ours, as in a chat request."""

    model: str
    input: Any
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Any = None
    mode: str | None = None
    policy: str | None = None
    threshold: float | None = None
    lossless: bool | None = None
    grammar: bool | None = None


_SAME = (
    "model", "stream", "parallel_tool_calls", "temperature", "top_p", "seed", "stop", "mode", "policy", "threshold",
    "lossless", "grammar",
)  # fmt: skip


def parse_responses_request(body: bytes) -> tuple[ResponsesRequest, ChatRequest]:
    """A body as it was written, and as a chat request. Raises RequestError, with `param` naming the field."""
    request = parse(ResponsesRequest, body, NEUTRAL)
    messages = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
    messages += _messages(request.input)
    tools = None
    if request.tools is not None:
        tools = [made for at, tool in enumerate(request.tools) if (made := _tool(tool, f"tools[{at}]")) is not None]
    chat = ChatRequest(
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        tools=tools,
        tool_choice=request.tool_choice,
        response_format=_format(request.text),
        reasoning_effort=_effort(request.reasoning),
        **{name: getattr(request, name) for name in _SAME},
    )
    try:
        check_chat_request(chat)
    except RequestError as error:
        raise renamed(error, NAMES) from None
    return request, chat


def _messages(value: Any) -> list[dict[str, Any]]:
    """The input's items as chat messages: an assistant's thoughts, words and calls are one message."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        refuse("input", f"must be a text or a list of items, not {shown(value)}", "invalid_type")
    messages: list[dict[str, Any]] = []
    for at, item in enumerate(value):
        where = f"input[{at}]"
        if not isinstance(item, dict):
            refuse(where, f"must be an object, not {shown(item)}", "invalid_type")
        kind = "message" if item.get("type") is None else item["type"]
        if kind == "message":
            _add_message(messages, item, where)
        elif kind == "function_call":
            _add_call(messages, item, where)
        elif kind == "function_call_output":
            made = {"role": "tool", "tool_call_id": _string(item, "call_id", where)}
            messages.append(made | {"content": _text(item.get("output"), f"{where}.output")})
        elif kind == "reasoning":
            _assistant(messages)["reasoning_content"] = _thoughts(item, where)
        else:
            refuse(f"{where}.type", f"is {shown(kind)}, which is not read here")
    return messages


def _add_message(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        refuse(f"{where}.role", f'must be "user", "assistant", "system" or "developer", not {shown(role)}')
    content = _text(item.get("content"), f"{where}.content")
    if role == "assistant":
        message = _assistant(messages)
        message["content"] += content
    else:
        messages.append({"role": role, "content": content})


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    function = {"name": _string(item, "name", where), "arguments": _string(item, "arguments", where)}
    call = {"id": _string(item, "call_id", where), "type": "function", "function": function}
    _assistant(messages).setdefault("tool_calls", []).append(call)


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message that is being put together."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _thoughts(item: dict[str, Any], where: str) -> str:
    texts: dict[str, list[str]] = {}
    for key in ("content", "summary"):
        parts = [] if item.get(key) is None else item[key]
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            refuse(f"{where}.{key}", f"must be a list of texts, not {shown(parts)}", "invalid_type")
        texts[key] = [_string(part, "text", f"{where}.{key}[{at}]") for at, part in enumerate(parts)]
    return "\n".join(texts["content"] or texts["summary"])


def _text(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        refuse(where, f"must be a text or a list of parts, not {shown(value)}", "invalid_type")
    texts: list[str] = []
    for at, part in enumerate(value):
        place = f"{where}[{at}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            texts.append(_string(part, "refusal", place))
        elif kind in _TEXTS:
            texts.append(_string(part, "text", place))
        else:
            refuse(f"{place}.type", f"is {shown(kind)}; only text is read here")
    return "\n".join(texts)


def _string(item: dict[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        refuse(f"{where}.{key}", f"must be a text, not {shown(value)}", "invalid_type")
    return value


def _tool(tool: dict[str, Any], where: str) -> Tool | None:
    """A function tool; None for kinds that only a hosted service has."""
    if tool.get("type") != "function":
        note_unknown([f"{where} of the type {shown(tool.get('type'))}"])
        return None
    parameters, description = tool.get("parameters"), tool.get("description")
    if parameters is not None and not isinstance(parameters, dict):
        refuse(f"{where}.parameters", f"must be a JSON schema, not {shown(parameters)}", "invalid_type")
    if description is not None and not isinstance(description, str):
        refuse(f"{where}.description", f"must be a text, not {shown(description)}", "invalid_type")
    function = Function(name=_string(tool, "name", where), description=description, parameters=parameters)
    return Tool(type="function", function=function)


def _format(text: dict[str, Any] | None) -> Any:
    return (text or {}).get("format")


def _effort(reasoning: dict[str, Any] | None) -> str | None:
    effort = (reasoning or {}).get("effort")
    if effort is not None and not isinstance(effort, str):
        refuse("reasoning.effort", f"must be a text, not {shown(effort)}", "invalid_type")
    return effort
