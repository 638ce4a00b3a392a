"""What can be done to many executions, and taking them home as a file."""

from __future__ import annotations

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.pages.executions import wanted_executions
from timeball.dashboard.pages.many import Many, confirm_many, ids_of_matching, sum_up
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Undo, Visit
from timeball.domain.ids import show_execution

pages = Pages()
_VERBS = {"cancel": "cancelled", "retry": "retried"}
# A cookie carries the way back, and holds no more than this many ids.
_MOST_UNDONE = 40


@pages.post("/executions/bulk", Role.OPERATOR)
async def many(visit: Visit) -> Response:
    """Cancel or retry all selected executions, or all that match; those are counted first, and asked about."""
    wish = Many.of(visit)
    if wish.action not in _VERBS:
        return visit.go(visit.back("/executions"), "Nothing was chosen.", kind="bad")
    ids = wish.ids
    if wish.is_matching:
        wanted = wanted_executions(visit, wish.q, wish.status)
        found = await ids_of_matching(lambda request: visit.site.insights.executions(wanted, request))
        ids = [show_execution(one.id) for one in found.items]
        if wish.expected != len(ids):
            return confirm_many(
                visit, wish, len(ids), has_more=found.has_more, noun="execution", path="/executions/bulk"
            )
    if not ids:
        return visit.go(visit.back("/executions"), "Nothing was chosen.", kind="bad")
    body = {"action": wish.action, "ids": ids, "reason": wish.reason}
    results = (await visit.api.post("executions", "bulk", body=body))["results"]
    failed = [item["error"] for item in results if item["status"] == "failed"]
    made = [item["execution_id"] for item in results if item["execution_id"]]
    undo = Undo(visit.site_url("/executions/undo"), {"ids": " ".join(made)}) if 0 < len(made) <= _MOST_UNDONE else None
    told = sum_up(len(results) - len(failed), "execution", _VERBS[wish.action], failed)
    return visit.go(visit.back("/executions"), told, undo=undo, kind="bad" if failed else "done")


@pages.post("/executions/undo", Role.OPERATOR)
async def undo_retries(visit: Visit) -> Response:
    """Cancel the executions that a bulk retry made."""
    body = {"action": "cancel", "ids": visit.form.get("ids", "").split(), "reason": "retried by mistake"}
    results = await visit.api.post("executions", "bulk", body=body)
    return visit.go(visit.back("/executions"), sum_up(results["done"], "execution", "cancelled", []))
