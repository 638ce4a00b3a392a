"""What stands around every page: the pages and how much is in them, the palette, and whether the server is there."""

from __future__ import annotations

from starlette.responses import Response

from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import short_number
from timeball.domain.ids import show_job
from timeball.domain.search import JobFilter, JobOrder, PageRequest

pages = Pages()
_MOST_FOUND = 8
_COUNTED = PageRequest(limit=1, with_total=True)


@pages.get("/parts/palette")
async def palette(visit: Visit) -> Response:
    """Jobs whose name fits what is typed, and the execution or job whose id it is."""
    words = visit.query("words").replace("\0", "")
    found: list[tuple[str, str | None]] = []
    if words and not words.startswith(("exe_", "job_")):
        page = await visit.site.insights.jobs(JobFilter(search=words), JobOrder.NAME, PageRequest(limit=_MOST_FOUND))
        found = [(show_job(view.job.id), view.job.name) for view in page.items]
    return visit.page("partials/palette.html", words=words, found=found)


@pages.get("/parts/nav")
async def nav(visit: Visit) -> Response:
    """The pages, with how much is in them; pages that are opened later show the same numbers until they are counted anew."""
    metrics = await visit.api.get("metrics")
    named = await visit.site.insights.jobs(JobFilter(is_named=True), JobOrder.NAME, _COUNTED)
    numbers = {
        "/jobs": 0 if named.total is None else named.total.count,
        "/dead": metrics["now"]["dead"],
        "/queues": metrics["queues_total"],
        "/workers": metrics["nodes"]["workers"],
    }
    visit.site.counts.update({path: short_number(value) for path, value in numbers.items()})
    return visit.page("partials/nav.html", section=visit.query("section"), counts=visit.site.counts)


@pages.get("/parts/ping")
async def ping(_visit: Visit) -> Response:
    """Whether the server is there, and still knows the visitor."""
    return Response(status_code=204)
