"""Live: what is happening."""

from __future__ import annotations

from starlette.responses import Response

from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit

pages = Pages()


@pages.get("/")
async def live(visit: Visit) -> Response:
    """The numbers of now."""
    counts = await visit.site.insights.waiting_counts()
    return visit.page("home.html", part="partials/home.html", counts=counts)
