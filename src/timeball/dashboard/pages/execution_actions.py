"""What can be done to many executions: those that were selected, or all that match."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.pages.executions import so_far
from timeball.dashboard.pages.many import Many, as_agreed, confirm_many, sum_up
from timeball.dashboard.pages.operations import is_operation, watch
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Undo, Visit

pages = Pages()
_VERBS = {"cancel": "cancelled", "retry": "retried"}
_ADDRESS = ("executions", "bulk")
# A cookie carries the way back, and holds no more than this many ids.
MOST_UNDONE = 40


@pages.post("/executions/bulk", Role.OPERATOR)
async def many(visit: Visit) -> Response:
    """Cancel or retry all selected executions, or all that match; those are counted first, and asked about."""
    wish = Many.of(visit)
    if wish.action not in _VERBS or not (wish.ids or wish.is_matching):
        return visit.go(visit.back("/executions"), "Nothing was chosen.", kind="bad")
    body: dict[str, Any] = {"action": wish.action, "reason": wish.reason}
    if not wish.is_matching:
        return _told(visit, wish.action, await visit.api.post(*_ADDRESS, body=body | {"ids": wish.ids}))
    until = wish.until or ("" if wish.q or wish.status else so_far(visit).isoformat())
    body["filter"] = {"q": wish.q or None, "status": [wish.status] if wish.status else [], "end_date": until or None}
    result = await as_agreed(visit, wish, _ADDRESS, body)
    if result is not None:
        return _told(visit, wish.action, result)
    return await confirm_many(visit, wish, _ADDRESS, body, noun="execution", path="/executions/bulk", until=until)


def _told(visit: Visit, action: str, result: dict[str, Any]) -> Response:
    if is_operation(result):
        return watch(visit, result)
    failed = [item["error"] for item in result["results"] if item["status"] == "failed"]
    made = [item["execution_id"] for item in result["results"] if item["execution_id"]]
    told = sum_up(result["done"], "execution", _VERBS[action], failed)
    return visit.go(visit.back("/executions"), told, undo=undo_of(visit, made), kind="bad" if failed else "done")


def undo_of(visit: Visit, made: list[str]) -> Undo | None:
    """The way back from a retry: cancel what it made."""
    if not 0 < len(made) <= MOST_UNDONE:
        return None
    return Undo(visit.site_url("/executions/undo"), {"ids": " ".join(made)})


@pages.post("/executions/undo", Role.OPERATOR)
async def undo_retries(visit: Visit) -> Response:
    """Cancel the executions that a bulk retry made."""
    body = {"action": "cancel", "ids": visit.form.get("ids", "").split(), "reason": "retried by mistake"}
    results = await visit.api.post(*_ADDRESS, body=body)
    return visit.go(visit.back("/executions"), sum_up(results["done"], "execution", "cancelled", []))
