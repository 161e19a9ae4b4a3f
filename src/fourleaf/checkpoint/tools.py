"""The tools that a checkpoint has in its weights, as its folder says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fourleaf.checkpoint.listing import TOOLS
from fourleaf.errors import CheckpointError


def fixed_tools(checkpoint: Path) -> list[dict[str, Any]] | None:
    """The tools in a checkpoint's weights, None where it reads them from its prompt. Raises CheckpointError."""
    path = checkpoint / TOOLS
    if not path.is_file():
        return None
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
        named = isinstance(tools, list) and all(isinstance(tool["function"]["name"], str) for tool in tools)
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise CheckpointError(f"{path} is no list of tools in the OpenAI format: {error!r}") from error
    if not named:
        raise CheckpointError(f"{path} is no list of tools in the OpenAI format")
    return tools
