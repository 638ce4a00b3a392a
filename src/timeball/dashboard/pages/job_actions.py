"""What can be done to a job, or to many: each is a call of the API's own route."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.inner_api import ApiProblem
from timeball.dashboard.pages.jobs import wanted_jobs
from timeball.dashboard.pages.many import Many, confirm_many, ids_of_matching, sum_up
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Undo, Visit
from timeball.domain.ids import show_job
from timeball.domain.search import JobOrder

pages = Pages()
# What is done to each of many jobs: the last step of its path in the API, and how it is told afterwards.
_VERBS = {"pause": "paused", "resume": "resumed", "trigger": "triggered", "cancel": "cancelled", "retry": "retried"}


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
    if wish.action not in _VERBS and wish.action != "delete":
        return visit.go(visit.back("/jobs"), "Nothing was chosen.", kind="bad")
    ids = wish.ids
    if wish.is_matching:
        wanted = wanted_jobs(visit, wish.q, wish.status)
        insights = visit.site.insights
        found = await ids_of_matching(lambda request: insights.jobs(wanted, JobOrder.NEWEST, request))
        ids = [show_job(view.job.id) for view in found.items]
        if wish.expected != len(ids):
            return confirm_many(visit, wish, len(ids), has_more=found.has_more, noun="job", path="/jobs/bulk")
    done: list[dict[str, Any]] = []
    failed: list[str] = []
    for job in ids:
        try:
            done.append(await _do(visit, wish, job))
        except ApiProblem as problem:
            failed.append(problem.detail)
    verb = _VERBS.get(wish.action, "deleted")
    return visit.go(visit.back("/jobs"), sum_up(len(done), "job", verb, failed), kind="bad" if failed else "done")


async def _do(visit: Visit, wish: Many, job: str) -> dict[str, Any]:
    if wish.action == "delete":
        visit.caller.needs(Role.EDITOR, "deleting jobs")
        return await visit.api.delete("jobs", job, reason=wish.reason)
    return await visit.api.post("jobs", job, wish.action, body={"reason": wish.reason})


def _name(job: dict[str, Any]) -> str:
    return str(job["name"] or job["id"])
