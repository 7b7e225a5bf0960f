"""Plots of costs over numbers, as one SVG file without a library: a panel each, logarithmic to the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log10
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 440, 260  # of a panel, in pixels
LEFT, RIGHT, TOP, BOTTOM = 52, 36, 46, 40  # its margins
COLORS = ("#0b7285", "#c2255c", "#5c940d")
COLUMNS = 2


@dataclass(frozen=True)
class Panel:
    """A plot: values over counts, a line for each label."""

    title: str  # what grows
    counts: Sequence[int]
    lines: dict[str, list[float]]
    unit: str = "CPU µs per message"


def plot(panels: Sequence[Panel]) -> str:
    """All panels as a document."""
    rows = -(-len(panels) // COLUMNS)
    size = f'width="{COLUMNS * WIDTH}" height="{rows * HEIGHT}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for number, panel in enumerate(panels):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel) -> Iterator[str]:
    top = _round_up(max(value for values in panel.lines.values() for value in values))
    spread = _logarithmic if panel.counts[-1] > 10 * max(1, panel.counts[0]) else _even
    places = [LEFT + share * (WIDTH - LEFT - RIGHT) for share in spread(panel.counts)]

    def height(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    title = f"{panel.unit} by {panel.title}"
    yield f'<text x="{LEFT}" y="18" font-size="13" font-weight="bold">{escape(title)}</text>'
    for quarter in range(5):
        y = height(top * quarter / 4)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * quarter / 4:.3g}</text>'
    for x, count in zip(places, panel.counts, strict=True):
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{count:,}</text>'
    for number, (label, values) in enumerate(panel.lines.items()):
        color = COLORS[number % len(COLORS)]
        points = [(x, height(value)) for x, value in zip(places, values, strict=True)]
        yield f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{_text(points)}"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points)
        x, y = LEFT + number * (WIDTH - LEFT) / len(panel.lines), 34
        yield f'<text x="{x:.1f}" y="{y}" fill="{color}">{escape(label)}</text>'


def _logarithmic(counts: Sequence[int]) -> list[float]:
    """Shares of the width; 0 stands a decade before the next number."""
    least = min(count for count in counts if count)
    logs = [log10(count or least / 10) for count in counts]
    return [(each - logs[0]) / (logs[-1] - logs[0]) for each in logs]


def _even(counts: Sequence[int]) -> list[float]:
    return [number / max(1, len(counts) - 1) for number in range(len(counts))]


def _round_up(value: float) -> float:
    """The next number of 1, 2, 4, 6, 8 and 10 times a power of ten; 1 if the value is not above 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** int(log10(value) if value >= 1 else log10(value) - 1)
    return next(step * power for step in (1, 2, 4, 6, 8, 10, 20) if step * power >= value)


def _text(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
