"""Memory-bound functions that training compiles into one pass over their rows; serving runs them as written.

Compilation takes a minute at the start of a run and pays back within a few; a server must start at once, so it is off
until `use_compiled(True)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

_compiled = False


def use_compiled(on: bool) -> None:
    """Whether fusable functions run compiled from now on, in this process."""
    global _compiled
    _compiled = on


def is_compiled() -> bool:
    """Whether they do."""
    return _compiled


def fusable(function: Callable[P, T]) -> Callable[P, T]:
    """Marks a pure function of tensors that `use_compiled` may compile, for any number of rows."""
    fused: Callable[P, T] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal fused
        if not _compiled:
            return function(*args, **kwargs)
        if fused is None:
            fused = torch.compile(function, dynamic=True)
        return fused(*args, **kwargs)

    return call
