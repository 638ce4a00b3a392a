"""The time line: past, running and predicted runs on one axis."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest, nsmallest
from typing import Any

from starlette.responses import Response

from timeball.dashboard import timeline_chart as drawing
from timeball.dashboard.context import PageContext, PageRouter, browser_zone, zone_label
from timeball.dashboard.timeline_chart import SPANS, TimeWindow, parse_time_window

router = PageRouter()


ROWS = ("jobs", "queues", "workers")
_MAX_ROWS = 60
_WIDTH = 1_200
# What a phone lists: the latest that ended, and what comes next.
_PAST_ENTRIES, _NEXT_ENTRIES = 5, 40


@router.get("/timeline")
async def timeline(context: PageContext) -> Response:
    """The drawing; the same as a table, if that is wanted."""
    view = parse_time_window(
        context.site.queries.now(), context.query("from"), context.query("span"), browser_zone(context.request)
    )
    rows_by = context.query("rows") if context.query("rows") in ROWS else ROWS[0]
    queue = context.query("queue") or None
    found = await context.api.get(
        "timeline",
        **{"from": _iso(view.start), "to": _iso(view.end)},
        queue=queue,
        rows=rows_by,
        limit=_MAX_ROWS,
        width=_WIDTH,
    )
    queues = sorted({row["name"] for row in (await context.api.get("queues"))["data"]} | ({queue} if queue else set()))
    return context.page(
        "timeline.html",
        part="partials/timeline.html",
        found=found,
        view=view,
        zone=zone_label(view.zone),
        rows_by=rows_by,
        all_rows=ROWS,
        spans=SPANS,
        queue=queue,
        queues=queues,
        drawing=drawing,
        is_table=context.query("view") == "table",
        agenda=_agenda(found, view),
        shortages=[step for step in found["band"] if step["note"] and step["is_predicted"]],
    )


def _iso(at: Any) -> str:
    return str(at.isoformat())


def _agenda(found: Mapping[str, Any], view: TimeWindow) -> list[dict[str, Any]]:
    """The marks of all rows in the order of time, those around now."""
    marks = [(mark, row) for row in found["rows"] for mark in row["marks"]]
    ended = [pair for pair in marks if pair[0]["kind"] == "past"]
    ahead = [pair for pair in marks if pair[0]["kind"] != "past"]
    few = nlargest(_PAST_ENTRIES, ended, key=_start_of)[::-1] + nsmallest(_NEXT_ENTRIES, ahead, key=_start_of)
    return [{**mark, "row": row, "words": drawing.mark_title(mark, view)} for mark, row in few]


def _start_of(pair: tuple[Mapping[str, Any], Any]) -> str:
    return str(pair[0]["start"])
