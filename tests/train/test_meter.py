import io

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
    meter._printed = float("-inf")
    meter(logged(1, 1 / 3, 500))  # 50% of it after 500 s
    first, second = out.getvalue().splitlines()
    assert "left" not in first, "one point is no pace"
    assert second.endswith("8 min left"), "40% took 400 s, so the other 50% take 500 s"
    assert second.startswith("[##########..........]  50%  joint")


def test_elsewhere_than_on_a_terminal_a_line_a_minute_and_every_evaluation():
    out = io.StringIO()
    meter = Meter((1.0,), out)
    for step in range(100):
        meter(logged(0, step / 100, step))
    meter({"evaluation": "joint", "step": 100, "tokens": 5000, "ar": 0.845, "diffuse": 0.81, "tpf": 4.123})
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1] == "joint: exact ar 84.5%, diffuse 81.0%, TPF 4.12"


def test_on_a_terminal_one_line_is_rewritten():
    out = Terminal()
    meter = Meter((0.5, 0.5), out)
    meter({"evaluation": "ar", "step": 1, "tokens": 50, "ar": 0.5})
    for step in range(5):
        meter(logged(1, step / 10, step, masked=0.123))
    meter.close()
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().count("\r") == 5
    assert "masked 0.123  exact ar 50.0%  1,234 tokens/s" in out.getvalue()
