"""Charts as SVG, and a calendar as a table: no inline style, colours by class, and a sentence for screen readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from markupsafe import Markup, escape


def bars(
    values: Sequence[float],
    label: str,
    *,
    tones: Sequence[str] = (),
    titles: Sequence[str] = (),
    height: int = 32,
    step: int = 6,
    slots: int = 0,
) -> Markup:
    """Bars beside each other, the tallest as high as the chart; fewer than *slots* bars leave room on the left."""
    top = max(values, default=0) or 1
    empty = max(slots - len(values), 0)
    shown = zip(values, tones or ["tone-live"] * len(values), titles or [f"{value:g}" for value in values], strict=True)
    body = "".join(
        _bar(number * step, value / top, tone, title, height, step - 1)
        for number, (value, tone, title) in enumerate(shown, empty)
    )
    return _svg("bars", max(len(values) + empty, 1) * step, height, label, body)


def _bar(x: int, share: float, tone: str, title: str, height: int, width: int) -> str:
    # Every value above zero shows at least one pixel.
    tall = max(min(share, 1) * height, 1) if share > 0 else 0.5
    return _rect(tone if share > 0 else "tone-none", x, height - tall, width, tall, title)


def stacked_bars(
    series: Sequence[tuple[str, Sequence[float]]], label: str, *, height: int = 48, step: int = 6
) -> Markup:
    """Bars of several parts, each series in its tone, the first at the bottom."""
    length = max((len(values) for _, values in series), default=0)
    totals = [sum(values[number] for _, values in series if number < len(values)) for number in range(length)]
    top = max(totals, default=0) or 1
    parts: list[str] = []
    for number in range(length):
        below = 0.0
        for tone, values in series:
            tall = values[number] / top * height if number < len(values) else 0
            if tall > 0:
                y = height - below - tall
                parts.append(_rect(tone, number * step, y, step - 1, tall, f"{values[number]:g}"))
            below += tall
    return _svg("bars", max(length, 1) * step, height, label, "".join(parts))


@dataclass(frozen=True, slots=True)
class Bar:
    """One of `linked_bars`: its parts in their tones, from the bottom up; its words, and the page it leads to, if it has one."""

    parts: Sequence[tuple[str, float]]
    title: str
    href: str | None = None


def linked_bars(shown: Sequence[Bar], label: str, *, height: int = 72, step: int = 8) -> Markup:
    """Bars that lead to what they count, each in its whole height. The keyboard passes over them: a table has the same links."""
    top = max((sum(value for _, value in bar.parts) for bar in shown), default=0) or 1
    body = "".join(_linked_bar(bar, number * step, height / top, height, step) for number, bar in enumerate(shown))
    return _svg("bars tall", max(len(shown), 1) * step, height, label, body, role="group")


def _linked_bar(bar: Bar, x: int, scale: float, height: int, step: int) -> str:
    below = 0.0
    drawn: list[str] = []
    for tone, value in bar.parts:
        # Every value above zero shows at least one pixel.
        tall = max(value * scale, 1) if value > 0 else 0
        if tall:
            drawn.append(_path(tone, x, height - below, step - 1, tall))
            below += tall
    if not drawn:
        return _path("tone-none", x, height, step - 1, 0.5)
    title = escape(bar.title)
    if bar.href is None:
        return f"<g><title>{title}</title>{''.join(drawn)}</g>"
    return (
        f'<a href="{escape(bar.href)}" tabindex="-1"><title>{title}</title>'
        f"{_path('hit', x, height, step, height)}{''.join(drawn)}</a>"
    )


def _path(tone: str, x: int, bottom: float, width: int, tall: float) -> str:
    return f'<path class="{tone}" d="M{x} {bottom:.4g}h{width}v-{tall:.4g}h-{width}z"/>'


def strip(
    values: Sequence[float], tones: Sequence[str], label: str, slots: int, *, height: int = 20, step: int = 6
) -> Markup:
    """Small bars, right-aligned in *slots* places; bars of one tone are one element, because a page has fifty strips."""
    top = max(values, default=0) or 1
    paths: dict[str, list[str]] = {}
    for number, (value, tone) in enumerate(zip(values, tones, strict=True), max(slots - len(values), 0)):
        tall = max(value / top * height, 1)
        paths.setdefault(tone, []).append(f"M{number * step} {height}h{step - 1}v-{tall:.3g}h-{step - 1}z")
    drawn = "".join(f'<path class="{tone}" d="{"".join(bars)}"/>' for tone, bars in paths.items())
    return _svg("strip", slots * step, height, label, f"<title>{escape(label)}</title>{drawn}")


def sparkline(values: Sequence[float], label: str, *, height: int = 20, step: int = 5) -> Markup:
    """Bars in one colour for a row of a table: they show when, not how many."""
    top = max(values, default=0) or 1
    # Every value above zero shows at least two pixels; zero is a thin ground line.
    talls = [max(value / top * height, 2) if value else 0.5 for value in values]
    path = "".join(
        f"M{number * step} {height}h{step - 1}v-{tall:.3g}h-{step - 1}z" for number, tall in enumerate(talls)
    )
    body = f'<title>{escape(label)}</title><path class="tone-bad" d="{path}"/>'
    return _svg("strip", max(len(values), 1) * step, height, label, body)


def gauge(value: float, most: float, label: str, *, width: int = 96, height: int = 6) -> Markup:
    """A bar that fills up to *most*."""
    share = min(value / most, 1) if most else 0
    tone = "tone-bad" if share >= 1 else "tone-warn" if share > 0.8 else "tone-live"
    return _meter(share, tone, label, width, height)


def progress(value: float, whole: float, label: str, *, width: int = 96, height: int = 6) -> Markup:
    """A progress bar; complete is green."""
    share = min(value / whole, 1) if whole else 1
    return _meter(share, "tone-good" if share >= 1 else "tone-live", label, width, height)


def _meter(share: float, tone: str, label: str, width: int, height: int) -> Markup:
    body = (
        f'<rect class="tone-none" width="{width}" height="{height}" rx="3"/>'
        f'<rect class="{tone}" width="{share * width:g}" height="{height}" rx="3"/>'
    )
    return _svg("gauge", width, height, label, body)


@dataclass(frozen=True, slots=True)
class DaySquare:
    """A day of a calendar: its words; and its tone, page and icon, unless there was nothing on it."""

    date: date
    title: str
    tone: str = ""
    href: str | None = None
    icon: Markup | None = None


_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def calendar(days: Sequence[DaySquare], caption: str, narrow_weeks: int) -> Markup:
    """A square for each day from a Monday on, weeks beside each other; a narrow screen shows only the last weeks."""
    weeks = [days[number : number + 7] for number in range(0, len(days), 7)]
    classes = ["wide-only" if number < len(weeks) - narrow_weeks else "" for number in range(len(weeks))]
    head = "".join(
        _month(week[0].date, number, name) for number, (week, name) in enumerate(zip(weeks, classes, strict=True))
    )
    lines = "".join(
        f'<tr><th scope="row">{weekday}</th>'
        + "".join(_square(week[place], name) for week, name in zip(weeks, classes, strict=True) if place < len(week))
        + "</tr>"
        for place, weekday in enumerate(_WEEKDAYS)
    )
    return Markup(
        f'<table class="heat days"><caption class="unseen">{escape(caption)}</caption>'
        f'<thead><tr><th scope="col"><span class="unseen">Weekday</span></th>{head}</tr></thead><tbody>{lines}</tbody></table>'
    )


def _month(monday: date, number: int, name: str) -> str:
    """The name of a month above its first week."""
    text = f"{monday:%b}" if number == 0 or monday.day <= 7 else ""
    return f'<th scope="col" class="{name}">{text}</th>'


def _square(day: DaySquare, name: str) -> str:
    title = escape(day.title)
    if day.href is None:
        return f'<td class="{name}" title="{title}"></td>'
    return (
        f'<td class="{day.tone} {name}"><a href="{escape(day.href)}" title="{title}" aria-label="{title}">'
        f"{day.icon or ''}</a></td>"
    )


# A page may have a thousand bars: numbers and classes are written as they are, and only texts are escaped.
def _svg(kind: str, width: int, height: int, label: str, body: str, role: str = "img") -> Markup:
    return Markup(
        f'<svg class="chart {kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="{role}" '
        f'aria-label="{escape(label)}">{body}</svg>'
    )


def _rect(tone: str, x: int, y: float, width: int, height: float, title: str) -> str:
    return (
        f'<rect class="{tone}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}">'
        f"<title>{escape(title)}</title></rect>"
    )
