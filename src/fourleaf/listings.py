"""The commands that look at what there is: checkpoints, one of them, this machine. Parse, call, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fourleaf.conversions import AsJson


def ls(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Where to look; the bundled models, . and ./models by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List checkpoints. Example: fourleaf ls runs/cabin --json"""
    from fourleaf.checkpoint.listing import describe, find
    from fourleaf.engine.engine import bundled_path
    from fourleaf.errors import FourleafError

    found, places = [], folders or [bundled_path().parent, Path(), Path("models")]
    for path in find(places):
        try:
            found.append(describe(path))
        except FourleafError as error:  # listed all the same: whoever looks for it should see why it is no good
            found.append({"name": path.name, "path": str(path), "problem": str(error)})
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        print(f"no checkpoint in {', '.join(map(str, places))}", file=sys.stderr)
    for one in found:
        kind = "diffusion" if one.get("block_diffusion") else "ar" if "block_diffusion" in one else "?"
        size = f"{one.get('bytes', 0) / 1e6:.0f} MB"
        print(f"{one['name']:<28} {one.get('family') or '?':<14} {kind:<10} {size:>9}  {one['path']}")


def show(
    folder: Annotated[Path | None, typer.Argument(help="Checkpoint folder; the bundled model by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a checkpoint is, without loading it. Example: fourleaf show models/SmolLM2-135M-Instruct"""
    from fourleaf.checkpoint.listing import describe
    from fourleaf.engine.engine import bundled_path

    told = describe(folder or bundled_path())
    if as_json:
        print(json.dumps(told, indent=2))
        return
    for name, value in told.items():
        if value is not None:
            print(f"{name:<16} {value}")


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine has, and check on a small random model that the engine works here. Takes seconds.

    Example: fourleaf doctor --json
    """
    from fourleaf.measure.doctor import main_doctor

    if not main_doctor(as_json=as_json, out=sys.stdout):
        raise typer.Exit(1)
