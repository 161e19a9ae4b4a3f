"""Listening on an address, and who may; serving until told to stop, and then letting what runs come to its end."""

from __future__ import annotations

import ipaddress
import logging
import socket
import sys
from collections.abc import Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI

from fourleaf.checkpoint.heap import limit_arenas
from fourleaf.errors import ConfigError
from fourleaf.serve.connection import Connection

MAX_HEADER_BYTES = 64 * 2**10
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


def check_host(host: str, api_keys: Sequence[str], *, is_open: bool = False) -> None:
    """Raises ConfigError where the address is open to other machines, no key is set, and `is_open` does not say that
    this is meant."""
    if not api_keys and not is_open and not _is_loopback(host):
        raise ConfigError(
            f"--host {host} lets other machines in: set a key with --api-key or FOURLEAF_API_KEY, or use 127.0.0.1; "
            "--without-key serves whoever asks"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may resolve to anything
        return False


def names(host: str, api_keys: Sequence[str]) -> tuple[str, ...]:
    """What a server may be called (`Settings.hosts`): one on loopback that needs no key, by loopback's names alone."""
    return LOOPBACK_NAMES if not api_keys and _is_loopback(host) else ()


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address; nobody can connect before it listens. Raises ConfigError where it cannot be."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(f"--host {host} --port {port} is no address here: {error}") from None
    bound = socket.socket(family, kind, protocol)
    if sys.platform != "win32":  # there it would allow two servers on one port
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port") from None
    return bound


def url(bound: socket.socket) -> str:
    """Where to reach a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def set_up_log(log: str) -> None:
    """none: warnings alone. requests: one line of JSON each, on stderr, without what was said; files of the page only
    where something is wrong. debug: more, such as the names of fields that had no effect."""
    logging.basicConfig(format="%(levelname)s: %(name)s: %(message)s")
    lines = logging.StreamHandler()
    lines.setFormatter(logging.Formatter("%(message)s"))
    requests = logging.getLogger("fourleaf.requests")
    for handler in list(requests.handlers):
        requests.removeHandler(handler)
    requests.addHandler(lines)
    requests.propagate = False
    requests.setLevel({"none": logging.WARNING, "debug": logging.DEBUG}.get(log, logging.INFO))
    if log == "debug":
        logging.getLogger("fourleaf").setLevel(logging.DEBUG)


class Listener(uvicorn.Server):
    """Serves an app until SIGINT, SIGTERM or `stop`; then takes nothing new and drains. A second signal ends it."""

    def __init__(self, app: FastAPI, drain_seconds: float) -> None:
        limit_arenas()
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                log_level="warning",
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_graceful_shutdown=max(1, round(drain_seconds)),
            )
        )
        self._state = app.state.server

    def stop(self) -> None:
        """From any thread."""
        self._state.draining = True
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal's."""
        self._state.draining = True
        super().handle_exit(sig, frame)
