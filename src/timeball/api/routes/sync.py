"""Jobs as they are declared: the ones that are to be there, by name."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime

from fastapi import APIRouter
from starlette.responses import Response

from timeball.api.auth import Role, TheCaller
from timeball.api.described import JOB_ID, MOMENT, NEW_JOB_EXAMPLE, described
from timeball.api.desk import Desk, TheDesk
from timeball.api.routes.jobs import IdempotencyKey
from timeball.api.schemas.jobs import JobIn
from timeball.api.schemas.sync import SyncIn, SyncOut
from timeball.api.views import Document, answer
from timeball.api.wishes import told
from timeball.commands import Told
from timeball.domain.declaration import PlannedJob, Step
from timeball.domain.ids import show_job
from timeball.domain.job import Job
from timeball.domain.redaction import redacted
from timeball.errors import InvalidInput

router = APIRouter(prefix="/jobs", tags=["jobs"])

_SHOWN_TIMES = 3
_EXAMPLE = {
    "dry_run": True,
    "created": 0,
    "changed": 1,
    "left": 0,
    "deleted": 0,
    "jobs": [
        {
            "name": "daily-report",
            "action": "change",
            "id": JOB_ID,
            "version": 1,
            "changes": {"schedule": {"before": "0 7 * * *", "after": "0 6 * * *"}},
            "next_before": ["2026-11-16T07:00:00Z"],
            "next_after": [MOMENT],
        }
    ],
    "warnings": [],
}


@router.post(
    "/sync",
    response_model=SyncOut,
    **described(
        Role.EDITOR, _EXAMPLE, request={"jobs": [NEW_JOB_EXAMPLE], "dry_run": True}, has_body=True, fails=[404, 409]
    ),
)
async def sync_jobs(body: SyncIn, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None) -> Response:
    """Make the jobs of these names what is declared: they are created, changed or left, and deleted only with `prune`.

    Everything is checked before anything is done. With `dry_run` the plan is shown, with fire times before and after.
    """
    completed = await desk.commands.complete(
        [_wish(number, job) for number, job in enumerate(body.jobs)], "jobs/{}".format
    )
    wishes = completed.specs
    do = desk.commands.plan_sync if body.dry_run else desk.commands.sync
    steps = await do(wishes, body.declared_by, prune=body.prune, actor=caller.acting(body.reason))
    done = Counter(step.step for step in steps)
    # Aside: the next times of a thousand jobs are seconds of work.
    documents = await asyncio.to_thread(lambda: [_document(desk, step, is_done=not body.dry_run) for step in steps])
    return answer(
        {
            "dry_run": body.dry_run,
            "created": done[Step.CREATE],
            "changed": done[Step.CHANGE],
            "left": done[Step.LEAVE],
            "deleted": done[Step.DELETE],
            "jobs": documents,
            "warnings": completed.warnings,
        }
    )


def _wish(number: int, job: JobIn) -> Told:
    try:
        return told(job)
    except InvalidInput as error:
        raise error.below(f"jobs/{number}") from error


def _document(desk: Desk, step: PlannedJob, *, is_done: bool) -> Document:
    now = desk.insights.now()
    known = step.after if is_done and step.after is not None else step.before
    changes = {name: {"before": before, "after": after} for name, (before, after) in step.changes.items()}
    return {
        "name": step.name,
        "action": step.step,
        "id": None if known is None else show_job(known.id),
        "version": None if known is None else known.version,
        "changes": {name: _hidden(name, change) for name, change in changes.items()},
        "next_before": _times(desk, step.before, now),
        "next_after": _times(desk, step.after, now),
    }


def _hidden(name: str, change: Document) -> Document:
    return {side: redacted(value) for side, value in change.items()} if name == "payload" else change


def _times(desk: Desk, job: Job | None, now: datetime) -> list[datetime]:
    if job is None:
        return []
    times = desk.insights.next_times(job.rule, job.timezone, now, _SHOWN_TIMES)
    return [time.occurrence.at for time in times if time.occurrence.is_due]
