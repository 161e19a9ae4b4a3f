"""The grammar of a model's own tools takes all that it was taught, in the one form in which it was taught it."""

import json
from itertools import islice

import pytest

from fourleaf.checkpoint.tools import fixed_tools
from fourleaf.diffusion.constraint import take_forced
from fourleaf.engine.engine import bundled_path
from fourleaf.tasks.cabin import testsets
from fourleaf.tasks.cabin.generator import stream
from fourleaf.tasks.cabin.schema import answer_text
from fourleaf.text.constraint import taught
from fourleaf.text.foreign import read_tokenizer
from fourleaf.text.grammar import compile_constraint

pytest.importorskip("llguidance")

WINDOW = '<tool_call>{"name": "set_window", "arguments": {"window": "all", "position": 5}}</tool_call>'
MESSAGE = '<tool_call>{"name": "send_message", "arguments": {"name": "Jo", "text": "%s"}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer():
    return read_tokenizer(bundled_path())


@pytest.fixture(scope="module")
def grammar(tokenizer):
    tools = fixed_tools(bundled_path())
    assert tools
    return compile_constraint(taught(tools, "json", ""), tokenizer)


def first_refused(tokenizer, grammar, text: str, asked: str) -> tuple[int | None, int]:
    """(the place of the first token that a mask rules out, None where the answer is whole; how many were forced)."""
    matcher, row, num_forced = grammar.matcher(tokenizer.encode(asked)), 0, 0
    ids = [*tokenizer.encode_markup(text), tokenizer.end_id]
    while row < len(ids):
        forced = take_forced(matcher, len(ids))
        for token in forced:
            if row == len(ids) or token != ids[row]:
                return row, num_forced
            row += 1
        num_forced += len(forced)
        if row < len(ids):
            if not matcher.allows(ids[row]):
                return row, num_forced
            matcher.advance(ids[row])
            row += 1
    return None if matcher.ended else row, num_forced


def is_taken(tokenizer, grammar, text: str, asked: str = "Jo") -> bool:
    return first_refused(tokenizer, grammar, text, asked)[0] is None


def test_every_answer_of_training_and_of_the_test_sets_is_taken_token_for_token(tokenizer, grammar):
    sets = [example for name in testsets.NAMES for example in testsets.build(name)]
    drawn = [*islice(stream(31), 2_000), *sets, *testsets.dev()]
    answers = {answer_text(example): example.utterance for example in drawn}
    assert len(answers) > 2_000
    num_tokens = num_forced = 0
    for answer, utterance in answers.items():
        refused, forced = first_refused(tokenizer, grammar, answer, utterance)
        assert refused is None, (answer, refused)
        num_tokens += len(tokenizer.encode_markup(answer)) + 1
        num_forced += forced
    assert num_forced > 0.5 * num_tokens, "what a schema fixes need not be asked of the model"


@pytest.mark.parametrize(
    "changed",
    [
        WINDOW.replace(": ", ":"),
        WINDOW.replace(", ", ","),
        WINDOW.replace("{", "{ "),
        WINDOW.replace(">{", "> {"),
        WINDOW.replace("}<", "} <"),
        WINDOW.replace('"window": "all", "position": 5', '"position": 5, "window": "all"'),
        WINDOW.replace('"name": "set_window", ', "").replace("}}<", '}, "name": "set_window"}<'),
        WINDOW.replace("5", "05"),
        WINDOW.replace("5", "5.0"),
        WINDOW.replace('"all', '"\\u0061ll'),
        MESSAGE % "\\u0061",
        MESSAGE % "a\\/b",
    ],
)
def test_another_way_to_write_the_same_call_is_not_taken(tokenizer, grammar, changed):
    assert is_taken(tokenizer, grammar, WINDOW)
    assert not is_taken(tokenizer, grammar, changed, "tell Jo a or a/b")


@pytest.mark.parametrize("text", ['say "hi"', "back\\slash", "line\nbreak", "tab\tstop", "café", "日本語", "🚗"])
def test_a_text_is_written_as_json_dumps_writes_it(tokenizer, grammar, text):
    call = {"name": "send_message", "arguments": {"name": "Jo", "text": text}}
    written = f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"
    assert is_taken(tokenizer, grammar, written, f"tell Jo {text}, please")
    assert not is_taken(tokenizer, grammar, written, "tell Jo that I am late")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        f"Sure. {WINDOW}",
        f"{WINDOW} Done.",
        f"{WINDOW} {WINDOW}",
        WINDOW.replace('"all', '"left'),
        WINDOW.replace("5", "101"),
        WINDOW.replace(', "position": 5', ""),
        WINDOW.replace("set_window", "open_window"),
        WINDOW.removesuffix("</tool_call>"),
    ],
)
def test_what_was_never_taught_is_not_taken(tokenizer, grammar, wrong):
    assert is_taken(tokenizer, grammar, "Which one?")
    assert is_taken(tokenizer, grammar, WINDOW + WINDOW)
    assert not is_taken(tokenizer, grammar, wrong)


def test_one_token_is_allowed_where_the_mask_of_all_says_so(tokenizer, grammar):
    matcher = grammar.matcher(tokenizer.encode("say hi to Jo"))
    for token in [*tokenizer.encode_markup(WINDOW + MESSAGE % "hi"), tokenizer.end_id]:
        mask = matcher.allowed()
        assert [matcher.allows(i) for i in range(len(mask))] == mask.tolist()
        matcher.advance(token)
    assert not matcher.allows(tokenizer.end_id)
