"""Reading sheets with a model: one prefill, then passes over a canvas of slots, or steps for an AR model.

A slot's probabilities are those of its letters, renormalised over the labels in use; the share that lay on them is the
slot's mass. Where labels have two letters, the second is read with each first one in place: p(label) = p(first)
p(second | first), the chain rule, in one more forward.

Shapes: T causal rows, N canvas rows, C canvases, M rows wanted, Y vocabulary, O options of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fourleaf.decide.calibration import Floats, log_total
from fourleaf.decide.labels import Letters
from fourleaf.decide.sheet import Sheet, Slot
from fourleaf.errors import NumericError
from fourleaf.model.state import State
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Segments, Work


@dataclass(frozen=True)
class Reading:
    """What one forward says of one slot. log_p: [O] by option, normalised. mass: of all tokens, the labels' share."""

    log_p: Floats
    mass: float


@dataclass
class Cost:
    """What reading took: forwards, those with a prompt's rows in them included, their rows, and denoise passes."""

    forwards: int = 0
    rows: int = 0
    passes: int = 0


class Reader:
    """A model, and how it is asked: on a canvas where it can denoise, else by its causal logits."""

    def __init__(
        self, model: Transformer, letters: Letters, mask_id: int | None, check: Callable[[], None] | None = None
    ) -> None:
        """check: called before each forward; what it raises ends the work."""
        self.model, self.letters, self.mask_id = model, letters, mask_id
        self.cost = Cost()
        self._check = check or (lambda: None)
        self._device = model.lm_head.weight.device
        self._ids = torch.tensor(letters.ids, device=self._device)

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int]) -> State:
        """A state behind these tokens, which may be none."""
        state = State.empty(self.model.config, 1, self.model.lm_head.weight.dtype, self._device)
        if ids:
            self._forward(state, list(ids), [], [])
        return state

    @torch.inference_mode()
    def read(
        self, state: State, causal: Sequence[int], sheet: Sheet, known: Mapping[int, int], wanted: Sequence[int]
    ) -> list[Reading]:
        """One pass: what the model thinks of the slots `wanted`, while those in `known` (slot -> option) are revealed.

        Extends `state` by `causal`, the rest of the sheet's prompt.
        """
        canvas, masked = self._canvas(sheet, known)
        rows = [sheet.slots[slot].rows[0] for slot in wanted]
        logits = self._forward(state, causal, [(canvas, masked)], [(0, row) for row in rows])
        self.cost.passes += 1
        readings = []
        for slot, first in zip((sheet.slots[i] for i in wanted), logits, strict=True):
            log_p, mass = self._letters(first)
            if len(slot.rows) == 2:
                log_p = self._second(state, slot, canvas, masked, log_p)
            readings.append(_by_option(slot, log_p, mass))
        return readings

    def _canvas(self, sheet: Sheet, known: Mapping[int, int]) -> tuple[list[int], list[bool]]:
        canvas, masked = list(sheet.canvas), list(sheet.masked)
        for index, option in known.items():
            slot = sheet.slots[index]
            for row, letter in zip(slot.rows, slot.places[slot.order.index(option)], strict=True):
                canvas[row], masked[row] = self.letters.ids[letter], False
        return canvas, masked

    def _second(self, state: State, slot: Slot, canvas: list[int], masked: list[bool], first: Floats) -> Floats:
        """[letters, letters] log probabilities of both letters of a wide slot, its first one tried in every way."""
        row, behind = slot.rows
        used = sorted({place[0] for place in slot.places})
        tried = []
        for letter in used:
            filled, open_ = list(canvas), list(masked)
            filled[row], open_[row] = self.letters.ids[letter], False
            tried.append((filled, open_))
        logits = self._forward(state, [], tried, [(i, behind) for i in range(len(used))])
        return _joint(first, used, [self._letters(row)[0] for row in logits])

    @torch.inference_mode()
    def read_causal(self, state: State, causal: Sequence[int], sheet: Sheet) -> Reading:
        """A sheet of one question by next-token logits, for models that cannot denoise. Extends `state`."""
        (slot,) = sheet.slots
        number = list(sheet.canvas[: slot.rows[0]])
        log_p, mass = self._letters(self._forward(state, [*causal, *number], [], [])[-1])
        if len(slot.rows) == 2:
            used = sorted({place[0] for place in slot.places})
            steps = [self._forward(state.clone(), [self.letters.ids[letter]], [], [])[-1] for letter in used]
            log_p = _joint(log_p, used, [self._letters(step)[0] for step in steps])
        return _by_option(slot, log_p, mass)

    def _letters(self, logits: Tensor) -> tuple[Floats, float]:
        """[Y] -> ([letters] log probabilities among all tokens, the share of all letters)."""
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.mask_id is not None:
            wide[self.mask_id] = float("-inf")
        log_p = torch.log_softmax(wide, -1).index_select(0, self._ids).to(torch.float64)
        if log_p.isnan().any():
            raise NumericError("a forward gave logits that are no numbers; check the weights")
        return log_p.cpu().numpy(), float(log_p.exp().sum())

    def _forward(
        self,
        state: State,
        causal: Sequence[int],
        canvases: Sequence[tuple[list[int], list[bool]]],
        wanted: Sequence[tuple[int, int]],
    ) -> Tensor:
        """One forward. wanted: (canvas, row) of each; without canvases the last causal row. -> logits [M, Y]."""
        self._check()
        start, mask = state.lengths[0], -1 if self.mask_id is None else self.mask_id
        tokens = [*causal]
        for canvas, masked in canvases:
            tokens += [mask if hidden else token for token, hidden in zip(canvas, masked, strict=True)]
        lengths = [len(canvas) for canvas, _ in canvases]
        work = Work(
            torch.tensor(tokens, device=self._device),
            Segments([len(causal)], self._device),
            [start],
            Segments(lengths, self._device) if lengths else None,
            [0] * len(lengths) if lengths else None,
            [start + len(causal)] * len(lengths) if lengths else None,
        )
        hidden, _ = self.model(work, state)
        self.cost.forwards += 1
        self.cost.rows += len(tokens)
        ends = len(causal) + np.concatenate([[0], np.cumsum(lengths)]).astype(int)
        flat = [int(ends[canvas]) + row for canvas, row in wanted] if lengths else [len(causal) - 1]
        return self.model.head(hidden[flat])


def _joint(first: Floats, used: Sequence[int], second: Sequence[Floats]) -> Floats:
    """log p(first) + log p(second | first), [letters, letters]; -inf for first letters that no label has.

    The second is conditioned on being a letter at all: a share that leaks elsewhere there says nothing of the first.
    """
    whole = np.full((len(first), len(first)), -np.inf)
    for letter, log_p in zip(used, second, strict=True):
        whole[letter] = first[letter] + log_p - np.logaddexp.reduce(log_p)
    return whole


def _by_option(slot: Slot, log_p: Floats, letters_mass: float) -> Reading:
    """log_p: [letters] or [letters, letters]. The mass is that of the labels in use, or of all letters where two."""
    shown = np.array([log_p[place] for place in slot.places])
    found = np.empty(len(shown))
    found[list(slot.order)] = shown
    total = log_total(found)
    mass = float(np.exp(total)) if len(slot.rows) == 1 else letters_mass
    return Reading(found - total, min(1.0, mass))


def averaged(readings: Sequence[Reading]) -> Reading:
    """One reading out of several of the same options in other orders: the geometric mean, renormalised."""
    if len(readings) == 1:
        return readings[0]
    mean = np.mean([np.maximum(r.log_p, -1e4) for r in readings], axis=0)
    return Reading(mean - log_total(mean), float(np.mean([r.mass for r in readings])))


@dataclass
class Path:
    """How a joint canvas was filled. order: what each pass revealed. at: each slot's reading at that pass; first: at
    the first pass."""

    order: list[list[int]] = field(default_factory=list)
    at: dict[int, Reading] = field(default_factory=dict)
    first: list[Reading] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)


def denoise(
    read: Callable[[Mapping[int, int], Sequence[int]], list[Reading]],
    num_slots: int,
    max_passes: int,
    threshold: float,
) -> Path:
    """Fills slots pass by pass, the surest first.

    read: (revealed slot -> option, slots wanted) -> their readings. A pass reveals every slot whose likeliest option
    exceeds `threshold`, at least the surest one, and as many as are needed to end within `max_passes`.
    """
    path = Path()
    while len(path.known) < num_slots:
        left = [slot for slot in range(num_slots) if slot not in path.known]
        readings = read(path.known, left)
        if not path.order:
            path.first = readings
        sure = [float(np.exp(reading.log_p.max())) for reading in readings]
        passes_left = max_passes - len(path.order)
        least = -(-len(left) // passes_left)
        ranked = sorted(range(len(left)), key=lambda i: (-sure[i], left[i]))
        chosen = [i for place, i in enumerate(ranked) if place < least or sure[i] > threshold]
        path.order.append([left[i] for i in chosen])
        for i in chosen:
            path.at[left[i]] = readings[i]
            path.known[left[i]] = int(np.argmax(readings[i].log_p))
    return path
