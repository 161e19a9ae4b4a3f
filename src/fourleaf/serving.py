"""The command that serves: flags, environment and a file, all with the same names."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fourleaf.conversions import Threads
from fourleaf.errors import ConfigError

if TYPE_CHECKING:
    from fourleaf.serve.models import Loader


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


def serve(
    host: Annotated[
        str,
        typer.Option(envvar="FOURLEAF_HOST", help="Address to listen on; others than this machine's own want a key."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="FOURLEAF_PORT", min=0, max=65535, help="0 picks a free one.")] = 8000,
    model: Annotated[
        list[str] | None,
        typer.Option(
            envvar="FOURLEAF_MODEL", help="Checkpoint folder, or NAME=FOLDER; several times for several models."
        ),
    ] = None,
    threads: Threads = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="FOURLEAF_API_KEY", help="Key that clients must send; several times for several keys."),
    ] = None,
    without_key: Annotated[
        bool, typer.Option("--without-key", envvar="FOURLEAF_WITHOUT_KEY", help="Serve whoever asks, on any host.")
    ] = False,
    max_waiting: Annotated[
        int, typer.Option(envvar="FOURLEAF_MAX_WAITING", help="Requests in line before the next is told to come back.")
    ] = 64,
    max_body_bytes: Annotated[
        int, typer.Option(envvar="FOURLEAF_MAX_BODY_BYTES", help="Limit of a request's body.")
    ] = 4 * 2**20,
    timeout: Annotated[
        float | None,
        typer.Option(envvar="FOURLEAF_TIMEOUT", help="Seconds that a request may take."),
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(envvar="FOURLEAF_DRAIN_SECONDS", help="How long running requests may go on at the end.")
    ] = 10.0,
    ping_seconds: Annotated[
        float, typer.Option(envvar="FOURLEAF_PING_SECONDS", help="Between comments that keep a stream open.")
    ] = 10.0,
    manage: Annotated[
        bool, typer.Option(envvar="FOURLEAF_MANAGE", help="Let clients load and unload the named models.")
    ] = True,
    log: Annotated[
        Log, typer.Option(envvar="FOURLEAF_LOG", help="none; requests: a JSON line each; debug: more than that.")
    ] = Log.requests,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="FOURLEAF_CONFIG", callback=_read_config, is_eager=True, help="TOML file of these settings."
        ),
    ] = None,
) -> None:
    """Serve models behind the APIs of OpenAI, Anthropic and System One.

    Example: fourleaf serve --model cabin=runs/cabin/model --port 9000
    """
    try:
        from fourleaf.serve import listener
        from fourleaf.serve.app import create_app
        from fourleaf.serve.models import Models
        from fourleaf.serve.settings import Settings
    except ModuleNotFoundError as error:
        raise ConfigError(f"`fourleaf serve` needs {error.name}: pip install 'fourleaf[serve]'") from None

    settings = Settings(
        api_keys=tuple(api_key or ()),
        max_waiting=max_waiting,
        max_body_bytes=max_body_bytes,
        timeout=timeout,
        drain_seconds=drain_seconds,
        ping_seconds=ping_seconds,
        can_manage=manage,
    )
    listener.check_host(host, settings.api_keys, is_open=without_key)
    failures: list[Exception] = []
    models = Models(_loaders(model or [], threads), max_waiting=max_waiting)
    with listener.bind(host, port) as bound:
        listener.set_up_log(log)
        bound.listen()
        running = listener.Listener(create_app(models, settings=settings), settings.drain_seconds)

        def failed(error: Exception) -> None:
            if not models.served():  # nothing is left to serve
                failures.append(error)
                running.stop()

        models.on_failure = failed
        models.on_loaded = lambda name: print(
            f"{name} is served on {listener.url(bound)}/v1 (Ctrl-C ends)", file=sys.stderr
        )
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
        from fourleaf.engine.engine import Engine
        from fourleaf.serve.tools import fixed_tools

        engine = Engine.load(path, num_threads=threads)
        engine.name = name
        return engine, fixed_tools(path)

    return load
