"""The cabin task's tools, examples and answers, and the check that proves an example's labels.

An answer is either calls, written back to back as `<tool_call>{...}</tool_call>`, or one of three fixed sentences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourleaf.errors import LabelError
from fourleaf.tasks.cabin import spoken

DATA = Path(__file__).parent / "data"
TOOLS: list[dict[str, Any]] = json.loads((DATA / "tools.json").read_text(encoding="utf-8"))
PARAMETERS: dict[str, dict[str, dict[str, Any]]] = {
    tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in TOOLS
}
FREE_TEXT = frozenset(
    (tool, name)
    for tool, properties in PARAMETERS.items()
    for name, spec in properties.items()
    if spec["type"] == "string" and "enum" not in spec
)
MAX_CALLS = 8
OUT_OF_SCOPE = "Sorry, I can't do that."
MISSING = "Which one?"
DONE = "Done."

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.S)


@dataclass(frozen=True)
class Call:
    """One tool call; `arguments` in the schema's order."""

    name: str
    arguments: dict[str, Any]

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.arguments.items())))


@dataclass(frozen=True)
class Example:
    """What a person says and the right answer to it.

    `utterance` is empty where the answer follows tool results (`history` then ends with tool messages).
    `text` is the answer where there are no calls, else empty. `history` holds earlier chat messages (OpenAI style).
    """

    utterance: str
    calls: tuple[Call, ...]
    text: str
    tags: frozenset[str] = frozenset()
    history: tuple[dict[str, Any], ...] = ()


def answer_text(example: Example) -> str:
    """The answer as the model writes it, without the end token."""
    if not example.calls:
        return example.text
    return "".join(
        f"<tool_call>{json.dumps({'name': c.name, 'arguments': c.arguments}, ensure_ascii=False)}</tool_call>"
        for c in example.calls
    )


def parse_answer(text: str) -> tuple[list[Call] | None, str]:
    """(calls, text outside the calls). Calls are None where a call does not parse or there is none."""
    bodies = _CALL.findall(text)
    rest = _CALL.sub("", text).strip()
    calls = []
    for body in bodies:
        try:
            parsed = json.loads(body)
            calls.append(Call(parsed["name"], parsed["arguments"]))
        except (ValueError, KeyError, TypeError):
            return None, text
    return (calls or None), rest


def same_answer(example: Example, answer: str) -> bool:
    """Whether `answer` makes the same calls in the same order, or is the same text where there is no call."""
    calls, rest = parse_answer(answer)
    if not example.calls:
        return calls is None and answer.strip() == example.text
    if calls is None or rest or len(calls) != len(example.calls):
        return False
    # Comparing JSON text keeps true apart from 1; keys may come in any order.
    return all(
        a.name == b.name and json.dumps(a.arguments, sort_keys=True) == json.dumps(b.arguments, sort_keys=True)
        for a, b in zip(calls, example.calls, strict=True)
    )


def tool_calls_message(calls: Iterable[Call], first_id: int = 0) -> dict[str, Any]:
    """The assistant's chat message that makes `calls`."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": f"call_{first_id + index}",
                "type": "function",
                "function": {"name": c.name, "arguments": json.dumps(c.arguments, ensure_ascii=False)},
            }
            for index, c in enumerate(calls)
        ],
    }


def messages(example: Example) -> list[dict[str, Any]]:
    """The chat messages before the answer."""
    asked = [{"role": "user", "content": example.utterance}] if example.utterance else []
    return [*example.history, *asked]


def parse_line(line: dict[str, Any]) -> Example:
    """An example from one line of `utterances.jsonl`. Raises LabelError where keys or types are wrong."""
    try:
        calls = tuple(Call(str(c["name"]), dict(c["arguments"])) for c in line["calls"])
        utterance, text = line["utterance"], line["text"]
    except (KeyError, TypeError, ValueError) as error:
        raise LabelError(f"utterance, calls and text are needed, got keys {sorted(line)}") from error
    if not (isinstance(utterance, str) and isinstance(text, str)):
        raise LabelError("utterance and text must be strings")
    return Example(utterance, calls, text)


def check(example: Example) -> None:
    """Prove an example against the schema and, as far as the words allow, the labelling rules. Raises LabelError."""
    if not example.utterance.strip():
        if not (example.history and example.history[-1]["role"] == "tool" and example.text == DONE):
            raise LabelError("an example without an utterance must follow tool results and answer Done.")
        return
    if not example.calls:
        if example.text not in (OUT_OF_SCOPE, MISSING):
            raise LabelError(f"an answer without calls is {OUT_OF_SCOPE!r} or {MISSING!r}, got {example.text!r}")
        return
    if example.text:
        raise LabelError(f"an answer with calls has no text, got {example.text!r}: {example.utterance!r}")
    if len(example.calls) > MAX_CALLS:
        raise LabelError(f"at most {MAX_CALLS} calls, got {len(example.calls)}: {example.utterance!r}")
    for call in example.calls:
        _check_schema(call, example.utterance)
        _check_rules(call, example.utterance)


def _check_schema(call: Call, utterance: str) -> None:
    if call.name not in PARAMETERS:
        raise LabelError(f"unknown tool {call.name!r}: {utterance!r}")
    properties = PARAMETERS[call.name]
    if list(call.arguments) != list(properties):
        raise LabelError(f"{call.name} takes {list(properties)} in this order, got {list(call.arguments)}")
    for name, value in call.arguments.items():
        spec = properties[name]
        kind = {"string": str, "integer": int, "boolean": bool}[spec["type"]]
        if type(value) is not kind:
            raise LabelError(f"{call.name}.{name} is {spec['type']}, got {value!r}: {utterance!r}")
        if "enum" in spec and value not in spec["enum"]:
            raise LabelError(f"{call.name}.{name} is one of {spec['enum']}, got {value!r}: {utterance!r}")
        if kind is int and not spec["minimum"] <= value <= spec["maximum"]:
            limits = f"{spec['minimum']} to {spec['maximum']}"
            raise LabelError(f"{call.name}.{name} is {limits}, got {value}: {utterance!r}")


def _check_rules(call: Call, utterance: str) -> None:
    for name, value in call.arguments.items():
        if (call.name, name) in FREE_TEXT:
            _check_copied(call, name, value, utterance)
    if call.name == "set_temperature" and not _explained(call.arguments["celsius"], 16, 30, utterance, spoken.celsius):
        raise LabelError(f"no number in the words gives {call.arguments['celsius']} degrees: {utterance!r}")
    speed = call.arguments.get("speed_kmh", 0)
    if speed and not _explained(speed, 0, 150, utterance, spoken.kmh):
        raise LabelError(f"no number in the words gives {speed} km/h: {utterance!r}")


def _check_copied(call: Call, name: str, value: str, utterance: str) -> None:
    if not value or value != value.strip():
        raise LabelError(f"{call.name}.{name} is empty or padded: {value!r}")
    if value not in utterance:
        raise LabelError(f"{call.name}.{name} {value!r} is not in the words: {utterance!r}")
    if re.match(r"(?:saying\b|:)", value, re.I) and name == "text":
        raise LabelError(f"lead-in {value!r} is not part of the text: {utterance!r}")


def _explained(value: int, low: int, high: int, utterance: str, convert: Any) -> bool:
    """Whether a number of the utterance, converted and clamped, is `value`; extremes may be said without a number."""
    if re.search(r"\b(?:max\w*|min\w*|full|lowest|highest|coldest|hottest|hot as|cold as|warmest|limit)\b", utterance):
        return True
    readings = {mention.value for mention in spoken.mentions(utterance)}
    readings |= {int(digits) for digits in re.findall(r"\d+", utterance)}
    said = readings | {convert(reading) for reading in readings}
    return value in {min(max(reading, low), high) for reading in said}
