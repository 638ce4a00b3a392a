"""The time line: past, running and predicted runs on one axis."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest, nsmallest
from typing import Any

from starlette.responses import Response

from timeball.dashboard import timeline_drawing as drawing
from timeball.dashboard.routing import Pages
from timeball.dashboard.timeline_view import SPANS, View, read_view
from timeball.dashboard.visit import Visit
from timeball.dashboard.zones import zone_name, zone_of

pages = Pages()

ROWS = ("jobs", "queues", "workers")
_MOST_ROWS = 60
_WIDTH = 1_200
# What a phone lists: the latest that ended, and what comes next.
_PAST_ENTRIES, _NEXT_ENTRIES = 5, 40


@pages.get("/timeline")
async def timeline(visit: Visit) -> Response:
    """The drawing; the same as a table, if that is wanted."""
    view = read_view(visit.site.insights.now(), visit.query("from"), visit.query("span"), zone_of(visit.request))
    rows_by = visit.query("rows") if visit.query("rows") in ROWS else ROWS[0]
    queue = visit.query("queue") or None
    found = await visit.api.get(
        "timeline",
        **{"from": _iso(view.start), "to": _iso(view.end)},
        queue=queue,
        rows=rows_by,
        limit=_MOST_ROWS,
        width=_WIDTH,
    )
    queues = sorted({row["name"] for row in (await visit.api.get("queues"))["data"]} | ({queue} if queue else set()))
    return visit.page(
        "timeline.html",
        part="partials/timeline.html",
        found=found,
        view=view,
        zone=zone_name(view.zone),
        rows_by=rows_by,
        all_rows=ROWS,
        spans=SPANS,
        queue=queue,
        queues=queues,
        drawing=drawing,
        is_table=visit.query("view") == "table",
        agenda=_agenda(found, view),
        shortages=[step for step in found["band"] if step["note"] and step["is_predicted"]],
    )


def _iso(at: Any) -> str:
    return str(at.isoformat())


def _agenda(found: Mapping[str, Any], view: View) -> list[dict[str, Any]]:
    """The marks of all rows in the order of time, those around now."""
    marks = [(mark, row) for row in found["rows"] for mark in row["marks"]]
    ended = [pair for pair in marks if pair[0]["kind"] == "past"]
    ahead = [pair for pair in marks if pair[0]["kind"] != "past"]
    few = nlargest(_PAST_ENTRIES, ended, key=_beginning)[::-1] + nsmallest(_NEXT_ENTRIES, ahead, key=_beginning)
    return [{**mark, "row": row, "words": drawing.title_of(mark, view)} for mark, row in few]


def _beginning(pair: tuple[Mapping[str, Any], Any]) -> str:
    return str(pair[0]["start"])
