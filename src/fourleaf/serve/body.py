"""Bodies of requests: JSON read strictly, and what is wrong with it said in OpenAI's words."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from fourleaf.errors import RequestError

log = logging.getLogger(__name__)

MAX_DEPTH = 100  # of a body's JSON: no schema needs more, and code that walks it may recurse


class Wire(BaseModel):
    """Strict: a string is not a number, and 1 is not true. Unknown fields are kept, to be named in the log."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        """JSON has one kind of number: 3.0 is 3."""
        return int(value) if isinstance(value, float) and value.is_integer() else value


Shape = TypeVar("Shape", bound=Wire)


def parse(shape: type[Shape], body: bytes, neutral: Mapping[str, tuple[Any, ...]]) -> Shape:
    """A body as an object of `shape`.

    neutral: fields that are known and not done here -> the values beside null that ask for nothing.
    Raises RequestError, with `param` naming the field.
    """
    document = read_document(body)
    made = validate(shape, document)
    for name, values in neutral.items():
        _check_neutral(name, document.get(name), values)
    note_unknown(set(made.model_extra or {}) - neutral.keys())
    return made


def validate(shape: type[Shape], document: Mapping[str, Any]) -> Shape:
    """JSON data as an object of `shape`. Raises RequestError, with `param` naming the field."""
    try:
        return shape.model_validate(document)
    except ValidationError as error:
        _raise_first(error)


def note_unknown(names: Iterable[str]) -> None:
    """Names, for whoever reads the debug log, fields that have no effect."""
    if unknown := sorted(names):
        log.debug("request fields without effect: %s", ", ".join(map(shown, unknown)))


def read_document(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises RequestError for anything else."""
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


def refuse(param: str, why: str, code: str = "unsupported_value") -> NoReturn:
    """Raises a RequestError about a field."""
    raise RequestError(f"{param} {why}.", param=param, code=code)


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The same error with its field called as the client called it, where `names` has it: our name -> the client's."""
    name = names.get(error.param or "")
    if name is None:
        return error
    message = error.message.replace(f"{error.param} ", f"{name} ", 1)
    return type(error)(message, param=name, code=error.code)


def shown(value: object) -> str:
    """A value for an error message: JSON, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


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


def _check_neutral(name: str, value: object, values: tuple[Any, ...]) -> None:
    if value is None or any(value == neutral and _kind(value) == _kind(neutral) for neutral in values):
        return
    allowed = " or ".join([json.dumps(neutral) for neutral in values] + ["null"])
    refuse(name, f"is not supported here: leave it out or set it to {allowed}, not {shown(value)}")


def _kind(value: object) -> object:
    """Numbers are one kind, whether written 1 or 1.0; true is not one of them."""
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _raise_first(error: ValidationError) -> NoReturn:
    """pydantic's first finding in OpenAI's words."""
    first = error.errors(include_url=False)[0]
    # Members of a union add their own names to the path; a field's name holds no bracket or dash.
    parts = [part for part in first["loc"] if isinstance(part, int) or part.isidentifier()]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    kind, message = first["type"], first["msg"]
    if kind == "missing":
        refuse(path, "is missing", "missing_required_parameter")
    if kind == "too_short":
        refuse(path, "must not be empty", "invalid_value")
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    refuse(path, f"is wrong: {message[0].lower()}{message[1:]}, not {shown(first['input'])}", code)
