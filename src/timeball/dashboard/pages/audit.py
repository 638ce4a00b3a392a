"""The audit: who changed what, when and why; for administrators."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.domain.ids import JobId, parse_id
from timeball.errors import InvalidInput

pages = Pages()


@pages.get("/audit", Role.ADMIN)
async def audit(visit: Visit) -> Response:
    """All changes, the latest first, or those of one actor or subject."""
    actor, subject = visit.query("actor"), visit.query("subject")
    found = await visit.api.get("audit", limit=50, cursor=visit.query("cursor"), actor=actor, subject=subject)
    names = await _names(visit, found["data"])
    changes = [
        change | {"differences": differences(change), "job_name": names.get(change["subject"])}
        for change in found["data"]
    ]
    return visit.page(
        "audit.html", part="partials/audit_list.html", changes=changes, page=found, actor=actor, subject=subject
    )


async def _names(visit: Visit, changes: list[dict[str, Any]]) -> dict[str, str | None]:
    """What the jobs are called that were changed, by how the audit names them."""
    ids: dict[str, JobId] = {}
    for subject in {change["subject"] for change in changes}:
        with suppress(InvalidInput):
            ids[subject] = JobId(parse_id("job", subject.removeprefix("job:")))
    names = await visit.site.insights.job_names(list(ids.values()))
    return {subject: names.get(id_) for subject, id_ in ids.items()}


def differences(change: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Which fields an audit entry changed: name, before, after."""
    before, after = change["before"] or {}, change["after"] or {}
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [("", before, after)]
    names = sorted(set(before) | set(after))
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
