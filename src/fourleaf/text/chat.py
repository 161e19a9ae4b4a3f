"""Chat messages to token ids, through a checkpoint's Jinja template.

Only the template writes control tokens. Before it is compiled, each control token spelled in its source becomes one
lone surrogate, a code point that no valid text holds; every string of the request is freed of surrogates first. What
comes out is cut at the surrogates: they become control ids, and everything between them is encoded as plain text. So a
user's "<|end|>" stays text in any field and under any template, while templates still see the user's real words when
they trim or test them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from fourleaf.errors import CheckpointError, RequestError
from fourleaf.text.calls import markup_of
from fourleaf.text.messages import clean_messages, clean_tools
from fourleaf.text.tokenizer import THINK, Tokenizer, spellings

_FIRST_MARK, _MOST_MARKS = 0xDC00, 0x400  # the low surrogates: U+DC00 + i stands for the i-th control token
_MARK = re.compile("([\udc00-\udfff])")

# Conversations without "<" that between them reach the branches of usual templates.
_PROBES: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "a"}],
    [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"id": "b", "function": {"name": "c", "arguments": '{"d": "e"}'}}]},
        {"role": "tool", "tool_call_id": "b", "content": "f"},
    ],
)


class ChatTemplate:
    """A checkpoint's chat template, bound to its tokenizer."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Raises CheckpointError when `source` is no Jinja template or builds a control token from pieces."""
        self._tokenizer = tokenizer
        self.source = source
        self.markup = markup_of(source)
        self.thinks = THINK in source
        if len(tokenizer.controls) > _MOST_MARKS:
            raise CheckpointError(
                f"The tokenizer has {len(tokenizer.controls)} control tokens, more than {_MOST_MARKS}."
            )
        marks = {token: chr(_FIRST_MARK + i) for i, token in enumerate(tokenizer.controls)}
        self._ids = {mark: tokenizer.controls[token] for token, mark in marks.items()}
        self._spellings = spellings(marks)
        self._ends = {"bos_token": marks.get(tokenizer.begin or "", ""), "eos_token": marks[tokenizer.end]}
        if _MARK.search(source):
            raise CheckpointError("The chat template holds a lone surrogate; save it as valid UTF-8.")
        marked = self._spellings.sub(lambda match: marks[match.group()], source)
        try:
            self._template = _environment().from_string(marked, globals={"raise_exception": _raise_exception})
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"The chat template is broken at line {error.lineno}: {error.message}") from error
        self._refuse_tokens_in_pieces()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, bool] | None = None,
    ) -> list[int]:
        """Ids of a conversation in the OpenAI format, by default up to where the assistant's answer starts.

        Roles are system, developer (the template sees system), user, assistant and tool; content is a string or a list
        of text parts; the arguments of tool calls are JSON text. `options` are switches of the template's own, such as
        `enable_thinking`. Raises RequestError, whose `param` names the field, for anything else and where the template
        itself refuses.
        """
        ids: list[int] = []
        for piece in _MARK.split(self._render_marked(messages, tools, add_generation_prompt, options)):
            if piece in self._ids:
                ids.append(self._ids[piece])
            elif piece:
                ids += self._tokenizer.encode(piece)
        return ids

    def _render_marked(
        self, messages: Any, tools: Any, add_generation_prompt: bool, options: Mapping[str, bool] | None = None
    ) -> str:
        variables = {
            **(options or {}),
            "messages": clean_messages(messages),
            "tools": clean_tools(tools),
            "add_generation_prompt": add_generation_prompt,
            **self._ends,
        }
        try:
            return self._template.render(variables)
        # A template may stumble over a shape that it does not expect, as well as refuse it by raise_exception.
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise RequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error

    def _refuse_tokens_in_pieces(self) -> None:
        """A control token joined from parts ('<|' + role + '|>') would come out as plain text, unseen."""
        for messages in _PROBES:
            try:
                text = self._render_marked(messages, None, True)
            except RequestError:  # not every template takes every conversation
                continue
            if found := self._spellings.search(text):
                raise CheckpointError(
                    f"The chat template joins {found.group()!r} from pieces; each must stand whole in one literal."
                )


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The environment that templates of Hugging Face checkpoints are written for."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models are trained on it: Jinja's own filter would escape <, >, & and quotes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
