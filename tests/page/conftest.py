"""The page in Debian's Chromium, against a server that really listens. Without the browser these tests are skipped."""

import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fourleaf.checkpoint.tools import fixed_tools
from fourleaf.engine import Engine, bundled_path
from fourleaf.serve import listener
from fourleaf.serve.app import create_app
from fourleaf.tasks.cabin.schema import TOOLS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE = 30_000  # ms; a shared machine may be slow
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module: playwright's event loop may not outlive it, or tests that run their own loop would fail."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        # Each launch has a new, empty profile.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@contextmanager
def listening(app: FastAPI, port: int = 0) -> Generator[str]:
    """The URL of an app that really listens, in a thread of this process."""
    with listener.bind("127.0.0.1", port) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield listener.url(bound)
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def listen() -> Callable:
    """`with listen(app, port) as url:` for tests that end and start servers themselves."""
    return listening


@pytest.fixture(scope="module")
def cabin_url() -> Iterator[str]:
    """A server of the bundled model."""
    path = bundled_path()
    with listening(create_app(Engine.load(path, num_threads=1), fixed_tools=fixed_tools(path))) as url:
        yield url


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves an engine until the test ends; gives the server's URL."""
    with ExitStack() as stack:

        def start(engine, **options) -> str:
            return stack.enter_context(listening(create_app(engine, **{"fixed_tools": TOOLS, **options})))

        yield start


@pytest.fixture
def visit(browser) -> Iterator[Callable[..., Page]]:
    """Opens the page of a server. The test fails where one of its scripts failed or anything outside was asked for."""
    faults: list[str] = []
    with ExitStack() as stack:

        def go(url: str, tab: str = "watch", *, size: tuple[int, int] = (1280, 900), **options) -> Page:
            context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on(
                "request", lambda request: request.url.startswith((url, "data:", "blob:")) or faults.append(request.url)
            )
            page.goto(f"{url}/#{tab}")
            return page

        yield go
    assert faults == []
