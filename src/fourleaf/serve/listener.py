"""Listening on an address, and who may."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import sys

import uvicorn
from fastapi import FastAPI

from fourleaf.errors import ConfigError

# A client that holds its connection open does not keep Ctrl-C waiting.
SHUTDOWN_SECONDS = 3


def check_host(host: str, api_key: str | None) -> None:
    """Raises ConfigError where the address is open to other machines and no key is set, or the key cannot be one."""
    if api_key is not None and not re.fullmatch("[!-~]+", api_key):
        raise ConfigError(
            "the API key must be printable ASCII without spaces, and not empty, or no client could send it: "
            "change --api-key or FOURLEAF_API_KEY"
        )
    if api_key is None and not _is_loopback(host):
        raise ConfigError(
            f"--host {host} lets other machines in: set a key with --api-key or FOURLEAF_API_KEY, or use 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may resolve to anything
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address; nobody can connect before `run`. Raises ConfigError where that is impossible."""
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


def run(app: FastAPI, bound: socket.socket, *, verbose: bool = False) -> None:
    """Serves until interrupted. verbose: logs each request, and the fields in it that have no effect."""
    if verbose:
        logging.basicConfig(format="%(levelname)s:     %(message)s")
        logging.getLogger("fourleaf").setLevel(logging.DEBUG)
    config = uvicorn.Config(
        app,
        log_level="info" if verbose else "warning",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[bound])
