"""What can be done to a job, or to many: each is a call of the API's own route."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.pages.execution_actions import MOST_UNDONE, undo_of
from timeball.dashboard.pages.many import Many, as_agreed, confirm_many, sum_up
from timeball.dashboard.pages.operations import is_operation, watch
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Undo, Visit

pages = Pages()
# What is done to each of many jobs: the last step of its path in the API, and how it is told afterwards.
_VERBS = {
    "pause": "paused",
    "resume": "resumed",
    "trigger": "triggered",
    "cancel": "cancelled",
    "retry": "retried",
    "delete": "deleted",
}
_OPPOSITES = {"pause": "resume", "resume": "pause"}


@pages.post("/jobs/{job}/pause", Role.OPERATOR)
async def pause(visit: Visit) -> Response:
    """Pause, for ever or until an instant; can be undone."""
    job = visit.path["job"]
    body = {"reason": visit.form.get("reason") or None, "until": visit.form.get("until") or None}
    found = await visit.api.post("jobs", job, "pause", body=body)
    undo = Undo(visit.site_url(f"/jobs/{found['id']}/resume"), {})
    return visit.go(visit.back(f"/jobs/{job}"), f"{_name(found)} is paused.", undo=undo)


@pages.post("/jobs/{job}/resume", Role.OPERATOR)
async def resume(visit: Visit) -> Response:
    """Let a paused job go on; can be undone."""
    job = visit.path["job"]
    found = await visit.api.post("jobs", job, "resume", body={"reason": visit.form.get("reason") or None})
    undo = Undo(visit.site_url(f"/jobs/{found['id']}/pause"), {})
    return visit.go(visit.back(f"/jobs/{job}"), f"{_name(found)} goes on.", undo=undo)


@pages.post("/jobs/{job}/trigger", Role.OPERATOR)
async def trigger(visit: Visit) -> Response:
    """Run a job now, and go to its execution; cancelling undoes it."""
    made = await visit.api.post("jobs", visit.path["job"], "trigger", body={"reason": visit.form.get("reason") or None})
    undo = Undo(visit.site_url(f"/executions/{made['id']}/cancel"), {"reason": "triggered by mistake"})
    stays = visit.form.get("stay") == "yes"
    target = visit.back("/jobs") if stays else visit.site_url(f"/executions/{made['id']}")
    return visit.go(target, "Triggered.", undo=undo)


@pages.post("/jobs/{job}/delete", Role.EDITOR)
async def delete(visit: Visit) -> Response:
    """Take a job out of service; its history stays."""
    await visit.api.delete("jobs", visit.path["job"], reason=visit.form.get("reason"))
    return visit.go(visit.site_url("/jobs"), "Deleted. Its history stays.")


@pages.post("/jobs/{job}/duplicate", Role.EDITOR)
async def duplicate(visit: Visit) -> Response:
    """Make a copy, and open it for editing."""
    made = await visit.api.post("jobs", visit.path["job"], "duplicate")
    return visit.go(visit.site_url(f"/jobs/{made['id']}/edit"), f"{_name(made)} is a copy; change what differs.")


@pages.post("/jobs/bulk", Role.OPERATOR)
async def many(visit: Visit) -> Response:
    """The same for all selected jobs, or for all that match; those are counted first, and asked about."""
    wish = Many.of(visit)
    if wish.action not in _VERBS or not (wish.ids or wish.is_matching):
        return visit.go(visit.back("/jobs"), "Nothing was chosen.", kind="bad")
    address = ("jobs", "bulk", wish.action)
    body: dict[str, Any] = {"reason": wish.reason}
    if not wish.is_matching:
        return _told(visit, wish, await visit.api.post(*address, body=body | {"ids": wish.ids}))
    # As the list shows them: whoever looks for nothing in particular means the jobs with a name.
    is_named = not (wish.q or wish.status or wish.with_one_offs)
    status = [wish.status] if wish.status else []
    body["filter"] = {"q": wish.q or None, "status": status, "named": is_named}
    result = await as_agreed(visit, wish, address, body)
    if result is not None:
        return _told(visit, wish, result)
    return await confirm_many(visit, wish, address, body, noun="job", path="/jobs/bulk")


def _told(visit: Visit, wish: Many, result: dict[str, Any]) -> Response:
    if is_operation(result):
        return watch(visit, result)
    failed = [item["error"] for item in result["results"] if item["status"] == "failed"]
    told = sum_up(result["done"], "job", _VERBS[wish.action], failed)
    undo = _undo_of(visit, wish.action, [item for item in result["results"] if item["status"] == "done"])
    return visit.go(visit.back("/jobs"), told, undo=undo, kind="bad" if failed else "done")


def _undo_of(visit: Visit, action: str, done: list[dict[str, Any]]) -> Undo | None:
    """The way back: what was made is cancelled, what was paused is resumed."""
    if action in ("trigger", "retry"):
        return undo_of(visit, [item["execution_id"] for item in done])
    if action in _OPPOSITES and 0 < len(done) <= MOST_UNDONE:
        ids = " ".join(item["id"] for item in done)
        return Undo(visit.site_url("/jobs/undo"), {"action": _OPPOSITES[action], "ids": ids})
    return None


@pages.post("/jobs/undo", Role.OPERATOR)
async def undo_many(visit: Visit) -> Response:
    """Resume the jobs that a bulk action paused, or pause those that it resumed."""
    action = visit.form.get("action", "")
    if action not in _OPPOSITES:
        return visit.go(visit.back("/jobs"), "Nothing was chosen.", kind="bad")
    body = {"ids": visit.form.get("ids", "").split(), "reason": f"{_VERBS[_OPPOSITES[action]]} by mistake"}
    result = await visit.api.post("jobs", "bulk", action, body=body)
    return visit.go(visit.back("/jobs"), sum_up(result["done"], "job", _VERBS[action], []))


def _name(job: dict[str, Any]) -> str:
    return str(job["name"] or job["id"])
