import json
import threading
from collections.abc import Callable, Iterator

import pytest

from fourleaf.engine.request import Delta, Frame, GenerateParams, TokenLogprob, Usage
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import SPECIAL_TOKENS, Tokenizer, train_tokenizer

BLOCK = 32
TEMPLATE = """\
{%- for m in messages -%}
{%- if m.role == "system" -%}<|system|>
{%- elif m.role == "user" -%}<|user|>
{%- elif m.role == "tool" -%}<|tool|>
{%- else -%}<|assistant|>
{%- endif -%}
{{ m.content }}
{%- for c in m.tool_calls or [] -%}
<tool_call>{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}</tool_call>
{%- endfor -%}
{%- if m.role == "assistant" -%}<|end|>{%- endif -%}
{%- endfor -%}
{%- if tools -%}<|system|>{{ tools | map(attribute="function.name") | join(" ") }}{%- endif -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""


class ScriptedEngine:
    """Gives back written answers, block by block, as a real engine would: frames, exact limits, usage.

    `answers` are taken in turn, the last one for ever. Set `gate` to a semaphore to let each pass wait for a permit,
    and `fault_at` to have that pass fail. `passes`, `prompts` and `params` say what was done.
    """

    def __init__(self, tokenizer: Tokenizer, answers: list[str], name: str = "cabin", max_context: int = 4096) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.chat = ChatTemplate(TEMPLATE, tokenizer)
        self.max_context = max_context
        self.answers = answers
        self.gate: threading.Semaphore | None = None
        self.fault_at: int | None = None
        self.passes = 0
        self.finished = 0
        self.prompts: list[str] = []
        self.params: list[GenerateParams] = []

    def generate(
        self, prompt_ids: list[int], params: GenerateParams, observe: Callable[[Frame], None] | None = None
    ) -> Iterator[Delta]:
        """Two passes a block: one reveals the first half, the next the rest."""
        self.prompts.append(self.tokenizer.decode(prompt_ids))
        self.params.append(params)
        answer = self.answers[min(len(self.prompts), len(self.answers)) - 1]
        row = [*self.tokenizer.encode_markup(answer), self.tokenizer.end_id]
        taken = row[: params.max_tokens]
        forwards = 0
        for start in range(0, len(taken), BLOCK):
            block = taken[start : start + BLOCK]
            for number, shown in enumerate((len(block) // 2, len(block))):
                self._pass()
                forwards += 1
                if observe is not None:
                    masked = tuple(at >= shown for at in range(len(block)))
                    observe(Frame(start // BLOCK, len(prompt_ids) + start, number, tuple(block), masked))
            last = start + BLOCK >= len(taken)
            ended = block[-1] == self.tokenizer.end_id
            self.finished += last
            tokens = tuple(block[:-1] if ended else block)
            yield Delta(
                tokens=tokens,
                logprobs=None if params.logprobs is None else _logprobs(tokens, params.logprobs),
                finish_reason=("stop" if ended else "length") if last else None,
                usage=Usage(len(prompt_ids), len(taken), forwards, forwards * BLOCK, forwards) if last else None,
            )

    def _pass(self) -> None:
        if self.gate is not None:
            assert self.gate.acquire(timeout=20)
        if self.fault_at == self.passes:
            self.fault_at = None
            raise RuntimeError("the matrix has burst")
        self.passes += 1


def _logprobs(tokens: tuple[int, ...], num_top: int) -> tuple[TokenLogprob, ...]:
    """Told apart by their token: its id tells the logprob."""
    return tuple(
        TokenLogprob(-token / 1000, 1, tuple((token + at, -token / 1000 - at) for at in range(num_top)))
        for token in tokens
    )


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """Every byte a token: no training text, and answers of many blocks."""
    return train_tokenizer([], vocab_size=len(SPECIAL_TOKENS) + 256)


@pytest.fixture
def scripted(byte_tokenizer: Tokenizer) -> Callable[..., ScriptedEngine]:
    """Makes an engine that answers what it is told to."""

    def make(*answers: str, **options) -> ScriptedEngine:
        return ScriptedEngine(byte_tokenizer, list(answers), **options)

    return make


@pytest.fixture(scope="session")
def call_text() -> Callable[..., str]:
    """A tool call as the model writes it."""

    def write(name: str, **arguments) -> str:
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"<tool_call>{call}</tool_call>"

    return write
