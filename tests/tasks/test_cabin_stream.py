from collections import Counter
from itertools import islice
from random import Random

import pytest

from fourleaf.tasks.cabin import generator, noise, phrases, schema
from fourleaf.tasks.cabin.compose import Composer
from fourleaf.tasks.cabin.pieces import Piece
from fourleaf.tasks.cabin.schema import PARAMETERS, Call

SAMPLE = 6000


@pytest.fixture(scope="module")
def examples():
    return list(islice(generator.stream(1), SAMPLE))


@pytest.fixture(scope="module")
def composer():
    return generator.training_composer()


def test_the_stream_depends_on_its_seed_alone():
    first = list(islice(generator.stream(3), 50))
    assert list(islice(generator.stream(3), 50)) == first
    assert list(islice(generator.stream(4), 50)) != first


@pytest.mark.parametrize("most", [1, 3])
def test_a_curriculum_limits_the_calls(most):
    counts = Counter(len(example.calls) for example in islice(generator.stream(2, max_calls=most), 500))
    assert set(counts) == set(range(most + 1))


def test_the_mix_is_as_announced(examples):
    share = {tag: count / SAMPLE for tag, count in Counter(tag for e in examples for tag in e.tags).items()}
    assert share["free_text"] > 0.4
    for tag in ("no_call", "repair", "typo"):
        assert 0.08 < share[tag] < 0.14, tag
    assert 0.06 < share["history"] < 0.1
    assert 0.01 < share["continuation"] < 0.03
    assert len({e.utterance for e in examples}) > 0.9 * SAMPLE


def test_every_tool_and_every_value_occurs(examples):
    seen = Counter()
    for example in examples:
        for call in example.calls:
            seen[call.name] += 1
            seen.update((call.name, n, v) for n, v in call.arguments.items())
    for tool, properties in PARAMETERS.items():
        assert seen[tool] > 0.02 * SAMPLE, tool
        for name, spec in properties.items():
            values = spec.get("enum", [True, False] if spec["type"] == "boolean" else [])
            for value in values:
                assert seen[tool, name, value] >= 10, (tool, name, value)


def test_training_never_meets_the_development_utterances(examples):
    assert any(phrases.overlaps_dev("So " + example.utterance.upper() + "!") for example in phrases.dev())
    for example in examples:
        assert not phrases.overlaps_dev(example.utterance), example.utterance
        for message in example.history:
            assert message["role"] != "user" or not phrases.overlaps_dev(message["content"])


def test_training_uses_no_held_out_pattern_utterance_or_filler(composer):
    side = composer.side
    patterns = [phrase.pattern for tool in side.requests.by_tool.values() for phrase in tool]
    patterns += [template.example.utterance for pool in side.templates.values() for template in pool]
    patterns += [repair.pattern for repair in side.repairs] + side.out_of_scope + side.missing
    assert len(patterns) > 4000
    assert not any(phrases.held_out(pattern) for pattern in patterns)
    random = Random(0)
    fillers = side.requests.fillers
    for slot in ("destination", "place", "name", "query", "text"):
        drawn = [fillers.value(slot, random) for _ in range(400)]
        assert not any(phrases.held_out(form) for form in drawn)
        assert len(set(drawn)) > 200


def test_nothing_follows_a_message_but_a_command(composer):
    message = Piece("text Anna I'm late", (Call("send_message", {"name": "Anna", "text": "I'm late"}),))
    remark = Piece("it's stuffy in here", (Call("set_ac", {"on": True}),))
    command = Piece("open the sunroof", (Call("set_sunroof", {"position": 100}),))
    assert not composer._fits(remark, [message], alone=False)
    assert composer._fits(command, [message], alone=False)
    random = Random(0)
    assert all(composer.dress(message, random).text.endswith("I'm late") for _ in range(300))


def test_for_me_never_stands_beside_a_zone_of_all(composer):
    everyone = Piece("make it warmer", (Call("adjust_temperature", {"zone": "all", "delta": 2}),))
    fan = Piece("fan on", (Call("set_fan", {"level": 3}),))
    random = Random(0)
    assert not any("for me" in composer.dress(everyone, random).text for _ in range(3000))
    assert any("for me" in composer.dress(fan, random).text for _ in range(3000))


def test_a_slip_spares_copied_text_and_numbers(composer):
    call = Call("navigate", {"destination": "Harrow Street", "avoid": "nothing"})
    piece = Piece("please navigate directly to Harrow Street after seventeen minutes", (call,))
    random = Random(0)
    for _ in range(300):
        slipped = noise.add_typo(piece, composer.side.vocabulary, random)
        assert "Harrow Street" in slipped.text
        assert "seventeen" in slipped.text
        assert ("typo" in slipped.tags) == (slipped.text != piece.text)


def test_a_slip_never_makes_another_known_word(composer):
    piece = Piece("turn the wipers down slow", ())
    random = Random(0)
    for _ in range(300):
        words = noise.add_typo(piece, frozenset({"slow", "low", "sow", "solw"}), random).text.split()
        assert not {"low", "sow", "solw"} & set(words)


def test_only_the_correction_of_a_repair_counts(composer):
    random = Random(5)
    seen = 0
    while seen < 200:
        example = composer.example(random, 1, repair=True, typo=False)
        assert len(example.calls) == 1
        assert "repair" in example.tags
        schema.check(example)
        seen += 1


def test_history_is_a_well_formed_conversation(examples):
    with_history = [example for example in examples if example.history]
    assert with_history
    for example in with_history:
        chat = schema.messages(example)
        pending: list[str] = []
        for message in chat:
            if message["role"] == "tool":
                assert message["tool_call_id"] == pending.pop(0)
                continue
            assert not pending
            pending = [made["id"] for made in message.get("tool_calls", [])]
        assert not pending
        if example.utterance:
            assert chat[-1] == {"role": "user", "content": example.utterance}
        else:
            assert chat[-1]["role"] == "tool"
            assert schema.answer_text(example) == "Done."


def test_a_composer_refuses_two_requests_for_one_system(composer: Composer):
    warm = Piece("my wife is cold", (Call("adjust_temperature", {"zone": "passenger", "delta": 2}),))
    set_all = Piece("set it to 21 degrees", (Call("set_temperature", {"zone": "all", "celsius": 21}),))
    assert not composer._fits(set_all, [warm], alone=False)


def test_a_pause_before_a_copied_text_is_no_part_of_it(composer):
    call = Call("send_message", {"name": "Ann", "text": "I'm late"})
    piece = Piece("text Ann I'm late", (call,))
    random = Random(0)
    texts = {noise.hesitate(piece, random).text for _ in range(200)}
    assert len(texts) > 5
    assert all(text.endswith(" I'm late") and " Ann" in text for text in texts)
    assert noise.hesitate(Piece("call my Ann", (Call("call_contact", {"name": "Ann"}),)), random).text == "call my Ann"
