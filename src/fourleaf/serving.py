"""The command that serves: flags, environment and a file, all with the same names."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fourleaf.conversions import Threads
from fourleaf.errors import ConfigError

if TYPE_CHECKING:
    from fourleaf.serve.models import Loader
    from fourleaf.serve.settings import Settings
    from fourleaf.serve.tracing import Tracing


class Log(StrEnum):
    """What is written about requests."""

    none = "none"
    requests = "requests"
    debug = "debug"


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """The file's values become defaults: a flag or the environment goes before them."""
    if path is not None:
        from fourleaf.serve.settings import read_config

        known = {name for option in context.command.params if (name := option.name) is not None} - {"config"}
        context.default_map = {**(context.default_map or {}), **read_config(path, known)}
    return path


def _option(name: str, text: str, **more: Any) -> Any:
    """An option that the environment can set, too."""
    return typer.Option(envvar=f"FOURLEAF_{name}", help=text, **more)


Host = Annotated[str, _option("HOST", "Address to listen on; others than this machine's own want a key.")]
Port = Annotated[int, _option("PORT", "0 picks a free one.", min=0, max=65535)]
Models = Annotated[
    list[str] | None, _option("MODEL", "Checkpoint folder, or NAME=FOLDER; several times for several models.")
]
Keys = Annotated[list[str] | None, _option("API_KEY", "Key that clients must send; several times for several keys.")]
WithoutKey = Annotated[bool, _option("WITHOUT_KEY", "Serve whoever asks, on any host.")]
MaxWaiting = Annotated[int, _option("MAX_WAITING", "Requests in line before the next is told to come back.")]
MaxBody = Annotated[int, _option("MAX_BODY_BYTES", "Limit of a request's body.")]
Receive = Annotated[float, _option("RECEIVE_SECONDS", "How long a client may take to send a request.")]
Timeout = Annotated[float | None, _option("TIMEOUT", "Seconds that a request may take.")]
Drain = Annotated[float, _option("DRAIN_SECONDS", "How long running requests may go on at the end.")]
Ping = Annotated[float, _option("PING_SECONDS", "Between comments that keep a stream open.")]
Manage = Annotated[bool, _option("MANAGE", "Let clients load and unload the named models.")]
Trace = Annotated[bool, _option("TRACE", "Send OpenTelemetry spans; OTEL_EXPORTER_OTLP_ENDPOINT says where.")]
LogWhat = Annotated[Log, _option("LOG", "none; requests: a JSON line each; debug: more than that.")]
Config = Annotated[Path | None, _option("CONFIG", "TOML file of these settings.", callback=_read_config, is_eager=True)]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    model: Models = None,
    threads: Threads = None,
    api_key: Keys = None,
    without_key: WithoutKey = False,
    max_waiting: MaxWaiting = 64,
    max_body_bytes: MaxBody = 4 * 2**20,
    receive_seconds: Receive = 60.0,
    timeout: Timeout = None,
    drain_seconds: Drain = 10.0,
    ping_seconds: Ping = 10.0,
    manage: Manage = True,
    log: LogWhat = Log.requests,
    trace: Trace = False,
    config: Config = None,
) -> None:
    """Serve models behind the APIs of OpenAI, Anthropic and System One.

    Example: fourleaf serve --model cabin=runs/cabin/model --port 9000
    """
    try:
        from fourleaf.serve import listener
        from fourleaf.serve.settings import Settings
    except ModuleNotFoundError as error:
        raise ConfigError(f"`fourleaf serve` needs {error.name}: pip install 'fourleaf[serve]'") from None

    keys = tuple(api_key or ())
    settings = Settings(
        api_keys=keys,
        hosts=listener.names(host, keys),
        max_waiting=max_waiting,
        max_body_bytes=max_body_bytes,
        receive_seconds=receive_seconds,
        timeout=timeout,
        drain_seconds=drain_seconds,
        ping_seconds=ping_seconds,
        can_manage=manage,
    )
    listener.check_host(host, settings.api_keys, is_open=without_key)
    loaders = _loaders(model or [], threads)
    with listener.bind(host, port) as bound:
        listener.set_up_log(log)
        _run(loaders, settings, bound, _tracing() if trace else None)


def _tracing() -> Tracing:
    try:
        from fourleaf.serve.tracing import exporting
    except ModuleNotFoundError as error:
        raise ConfigError(f"`fourleaf serve --trace` needs {error.name}: pip install 'fourleaf[otel]'") from None
    return exporting()


def _run(loaders: dict[str, Loader], settings: Settings, bound: socket, tracing: Tracing | None) -> None:
    """Serves until told to stop. Raises what the models could not be loaded for, where none could."""
    from fourleaf.serve import listener
    from fourleaf.serve.app import create_app
    from fourleaf.serve.models import Models

    failures: list[Exception] = []
    models = Models(loaders, max_waiting=settings.max_waiting)
    bound.listen()  # from here on a connection waits for the server instead of being refused
    running = listener.Listener(create_app(models, settings=settings, tracing=tracing), settings.drain_seconds)

    def loaded(name: str) -> None:
        url = listener.url(bound)
        print(f"{name} is served on {url}/v1 with a page on {url} (Ctrl-C ends)", file=sys.stderr)

    def failed(error: Exception) -> None:
        if not models.served():  # nothing is left to serve
            failures.append(error)
            running.stop()

    models.on_loaded, models.on_failure = loaded, failed
    running.run(sockets=[bound])
    if failures:
        raise failures[0]


def _loaders(given: list[str], threads: int | None) -> dict[str, Loader]:
    """NAME=FOLDER or FOLDER -> a loader each, by name; the bundled model where none is given."""
    from fourleaf.engine.engine import bundled_path

    folders: dict[str, Path] = {}
    for text in given:
        name, mark, rest = text.partition("=")
        path = Path(rest) if mark and not Path(text).exists() else Path(text)
        name = name if mark and not Path(text).exists() else path.resolve().name
        if name in folders:
            raise ConfigError(f"two models are called {name!r}: name one of them otherwise, --model NAME={path}")
        folders[name] = path
    if not folders:
        folders = {bundled_path().name: bundled_path()}
    return {name: _loader(name, path, threads) for name, path in folders.items()}


def _loader(name: str, path: Path, threads: int | None) -> Loader:
    def load() -> tuple[Any, Any]:
        from fourleaf.checkpoint.tools import fixed_tools
        from fourleaf.engine.engine import Engine

        engine = Engine.load(path, num_threads=threads)
        engine.name = name
        return engine, fixed_tools(path)

    return load
