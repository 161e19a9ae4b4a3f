"""Processes beside the trainer change how long a step takes, and nothing else."""

import os
import signal

import pytest
import torch

from fourleaf.train.folder import RunFolder


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(make_trainer, out, **options):
    trainer = make_trainer(out, steps=6, micro_batches=3, **options)
    trainer.run()
    log = [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_s")} for line in RunFolder(out).lines()]
    return {name: t.detach().clone() for name, t in trainer.model.named_tensors()}, log


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_processes_takes_the_same_steps_bit_for_bit(workers, make_trainer, tmp_path):
    """Three batches a step over both stages: in turn; two at once, then one; three at once."""
    ours, our_log = run(make_trainer, tmp_path / "several", workers=workers)
    theirs, their_log = run(make_trainer, tmp_path / "one", workers=1)
    assert {line["objective"] for line in their_log} == {"ar", "joint"}
    assert our_log == their_log
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_process_that_dies_ends_the_run_with_its_exit_code(make_trainer, tmp_path):
    def kill(line):
        if line["step"] == 2:
            os.kill(trainer._workers._beside[0]._process.pid, signal.SIGKILL)

    trainer = make_trainer(tmp_path, steps=6, micro_batches=2, workers=2, report=kill)
    with pytest.raises(RuntimeError, match="exit code -9"):
        trainer.run()


def test_no_process_outlives_its_run(make_trainer, tmp_path):
    processes = []
    trainer = make_trainer(
        tmp_path,
        steps=2,
        micro_batches=2,
        workers=2,
        report=lambda line: processes.extend(helper._process for helper in trainer._workers._beside),
    )
    trainer.run()
    assert len(set(processes)) == 2  # one in each stage
    assert not any(process.is_alive() for process in processes)
