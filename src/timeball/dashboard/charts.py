"""Charts as SVG: no inline style, colours by class, and a sentence for those who do not see them."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

_SVG = Markup(
    '<svg class="chart {kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{label}">'
    "{body}</svg>"
)
_BAR = Markup(
    '<rect class="{tone}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"><title>{title}</title></rect>'
)
_METER = Markup(
    '<rect class="tone-none" width="{0}" height="{1}" rx="3"/><rect class="{2}" width="{3:g}" height="{1}" rx="3"/>'
)


def bars(
    values: Sequence[float],
    label: str,
    *,
    tones: Sequence[str] = (),
    titles: Sequence[str] = (),
    height: int = 32,
    step: int = 6,
    most: float | None = None,
    kind: str = "",
    slots: int = 0,
) -> Markup:
    """Bars beside one another, the tallest as high as the chart; with fewer than *slots*, there is room on the left."""
    top = most or max(values, default=0) or 1
    empty = max(slots - len(values), 0)
    body = Markup("").join(
        _bar(
            number + empty,
            value / top,
            _at(tones, number, "tone-live"),
            _at(titles, number, f"{value:g}"),
            height,
            step,
        )
        for number, value in enumerate(values)
    )
    return _SVG.format(
        kind=f"bars {kind}", width=max(len(values) + empty, 1) * step, height=height, label=label, body=body
    )


def _bar(number: int, share: float, tone: str, title: str, height: int, step: int) -> Markup:
    # What is there at all shows at least one pixel.
    tall = max(min(share, 1) * height, 1) if share > 0 else 0.5
    return _BAR.format(
        tone=tone if share > 0 else "tone-none",
        x=number * step,
        y=height - tall,
        width=step - 1,
        height=tall,
        title=title,
    )


def stacked_bars(
    series: Sequence[tuple[str, Sequence[float]]], label: str, *, height: int = 48, step: int = 6
) -> Markup:
    """Bars of several parts, each series in its tone, the first at the bottom."""
    length = max((len(values) for _, values in series), default=0)
    totals = [sum(values[number] for _, values in series if number < len(values)) for number in range(length)]
    top = max(totals, default=0) or 1
    parts: list[Markup] = []
    for number in range(length):
        below = 0.0
        for tone, values in series:
            tall = values[number] / top * height if number < len(values) else 0
            if tall > 0:
                y = height - below - tall
                parts.append(
                    _BAR.format(
                        tone=tone, x=number * step, y=y, width=step - 1, height=tall, title=f"{values[number]:g}"
                    )
                )
            below += tall
    body = Markup("").join(parts)
    return _SVG.format(kind="bars", width=max(length, 1) * step, height=height, label=label, body=body)


def line(values: Sequence[float], label: str, *, width: int = 240, height: int = 48) -> Markup:
    """One line from left to right."""
    top = max(values, default=0) or 1
    step = width / max(len(values) - 1, 1)
    points = " ".join(
        f"{number * step:g},{height - value / top * (height - 2) - 1:g}" for number, value in enumerate(values)
    )
    body = Markup('<polyline class="line" points="{}"/>').format(points)
    return _SVG.format(kind="line", width=width, height=height, label=label, body=body)


def gauge(value: float, most: float, label: str, *, width: int = 96, height: int = 6) -> Markup:
    """How full something is."""
    share = min(value / most, 1) if most else 0
    tone = "tone-bad" if share >= 1 else "tone-warn" if share > 0.8 else "tone-live"
    body = _METER.format(width, height, tone, share * width)
    return _SVG.format(kind="gauge", width=width, height=height, label=label, body=body)


def progress(value: float, whole: float, label: str, *, width: int = 96, height: int = 6) -> Markup:
    """How far something has come; a whole one is good."""
    share = min(value / whole, 1) if whole else 1
    body = _METER.format(width, height, "tone-good" if share >= 1 else "tone-live", share * width)
    return _SVG.format(kind="gauge", width=width, height=height, label=label, body=body)


def _at(values: Sequence[str], number: int, otherwise: str) -> str:
    return values[number] if number < len(values) else otherwise
