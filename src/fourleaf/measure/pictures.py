"""Small pictures as SVG text: bars with intervals, and reliability diagrams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from fourleaf.measure.reliability import Reliability

_FONT = 'font-family="sans-serif" font-size="12"'
_COLOURS = ("#3b6ea5", "#c0562f", "#4f8a4b", "#8a5a9e", "#b08a1e", "#5b5b5b")


def _svg(width: int, height: int, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {_FONT}>'
    return "\n".join((head, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>\n"))


def bars(title: str, rows: Sequence[tuple[str, float, float, float]]) -> str:
    """rows: (name, share, low, high), shares from 0 to 1."""
    left, wide, step = 170, 400, 26
    parts = [f'<text x="10" y="20" font-weight="bold">{escape(title)}</text>']
    for i, (name, value, low, high) in enumerate(rows):
        top = 36 + i * step
        middle = top + 9
        parts += [
            f'<text x="{left - 8}" y="{middle + 4}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{top}" width="{wide * value:.1f}" height="18" fill="{_COLOURS[0]}"/>',
            f'<path d="M{left + wide * low:.1f} {middle}H{left + wide * high:.1f}" stroke="black"/>',
            f'<text x="{left + wide * high + 8:.1f}" y="{middle + 4}">{100 * value:.1f}%</text>',
        ]
    return _svg(left + wide + 70, 46 + step * len(rows), parts)


def reliability(title: str, series: Sequence[tuple[str, Reliability]]) -> str:
    """Share right against confidence, a line for each of up to six series; the diagonal is perfect."""
    side, edge = 300, 50

    def at(x: float, y: float) -> str:
        return f"{edge + side * x:.1f},{edge + side * (1 - y):.1f}"

    parts = [
        f'<text x="10" y="20" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{edge}" y="{edge}" width="{side}" height="{side}" fill="none" stroke="#999"/>',
        f'<polyline points="{at(0, 0)} {at(1, 1)}" fill="none" stroke="#999" stroke-dasharray="4"/>',
        f'<text x="{edge + side / 2}" y="{edge + side + 34}" text-anchor="middle">confidence</text>',
        f'<text transform="translate(14 {edge + side / 2}) rotate(-90)" text-anchor="middle">right</text>',
    ]
    for share in (0, 0.5, 1):
        x, y = at(share, share).split(",")
        parts.append(f'<text x="{x}" y="{edge + side + 16}" text-anchor="middle">{share:g}</text>')
        parts.append(f'<text x="{edge - 6}" y="{float(y) + 4}" text-anchor="end">{share:g}</text>')
    for i, ((name, made), colour) in enumerate(zip(series, _COLOURS, strict=False)):
        line = " ".join(at(b.confidence, b.right) for b in made.bins)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        text = f"{name}: ECE {made.ece:.3f}, by chance {made.floor:.3f}"
        parts.append(f'<text x="{edge + 8}" y="{edge + 18 + 16 * i}" fill="{colour}">{escape(text)}</text>')
    return _svg(side + 2 * edge, side + 2 * edge, parts)
