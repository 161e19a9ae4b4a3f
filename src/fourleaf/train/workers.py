"""Processes that share the batches of a step: the same weights in shared memory, each with gradients of its own.

One thread in each of two processes is half as fast again as two threads in one (docs/log.md): rows are few, so the time
between products counts as much as the products. Gradients are added in the order of the batches, so a step has the same
bits whether one process runs them in turn or several at once.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from types import TracebackType

import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor

from fourleaf.kernels.fuse import is_compiled, use_compiled
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.train.data import Batch
from fourleaf.train.gradients import Counts, accumulate


def default_workers(num_batches: int) -> int:
    """As many as can run at once: one for each batch of a step, on a core of its own."""
    return max(1, min(num_batches, os.cpu_count() or 1))


class Workers:
    """Computes gradients of a step's batches: the first here, the others in `num` - 1 processes beside this one.

    The model's parameters move to shared memory, so that the optimiser's steps here are seen there.
    """

    def __init__(self, model: Transformer, mask_id: int, num: int = 1) -> None:
        self._model, self._mask_id = model, mask_id
        self._parameters = list(model.parameters())
        self._beside: list[_Beside] = []
        if num > 1:
            model.share_memory()
            model.refresh()
            self._beside = [_Beside(model, mask_id) for _ in range(num - 1)]

    def gradients(self, batches: list[Batch], weights: Mapping[str, float]) -> dict[str, float]:
        """Adds the step's gradient to the parameters', which must be clear. -> the objective's terms, summed.

        Raises RuntimeError where a process beside this one has died.
        """
        counts = Counts.of(batches)
        total: dict[str, float] = {}
        size = 1 + len(self._beside)
        for begin in range(0, len(batches), size):
            turn = batches[begin : begin + size]
            helpers = self._beside[: len(turn) - 1]
            for helper, batch in zip(helpers, turn[1:], strict=True):
                helper.ask(batch, counts, weights)
            found = [accumulate(self._model, turn[0], counts, self._mask_id, weights)]
            found += [helper.answer(self._parameters) for helper in helpers]
            for terms in found:
                for name, value in terms.items():
                    total[name] = total.get(name, 0.0) + value
        return total

    def close(self) -> None:
        """Ends the processes."""
        for helper in self._beside:
            helper.close()
        self._beside = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Beside:
    """One process, seen from here."""

    def __init__(self, model: Transformer, mask_id: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy threads' locks
        self._gradients = [torch.zeros_like(p, requires_grad=False).share_memory_() for p in model.parameters()]
        self._connection, there = context.Pipe()
        weights = [p.detach() for p in model.parameters()]
        args = (there, model.config, weights, self._gradients, mask_id, is_compiled())
        self._process = context.Process(target=_serve, args=args, daemon=True)
        self._process.start()
        there.close()

    def ask(self, batch: Batch, counts: Counts, weights: Mapping[str, float]) -> None:
        """Starts a batch. It goes over by value: tensors in shared memory would cost a file each."""
        try:
            self._connection.send_bytes(pickle.dumps((batch, counts, dict(weights))))
        except OSError as error:
            raise self._died() from error

    def answer(self, parameters: list[torch.nn.Parameter]) -> dict[str, float]:
        """Waits for the batch's gradients and adds them. -> the terms' values."""
        try:
            terms, touched = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._died() from error
        for parameter, gradient, is_touched in zip(parameters, self._gradients, touched, strict=True):
            if not is_touched:
                continue
            if parameter.grad is None:
                parameter.grad = gradient.clone()
            else:
                parameter.grad.add_(gradient)
        return terms

    def _died(self) -> RuntimeError:
        self._process.join(timeout=5)
        return RuntimeError(f"a training process ended with exit code {self._process.exitcode}; its output says why")

    def close(self) -> None:
        self._connection.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(
    connection: Connection,
    config: ModelConfig,
    weights: list[Tensor],
    gradients: list[Tensor],
    mask_id: int,
    compiled: bool,
) -> None:
    """The life of a process beside: batch in, gradients out, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the whole group; the trainer says when to stop
    torch.set_num_threads(1)
    use_compiled(compiled)
    model = Transformer(config).train()
    parameters = list(model.parameters())
    for parameter, shared in zip(parameters, weights, strict=True):
        parameter.data = shared
    while True:
        try:
            batch, counts, factors = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        terms = accumulate(model, batch, counts, mask_id, factors)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if parameter.grad is not None:
                gradient.copy_(parameter.grad)
        touched = [parameter.grad is not None for parameter in parameters]
        model.zero_grad(set_to_none=True)
        connection.send_bytes(pickle.dumps((terms, touched)))
