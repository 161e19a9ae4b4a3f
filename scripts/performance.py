"""Writes the figures of `fourleaf bench --json FILE` into docs/performance.md, each table between its two markers.

    fourleaf bench --set patterns --set copying --set random --profile --verify 1000 --json docs/runs/bench.json
    python scripts/performance.py docs/runs/bench.json

`make figures` is both.

Tables whose figures the file lacks stay as they are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fourleaf.measure.marks import filled, markdown

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
Found = dict[str, Any]


def interval(found: Found, digits: int = 2, times: float = 1.0, unit: str = "") -> str:
    """3.12 (2.98-3.27)"""
    value, low, high = (f"{times * found[key]:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value}{unit} ({low}-{high})"


def number(value: float | None, digits: int = 2) -> str:
    """Rounded; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def machine(found: Found) -> str:
    """What was measured, and on what."""
    made = f"weights {found['weights_sha256'][:12]}, {found['parameters']:,} parameters, {found['dtype']}"
    where = f"{found['processor']}, threads {found['threads']}, torch {found['torch']}"
    load = f"load {found['load'][0]:g} before" if found["load"] else "load unknown"
    prompts = ", ".join(f"{one['prompts']} prompts of {name}" for name, one in found["sets"].items())
    return f"{found['model']} ({made}); {where}; {load}; threshold {found['threshold']:g}; {prompts}."


def speeds(found: Found) -> str:
    """A line for each set and arm."""
    rows = []
    for name, one in found["sets"].items():
        ups = one["speed"]["speed_ups"]
        for arm, speed in one["speed"]["arms"].items():
            up, other = (ups.get(f"{arm} against {base}") for base in ("ar", "transformers"))
            same = speed["same_as_ar"]
            quality = f"{speed['nats']['value']:.2f} nats a token" if speed["nats"] else "-"
            rows.append(
                [
                    name,
                    arm,
                    "1" if arm == "ar" else interval(up["with_prefill"]) if up else "-",
                    "1" if arm == "ar" else interval(up["after_prefill"]) if up else "-",
                    interval(other["with_prefill"]) if other else "-",
                    interval(speed["exact"], 0, 100, "%") if speed["exact"] else quality,
                    "-" if same is None else f"{same} of {one['prompts']}",
                    *(number(speed[key]) for key in ("tpf", "break_even_tpf", "rows_per_token")),
                    f"{100 * speed['stood']:.0f}%" if speed.get("stood") else "-",
                ]
            )
    head = ["set", "arm", "against ar", "after prefill", "against transformers", "right", "tokens as ar", "TPF"]
    return markdown([*head, "break-even", "rows a token", "proposals stood"], rows)


def forwards(found: Found) -> str:
    """Of the first set: kinds of forwards, those that took longest in all first."""
    one = next(iter(found["sets"].values()))["speed"]
    step = one["arms"]["ar"]["forward_ms"]
    rows = [
        [
            kind,
            *(f"{cost[key]:.2f}" for key in ("mean_ms", "median_ms")),
            f"{cost['mean_ms'] / step:.2f}",
            f"{100 * cost['model_ms'] / cost['mean_ms']:.0f}%",
            f"{cost['rows']:.0f}",
            f"{cost['count']}",
        ]
        for kind, cost in list(one["forwards"].items())[:10]
    ]
    return markdown(["forward", "mean ms", "median ms", "in ar steps", "in the model", "rows", "times"], rows)


def profiles(found: Found) -> str:
    """What the model does in each kind of forward."""
    rows = []
    for part in found["profile"]:
        matrix, other = part["matrix_ms"], part["in_operations_ms"] - part["matrix_ms"]
        shares = (matrix / part["profiled_ms"], other / part["profiled_ms"], part["python_share"])
        calls = sum(count for _, _, count in part["operations"])
        longest = ", ".join(
            f"{name.removeprefix('aten::')} {100 * ms / part['in_operations_ms']:.0f}%"
            for name, ms, _ in part["operations"][:4]
        )
        percents = [f"{100 * share:.0f}%" for share in shares]
        rows.append([part["kind"], f"{part['alone_ms']:.2f}", f"{calls:.0f}", *percents, longest])
    head = ["forward", "ms alone", "operations", "matrix products", "other operations", "between", "of the operations"]
    return markdown(head, rows)


def loads(found: Found) -> str:
    """A line for each set, number of clients and arm."""
    rows = []
    for name, one in found["sets"].items():
        for clients, arms in one["goodput"].items():
            for arm, load in arms.items():
                base, alone = arms["ar"]["goodput"], one["goodput"]["1"][arm]["goodput"]
                waits = (load["first_block_p50_ms"], load["first_block_p95_ms"])
                rows.append(
                    [
                        *(name, clients, arm, f"{load['goodput']:.0f}"),
                        *(number(load["goodput"] / other if other else None) for other in (base, alone)),
                        *(number(wait, 0) for wait in waits),
                        *(f"{load['rows_per_forward']:.1f}", f"{100 * load['model_share']:.0f}%"),
                    ]
                )
    head = ["set", "at once", "arm", "tokens/s", "against ar", "against one", "first block p50 ms", "p95 ms"]
    return markdown([*head, "rows a forward", "in the model"], rows)


def losses(found: Found) -> str:
    """A line for each set and arm that was held against `ar`."""
    rows = [
        [
            *(name, each["arm"], f"{each['equal']:,} of {each['prompts']:,}", f"{each['ties']}"),
            *(f"{len(each['differences']) - each['ties']}", f"{each['positions']:,}"),
        ]
        for name, one in found["sets"].items()
        for each in one["equality"]
    ]
    return markdown(["set", "arm", "same tokens", "differ at a near tie", "differ elsewhere", "positions"], rows)


def targets(found: Found) -> str:
    """Each goal, what was measured, and whether that meets it."""
    rows = [
        [goal, name, f"{least:g}", f"{value:.2f}", "met" if value >= least else "missed"]
        for name, one in found["sets"].items()
        for goal, least, value in _goals(name, one)
    ]
    return markdown(["goal", "set", "at least", "measured", ""], rows)


def _goals(name: str, one: Found) -> Iterator[tuple[str, float, float]]:
    ups = one["speed"]["speed_ups"]
    if name not in ("copying", "random"):
        pairs = {"draft against ar": 1.5, "diffuse against ar": 3, "ar against transformers": 3}
        for pair, least in {**pairs, "diffuse against transformers": 12}.items():
            if pair in ups:
                yield pair, least, ups[pair]["with_prefill"]["value"]
    single = [arm for arm in ("ar", "draft", "diffuse") if arm in one["speed"]["arms"]]
    for clients, arms in one.get("goodput", {}).items():
        if "auto" in arms and all(arm in arms for arm in single):
            best = max(single, key=lambda arm: arms[arm]["goodput"])
            if arms[best]["goodput"]:
                yield f"auto against {best}, {clients} at once", 0.95, arms["auto"]["goodput"] / arms[best]["goodput"]
    if {"1", "16"} <= set(one.get("goodput", {})):
        few, many = one["goodput"]["1"], one["goodput"]["16"]
        for arm, least in (("ar", 4.0), ("diffuse", 2.0)):
            if arm in many and few[arm]["goodput"]:
                yield f"{arm}, 16 at once against 1", least, many[arm]["goodput"] / few[arm]["goodput"]
        for arm, load in many.items():
            yield f"{arm}, 16 at once, share of the model", 0.85, load["model_share"]


def _has(found: Found, part: str) -> bool:
    return all(part in one for one in found["sets"].values())


def sections(found: Found) -> dict[str, str]:
    """Text by marker, of what the file has figures for."""
    made: dict[str, tuple[bool, Callable[[Found], str]]] = {
        "machine": (True, machine),
        "speeds": (True, speeds),
        "forwards": (True, forwards),
        "profiles": ("profile" in found, profiles),
        "loads": (_has(found, "goodput"), loads),
        "losses": (_has(found, "equality"), losses),
        "targets": (True, targets),
    }
    return {name: make(found) for name, (is_there, make) in made.items() if is_there}


def main() -> None:
    """Fills the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="what --json wrote")
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args()
    made = sections(json.loads(asked.file.read_text(encoding="utf-8")))
    asked.page.write_text(filled(asked.page.read_text(encoding="utf-8"), made), encoding="utf-8")
    print(f"{asked.page}: {', '.join(made)}")


if __name__ == "__main__":
    main()
