"""The audit: who changed what, when and why; for administrators."""

from __future__ import annotations

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.pages.jobs import differences
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit

pages = Pages()


@pages.get("/audit", Role.ADMIN)
async def audit(visit: Visit) -> Response:
    """All changes, the latest first, or those of one actor or subject."""
    actor, subject = visit.query("actor"), visit.query("subject")
    found = await visit.api.get("audit", limit=50, cursor=visit.query("cursor"), actor=actor, subject=subject)
    changes = [change | {"differences": differences(change)} for change in found["data"]]
    return visit.page(
        "audit.html", part="partials/audit_list.html", changes=changes, page=found, actor=actor, subject=subject
    )
