import json
import os

import pytest
import torch

from fourleaf.engine import cost
from fourleaf.engine.cost import (
    BUDGET_S,
    ESSENTIAL,
    KINDS,
    ROWS,
    CostTable,
    checkpoint_fingerprint,
    machine_key,
    measure,
    never_falling,
    recall,
)
from fourleaf.errors import CheckpointError

KEY = {"checkpoint": "c", "torch": "t", "threads": 2, "device": "d"}


class Machine:
    """Forwards that take what `seconds` says, on a clock of their own."""

    def __init__(self, seconds):
        self.seconds, self.now, self.calls = seconds, 0.0, []

    def forward(self, kind, rows):
        self.calls.append((kind, rows))
        took = self.seconds(kind, rows)
        self.now += took
        return took

    def measure(self, **given):
        return measure(self.forward, clock=lambda: self.now, **given)


def linear(kind, rows):
    return 0.001 * (KINDS.index(kind) + 1) + 0.0001 * rows


def table(factor=1.0):
    return CostTable(dict.fromkeys(KINDS, ((1, 0.5 * factor), (8, 1.0 * factor), (32, 2.5 * factor))))


# Reading a table


def test_costs_lie_on_lines_between_the_measured_points_and_behind_them():
    found = table()
    assert [found.seconds("pass", rows) for rows in (1, 8, 20, 32, 64)] == [0.5, 1.0, 1.75, 2.5, 4.5]


def test_below_the_first_point_a_forward_costs_as_much_as_there():
    found = CostTable(dict.fromkeys(KINDS, ((8, 1.0), (32, 2.0))))
    assert found.seconds("fused", 2) == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_more_rows_never_cost_less(kind):
    noisy = {(k, rows): [0.01 + 0.001 * ((i * 7 + rows) % 5)] for i, k in enumerate(KINDS) for rows in ROWS}
    found = CostTable.from_timings(noisy)
    costs = [found.seconds(kind, rows) for rows in range(1, 700)]
    assert costs == sorted(costs)


def test_neighbours_that_fall_become_their_mean():
    assert never_falling([1.0, 3.0, 2.0, 4.0]) == [1.0, 2.5, 2.5, 4.0]
    assert never_falling([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]
    assert never_falling([1.0, 2.0]) == [1.0, 2.0]


@pytest.mark.parametrize("curve", [(), ((1, 0.0),), ((0, 1.0),), ((1, 2.0), (8, 1.0)), ((8, 1.0), (1, 2.0))])
def test_a_curve_that_is_none_is_our_fault(curve):
    with pytest.raises(AssertionError):
        CostTable(dict.fromkeys(KINDS, curve))


# Measuring


def test_a_fast_model_is_measured_at_every_point_and_right():
    machine = Machine(linear)
    found = machine.measure()
    for kind in KINDS:
        assert [rows for rows, _ in found.curves[kind]] == list(ROWS[kind == "fused" :])
        for rows in ROWS[kind == "fused" :]:
            assert found.seconds(kind, rows) == pytest.approx(linear(kind, rows))
    assert machine.now <= BUDGET_S


def test_measuring_stops_within_its_budget():
    machine = Machine(lambda kind, rows: 0.009 + 0.0015 * rows)
    machine.measure()
    assert BUDGET_S / 2 < machine.now <= BUDGET_S


def test_a_slow_model_is_measured_at_the_essential_points_alone():
    machine = Machine(lambda kind, rows: 3.0 + 0.1 * rows)
    found = machine.measure()
    assert machine.calls == [*ESSENTIAL, *ESSENTIAL], "once to warm up, once for the clock"
    assert found.seconds("pass", 32) == pytest.approx(6.2)
    assert found.seconds("step", 16) == pytest.approx(4.6), "as rows cost between a step and a pass"


def test_the_least_timing_counts():
    slow = iter([5.0])  # the first timing after the warm-up is disturbed
    count = dict.fromkeys(ESSENTIAL, 0)

    def seconds(kind, rows):
        point = (kind, rows)
        if point == ("pass", 32):
            count[point] += 1
            if count[point] == 2:
                return 0.01 + next(slow) / 100
        return linear(kind, rows)

    assert Machine(seconds).measure().seconds("pass", 32) == pytest.approx(linear("pass", 32))


def test_no_more_rows_than_the_engine_holds():
    machine = Machine(linear)
    found = machine.measure(most_rows={"step": 16, "pass": 128, "verify": 128, "fused": 128})
    assert max(rows for kind, rows in machine.calls if kind == "step") == 8
    assert max(rows for _, rows in machine.calls) == 128
    assert found.seconds("pass", 512) == pytest.approx(linear("pass", 512))


# On disk


def test_a_table_is_measured_once_per_key(tmp_path):
    first = recall(tmp_path / "costs", KEY, table)
    assert recall(tmp_path / "costs", KEY, lambda: pytest.fail("measured again")) == first
    other = recall(tmp_path / "costs", {**KEY, "threads": 1}, lambda: table(2.0))
    assert other != first
    assert len(list((tmp_path / "costs").iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace("0.5", "NaN"),
        lambda text: text.replace("0.5", "9.5"),
        lambda text: text.replace("0.5", "-0.5"),
        lambda text: text.replace("0.5", '"x"'),
        lambda text: text.replace('"verify"', '"verifies"'),
        lambda text: text.replace('"threads": 2', '"threads": 3'),
    ],
)
def test_a_broken_file_is_measured_again_and_replaced(tmp_path, damage):
    recall(tmp_path, KEY, table)
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    assert damage(whole) != whole
    path.write_text(damage(whole))
    assert recall(tmp_path, KEY, lambda: table(3.0)) == table(3.0)
    assert json.loads(path.read_text())["seconds"]["step"][0] == [1, 1.5]


def test_a_folder_that_cannot_be_written_costs_a_measurement_and_no_more(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert recall(tmp_path / "file" / "costs", KEY, table) == table()


def test_shared_temp_file_between_two_workers_is_none(tmp_path, monkeypatch):
    """Two processes start together: one has written its file and not yet put it in place when the other does both."""
    ids, write = iter([1, 2]), cost.write_json
    monkeypatch.setattr(os, "getpid", lambda: next(ids))

    def interrupted(path, value):
        write(path, value)
        monkeypatch.setattr(cost, "write_json", write)
        recall(tmp_path, KEY, lambda: table(2.0))

    monkeypatch.setattr(cost, "write_json", interrupted)
    assert recall(tmp_path, KEY, table) == table()
    assert len(list(tmp_path.iterdir())) == 1
    assert recall(tmp_path, KEY, lambda: pytest.fail("lost or broken")) == table()


def test_a_fingerprint_is_of_config_and_files_and_not_of_the_folder(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"1234")
    a, b = tmp_path / "a", tmp_path / "b"
    same = checkpoint_fingerprint(a)
    assert checkpoint_fingerprint(b) == same
    (b / "model.safetensors").write_bytes(b"123")
    assert checkpoint_fingerprint(b) != same
    (b / "model.safetensors").write_bytes(b"1234")
    (b / "config.json").write_text("{ }")
    assert checkpoint_fingerprint(b) != same
    with pytest.raises(CheckpointError, match="checkpoint folder"):
        checkpoint_fingerprint(tmp_path)


def test_a_key_names_all_that_a_cost_depends_on():
    key = machine_key("c", torch.device("cpu"), torch.float32)
    assert key["checkpoint"] == "c"
    assert (key["torch"], key["threads"], key["dtype"]) == (torch.__version__, torch.get_num_threads(), "float32")
    assert key["device"]
    assert machine_key("c", torch.device("cpu"), torch.bfloat16) != key
    json.dumps(key)


def test_another_release_measures_anew(tmp_path, monkeypatch):
    """Its kernels may be faster: a table of the release before would choose modes by what is no longer true."""
    recall(tmp_path, machine_key("c", torch.device("cpu"), torch.float32), table)
    monkeypatch.setattr(cost, "version", lambda package: "99.0")
    key = machine_key("c", torch.device("cpu"), torch.float32)
    assert recall(tmp_path, key, lambda: table(3.0)) == table(3.0)
