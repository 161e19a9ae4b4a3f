"""Chat messages in the OpenAI format: checked field by field, and brought to the one shape that templates get.

A clean message has `role` and `content` (text, never None), and where given `name`, `tool_call_id`,
`reasoning_content` and `tool_calls`; a clean call's `function.arguments` is a dict. No string holds a surrogate.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from fourleaf.errors import RequestError
from fourleaf.text.tokenizer import replace_surrogates

# What the template sees for each role that a client may write.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def clean_messages(messages: Any) -> list[dict[str, Any]]:
    """Check messages from a client. Raises RequestError whose `param` is the field at fault, as "messages[1].role"."""
    if not _is_list(messages):
        raise RequestError(f"messages must be a list, not {_kind(messages)}.", param="messages")
    if not messages:
        raise RequestError("messages is empty; it needs at least one message.", param="messages")
    return [_clean_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def clean_tools(tools: Any) -> list[Any] | None:
    """Check tools from a client: a list of objects, whose inside only the template reads. Raises RequestError."""
    if tools is None:
        return None
    if not _is_list(tools):
        raise RequestError(f"tools must be a list, not {_kind(tools)}.", param="tools")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RequestError(f"tools[{i}] must be an object, not {_kind(tool)}.", param=f"tools[{i}]")
    return _without_surrogates(tools, "tools")


def _clean_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object, not {_kind(message)}.", param=where)
    role = message.get("role")
    if not isinstance(role, str):
        _wrong_type(f"{where}.role", "a string", role)
    if role not in ROLES:
        raise RequestError(
            f"{where}.role is {role[:40]!r}; it must be one of {', '.join(ROLES)}.", param=f"{where}.role"
        )
    clean: dict[str, Any] = {"role": ROLES[role]}

    calls = message.get("tool_calls")
    if calls is not None and role != "assistant":
        raise RequestError(f"{where}.tool_calls belongs to the assistant, not to {role}.", param=f"{where}.tool_calls")
    if calls is not None and not _is_list(calls):
        _wrong_type(f"{where}.tool_calls", "a list", calls)
    if calls:
        clean["tool_calls"] = [_clean_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]

    content = message.get("content")
    if content is None and not calls:
        remedy = "give content or tool_calls" if role == "assistant" else "give a string or a list of text parts"
        raise RequestError(f"{where}.content is missing; {remedy}.", param=f"{where}.content")
    clean["content"] = "" if content is None else _clean_content(content, f"{where}.content")

    for field in ("name", "tool_call_id", "reasoning", "reasoning_content"):
        if (value := message.get(field)) is not None:
            # Servers of reasoning models call that field by either name; given both, `reasoning_content` counts.
            clean["reasoning_content" if field == "reasoning" else field] = _clean_string(value, f"{where}.{field}")
    return clean


def _clean_content(content: Any, where: str) -> str:
    """A string, or text parts on lines of their own."""
    if isinstance(content, str):
        return replace_surrogates(content)
    if not _is_list(content):
        _wrong_type(where, "a string or a list of text parts", content)
    return "\n".join(_clean_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _clean_part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        _wrong_type(where, "an object", part)
    if part.get("type") != "text":
        raise RequestError(f"{where}.type is {str(part.get('type'))[:40]!r}; only text is read.", param=f"{where}.type")
    return _clean_string(part.get("text"), f"{where}.text")


def _clean_call(call: Any, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        _wrong_type(where, "an object", call)
    if (kind := call.get("type")) not in ("function", "", None):  # some clients leave it empty when they replay a call
        raise RequestError(f"{where}.type is {str(kind)[:40]!r}; only function calls are read.", param=f"{where}.type")
    function = call.get("function")
    if not isinstance(function, Mapping):
        _wrong_type(f"{where}.function", "an object", function)
    clean: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": _clean_string(function.get("name"), f"{where}.function.name"),
            "arguments": _clean_arguments(function.get("arguments"), f"{where}.function.arguments"),
        },
    }
    if call.get("id") is not None:
        clean["id"] = _clean_string(call["id"], f"{where}.id")
    return clean


def _clean_arguments(arguments: Any, where: str) -> Any:
    """JSON text of an object; an object itself and empty text (some clients' "no arguments") are understood too."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}", parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where} is not JSON: {error}.", param=where) from error
    if not isinstance(arguments, Mapping):
        _wrong_type(where, "the JSON text of an object", arguments)
    return _without_surrogates(arguments, where)


def _clean_string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        _wrong_type(where, "a string", value)
    return replace_surrogates(value)


def _without_surrogates(value: Any, where: str) -> Any:
    """A copy of JSON data whose strings, keys included, hold no surrogate."""
    try:
        return _copy(value)
    except RecursionError as error:
        raise RequestError(f"{where} is nested too deeply.", param=where) from error


def _copy(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, Mapping):
        return {_copy(key): _copy(inner) for key, inner in value.items()}
    if _is_list(value):
        return [_copy(inner) for inner in value]
    return value


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _wrong_type(where: str, wanted: str, value: Any) -> NoReturn:
    raise RequestError(f"{where} must be {wanted}, not {_kind(value)}.", param=where)


def _kind(value: Any) -> str:
    """The JSON name of a value's type."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
