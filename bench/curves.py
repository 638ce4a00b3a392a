"""Curves for the docs: how a cost grows, each line as a multiple of its first point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from bench.report import RESULTS

_WIDTH, _HEIGHT, _LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 460, 250, 44, 34, 300, 170
_COLOURS = ("#3a6ea5", "#b4483a", "#5c8a3a", "#8a5ca5")
_LEAST_TOP = 2.0


@dataclass
class Curve:
    """One axis: what there is more and more of, and for each size what was measured."""

    title: str
    sizes: Sequence[int]
    lines: dict[str, list[float]] = field(default_factory=dict)

    def add(self, figure: str, value: float) -> None:
        """The value of a figure at the next size."""
        self.lines.setdefault(figure, []).append(value)

    def multiples(self, figure: str) -> list[float]:
        """A line as multiples of its first point."""
        values = self.lines[figure]
        return [value / values[0] if values[0] else 1.0 for value in values]


def write_curves(name: str, curves: Sequence[Curve]) -> None:
    """Write `results/<name>.svg`, a panel for each axis."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.svg").write_text(drawn(curves))


def drawn(curves: Sequence[Curve]) -> str:
    """All panels, two side by side."""
    panels = [
        f'<g transform="translate({place % 2 * _WIDTH} {place // 2 * _HEIGHT})">{_panel(curve)}</g>'
        for place, curve in enumerate(curves)
    ]
    height = -(-len(curves) // 2) * _HEIGHT
    return _SVG.format(width=2 * _WIDTH, height=height, body="\n".join(panels))


def _panel(curve: Curve) -> str:
    top = max(_LEAST_TOP, *(max(curve.multiples(figure)) for figure in curve.lines))
    parts = [f'<text x="{_LEFT}" y="18" class="title">{escape(curve.title)}</text>']
    for multiple in (0, 1, top):
        y = _y(multiple, top)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + _PLOT_WIDTH}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="axis end">{multiple:.3g}×</text>')
    for place, size in enumerate(curve.sizes):
        parts.append(
            f'<text x="{_x(place, curve):.1f}" y="{_TOP + _PLOT_HEIGHT + 16}" class="axis mid">{size:,}</text>'
        )
    for place, figure in enumerate(curve.lines):
        parts.append(_line(curve, figure, top, _COLOURS[place % len(_COLOURS)]))
        y = _TOP + 10 + 16 * place
        parts.append(f'<text x="{_LEFT + _PLOT_WIDTH + 12}" y="{y}" fill="{_COLOURS[place]}">{escape(figure)}</text>')
    return "".join(parts)


def _line(curve: Curve, figure: str, top: float, colour: str) -> str:
    points = [(_x(place, curve), _y(value, top)) for place, value in enumerate(curve.multiples(figure))]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>{dots}'


def _x(place: int, curve: Curve) -> float:
    return _LEFT + 20 + place * (_PLOT_WIDTH - 40) / max(len(curve.sizes) - 1, 1)


def _y(multiple: float, top: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - multiple / top)


_SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" \
aria-label="The cost of one execution as a multiple of what it costs at the smallest size">
<style>text {{ font: 12px system-ui, sans-serif }} .title {{ font-weight: 600; fill: #1c2430 }} .axis {{ fill: #56606e; font-size: 11px }}
.end {{ text-anchor: end }} .mid {{ text-anchor: middle }} line {{ stroke: #d8dde3 }}</style>
<rect width="{width}" height="{height}" fill="#fff"/>
{body}
</svg>
"""
