"""OpenAI's chat completions on the wire: what a request may say, field by field.

Every field that OpenAI documents is honoured (a field of `ChatRequest`, as far as the engine can: `capabilities`),
accepted at the value that changes nothing (`NEUTRAL`), or ignored because it cannot change an answer (user, metadata,
store, service_tier and the like, and fields that nobody documents; a debug line names them). A value that asks for what
is not done here is a 400 naming the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fourleaf.engine.request import Decoder, GenerateParams
from fourleaf.serve.answer import fit
from fourleaf.serve.body import Wire, parse, refuse, shown
from fourleaf.serve.constraint import constrained, read_choice, read_format
from fourleaf.serve.decoding import Decode, each_choice, top_logprobs
from fourleaf.serve.models import Served
from fourleaf.serve.template import read_template, wish_for_mode
from fourleaf.serve.tools import Offer, offer
from fourleaf.text.router import opens_in_reasoning

# Field -> the values beside null that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "verbosity": ("medium",),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
EFFORTS = ("none", "instant", "minimal", "low", "medium", "high", "xhigh")
_NO_EFFORT = ("none", "instant", "minimal")


class Function(Wire):
    """A function tool's inside."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Wire):
    """A tool; only functions are known."""

    type: Literal["function"]
    function: Function


class StreamOptions(Wire):
    """What a stream says beside the answer."""

    include_usage: bool | None = None


def only_with_stream(asked: Any, *fields: str) -> None:
    """Raises RequestError for a field that says something about a stream where none was asked for."""
    for field in fields:
        if getattr(asked, field) and not asked.stream:
            refuse(field, "is only allowed with stream: true", "invalid_value")


class Streamable(Decode):
    """A request whose answer may come as a stream."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(Streamable):
    """The honoured fields, beside those about decoding. `diffusing` is Mercury's, `chat_template_kwargs` vLLM's,
    `infill` ours."""

    messages: list[Any]  # read by the chat template, which names what is wrong inside
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    diffusing: bool | None = None
    infill: Any = None  # a template that the answer fills

    def tool_list(self) -> list[dict[str, Any]] | None:
        return None if self.tools is None else [tool.model_dump(exclude_none=True) for tool in self.tools]


def parse_chat_request(body: bytes) -> ChatRequest:
    """Reads and checks a request's body. Raises RequestError, with `param` naming the field."""
    request = parse(ChatRequest, body, NEUTRAL)
    check_chat_request(request)
    return request


def check_chat_request(request: ChatRequest) -> None:
    """What fields mean together. Raises RequestError."""
    only_with_stream(request, "stream_options", "diffusing")
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        refuse("max_tokens", "differs from max_completion_tokens; give one of them", "invalid_value")
    if request.top_logprobs is not None:
        top_logprobs(request.top_logprobs, "top_logprobs")
        if request.top_logprobs and not request.logprobs:
            refuse("top_logprobs", "needs logprobs: true", "invalid_value")
    if request.reasoning_effort is not None and request.reasoning_effort not in EFFORTS:
        refuse("reasoning_effort", f"must be one of {', '.join(EFFORTS)}, not {shown(request.reasoning_effort)}")


@dataclass(frozen=True)
class Prepared:
    """A request as the engine takes it: one prompt, one set of parameters for each choice. is_cut: the context leaves
    less than what was asked for."""

    prompt_ids: list[int]
    params: list[GenerateParams]
    offer: Offer
    is_cut: bool = False


def prepare(served: Served, asked: ChatRequest, *, cuts: bool = False) -> Prepared:
    """Renders the prompt and settles how to decode. Takes a moment: not for the event loop.

    cuts: a limit beyond what the context leaves asks for all that it leaves.

    Raises RequestError naming what cannot be honoured, ContextLengthError where the answer's limit does not fit.
    """
    engine, able = served.engine, served.able
    count = asked.choices()
    tools = asked.tool_list()
    names = [tool["function"]["name"] for tool in tools or served.fixed_tools or []]
    choice = read_choice(asked.tool_choice, names)
    offered = offer(served.fixed_tools, tools, choice.kind)
    options = template_options(asked, thinks=engine.chat.thinks)
    prompt_ids = engine.chat.render(asked.messages, tools=offered.tools, options=options)
    opened = opens_in_reasoning(engine.tokenizer, prompt_ids)
    wishes = asked.wishes(engine.tokenizer.vocab_size)
    if asked.logprobs:
        wishes.add("logprobs", asked.top_logprobs or 0)
    wishes.add(
        "constraint",
        constrained(
            offered,
            choice,
            read_format(asked.response_format),
            able,
            engine.chat.markup,
            own=served.fixed_tools,
            parallel=asked.parallel_tool_calls is not False,
            asked_for_tools=tools is not None,
            grammar=asked.grammar is not False,
            reasoning="open" if opened else "optional" if engine.chat.thinks else "none",
        ),
        "response_format",
    )
    field = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
    wanted = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    if wanted is not None and wanted < 1:
        refuse(field, f"must be at least 1, not {wanted}", "invalid_value")
    room = engine.max_context - len(prompt_ids)
    is_cut = cuts and wanted is not None and wanted > room > 0
    wanted = room if is_cut else wanted
    wishes.add("max_tokens", fit(len(prompt_ids), wanted, engine.max_context, field=field), field)
    if asked.infill is not None:
        if wanted is not None:
            refuse(field, "has no place beside infill: its gaps have limits of their own", "invalid_value")
        wish_for_mode(wishes, able, lossless=asked.lossless)
        wishes.add("infill", read_template(asked.infill, engine.tokenizer, "infill"))
    made = each_choice(wishes, able, count)
    admit(engine, prompt_ids, made[0])
    return Prepared(prompt_ids, made, offered, is_cut)


def admit(engine: Decoder, prompt_ids: list[int], params: GenerateParams) -> None:
    """Lets the engine refuse now what it would refuse later: a constraint that nothing can meet, an id out of range.
    Then it is a 400, also where the answer is streamed."""
    if callable(check := getattr(engine, "admit", None)):
        check(prompt_ids, params)


def template_options(asked: ChatRequest, *, thinks: bool) -> dict[str, bool]:
    """Switches of the chat template: whether the model is to think. Raises RequestError."""
    options: dict[str, bool] = {}
    effort = asked.reasoning_effort
    if effort is not None:
        if not thinks and effort not in _NO_EFFORT:
            refuse("reasoning_effort", f"cannot be {shown(effort)}: this model does not think before it answers")
        if thinks:
            options["enable_thinking"] = effort not in _NO_EFFORT
    for name, value in (asked.chat_template_kwargs or {}).items():
        if name != "enable_thinking" or not isinstance(value, bool):
            refuse("chat_template_kwargs", f"takes enable_thinking, true or false, not {shown({name: value})}")
        options[name] = value
    return options
