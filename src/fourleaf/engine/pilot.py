"""`auto` at work: for one request the mode of each block, and for an engine the table that says what modes cost.

With a seed, load never changes an answer: a choice looks at the table and at what this request has shown, and at
nothing else. Without one, or where no choice can change a token (greedy and lossless), it looks at what all requests
have shown and at how many there are.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fourleaf.engine import auto, cost
from fourleaf.engine.auto import Choice, Experience, Outcome
from fourleaf.engine.cost import CostTable, Kind
from fourleaf.engine.request import FIXED_MODES, LOSSLESS_MODES, FixedMode, GenerateParams
from fourleaf.model.state import Recurrent, State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work

# Committed positions behind which forwards are timed.
_HISTORY = 64
_MOST_STEPS = 64


@dataclass
class Fleet:
    """What all requests of an engine have in common. measured: gives the costs, asked once, by whoever drives the
    engine: nothing else runs meanwhile. in_flight: how many requests there are."""

    measured: Callable[[], CostTable]
    block_size: int
    in_flight: Callable[[], int]
    everyone: Experience = field(init=False)

    @functools.cached_property
    def table(self) -> CostTable:
        return self.measured()

    def __post_init__(self) -> None:
        self.everyone = Experience.of_all(self.block_size)


@dataclass
class Tally:
    """What one answer has taken so far. tokens: decided, an end token included, `drafted` of them by rounds; steps: of
    `ar`; verified: rows that were; proposals: those among them, of which `stood` did; passes: denoise passes, `fused`
    of them in a forward with the commit of a block, one `carried` by the prefill; forwards, rows: after the prefill."""

    tokens: int = 0
    forwards: int = 0
    rows: int = 0
    steps: int = 0
    passes: int = 0
    fused: int = 0
    carried: int = 0
    verified: int = 0
    proposals: int = 0
    stood: int = 0
    drafted: int = 0
    blocks: int = 0


class Pilot:
    """Chooses for one request. `modes` are the choices so far."""

    def __init__(self, fleet: Fleet, params: GenerateParams) -> None:
        self.modes: list[FixedMode] = []
        self._fleet, self._replay = fleet, list(reversed(params.modes))
        self._sees_others = params.seed is None or (params.is_lossless and params.temperature == 0)
        self._allowed = frozenset(LOSSLESS_MODES if params.is_lossless else FIXED_MODES)
        self._own = Experience(fleet.block_size)
        self._choice: Choice | None = None
        self._since = Tally()
        self._in_flight = 1
        self._rows: dict[FixedMode, int] = {}

    def mode(self, tally: Tally, rows: int, draft_rows: int) -> FixedMode:
        """The mode of what comes next: the last choice's while it lasts, else a new one. To be asked between blocks.
        rows, draft_rows: of the next canvas in `diffuse` and in `draft`."""
        since = self._since
        if self.modes and tally.steps - since.steps < auto.AR_SPAN and tally.blocks == since.blocks:
            return self.modes[-1]
        if self._choice is not None:
            self._report(self.modes[-1], tally)
        self._since = replace(tally)
        self._rows = {"ar": 1, "draft": draft_rows, "diffuse": rows}
        return self._choose()

    def _choose(self) -> FixedMode:
        fleet, rows = self._fleet, self._rows
        everyone = fleet.everyone if self._sees_others else None
        self._in_flight = max(1, fleet.in_flight()) if self._sees_others else 1
        choice = auto.choose(
            fleet.table, self._own, everyone, self._in_flight, self._allowed, rows["diffuse"], rows["draft"]
        )
        mode = self._replay.pop() if self._replay else choice.mode
        self._choice = choice if mode == choice.mode else None
        if self._choice is not None:
            self._own.reserve(choice)
            if everyone is not None:
                everyone.reserve(choice)
        self.modes.append(mode)
        return mode

    def _report(self, mode: FixedMode, now: Tally) -> None:
        """What became of the last choice."""
        assert self._choice is not None
        since, rows, choice = self._since, self._rows[mode], self._choice
        # The token before an answer's first round came with the prefill: it is none of the round's.
        tokens = now.drafted - since.drafted if mode == "draft" else now.tokens - since.tokens
        verified = now.verified - since.verified
        fused = now.fused - since.fused if mode == "diffuse" else 0
        alone = now.passes - since.passes - fused - (now.carried - since.carried)
        seconds = auto.spent_seconds(
            self._fleet.table,
            mode,
            self._in_flight if choice.beside == 1 else 1,
            rows,
            steps=tokens,
            verified=verified,
            passes=alone,
            fused=fused,
        )
        if choice.beside > 1:
            forwards = 2 if mode == "draft" else alone + fused
            seconds = auto.trial_seconds(self._fleet.table, seconds, forwards, choice.beside)
        outcome = Outcome(mode, rows, tokens, seconds, verified, alone, fused)
        self._own.add(outcome, choice)
        if self._sees_others:
            self._fleet.everyone.add(outcome, choice)


def table_of(model: Transformer, folder: Path | None) -> CostTable:
    """What forwards of a model cost here: from the disk where this machine has timed this checkpoint, else timed now,
    in two seconds. folder: of the checkpoint; None: nothing is kept."""
    weight = model.lm_head.weight
    most: dict[Kind, int] = {"step": _MOST_STEPS}

    def measure_now() -> CostTable:
        return cost.measure(Timer(model).seconds, most)

    if folder is None:
        return measure_now()
    key = cost.machine_key(cost.checkpoint_fingerprint(folder), weight.device, weight.dtype)
    return cost.recall(cost.cache_folder(), key, measure_now)


class Timer:
    """Times forwards of a model behind some committed text.

    What they write to is made once: an engine's memory is there already, and the first touch of new memory costs more
    than a small model's step.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._states: dict[int, State] = {}  # by number of sequences

    @torch.inference_mode()
    def seconds(self, kind: Kind, rows: int) -> float:
        """Of one forward of `kind` with `rows` rows in all, head included."""
        model, device = self._model, self._model.lm_head.weight.device
        block = model.config.block_size or 32
        each = 1 if kind == "step" else min(rows, 2 * block if kind == "fused" else block)
        num = max(1, rows // each)
        causal = {"step": 1, "pass": 0, "fused": each // 2, "verify": each}[kind]
        canvas = {"step": 0, "pass": each, "fused": each - each // 2, "verify": 0}[kind]
        state = self._state(num)
        starts = list(state.lengths)
        work = Work(
            _ids(model, num * (causal + canvas)),
            Segments([causal] * num, device),
            starts,
            Segments([canvas] * num, device) if canvas else None,
            list(range(num)) if canvas else None,
            [start + causal for start in starts] if canvas else None,
            num_held=num if kind == "verify" else 0,
        )
        _wait(device)
        begin = time.perf_counter()
        hidden, _ = model(work, state)
        model.head(hidden[num * causal :] if canvas else hidden)
        if kind == "verify":
            state.advance([each // 2] * num)
        _wait(device)
        return time.perf_counter() - begin

    def _state(self, num: int) -> State:
        """`num` sequences with committed text. Forwards put new recurrent states in the place of old ones and write
        keys and values behind the text, so the next caller finds it as it was."""
        if num not in self._states:
            model, weight = self._model, self._model.lm_head.weight
            state = State.empty(model.config, num, weight.dtype, weight.device)
            segments = Segments([_HISTORY] * num, weight.device)
            model(Work(_ids(model, num * _HISTORY), segments, [0] * num), state)
            self._states[num] = state
        kept = self._states[num]
        layers = [Recurrent(x.matrix, x.tail) if isinstance(x, Recurrent) else x for x in kept.layers]
        return State(layers, list(kept.lengths))


def _ids(model: Transformer, num: int) -> torch.Tensor:
    return torch.arange(num, device=model.lm_head.weight.device) % model.config.vocab_size


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
