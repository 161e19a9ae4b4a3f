"""Numbers as aligned text."""

from __future__ import annotations

from collections.abc import Sequence

from fourleaf.measure.bootstrap import Interval


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines: first column to the left, the others to the right. Short rows are allowed."""
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(max(map(len, rows)))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def percent(interval: Interval) -> str:
    """97.1% (96.0-98.1)"""
    return f"{100 * interval.value:.1f}% ({100 * interval.low:.1f}-{100 * interval.high:.1f})"


def points(interval: Interval) -> str:
    """-0.3 points (-0.9 to +0.2)"""
    return f"{100 * interval.value:+.1f} points ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"


def times(interval: Interval) -> str:
    """3.12x (2.98-3.27)"""
    return f"{interval.value:.2f}x ({interval.low:.2f}-{interval.high:.2f})"
