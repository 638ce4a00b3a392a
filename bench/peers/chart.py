"""The comparison as a picture: a panel for each figure that matters, the best above, on an axis of powers of ten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10

from bench.peers.results import Document, Page
from bench.peers.tables import HOME, Measure, figures_of, is_more_better, show

# Of each question, the figures that are drawn, by how they begin.
_DRAWN = {
    "drain": ("one process", "two processes"),
    "backlog": ("",),
    "latency": ("p50 after",),
    "lateness": ("p99 at",),
    "recurring": ("of ",),
    "recovery": ("the last one after",),
    "enqueue": ("one by one", "in bulk"),
}
_WIDTH, _LEFT, _PLOT, _ROW, _HEAD, _FOOT = 580, 190, 300, 17, 44, 18
_COLUMNS = 2


def chart(document: Document) -> str:
    """All panels, two side by side."""
    panels = [panel for page in document["questions"] for panel in _panels(page)]
    lines = [panels[start : start + _COLUMNS] for start in range(0, len(panels), _COLUMNS)]
    heights = [max(_height(measures) for _, measures in line) for line in lines]
    tops = [sum(heights[:place]) for place in range(len(lines))]
    body = [
        f'<g transform="translate({column * _WIDTH} {top})">{_panel(title, measures)}</g>'
        for top, line in zip(tops, lines, strict=True)
        for column, (title, measures) in enumerate(line)
    ]
    return _SVG.format(width=_COLUMNS * _WIDTH, height=sum(heights), body="\n".join(body))


def _panels(page: Page) -> Iterator[tuple[str, list[Measure]]]:
    for figure in figures_of(page):
        # A dot on an axis of powers has no place for nothing; the table says it.
        measures = [m for m in page["measures"] if m["figure"] == figure and m["median"] > 0]
        if measures and figure.startswith(_DRAWN[page["question"]]):
            better = is_more_better(measures[0])
            measures.sort(key=lambda measure: measure["median"], reverse=better)
            yield f"{page['question']}: {figure} ({'more' if better else 'less'} is better)", measures


def _height(measures: Sequence[Measure]) -> int:
    return _HEAD + _ROW * len(measures) + _FOOT


def _panel(title: str, measures: Sequence[Measure]) -> str:
    least, most = _powers([measure["median"] for measure in measures])
    bottom = _HEAD + _ROW * len(measures) - 8
    parts = [f'<text x="12" y="18" class="title">{escape(title)}</text>']
    for power in range(least, most + 1):
        x = _x(10.0**power, least, most)
        parts.append(f'<line x1="{x:.1f}" y1="{_HEAD - 10}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEAD - 14}" class="axis">{10.0**power:,.10g}</text>')
    for place, measure in enumerate(measures):
        parts.extend(_dot(measure, _HEAD + _ROW * place, _x(measure["median"], least, most)))
    return "".join(parts)


def _powers(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten on either side; never the same one twice."""
    least, most = floor(log10(min(values))), ceil(log10(max(values)))
    return least, max(most, least + 1)


def _x(value: float, least: int, most: int) -> float:
    return _LEFT + _PLOT * (log10(value) - least) / (most - least)


def _dot(measure: Measure, y: int, x: float) -> list[str]:
    whose = ' class="home"' if measure["subject"].startswith(HOME) else ""
    return [
        f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end"{whose}>{escape(measure["subject"])}</text>',
        f'<circle cx="{x:.1f}" cy="{y}" r="4.5"{whose}/>',
        f'<text x="{x + 9:.1f}" y="{y + 4}"{whose}>{escape(show(measure))}</text>',
    ]


_SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" \
aria-label="Timeball beside other job queues, a panel for each figure, the best above">
<style>text {{ font: 12px system-ui, sans-serif; fill: #1c2430 }} .title {{ font-weight: 600 }}
.axis {{ fill: #56606e; font-size: 10px; text-anchor: middle }} line {{ stroke: #d8dde3 }}
circle {{ fill: #7d8894 }} circle.home {{ fill: #b4483a }} text.home {{ fill: #b4483a; font-weight: 600 }}</style>
<rect width="{width}" height="{height}" fill="#fff"/>
{body}
</svg>
"""
