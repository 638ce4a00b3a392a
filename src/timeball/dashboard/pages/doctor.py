"""The doctor: what was looked at, what was found, and what to type; and what this Timeball is."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from starlette.responses import Response

from timeball.dashboard.routing import Pages
from timeball.dashboard.targets import page_of
from timeball.dashboard.visit import Visit

pages = Pages()

_ORDER = {"fail": 0, "warn": 1, "ok": 2}
_VERDICTS = {
    "ok": ("good", "Everything is in order."),
    "warn": ("warn", "It works, but something wants a look."),
    "fail": ("bad", "Something needs you."),
}


@pages.get("/doctor")
async def doctor(visit: Visit) -> Response:
    """All that was looked at, the gravest first."""
    found = await visit.api.get("doctor")
    lines = sorted(found["lines"], key=lambda line: _ORDER[line["status"]])
    groups = {status: list(some) for status, some in groupby(lines, key=lambda line: line["status"])}
    tone, verdict = _VERDICTS[found["status"]]
    context: dict[str, Any] = {
        "groups": groups,
        "tone": tone,
        "verdict": verdict,
        "now": visit.site.insights.now(),
        "page_of": page_of,
    }
    return visit.page("doctor.html", part="partials/doctor.html", **context)


@pages.get("/about")
async def about(visit: Visit) -> Response:
    """What this is, and its words."""
    return visit.page("about.html", checks=(await visit.api.get("health"))["checks"])
