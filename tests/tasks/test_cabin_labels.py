import json
from itertools import islice
from random import Random

import pytest

from fourleaf.errors import LabelError
from fourleaf.tasks.cabin import generator, phrases, schema, spoken
from fourleaf.tasks.cabin.schema import Call, Example


def _call(tool: str, /, **arguments: object) -> Call:
    return Call(tool, arguments)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("twenty two", 22),
        ("Twenty-Two", 22),
        ("a hundred and ten", 110),
        ("one ten", 110),
        ("one oh five", 105),
        ("one hundred five", 105),
        ("two hundred", 200),
        ("nought", 0),
        ("72", 72),
    ],
)
def test_a_spoken_number_is_read(words, number):
    assert [mention.value for mention in spoken.mentions(f"set it to {words} please")] == [number]


def test_every_number_survives_being_said_in_words():
    random = Random(0)
    for number in range(600):
        for _ in range(4):
            said = spoken.say(number, random, in_words=True)
            assert [mention.value for mention in spoken.mentions(f"to {said}, ok")] == [number], said


def test_numbers_inside_words_times_and_decimals_are_no_numbers():
    assert spoken.mentions("phone someone at 7:45 about the 101.3 station, bone and tent") == []


@pytest.mark.parametrize(("fahrenheit", "celsius"), [(72, 22), (68, 20), (61, 16), (86, 30), (50, 10)])
def test_fahrenheit_is_rounded_to_the_nearest_degree(fahrenheit, celsius):
    assert spoken.celsius(fahrenheit) == celsius


def test_miles_are_rounded_to_the_nearest_kilometre():
    assert [spoken.kmh(mph) for mph in (30, 45, 55, 65, 70)] == [48, 72, 89, 105, 113]


@pytest.mark.parametrize(
    ("utterance", "calls", "text", "complaint"),
    [
        ("go", [_call("fly")], "", "unknown tool"),
        ("my window", [_call("set_window", position=0, window="driver")], "", "in this order"),
        ("my window", [_call("set_window", window="drivers", position=0)], "", "one of"),
        ("window 120", [_call("set_window", window="all", position=120)], "", "0 to 100"),
        ("ac on", [_call("set_ac", on=1)], "", "boolean"),
        ("fan on", [_call("set_fan", level=True)], "", "integer"),
        ("call anna", [_call("call_contact", name="Anna")], "", "not in the words"),
        ("call Anna ", [_call("call_contact", name="Anna ")], "", "padded"),
        ("text Al saying hi", [_call("send_message", name="Al", text="saying hi")], "", "lead-in"),
        ("set it to 21", [_call("set_temperature", zone="all", celsius=22)], "", "no number"),
        ("cruise at 60", [_call("set_cruise", speed_kmh=70)], "", "no number"),
        ("fan off", [_call("set_fan", level=0)], "Which one?", "no text"),
        ("hello", [], "Hello!", "an answer without calls"),
        ("skip " * 9, [_call("control_media", action="next")] * 9, "", "at most 8"),
        ("", [], "Done.", "must follow tool results"),
    ],
)
def test_a_broken_label_is_refused(utterance, calls, text, complaint):
    with pytest.raises(LabelError, match=complaint):
        schema.check(Example(utterance, tuple(calls), text))


def test_converted_and_clamped_numbers_are_accepted():
    schema.check(Example("make it seventy two", (_call("set_temperature", zone="all", celsius=22),), ""))
    schema.check(Example("cruise at 45 mph", (_call("set_cruise", speed_kmh=72),), ""))
    schema.check(Example("cruise at two hundred", (_call("set_cruise", speed_kmh=150),), ""))


def test_every_hand_written_training_utterance_passes_the_check():
    utterances = phrases.corpus(additions=True).utterances
    assert len(utterances) >= 2511
    for example in utterances:
        schema.check(example)


def test_an_answer_is_written_and_parsed_back():
    calls = (
        _call("send_message", name="Zoë", text='he said "5 > 3"'),
        _call("set_window", window="rear_left", position=20),
    )
    example = Example('text Zoë he said "5 > 3"', calls, "")
    written = schema.answer_text(example)
    assert written.endswith(
        '<tool_call>{"name": "set_window", "arguments": {"window": "rear_left", "position": 20}}</tool_call>'
    )
    assert schema.parse_answer(written) == (list(calls), "")
    assert schema.same_answer(example, written)
    assert not schema.same_answer(example, written + " done")
    assert not schema.same_answer(example, written.replace("20", "21"))


def test_true_is_not_one_and_the_order_of_calls_counts():
    on, off = _call("set_ac", on=True), _call("set_ac", on=False)
    example = Example("ac on, then off", (on, off), "")
    assert not schema.same_answer(example, schema.answer_text(example).replace("true", "1"))
    assert not schema.same_answer(example, schema.answer_text(Example("", (off, on), "")))


def test_keys_may_come_in_any_order():
    example = Example("close mine", (_call("set_window", window="driver", position=0),), "")
    swapped = json.dumps({"arguments": {"position": 0, "window": "driver"}, "name": "set_window"})
    assert schema.same_answer(example, f"<tool_call>{swapped}</tool_call>")


def test_text_answers_are_compared_as_text():
    example = Example("tell me a joke", (), schema.OUT_OF_SCOPE)
    assert schema.same_answer(example, "Sorry, I can't do that.")
    assert not schema.same_answer(example, "Which one?")
    assert not schema.same_answer(example, '<tool_call>{"name": "set_ac", "arguments": {"on": true}}</tool_call>')
    assert schema.parse_answer("<tool_call>{broken</tool_call>") == (None, "<tool_call>{broken</tool_call>")


def test_the_stream_keeps_the_rules():
    for example in islice(generator.stream(7), 3000):
        schema.check(example)
        for message in example.history:
            assert message["role"] in ("user", "assistant", "tool")


def test_an_invalid_line_names_its_file_and_line(tmp_path):
    path = tmp_path / "more_broken.jsonl"
    good = {"kind": "phrase", "tool": "set_ac", "pattern": "ac on", "args": {"on": True}}
    bad = {"kind": "phrase", "tool": "set_ac", "pattern": "ac {level}", "args": {"on": True}}
    path.write_text(json.dumps(good) + "\n\n" + json.dumps(bad) + "\n")
    with pytest.raises(LabelError, match=r"more_broken\.jsonl line 3"):
        phrases.load(path, phrases.Corpus())
    path.write_text('{"kind": "phrases"}\n')
    with pytest.raises(LabelError, match="unknown kind"):
        phrases.load(path, phrases.Corpus())
    path.write_text('{"kind": "missing"}\n')
    with pytest.raises(LabelError, match="missing key 'text'"):
        phrases.load(path, phrases.Corpus())
