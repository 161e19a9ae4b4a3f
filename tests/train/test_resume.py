"""A run that stops and goes on takes the steps that it would have taken."""

import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.train import trainer as trainer_module
from fourleaf.train.config import Stage
from fourleaf.train.folder import CHECKPOINT, LOG, RunFolder

CLOCK = ("seconds", "tokens_per_s")


def timeless(out) -> list[dict]:
    """A run's log without what a clock wrote."""
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in RunFolder(out).lines()]


def weights(trainer) -> dict[str, torch.Tensor]:
    return {name: t.detach().clone() for name, t in trainer.model.named_tensors()}


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


class Stops:
    """A report that raises at one step: Ctrl-C, or a crash."""

    def __init__(self, step: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.step, self.error = step, error

    def __call__(self, line: dict) -> None:
        if line["step"] == self.step:
            raise self.error


@pytest.fixture(scope="module")
def whole(make_trainer, tmp_path_factory):
    """An uninterrupted run of 20 steps, 10 in each stage: (its trainer's weights, its log)."""
    out = tmp_path_factory.mktemp("whole")
    trainer = make_trainer(out)
    trainer.run()
    return weights(trainer), timeless(out)


def test_the_toy_run_spans_pools_and_both_stages(whole):
    """Else the tests below would show little."""
    _, log = whole
    assert [line["step"] for line in log] == list(range(1, 21))
    assert [line["objective"] for line in log] == ["ar"] * 10 + ["joint"] * 10
    assert [line["pool_calls"] for line in log[:10]] == sorted([line["pool_calls"] for line in log[:10]])
    assert {line["pool_calls"] for line in log} == {1, 3}
    for stage in (0, 1):
        assert len({line["pool"] for line in log if line["stage"] == stage}) > 1
    assert all("masked" in line for line in log[10:])


@pytest.mark.parametrize("stop", [1, 4, 9, 10, 11, 15, 20])
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(stop, whole, make_trainer, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path, report=Stops(stop)).run()
    resumed = make_trainer(tmp_path)
    assert resumed.resume()
    assert resumed.at.step == stop
    assert resumed.model.config.is_block_diffusion == (stop > 10)
    resumed.run()
    assert same(weights(resumed), whole[0])
    assert timeless(tmp_path) == whole[1]


def test_a_run_stopped_at_every_step_equals_uninterrupted(whole, make_trainer, tmp_path):
    for step in range(1, 21):
        trainer = make_trainer(tmp_path, report=Stops(step))
        trainer.resume()
        with pytest.raises(KeyboardInterrupt):
            trainer.run()
    trainer = make_trainer(tmp_path)
    trainer.resume()
    trainer.run()
    assert same(weights(trainer), whole[0])
    assert timeless(tmp_path) == whole[1]


@pytest.mark.parametrize("crash", [7, 14])
def test_a_crash_goes_on_from_the_last_save(crash, whole, make_trainer, tmp_path):
    """Steps after it are taken again, and stand in the log once."""
    trainer = make_trainer(tmp_path, report=Stops(crash, RuntimeError), save_every_s=1e9)
    saved = []

    def pause(stage):
        if trainer.at.step in (3, 11):
            trainer.save()
            saved.append(trainer.at.step)

    trainer._pause = pause
    with pytest.raises(RuntimeError):
        trainer.run()
    with (tmp_path / LOG).open("a") as log:
        log.write('{"step": 15, "next": 0.1')  # a kill in the middle of a line
    resumed = make_trainer(tmp_path)
    resumed.resume()
    assert resumed.at.step == saved[-1] < crash
    resumed.run()
    assert same(weights(resumed), whole[0])
    assert timeless(tmp_path) == whole[1]


def test_a_line_of_the_log_that_a_stop_cuts_in_two_is_one_line_again(make_trainer, tmp_path):
    make_trainer(tmp_path / "whole", log_every=5).run()
    trainer = make_trainer(tmp_path / "parts", log_every=5)
    take = trainer._step

    def step(*given):
        sums = take(*given)
        if trainer.at.step == 8:
            signal.raise_signal(signal.SIGINT)
        return sums

    trainer._step = step
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    resumed = make_trainer(tmp_path / "parts", log_every=5)
    resumed.resume()
    resumed.run()
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_step_waits_for_its_end(number, whole, make_trainer, tmp_path):
    trainer = make_trainer(tmp_path)
    update = trainer.optimizer.step

    def interrupted_update():
        if trainer.at.step == 5:
            signal.raise_signal(number)
        update()

    trainer.optimizer.step = interrupted_update
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert signal.getsignal(number) is before
    resumed = make_trainer(tmp_path)
    resumed.resume()
    assert resumed.at.step == 6
    resumed.run()
    assert same(weights(resumed), whole[0])


def test_a_second_signal_does_not_wait_and_saves_nothing_half_done(make_trainer, tmp_path):
    trainer = make_trainer(tmp_path, report=lambda line: trainer.save())
    update = trainer.optimizer.step

    def interrupted_update():
        if trainer.at.step == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the second signal was put off")
        update()

    trainer.optimizer.step = interrupted_update
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    resumed = make_trainer(tmp_path)
    resumed.resume()
    assert resumed.at.step == 5


def test_a_signal_during_evaluation_saves_at_once(make_trainer, tmp_path):
    def evaluate(model, objective, num):
        signal.raise_signal(signal.SIGINT)
        pytest.fail("an evaluation changes nothing, so there is nothing to wait for")

    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path, evaluate=evaluate, eval_every_s=0).run()
    resumed = make_trainer(tmp_path)
    resumed.resume()
    assert resumed.at.step == 1


def test_saves_and_evaluations_change_no_step(whole, make_trainer, tmp_path):
    def evaluate(model, objective, num):
        torch.rand(3)
        return {"ar": 0.5}

    trainer = make_trainer(tmp_path, evaluate=evaluate, save_every_s=0, eval_every_s=0)
    trainer.run()
    assert same(weights(trainer), whole[0])
    assert [line for line in timeless(tmp_path) if "evaluation" not in line] == whole[1]
    assert len([line for line in timeless(tmp_path) if "evaluation" in line]) == 20


def test_evaluations_come_by_steps_where_they_are_asked_for(make_trainer, tmp_path):
    trainer = make_trainer(tmp_path, evaluate=lambda *_: {"ar": 0.5}, eval_every_s=0, eval_every_steps=4)
    trainer.run()
    at = [line["step"] for line in timeless(tmp_path) if "evaluation" in line]
    assert at == [4, 8, 10, 12, 16, 20], "and at the end of each stage"


def test_averages_survive_conversion(make_trainer, tmp_path):
    trainer = make_trainer(tmp_path, report=Stops(10))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    before = {name: t.clone() for name, t in trainer.optimizer.tensors().items()}
    assert any(t.any() for t in before.values())
    trainer._enter(trainer.config.stages[1])
    assert same(before, trainer.optimizer.tensors())
    for name, parameter in trainer.model.named_parameters():
        parameter.grad = torch.ones_like(parameter)
        assert (f"{name}:exp_avg" in before) == ("bd_softmax" not in name and "conv_right" not in name)
    trainer.optimizer.step()
    after = trainer.optimizer.tensors()
    assert {int(t) for name, t in after.items() if name.endswith(":step") and name not in before} == {1}
    assert {int(after[name]) for name in before if name.endswith(":step")} == {11}


def test_a_run_that_is_done_stays_done(make_trainer, tmp_path, whole):
    make_trainer(tmp_path).run()
    again = make_trainer(tmp_path)
    again.resume()
    again.run()
    assert same(weights(again), whole[0])
    assert again.at.step == 20


def test_a_run_that_is_done_goes_on_when_the_budget_grows(make_trainer, tmp_path):
    make_trainer(tmp_path).run()
    longer = make_trainer(tmp_path, steps=24)
    longer.resume()
    longer.run()
    assert longer.at.step == 24
    assert [line["objective"] for line in timeless(tmp_path)] == ["ar"] * 10 + ["joint"] * 14


def test_a_budget_of_minutes_ends_each_stage_by_the_clock(make_trainer, tmp_path, monkeypatch):
    now = [0.0]

    def tick() -> float:
        now[0] += 1.5
        return now[0]

    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(monotonic=tick))
    trainer = make_trainer(tmp_path, minutes=0.5)
    trainer.run()
    lines = list(RunFolder(tmp_path).lines())
    assert [line["seconds"] for line in lines] == [1.5 * n for n in range(1, 21)]
    assert [line["objective"] for line in lines] == ["ar"] * 10 + ["joint"] * 10
    assert [line["progress"] for line in lines] == pytest.approx([n / 10 for n in range(10)] * 2)
    longer = make_trainer(tmp_path, minutes=0.75)
    longer.resume()
    longer.run()
    lines = list(RunFolder(tmp_path).lines())
    assert lines[-1]["seconds"] == 45
    assert {line["objective"] for line in lines[20:]} == {"joint"}
    assert all(0 <= line["progress"] <= 1 for line in lines)


def test_a_spent_budget_is_refused_before_it_skips_a_stage(make_trainer, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path, report=Stops(5)).run()
    with pytest.raises(ConfigError, match=r"5 steps; a budget of 5 is spent"):
        make_trainer(tmp_path, steps=5).resume()
    with pytest.raises(ConfigError, match="minutes; a budget of 1e-09 is spent"):
        make_trainer(tmp_path, minutes=1e-9).resume()


@pytest.fixture
def stopped(make_trainer, tmp_path):
    """The folder of a run that was stopped in its second stage."""
    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path, report=Stops(13)).run()
    return tmp_path


def test_nothing_to_resume(make_trainer, tmp_path):
    assert not make_trainer(tmp_path).resume()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "seed 0, not 1"),
        ({"pool_size": 7}, "pool_size 24, not 7"),
        ({"mask": 2}, "mask_token_id 1, not 2"),
    ],
)
def test_another_run_is_not_resumed(options, message, stopped, make_trainer):
    with pytest.raises(ConfigError, match=message):
        make_trainer(stopped, **options).resume()


def test_a_run_of_another_model_is_not_resumed(stopped, make_trainer):
    trunk = replace(make_trainer(stopped).trunk, hidden_size=24, rope_theta=5.0)
    with pytest.raises(ConfigError, match=r"hidden_size 16, not 24; rope_theta 10000\.0, not 5\.0"):
        make_trainer(stopped, trunk=trunk).resume()


def test_a_recipe_that_changed_along_the_way_is_in_the_log(stopped, make_trainer):
    trainer = make_trainer(stopped, next_weight=0.25, steps=30)
    trainer.resume()
    *_, line = RunFolder(stopped).lines()
    assert line == {"changed": {"next_weight": [0.5, 0.25], "steps": [20, 30]}, "step": 13}
    quiet = make_trainer(stopped, steps=40)
    quiet.resume()
    assert len(list(RunFolder(stopped).lines())) == 14, "a budget may grow without a word"


def test_a_checkpoint_of_before_settings_were_kept_is_resumed(stopped, make_trainer):
    folder = RunFolder(stopped)
    snapshot = folder.load()
    assert snapshot is not None
    trainer = make_trainer(stopped)
    trainer.resume()
    folder.save(trainer.model, trainer.optimizer, trainer.at, {}, {})
    again = make_trainer(stopped, seed=5)
    assert again.resume()
    assert again.at.step == 13


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_truncated_checkpoint_is_named(keep, stopped, make_trainer):
    path = stopped / CHECKPOINT
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=f"{CHECKPOINT} is broken or truncated"):
        make_trainer(stopped).resume()


def test_weights_alone_are_no_checkpoint_of_a_run(stopped, make_trainer):
    from fourleaf.checkpoint.files import write_tensors

    write_tensors(stopped / CHECKPOINT, {"model:a": torch.ones(3)})
    with pytest.raises(CheckpointError, match="no checkpoint of a training run"):
        make_trainer(stopped).resume()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model:model.norm.weight"), r"lacks model\.norm\.weight, expected with shape \(16,\)"),
        (lambda t: t.update({"model:model.norm.weight": torch.ones(3)}), r"has shape \(3,\), expected \(16,\)"),
        (lambda t: t.update({"optim:nothing:exp_avg": torch.ones(3)}), "average 'exp_avg' of 'nothing'"),
        (lambda t: t.update({"optim:model.norm.weight:exp_avg": torch.ones(3)}), r"has shape \(3,\), expected \(16,\)"),
    ],
)
def test_a_checkpoint_with_other_tensors_is_named(change, message, stopped, make_trainer):
    from fourleaf.checkpoint.files import read_tensors, write_tensors

    tensors, metadata = read_tensors(stopped / CHECKPOINT)
    change(tensors)
    write_tensors(stopped / CHECKPOINT, tensors, metadata)
    with pytest.raises(CheckpointError, match=message) as raised:
        make_trainer(stopped).resume()
    assert CHECKPOINT in str(raised.value)


def test_a_gradient_that_is_not_finite_ends_the_run_with_the_weights_before_it(make_trainer, tmp_path):
    stage = Stage(objective="ar", share=1.0, rows=64)
    trainer = make_trainer(tmp_path, stages=(stage,), report=lambda line: trainer.save())
    weights_of = trainer._weights
    trainer._weights = lambda stage: weights_of(stage) | ({"next": float("nan")} if trainer.at.step == 3 else {})
    with pytest.raises(FloatingPointError, match="not finite after 3 steps"):
        trainer.run()
    assert all(torch.isfinite(t).all() for t in weights(trainer).values())
    resumed = make_trainer(tmp_path, stages=(stage,))
    resumed.resume()
    assert resumed.at.step == 3
