"""The doctor: what was looked at, what was found, and what to type; and what this Timeball is."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from starlette.responses import Response

from timeball.dashboard.context import PageContext, PageRouter, target_url
from timeball.domain.explain.diagnosis import worst_status

router = PageRouter()


_ORDER = {"fail": 0, "warn": 1, "ok": 2}
_VERDICTS = {
    "ok": ("good", "Everything is in order."),
    "warn": ("warn", "It works, but something wants a look."),
    "fail": ("bad", "Something needs you."),
}


@router.get("/doctor")
async def doctor(context: PageContext) -> Response:
    """All that was looked at, the gravest first."""
    lines = sorted(
        await context.shared("doctor", context.site.queries.doctor.diagnose), key=lambda line: _ORDER[line.status]
    )
    groups = {status: list(some) for status, some in groupby(lines, key=lambda line: line.status)}
    tone, verdict = _VERDICTS[worst_status(lines)]
    variables: dict[str, Any] = {
        "groups": groups,
        "tone": tone,
        "verdict": verdict,
        "now": context.site.queries.now(),
        "page_of": target_url,
    }
    return context.page("doctor.html", part="partials/doctor.html", **variables)


@router.get("/about")
async def about(context: PageContext) -> Response:
    """What this is, and its words."""
    return context.page("about.html", checks=await context.site.queries.doctor.health())
