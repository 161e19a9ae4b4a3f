"""How a server behaves, as flags, environment or a file say."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourleaf.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """Limits and keys of one server.

    api_keys         keys of which each request must carry one; empty: none is wanted
    max_waiting      requests that may wait for a model before the next is told to come back (429)
    max_body_bytes   of a request's body
    receive_seconds  how long a client may take to send a request's head, and then its body
    timeout          seconds that a request may take, waiting included; None: any number
    drain_seconds    how long running requests may go on when the server is told to stop, or a model is unloaded
    ping_seconds     between the comment lines that keep a stream open while nothing is committed
    hosts            names that a client may call the server by; empty: any
    can_manage       whether /v1/models/load and /unload are there
    """

    api_keys: tuple[str, ...] = ()
    max_waiting: int = 64
    max_body_bytes: int = 4 * 2**20
    receive_seconds: float = 60.0
    timeout: float | None = None
    drain_seconds: float = 10.0
    ping_seconds: float = 10.0
    hosts: tuple[str, ...] = ()
    can_manage: bool = True

    def __post_init__(self) -> None:
        for key in self.api_keys:
            if not re.fullmatch("[!-~]+", key):
                raise ConfigError(
                    "an API key must be printable ASCII without spaces, and not empty, or no client could send it: "
                    "change --api-key or FOURLEAF_API_KEY"
                )
        least = {"max_waiting": 1, "max_body_bytes": 1, "drain_seconds": 0, "ping_seconds": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, not {getattr(self, name)}")
        for name in ("timeout", "receive_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and seconds <= 0:
                raise ConfigError(f"{name} must be above 0 seconds, not {seconds}")


def read_config(path: Path, known: set[str]) -> dict[str, Any]:
    """A TOML file of settings, named as the flags are, with - or _. Raises ConfigError, for unknown names too."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the settings in {path}: {error}") from None
    found = {name.replace("-", "_"): value for name, value in table.items()}
    if unknown := sorted(set(found) - known):
        names = ", ".join(sorted(name.replace("_", "-") for name in known))
        raise ConfigError(f"{path} sets {unknown[0]!r}, which is no setting; these are: {names}")
    return found
