"""The audit: who changed what, when and why; for administrators."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
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


def differences(change: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Which fields an audit entry changed: name, before, after."""
    before, after = change["before"] or {}, change["after"] or {}
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [("", before, after)]
    names = sorted(set(before) | set(after))
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
