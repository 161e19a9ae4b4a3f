"""What a run that is gone on with keeps of how it was started, where it is not told otherwise.

`kept`: the settings in the run's checkpoint (`RunFolder.settings`), None for a new run. A checkpoint that did not keep
one of them was written when there was no choice: the run has what every run had then.
"""

from __future__ import annotations

from typing import Any

from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.train.config import Stage

Kept = dict[str, Any] | None


def own_budget(kept: Kept, default_minutes: float) -> tuple[float | None, int | None]:
    """(minutes, steps) of the run, or the default."""
    return (kept["minutes"], kept["steps"]) if kept else (default_minutes, None)


def own_stages(kept: Kept, fresh: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The run's stages; `fresh` for a new one."""
    if not kept:
        return fresh
    return tuple(Stage(**stage | {"curriculum": tuple(map(tuple, stage["curriculum"]))}) for stage in kept["stages"])


def own_noise(kept: Kept, fresh: NoiseConfig) -> NoiseConfig:
    """The run's noise; `fresh` for a new one. A run from before a setting of noise goes on without it."""
    return fresh if kept is None else NoiseConfig(**kept.get("noise", {}))


def own_share(kept: Kept, name: str, given: float | None) -> float:
    """The share that is given, or else the run's; 0 for a new one."""
    return given if given is not None else (kept or {}).get(name, 0.0)
