# SPDX-License-Identifier: Apache-2.0
"""A line chart as an SVG file, for figures that the documentation shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 760
HEIGHT: Final = 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 44, 44
COLOURS: Final = ("#1f77b4", "#d95f02", "#4d4d4d")

Points = Sequence[tuple[float, float]]


def lines(series: Mapping[str, Points], marks: Mapping[str, float], *, x: str, y: str, most: float) -> str:
    """Return a chart of named series over a common x, from 0 to `most`, with instants marked by their names."""
    every = [at for points in series.values() for at, _ in points]
    first, last = min(every), max(every)

    def across(at: float) -> float:
        return LEFT + (at - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - min(value, most) / most * (HEIGHT - TOP - BOTTOM)

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for value in _steps(0, most, 5):
        parts += [
            _line(LEFT, up(value), WIDTH - RIGHT, up(value), "#ddd"),
            _text(LEFT - 8, up(value) + 4, value, "end"),
        ]
    for at in _steps(first, last, 10):
        parts += [_text(across(at), HEIGHT - BOTTOM + 18, at, "middle")]
    for name, at in marks.items():
        parts += [_line(across(at), TOP - 6, across(at), HEIGHT - BOTTOM, "#999", dashed=True)]
        parts += [_text(across(at), TOP - 10, name, "middle")]
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number]
        path = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in points)
        parts += [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>']
        parts += [_text(LEFT + 8 + 220 * number, 16, name, "start", colour)]
    parts += [_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x, "middle")]
    parts += [f'<g transform="translate(14 {HEIGHT / 2}) rotate(-90)">{_text(0, 0, y, "middle")}</g>']
    body = "\n".join(parts)
    font = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {font}>\n{body}\n</svg>\n'


def _steps(first: float, last: float, count: int) -> Iterable[float]:
    """Return round values between two, about so many."""
    step = next(
        size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if (last - first) / size <= count
    )
    at = -(-first // step) * step
    while at <= last:
        yield at
        at += step


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dash}/>'


def _text(x: float, y: float, text: float | str, anchor: str, colour: str = "#333") -> str:
    shown = text if isinstance(text, str) else f"{text:g}"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(shown)}</text>'
