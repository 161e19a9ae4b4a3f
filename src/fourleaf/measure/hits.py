"""What a shared prefix saves: requests that begin alike, one after another, each beside itself on an empty cache.

Three requests share a prefix and differ behind it. The first finds nothing. The second discovers where their texts
part: it begins at the last snapshot before that, and leaves one at the end of the last page that both have in common
(the fork). The third begins there. Whatever each of them finds, its tokens are to be those of its cold twin.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import ConfigError
from fourleaf.measure.evaluate import examples_of
from fourleaf.measure.timing import PASS, PREFILL, Forward, Timed, TimedCore, core_of, timed
from fourleaf.tasks.cabin.schema import messages

ROLES = ("first", "fork", "hit")
MODES = ("ar", "diffuse")
MAX_TOKENS = 64
_SET = "patterns"


@dataclass
class Served:
    """Requests of one mode and role. rows: of each prefill; suffix: tokens behind the shared prefix. Seconds, medians:
    of the prefill, of its cold twin's, until the first block is whole (of `ar`: its first token), and of the passes in
    between at what passes cost cold. same: answers with the tokens of their twins, of `count`."""

    mode: str
    role: str
    rows: list[int] = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)
    cold_prefill: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)
    same: int = 0

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def share(self) -> float:
        """Of the cold prefill's time, what this one takes."""
        return median(self.prefill) / median(self.cold_prefill)

    @property
    def first_over_passes(self) -> float:
        """What the first block took behind the prefill, in its own passes at their cold cost; 0 where it needs none."""
        pairs = zip(self.first, self.prefill, self.passes, strict=True)
        behind = [(first - prefill) / passes for first, prefill, passes in pairs if passes]
        return median(behind) if behind else 0.0

    @property
    def rows_beyond_suffix(self) -> int:
        """The most rows that a prefill ran of the shared prefix."""
        return max(rows - suffix for rows, suffix in zip(self.rows, self.suffix, strict=True))

    def document(self) -> dict[str, Any]:
        derived = {"share": self.share, "first_over_passes": self.first_over_passes}
        return {**derived, "rows_beyond_suffix": self.rows_beyond_suffix, "count": self.count, **asdict(self)}


def run(
    engine: Engine, num_tokens: int, count: int, progress: Callable[[int, int, str], None] | None = None
) -> list[Served]:
    """`count` shared prefixes of `num_tokens` tokens, three requests each, in every mode that the model has.

    Raises ConfigError for a prefix that leaves no room in the model's context.
    """
    modes = MODES if engine.mask_id is not None else MODES[:1]
    found = {(mode, role): Served(mode, role) for mode in modes for role in ROLES}
    warm, cold = TimedCore(engine.model, reuse=True), core_of(engine)
    rendered = [engine.chat.render(messages(example)) for example in examples_of(_SET)]
    for index in range(count):
        # Each mode with texts of its own, or the second one found what the first has left.
        for nth, mode in enumerate(modes):
            prefix, suffixes = _texts(engine, rendered, num_tokens, index * len(modes) + nth)
            params = GenerateParams(mode=mode, max_tokens=MAX_TOKENS)
            for role, suffix in zip(ROLES, suffixes, strict=True):
                mine, twin = (timed(engine, prefix + suffix, params, core) for core in (warm, cold))
                _add(found[mode, role], mine, twin, len(suffix), engine.model.config.block_size or 0)
        if progress is not None:
            progress(index + 1, count, f"{num_tokens} shared tokens")
    return list(found.values())


def _texts(engine: Engine, rendered: list[list[int]], num_tokens: int, index: int) -> tuple[list[int], list[list[int]]]:
    """The prefix, which is earlier requests one after another, others for each index; and three more requests."""
    begin = 7 * index % len(rendered)
    turned = rendered[begin:] + rendered[:begin]
    suffixes = turned[: len(ROLES)]
    prefix = list(itertools.chain.from_iterable(turned[len(ROLES) :]))
    most = min(len(prefix), engine.max_context - MAX_TOKENS - max(map(len, suffixes)))
    if not 1 <= num_tokens <= most:
        raise ConfigError(f"a prefix has 1 to {most} tokens here, not {num_tokens}")
    return prefix[:num_tokens], suffixes


def _add(served: Served, mine: Timed, twin: Timed, suffix: int, block_size: int) -> None:
    served.rows.append(_prefill_rows(mine, block_size))
    served.suffix.append(suffix)
    served.prefill.append(mine.prefill_seconds)
    served.cold_prefill.append(twin.prefill_seconds)
    passes = _passes_alone(mine)
    served.first.append(mine.prefill_seconds + sum(f.seconds for f in passes))
    served.same += mine.tokens == twin.tokens
    cost = [f.seconds for f in twin.forwards if f.kind.startswith(PASS)]
    served.passes.append(len(passes) * median(cost) if cost else 0.0)


def _prefill_rows(one: Timed, block_size: int) -> int:
    """Causal rows; in `diffuse` the last piece carries a canvas along."""
    rows = sum(f.rows for f in one.forwards if f.kind.startswith(PREFILL))
    carried = any(f.kind == f"{PREFILL} + {PASS}" for f in one.forwards)
    return rows - min(block_size, MAX_TOKENS) * carried


def _passes_alone(one: Timed) -> list[Forward]:
    """Of the first block, the passes behind the prefill: its first one rode on that."""
    num = max(0, one.passes_per_block[0] - 1) if one.passes_per_block else 0
    return [f for f in one.forwards if not f.kind.startswith(PREFILL)][:num]
