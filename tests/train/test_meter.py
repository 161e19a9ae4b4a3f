import io
import shutil
from os import terminal_size

import pytest

from fourleaf.train.meter import Meter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(stage: int, progress: float, seconds: float, **more) -> dict:
    return {
        "stage": stage,
        "objective": ("ar", "joint")[stage],
        "progress": progress,
        "step": int(seconds),
        "seconds": seconds,
        "next": 0.5,
        "tokens_per_s": 1234.0,
        **more,
    }


def test_the_time_left_is_the_pace_so_far_carried_forward():
    out = io.StringIO()
    meter = Meter((0.25, 0.75), out)
    meter(logged(0, 0.4, 100))  # 10% of the run after 100 s
    meter(logged(1, 1 / 3, 500))  # 50% of it after 500 s
    first, second = out.getvalue().splitlines()
    assert "left" not in first, "one point is no pace"
    assert second.startswith("[##########..........]  50%  8 min left  joint"), "40% in 400 s: 500 s for the other 50%"


def test_elsewhere_than_on_a_terminal_each_line_of_the_log_is_one():
    out = io.StringIO()
    meter = Meter((1.0,), out)
    meter({"note": "warming up"})
    for step in range(10):
        meter(logged(0, step / 10, step))
    meter({"evaluation": "joint", "step": 100, "tokens": 5000, "ar": 0.845, "diffuse": 0.81, "tpf": 4.123})
    meter.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == 12
    assert lines[0] == "warming up"
    assert lines[10].endswith("next 0.500  1,234 tokens/s  step 9")
    assert lines[11] == "joint: exact ar 84.5%, diffuse 81.0%, TPF 4.12"


@pytest.fixture
def columns(monkeypatch):
    def narrow(count: int) -> None:
        monkeypatch.setattr(shutil, "get_terminal_size", lambda: terminal_size((count, 24)))

    return narrow


def test_on_a_terminal_one_line_is_rewritten(columns):
    columns(200)
    out = Terminal()
    meter = Meter((0.5, 0.5), out)
    meter({"evaluation": "ar", "step": 1, "tokens": 50, "ar": 0.5})
    for step in range(5):
        meter(logged(1, step / 10, step, masked=0.123))
    meter.close()
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().count("\r") == 5
    assert "masked 0.123  exact ar 50.0%  1,234 tokens/s" in out.getvalue()


def test_on_a_narrow_terminal_the_line_does_not_wrap(columns):
    columns(60)
    out = Terminal()
    meter = Meter((0.5, 0.5), out)
    meter({"evaluation": "ar", "step": 1, "tokens": 50, "ar": 0.5})
    for step in range(5):
        meter(logged(1, step / 10, step, masked=0.123))
    shown = [line.rstrip("\n") for line in out.getvalue().split("\r") if line]
    assert max(map(len, shown)) == 59
    assert all("joint" in line for line in shown)


def test_a_remark_does_not_write_into_the_line_that_is_rewritten(columns):
    columns(200)
    out = Terminal()
    meter = Meter((0.5, 0.5), out)
    meter(logged(0, 0.1, 1))
    meter({"changed": {"next_weight": [0.5, 0.25]}, "step": 1})
    assert out.getvalue().splitlines()[-1] == "settings that have changed since: next_weight"
