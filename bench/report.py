"""A table for people, JSON for programs, a chart for the docs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from bench.notebook import Measure, Notebook

RESULTS = Path(__file__).resolve().parent / "results"
_HEAD = ("", "figure", "median", "spread", "to limit", "target")
_ROW, _LEFT, _BAR = 22, 330, 380


def table(notebook: Notebook) -> str:
    """The measures of a question, one line each, in columns."""
    rows = [_HEAD, *(_cells(notebook, measure) for measure in notebook)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    limit = f" (limit: {notebook.limit})" if notebook.limit else ""
    return "\n".join([f"\n{notebook.question}: {notebook.title}{limit}", *("  " + line for line in lines)])


def _cells(notebook: Notebook, measure: Measure) -> tuple[str, ...]:
    ratio = notebook.ratio_to_limit(measure)
    return (
        measure.subject,
        measure.figure,
        measure.unit.show(measure.median),
        measure.spread,
        "" if ratio is None else f"{ratio:.2f}",
        notebook.targets.get((measure.subject, measure.figure), ""),
    )


def write(notebooks: Sequence[Notebook], name: str, charted: Sequence[Notebook] | None = None, **more: Any) -> None:
    """Write `results/<name>.json`, and `results/<name>.svg` if anything has a limit; other runs leave these files alone."""
    RESULTS.mkdir(exist_ok=True)
    document = {"machine": machine(), **more, "questions": [notebook.as_json() for notebook in notebooks]}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    compared = notebooks if charted is None else charted
    if any(notebook.ratio_to_limit(measure) is not None for notebook in compared for measure in notebook):
        (RESULTS / f"{name}.svg").write_text(chart(compared))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def chart(notebooks: Sequence[Notebook]) -> str:
    """Bars as long as the ratio to the limit; 1 is the limit itself, and is marked."""
    compared = [(n, [m for m in n if n.ratio_to_limit(m) is not None]) for n in notebooks]
    compared = [(n, measures) for n, measures in compared if measures]
    lines: list[str] = []
    y = 30
    for notebook, measures in compared:
        lines.append(f'<text x="12" y="{y}" class="title">{escape(notebook.title)}</text>')
        y += _ROW
        for measure in measures:
            lines.extend(_bar(notebook, measure, y))
            y += _ROW
        y += 12
    return _SVG.format(width=_LEFT + _BAR + 170, height=y, body="\n".join(lines), x=_LEFT + _BAR / 2, bottom=y - 20)


def _bar(notebook: Notebook, measure: Measure, y: int) -> list[str]:
    ratio = notebook.ratio_to_limit(measure) or 0.0
    # The limit stands in the middle, and what is twice as much fills the width.
    length = min(ratio, 2) * _BAR / 2
    label = escape(f"{measure.subject}, {measure.figure}")
    return [
        f'<text x="12" y="{y}">{label}</text>',
        f'<rect x="{_LEFT}" y="{y - 11}" width="{length:.1f}" height="13" rx="2"/>',
        f'<text x="{_LEFT + length + 6:.1f}" y="{y}" class="value">{measure.unit.show(measure.median)} · {ratio:.2f}</text>',
    ]


_SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" \
aria-label="Ratios to the limit, by question">
<style>text {{ font: 12px system-ui, sans-serif; fill: #1c2430 }} .title {{ font-weight: 600 }} .value {{ fill: #56606e }}
rect {{ fill: #3a6ea5 }} line {{ stroke: #b4483a; stroke-dasharray: 3 3 }} .back {{ fill: #fff }}</style>
<rect class="back" width="{width}" height="{height}"/>
<line x1="{x}" y1="14" x2="{x}" y2="{bottom}"/>
{body}
</svg>
"""
