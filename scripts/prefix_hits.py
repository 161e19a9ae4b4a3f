"""What a shared prefix saves, measured and written into docs/performance.md between its marks.

    python scripts/prefix_hits.py --prefix 2000 --n 10 --json docs/runs/prefix.json

Wants a machine that does nothing else. `fourleaf.measure.hits` says what is measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

from fourleaf.checkpoint.files import write_json
from fourleaf.checkpoint.plan import plan
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.pages import PAGE_SIZE
from fourleaf.measure import hits
from fourleaf.measure.circumstances import Ticker, circumstances
from fourleaf.measure.marks import filled, markdown

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
MOST_SHARE, MOST_PASSES = 0.1, 1.2


def measured(engine: Engine, path: Path, num_tokens: int, count: int, ticker: Ticker) -> dict[str, Any]:
    """Everything that the page has of it."""
    served = hits.run(engine, num_tokens, count, ticker)
    ticker.close()
    planned = plan(path, memory=None, context=None, batch=1).footprint.page()
    cache = engine.core.cache
    found = {
        "prefix": num_tokens,
        "page_bytes": cache.memory.pool_bytes / cache.num_pages,
        "planned_page_bytes": planned,
    }
    return {**circumstances(engine, path), **found, "served": [one.document() for one in served]}


def section(found: dict[str, Any]) -> str:
    """The page's text: a line for each mode and role, and the goals of a hit."""
    rows = [
        [
            *(one["mode"], one["role"], f"{median(one['rows']):.0f}", f"{1e3 * median(one['prefill']):.2f}"),
            *(f"{1e3 * median(one['cold_prefill']):.2f}", f"{100 * one['share']:.1f}%"),
            f"{1e3 * median(one['first']):.2f}",
            f"{one['first_over_passes']:.2f}" if any(one["passes"]) else "-",
            f"{one['same']} of {one['count']}",
        ]
        for one in found["served"]
    ]
    head = ["mode", "request", "rows prefilled", "prefill ms", "cold ms", "share", "first block ms"]
    text = markdown([*head, "behind the prefill, in passes' cost", "tokens as cold"], rows)
    goals = [[goal, limit, value, "met" if is_met else "missed"] for goal, limit, value, is_met in _goals(found)]
    where = f"{found['processor']}, threads {found['threads']}"
    about = f"{found['prefix']:,} shared tokens, pages of {PAGE_SIZE}; {where}."
    return f"{about}\n\n{text}\n\n{markdown(['goal of a hit', 'at most', 'measured', ''], goals)}"


def _goals(found: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    goals = []
    for one in found["served"]:
        if one["role"] == "hit":
            mode, rows = one["mode"], one["rows_beyond_suffix"]
            share, behind = one["share"], one["first_over_passes"]
            goals += [
                (f"{mode}: rows prefilled, beyond the suffix", f"{PAGE_SIZE}", f"{rows}", rows <= PAGE_SIZE),
                (f"{mode}: prefill, of cold", f"{MOST_SHARE:.0%}", f"{share:.1%}", share <= MOST_SHARE),
            ]
            if behind:
                is_met = behind <= MOST_PASSES
                goals.append((f"{mode}: first block, in its passes", f"{MOST_PASSES}", f"{behind:.2f}", is_met))
    total, same = (sum(one[key] for one in found["served"]) for key in ("count", "same"))
    goals.append(("answers with other tokens than cold", "0", f"{total - same} of {total}", same == total))
    real, planned = found["page_bytes"], found["planned_page_bytes"]
    return [*goals, ("bytes of a page", f"{planned:,}", f"{real:,.0f}", real <= planned)]


def main() -> None:
    """Measures, prints, and fills the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=bundled_path())
    parser.add_argument("--prefix", type=int, default=2000, help="shared tokens")
    parser.add_argument("--n", type=int, default=10, help="shared prefixes")
    parser.add_argument("--json", type=Path, help="keeps the figures in this file")
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args()
    engine = Engine.load(asked.model, num_threads=1)
    found = measured(engine, asked.model, asked.prefix, asked.n, Ticker(sys.stderr))
    text = section(found)
    print(text)
    if asked.json is not None:
        write_json(asked.json, found)
    page = asked.page.read_text(encoding="utf-8")
    asked.page.write_text(filled(page, {"prefix": text}), encoding="utf-8")


if __name__ == "__main__":
    main()
