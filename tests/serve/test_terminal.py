"""What a person sees: calls, the speed line, the canvas; and conversations in this process."""

import io
import json

import pytest

from fourleaf.engine.request import Frame, GenerateParams, Usage
from fourleaf.errors import ContextLengthError
from fourleaf.serve.answer import Finish, fit
from fourleaf.serve.conversation import Conversation
from fourleaf.serve.terminal import CanvasView, answer_lines, call_line, speed_line
from fourleaf.tasks.cabin.schema import TOOLS
from fourleaf.text.router import Message, ToolCall


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def frames(tokenizer, text: str, shown: list[int]) -> list[Frame]:
    """One block that reveals `text` from the left, up to each of `shown`."""
    ids = tuple(tokenizer.encode_markup(text))
    return [
        Frame(0, 9, number, ids, tuple(at >= count for at in range(len(ids)))) for number, count in enumerate(shown)
    ]


def test_a_call_reads_like_code():
    assert call_line("send_text", '{"name": "Zoë", "on": true}') == 'send_text(name="Zoë", on=true)'
    assert answer_lines(Message("Sure.", "", [ToolCall("f", "{}")])) == ["Sure.", "f()"]


def test_the_speed_line_gives_all_four_numbers():
    finish = Finish("length", Usage(10, 60, 12, 384, 11), 0.5, 0.1)
    assert speed_line(finish, GenerateParams()) == (
        "diffuse: 60 tokens in 12 forwards (TPF 5.00), 0.50 s, 120 tokens/s, cut at the limit"
    )
    nothing = Finish("stop", Usage(10, 1, 0, 0, 0), 0.0, 0.0)
    assert "TPF 0.00" in speed_line(nothing, GenerateParams(mode="ar"))


def test_elsewhere_than_on_a_terminal_each_pass_is_a_line(byte_tokenizer):
    out = io.StringIO()
    with CanvasView(byte_tokenizer, out) as view:
        for frame in frames(byte_tokenizer, "Café", [0, 3, 4, 5]):
            view.show(frame)
        view.show(Frame(1, 14, 0, (0, 0), (True, True)))
    assert out.getvalue().splitlines() == [
        "block 0 pass 0: ░░░░░",
        "block 0 pass 1: Caf░░",
        "block 0 pass 2: Caf\ufffd░",
        "block 0 pass 3: Café",
        "block 1 pass 0: ░░",
    ]


def test_on_a_terminal_the_canvas_is_drawn_in_place(byte_tokenizer, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with CanvasView(byte_tokenizer, out) as view:
        for frame in frames(byte_tokenizer, "Hello", [0, 2, 5]):
            view.show(frame)
    drawn = out.getvalue()
    assert "░░░░░" in drawn
    assert "\x1b[1A" in drawn, "the cursor goes back up"
    assert drawn.rstrip().endswith("\x1b[?25h"), "the cursor is shown again"


def test_a_row_wider_than_the_terminal_is_drawn_over_too(byte_tokenizer, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    with CanvasView(byte_tokenizer, out) as view:
        for frame in frames(byte_tokenizer, "x" * 50, [0, 50]):
            view.show(frame)
    assert out.getvalue().count("\x1b[1A") == 2 * 3, (
        "from the line of counts up three lines, for the second pass and at the end"
    )


def test_nothing_is_shown_behind_the_end_token(byte_tokenizer):
    ids = (*byte_tokenizer.encode("ab"), byte_tokenizer.end_id, 99, 99)
    view = CanvasView(byte_tokenizer, io.StringIO())
    masked = (False, False, True, True, True)
    assert view.row(Frame(0, 0, 0, ids, masked)).plain == "ab░░░"
    assert view.row(Frame(0, 0, 1, ids, (False, False, False, True, True))).plain == "ab"


def test_what_a_pass_revealed_stands_out(byte_tokenizer):
    first, second = frames(byte_tokenizer, "abcd", [1, 3])
    row = CanvasView(byte_tokenizer, io.StringIO()).row(second, first)
    assert row.plain == "abc░"
    assert [(row.plain[span.start : span.end], str(span.style)) for span in row.spans if span.style] == [
        ("bc", "bold green"),
        ("░", "dim"),
    ]


def test_a_conversation_remembers_its_turns(scripted, call_text):
    engine = scripted(call_text("set_ac", on=True), "Done.")
    conversation = Conversation(engine, TOOLS, GenerateParams())
    first = conversation.say("cool it")
    assert first.finish.reason == "tool_calls"
    document = json.loads(json.dumps(first.document()))
    assert document["tool_calls"] == [{"name": "set_ac", "arguments": {"on": True}}]
    assert document["content"] is None
    assert document["usage"]["fourleaf"]["forwards"] == first.finish.usage.forwards
    conversation.say("and now?")
    call = call_text("set_ac", on=True)
    assert engine.prompts[1].startswith(f'<|user|>cool it<|assistant|>{call}<|end|><|tool|>{{"ok": true}}<|user|>and')
    conversation.clear()
    conversation.say("again")
    assert engine.prompts[2].startswith("<|user|>again")


def test_a_conversation_forgets_its_oldest_turns_where_the_context_is_full(scripted):
    engine = scripted("Yes.", max_context=120)
    conversation = Conversation(engine, None, GenerateParams(), max_tokens=20)
    for number in range(5):
        conversation.say(f"{number}" * 30)
    assert engine.prompts[-1].startswith("<|user|>" + "3" * 30)
    with pytest.raises(ContextLengthError):
        conversation.say("x" * 200)


def test_time_spent_on_watching_is_not_decoding(scripted):
    finish = Conversation(scripted("Hi."), None, GenerateParams()).say("hi", lambda frame: _wait(0.1)).finish
    assert finish.seconds < 0.1, "two passes were watched for a tenth of a second each"


def _wait(seconds: float) -> None:
    import time

    time.sleep(seconds)


def test_an_answer_gets_what_the_context_leaves():
    assert fit(100, None, 4096) == GenerateParams.max_tokens
    assert fit(4000, None, 4096) == 96
    assert fit(4000, 96, 4096) == 96
    assert fit(4095, 1, 4096) == 1
    for prompt, wanted in ((4000, 97), (4096, None), (5000, 1)):
        with pytest.raises(ContextLengthError, match="4096"):
            fit(prompt, wanted, 4096)
