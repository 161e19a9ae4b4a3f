"""Numbers beyond limits and in other units: what is said and what the call holds belong together."""

from random import Random

import pytest

from fourleaf.tasks.cabin import generator, spoken
from fourleaf.tasks.cabin.pieces import EVEN_RATES, NumberRates, draw_number
from fourleaf.tasks.cabin.schema import Call, Example
from fourleaf.tasks.cabin.whole import Swapper, analyse

FAR = NumberRates(beyond=1.0, far=1.0)


@pytest.mark.parametrize(
    ("slot", "tool", "low", "high"),
    [
        ("celsius", "set_temperature", 16, 30),
        ("speed_kmh", "set_cruise", 0, 150),
        ("level", "set_fan", 0, 7),
        ("level", "set_volume", 0, 30),
        ("level", "set_seat_heating", 0, 3),
        ("delta", "adjust_temperature", 1, 5),
        ("delta", "adjust_volume", 1, 10),
        ("position", "set_window", 0, 100),
    ],
)
def test_a_number_far_beyond_its_limit_is_clamped_to_it(slot, tool, low, high):
    random = Random(0)
    for _ in range(200):
        said, value, clamped = draw_number(slot, tool, random, rates=FAR)
        assert clamped
        assert not low <= said <= high
        assert value == (low if said < low else high)


def test_a_fahrenheit_number_beyond_the_limits_is_converted_and_clamped():
    random = Random(0)
    for _ in range(200):
        said, value, clamped = draw_number("fahrenheit", "set_temperature", random, rates=FAR)
        assert clamped
        assert value == (16 if spoken.celsius(said) < 16 else 30)


def _swapped(utterance: str, call: Call, rates: NumberRates) -> list[tuple[str, Call]]:
    side = generator.training_composer().side
    template = analyse(Example(utterance, (call,), ""), side.corpus, side.requests.fillers)
    random = Random(1)
    pieces = [Swapper(side.corpus, side.requests.fillers, rates).draw(template, random, share=1.0) for _ in range(60)]
    return [(piece.text, piece.calls[0]) for piece in pieces]


def test_a_bare_temperature_becomes_fahrenheit_and_a_bare_speed_miles():
    rates = NumberRates(beyond=0.0, other_unit=1.0)
    for text, call in _swapped("set it to 21", Call("set_temperature", {"zone": "all", "celsius": 21}), rates):
        said = spoken.mentions(text)[0].value
        assert said > 45
        assert call.arguments["celsius"] == min(spoken.celsius(said), 30)
    for text, call in _swapped("cruise at 90", Call("set_cruise", {"speed_kmh": 90}), rates):
        assert text.endswith(("mph", "miles an hour"))
        assert call.arguments["speed_kmh"] == spoken.kmh(spoken.mentions(text)[0].value)


def test_a_number_whose_unit_is_said_keeps_it():
    rates = NumberRates(beyond=0.0, other_unit=1.0)
    celsius = Call("set_temperature", {"zone": "all", "celsius": 21})
    assert all(spoken.mentions(text)[0].value <= 30 for text, _ in _swapped("set it to 21 celsius", celsius, rates))
    speed = Call("set_cruise", {"speed_kmh": 90})
    assert all("km/h" in text and "m" not in text[:-4] for text, _ in _swapped("cruise at 90 km/h", speed, rates))
    assert all("mph" not in text for text, _ in _swapped("cruise at 90", speed, EVEN_RATES))
