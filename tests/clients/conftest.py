"""What the suites share. They run in their clients' environments: nothing of this project can be imported here."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

TOOLS = Path(__file__).parents[2] / "src" / "fourleaf" / "models" / "cabin" / "tools.json"


@pytest.fixture(scope="session")
def url() -> str:
    """A server of the bundled model, started by `tests/serve/test_client_suites.py`."""
    return os.environ["FOURLEAF_URL"]


@pytest.fixture(scope="session")
def tools() -> list[dict[str, Any]]:
    """The bundled model's tools, in OpenAI's format."""
    return json.loads(TOOLS.read_text(encoding="utf-8"))


@pytest.fixture
def set_window() -> Callable:
    """One of the tools as a program has it: a function, of whose types a client makes a schema. It notes calls."""
    from pydantic import Field  # which not every client has

    def set_window(
        window: Literal["driver", "passenger", "rear_left", "rear_right", "all"],
        position: Annotated[int, Field(ge=0, le=100)],
    ) -> str:
        """Opens a window, 100, or closes it, 0."""
        calls.append((window, position))
        return json.dumps({"ok": True})

    calls: list[tuple[str, int]] = []
    set_window.calls = calls  # type: ignore[attr-defined]
    return set_window
