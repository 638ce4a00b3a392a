"""The timeline: past, running and predicted runs on one axis."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from heapq import nlargest, nsmallest

from starlette.responses import Response

from timeball.application.queries.timeline import RowsBy, Timeline, TimelineRequest
from timeball.dashboard import timeline_chart as drawing
from timeball.dashboard.context import PageContext, PageRouter, browser_zone, zone_label
from timeball.dashboard.formatting import short_id
from timeball.dashboard.pages.freezes import freeze_rows
from timeball.dashboard.timeline_chart import SPANS, parse_time_window
from timeball.domain.forecast.timeline import MarkRow, TimelineMark, TimelineMarkKind

router = PageRouter()


_MAX_ROWS = 60
_WIDTH = 1_200
_OVER = (TimelineMarkKind.PAST, TimelineMarkKind.SKIPPED)
# The list on a phone: the latest that ended, and the next ones.
_PAST_ENTRIES, _NEXT_ENTRIES = 5, 40


@router.get("/timeline")
async def timeline(context: PageContext) -> Response:
    """The drawing, or the same as a table."""
    view = parse_time_window(
        context.site.queries.now(), context.query("from"), context.query("span"), browser_zone(context.request)
    )
    rows_by = RowsBy(context.query("rows")) if context.query("rows") in list(RowsBy) else RowsBy.JOBS
    queue = context.query("queue") or None
    request = TimelineRequest(
        start=view.start, end=view.end, queue=queue, rows_by=rows_by, limit=_MAX_ROWS, width=_WIDTH
    )
    drawn = await context.shared(("timeline", request), lambda: _draw(context, request))
    freezes = (await context.site.queries.freezes()).between(view.start, view.end, queue)
    names = {row["name"] for row in await context.shared("queues", context.site.queries.queues)}
    return context.page(
        "timeline.html",
        part="partials/timeline.html",
        drawn=drawn,
        freezes=await freeze_rows(context, freezes),
        view=view,
        zone=zone_label(view.zone),
        rows_by=rows_by,
        all_rows=list(RowsBy),
        spans=SPANS,
        queue=queue,
        queues=sorted(names | ({queue} if queue else set())),
        drawing=drawing,
        is_table=context.query("view") == "table",
        agenda=_agenda(drawn),
        shortages=[step for step in drawn.band if step.note and step.is_predicted],
    )


async def _draw(context: PageContext, request: TimelineRequest) -> Timeline:
    async with context.site.heavy.of(context.caller.name):
        drawn = await context.site.queries.timeline.draw(request)
    return replace(drawn, rows=[_readable(row) for row in drawn.rows])


def _readable(row: MarkRow) -> MarkRow:
    """A row with a short label: the name of a worker goes with it, and only its id is left."""
    is_gone = row.kind == "worker" and row.key and row.label == row.key
    return replace(row, label=f"{short_id(row.key)} (gone)") if is_gone else row


def _agenda(drawn: Timeline) -> list[tuple[TimelineMark, MarkRow]]:
    """The marks around now in the order of time, each with its row."""
    marks = [(mark, row) for row in drawn.rows for mark in row.marks]
    ended = [pair for pair in marks if pair[0].kind in _OVER]
    ahead = [pair for pair in marks if pair[0].kind not in _OVER]
    return nlargest(_PAST_ENTRIES, ended, key=_start_of)[::-1] + nsmallest(_NEXT_ENTRIES, ahead, key=_start_of)


def _start_of(pair: tuple[TimelineMark, MarkRow]) -> datetime:
    return pair[0].start
