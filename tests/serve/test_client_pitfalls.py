"""Sixteen ways in which servers have broken their clients, each with the tests that hold it here.

The table is read by the test below: a test that is renamed must be renamed here, too.
"""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]

# What went wrong -> where it is held.
PITFALLS = {
    "a call's delta without index": "serve/test_openai_client.py::test_a_stream_says_the_same_in_pieces",
    "parallel calls that share an index": "serve/test_openai_client.py::test_a_stream_says_the_same_in_pieces",
    "the first call's index is 1": "text/test_calls.py::test_calls_are_numbered_from_zero",
    "no id in a call's first delta": "serve/test_openai_client.py::test_the_sdks_own_accumulator_agrees",
    "finish_reason stop where there are calls": "serve/test_openai_client.py::test_calls_come_back_as_tool_calls",
    "a stream without finish_reason": "serve/test_fields.py::test_several_streamed_answers",
    "a chunk without choices that nobody asked for": (
        "serve/test_openai_client.py::test_without_include_usage_every_chunk_has_a_choice"
    ),
    "a whole block in one delta": "serve/test_openai_client.py::test_a_stream_says_the_same_in_pieces",
    "markup of calls left in content": "text/test_calls.py::test_what_a_template_writes_is_read_back",
    "message_start without its defaults": "serve/test_anthropic_client.py::test_the_order_of_events",
    "tool_use without input, two message_starts": "serve/test_anthropic_client.py::test_the_order_of_events",
    "events of a response left out": "serve/test_responses.py::test_the_order_of_events",
    "structured output refused or a 500": "serve/test_whole_way.py::test_a_schema_is_held_to",
    "scores of a prompt end the engine": "serve/test_completions.py::test_an_echoed_prompt_is_scored",
    "a thought that eats the answer's limit": "serve/test_fields.py::test_a_model_that_thinks_is_told_whether_to",
    "nothing is sent until the first block is there": (
        "serve/test_streams.py::test_the_role_comes_before_the_first_pass_and_health_answers_meanwhile"
    ),
}


def test_every_pitfall_is_held():
    assert len(PITFALLS) == 16
    for what, held in PITFALLS.items():
        file, _, name = held.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), what
