"""OpenAI's chat completions on the wire: what a request may say, field by field.

Every field that OpenAI documents is honoured (a field of `ChatRequest`), accepted at the value that changes nothing
(`NEUTRAL`), or ignored because it cannot change an answer (user, metadata, store, service_tier and the like, and fields
that nobody documents; a debug line names them). A value that asks for what is not done here is a 400 naming the field.
"""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from fourleaf.engine.request import MAX_SEED, GenerateParams
from fourleaf.errors import RequestError
from fourleaf.serve.answer import fit

log = logging.getLogger(__name__)

MAX_DEPTH = 100  # of a body's JSON: no schema needs more, and code that walks it may recurse

# Field -> the values beside null that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "stop": ([],),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "reasoning_effort": ("none",),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "verbosity": ("medium",),
    "diffusing": (False,),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}


class _Wire(BaseModel):
    """Strict: a string is not a number, and 1 is not true. Unknown fields are kept, to be named in the log."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Function(_Wire):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(_Wire):
    type: Literal["function"]
    function: _Function


class _StreamOptions(_Wire):
    include_usage: bool | None = None


class ChatRequest(_Wire):
    """The honoured fields; `mode` and `threshold` are ours."""

    model: str
    messages: list[Any]  # read by the chat template, which names what is wrong inside
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    mode: str | None = None
    threshold: float | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def tool_list(self) -> list[dict[str, Any]] | None:
        return None if self.tools is None else [tool.model_dump(exclude_none=True) for tool in self.tools]

    def params(self, prompt_tokens: int, max_context: int) -> GenerateParams:
        """How to decode. A temperature without a seed draws one, which usage reports, so that it can be asked again.

        Raises RequestError for values out of range, ContextLengthError where the answer's limit does not fit.
        """
        field = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        wanted = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        temperature = self.temperature or 0.0
        seed = self.seed
        if seed is None:
            seed = secrets.randbelow(MAX_SEED + 1) if temperature > 0 else 0
        if not -MAX_SEED - 1 <= seed <= MAX_SEED:
            _refuse("seed", f"must fit in 64 bits, and {_shown(seed)} does not", "invalid_value")
        if wanted is not None and wanted < 1:
            _refuse(field, f"must be at least 1, not {wanted}", "invalid_value")
        return GenerateParams(
            mode="diffuse" if self.mode is None else self.mode,  # type: ignore[arg-type]  # checked by GenerateParams
            threshold=GenerateParams.threshold if self.threshold is None else self.threshold,
            temperature=temperature,
            max_tokens=fit(prompt_tokens, wanted, max_context, field=field),
            seed=seed % (MAX_SEED + 1),  # OpenAI's seeds are signed, ours are not
        )


def parse_chat_request(body: bytes) -> ChatRequest:
    """Reads and checks a request's body. Raises RequestError, with `param` naming the field."""
    document = _document(body)
    try:
        request = ChatRequest.model_validate(document)
    except ValidationError as error:
        _raise_first(error)
    _check_neutral(document)
    if request.stream_options is not None and not request.stream:
        _refuse("stream_options", "is only allowed with stream: true", "invalid_value")
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        _refuse("max_tokens", "differs from max_completion_tokens; give one of them", "invalid_value")
    _check_tool_choice(request.tool_choice)
    unknown = sorted(set(request.model_extra or {}) - NEUTRAL.keys())
    if unknown:
        log.debug("request fields without effect: %s", ", ".join(map(_shown, unknown)))
    return request


def _document(body: bytes) -> dict[str, Any]:
    document: Any = None
    deep = False
    try:
        document = json.loads(body, parse_constant=_no_constant)
    except UnicodeError:
        raise RequestError("The body is not valid Unicode text.", code="invalid_json") from None
    except RecursionError:
        deep = True
    except ValueError as error:
        raise RequestError(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if deep or _nested(document, MAX_DEPTH):
        raise RequestError(f"The body is nested deeper than {MAX_DEPTH} levels.", code="invalid_json")
    if not isinstance(document, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_type")
    return document


def _nested(value: Any, depth: int) -> bool:
    """Whether JSON data holds more than `depth` levels. Not recursive: depth is what it guards against."""
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check_neutral(document: dict[str, Any]) -> None:
    for name, values in NEUTRAL.items():
        value = document.get(name)
        if value is None or any(value == neutral and _kind(value) == _kind(neutral) for neutral in values):
            continue
        allowed = " or ".join([json.dumps(neutral) for neutral in values] + ["null"])
        _refuse(name, f"is not supported here: leave it out or set it to {allowed}, not {_shown(value)}")


def _kind(value: object) -> object:
    """Numbers are one kind, whether written 1 or 1.0; true is not one of them."""
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _check_tool_choice(choice: object) -> None:
    if choice is None or choice in ("auto", "none"):
        return
    if choice == "required" or isinstance(choice, dict):
        _refuse("tool_choice", f'cannot force a call here: use "auto" or "none", not {_shown(choice)}')
    _refuse("tool_choice", f'must be "auto" or "none", not {_shown(choice)}', "invalid_value")


def _refuse(param: str, why: str, code: str = "unsupported_value") -> NoReturn:
    raise RequestError(f"{param} {why}.", param=param, code=code)


def _raise_first(error: ValidationError) -> NoReturn:
    """pydantic's first finding in OpenAI's words."""
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    kind, message = first["type"], first["msg"]
    if kind == "missing":
        _refuse(path, "is missing", "missing_required_parameter")
    if kind == "too_short":
        _refuse(path, "must not be empty", "invalid_value")
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    _refuse(path, f"is wrong: {message[0].lower()}{message[1:]}, not {_shown(first['input'])}", code)


def _shown(value: object) -> str:
    """A value for an error message: JSON, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."
