"""The past of the installation, a job, a queue or a handler as charts: a day, a week, a month or a quarter, from hourly rollups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from timeball.application.queries.metrics import MetricsScope, Series
from timeball.dashboard import charts
from timeball.dashboard.context import PageContext
from timeball.dashboard.formatting import format_number, format_seconds, pluralize, search_term
from timeball.domain.rollup import Rollup
from timeball.domain.values.ids import format_job_id

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """How far a chart reaches back, and how much each bar counts: whole hours, a hundred bars at most."""

    words: str
    window: timedelta
    step: timedelta
    step_words: str


SPANS = {
    "24h": ChartSpan("24 hours", _DAY, timedelta(hours=1), "each hour"),
    "7d": ChartSpan("7 days", 7 * _DAY, timedelta(hours=2), "each two hours"),
    "30d": ChartSpan("30 days", 30 * _DAY, timedelta(hours=8), "each eight hours"),
    "90d": ChartSpan("90 days", 90 * _DAY, _DAY, "each day, in UTC"),
}
DEFAULT_SPAN = "24h"


async def history_of(
    context: PageContext, path: str, whose: MetricsScope = MetricsScope(), **params: str
) -> dict[str, Any]:
    """What `partials/history.html` shows, for the span that the address names. The page has the address *path* with *params*."""
    word = context.query("span", DEFAULT_SPAN)
    word = word if word in SPANS else DEFAULT_SPAN
    span, metrics = SPANS[word], context.site.queries.metrics

    async def read() -> tuple[Series, Rollup | None]:
        series = await metrics.history(span.window, span.step, whose)
        # The sketches of one job are small; those of the installation would cost more than all else on the page.
        return series, None if whose.job_id is None else await metrics.total(series, whose)

    series, total = await context.shared(("history", whose, word), read)
    links = [_executions_url(context, whose, point.at, span.step) for point in series.points]
    means = [_mean(point) for point in series.points]
    return {
        "spans": [
            (name, one.words, context.url(path, **params, span=None if name == DEFAULT_SPAN else name))
            for name, one in SPANS.items()
        ],
        "part_url": context.url(path, **params, span=word, part="history"),
        "word": word,
        "span": span,
        "facts": None if total is None else _facts(total),
        "sentence": _sentence(series.points, span),
        "runs_chart": charts.linked_bars(
            [
                charts.Bar(_parts(point), _title(point, span.step), href)
                for point, href in zip(series.points, links, strict=True)
            ],
            f"Ended executions of the last {span.words}, {span.step_words}",
        ),
        "duration_chart": charts.bars(
            [mean or 0 for mean in means],
            f"Mean duration of executions of the last {span.words}, {span.step_words}",
            titles=[
                f"{_span_words(point.at, span.step)}: {format_seconds(mean)}"
                for point, mean in zip(series.points, means, strict=True)
            ],
            height=36,
        ),
        "rows": [
            (point.at, href, point.counts.succeeded, point.counts.died, _others(point), mean)
            for point, href, mean in zip(series.points, links, means, strict=True)
            if point.counts.ended
        ][::-1],
    }


def _executions_url(context: PageContext, whose: MetricsScope, since: datetime, step: timedelta) -> str | None:
    """The executions of a bar. None for a name that a search cannot name: the list would show those of all."""
    terms = [f"after:{_instant(since)}", f"before:{_instant(since + step)}"]
    if whose.job_id is not None:
        terms.insert(0, f"job:{format_job_id(whose.job_id)}")
    for field, name in (("queue", whose.queue), ("handler", whose.handler)):
        if name is not None:
            if not (term := search_term(name, field)):
                return None
            terms.insert(0, term)
    return context.url("/executions", q=" ".join(terms))


def _instant(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def _parts(point: Rollup) -> list[tuple[str, float]]:
    return [
        ("tone-good", point.counts.succeeded),
        ("tone-bad", point.counts.dead),
        ("tone-calm", _others(point) + point.counts.expected),
    ]


def _others(point: Rollup) -> int:
    """What was neither done nor died."""
    return point.counts.cancelled + point.counts.skipped


def _mean(point: Rollup) -> float | None:
    ran = point.counts.succeeded + point.counts.died + point.counts.cancelled
    return point.duration_seconds / ran if ran else None


def _title(point: Rollup, step: timedelta) -> str:
    counts = point.counts
    parts = [f"{format_number(counts.succeeded)} succeeded", f"{format_number(counts.died)} died"]
    if _others(point):
        parts.append(f"{format_number(_others(point))} cancelled or skipped")
    return f"{_span_words(point.at, step)}: {', '.join(parts)}"


def _span_words(since: datetime, step: timedelta) -> str:
    """`Mon 16 Nov 06:00 to 08:00 UTC`, or only the day."""
    start = since.astimezone(UTC)
    if step >= _DAY:
        return f"{start:%a %-d %b} UTC"
    return f"{start:%a %-d %b %H:%M} to {start + step:%H:%M} UTC"


def _sentence(points: Sequence[Rollup], span: ChartSpan) -> str:
    """The chart in one sentence."""
    succeeded, died = sum(point.counts.succeeded for point in points), sum(point.counts.died for point in points)
    others, ran = sum(_others(point) for point in points), succeeded + died
    if not ran + others:
        return f"Nothing ended in the last {span.words}."
    rate = f"{_percent(succeeded / ran)} of {pluralize(ran, 'run')} succeeded" if ran else "Nothing ran"
    parts = [rate, f"{format_number(died)} died"] + [f"{format_number(others)} were cancelled or skipped"] * bool(
        others
    )
    busiest = max(points, key=lambda point: point.counts.ended)
    return (
        f"In the last {span.words} {', '.join(parts)}; most ended on {_span_words(busiest.at, span.step)}: "
        f"{format_number(busiest.counts.ended)}."
    )


def _facts(total: Rollup) -> list[tuple[str, str]]:
    """The success rate and the percentiles of a job."""
    ran = total.counts.succeeded + total.counts.died
    median, p95 = total.duration.percentiles((0.5, 0.95))
    return [
        ("success rate", _percent(total.counts.succeeded / ran) if ran else "–"),
        ("p50 duration", format_seconds(median)),
        ("p95 duration", format_seconds(p95)),
        ("p95 start delay", format_seconds(total.lateness.percentile(0.95))),
    ]


def _percent(share: float) -> str:
    """Rounded down, so that 100 % means all."""
    return "100 %" if share == 1 else f"{int(share * 1_000) / 10:g} %"
