"""What a handler says: the lines behind a cursor, in pieces that follow one another while it runs."""

from __future__ import annotations

from starlette.responses import Response

from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit

pages = Pages()
_PIECE = 500


@pages.get("/executions/{execution}/log")
async def log(visit: Visit) -> Response:
    """Some lines, and where the next ones begin."""
    found = await visit.api.get(
        "executions", visit.path["execution"], "logs", limit=_PIECE, cursor=visit.query("cursor")
    )
    response = visit.page("partials/log_lines.html", lines=found["data"])
    response.headers["X-Next-Cursor"] = found["next_cursor"] or ""
    response.headers["X-Has-More"] = "yes" if found["has_more"] else "no"
    return response
