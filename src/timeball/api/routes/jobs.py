"""Jobs: created, found, changed; and what can be done to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query
from starlette.responses import Response

from timeball.api.auth import Caller, Role, TheCaller
from timeball.api.described import (
    EXECUTION_EXAMPLE,
    EXECUTION_ID,
    JOB_EXAMPLE,
    MOMENT,
    NEW_JOB_EXAMPLE,
    described,
    described_export,
    listed,
)
from timeball.api.desk import Desk, TheDesk
from timeball.api.expanding import ExecutionShape, JobShape, executions_page, job_answer, jobs_page
from timeball.api.export import Format, WithMark, exported
from timeball.api.problems import Refusal
from timeball.api.schemas.bulk import ExecutionIds
from timeball.api.schemas.common import ListOut, Reason, Words
from timeball.api.schemas.executions import ExecutionFull, ExecutionOut
from timeball.api.schemas.jobs import BackfillIn, JobChanged, JobCreated, JobIn, JobOut, JobPatch, PauseIn, RunIn
from timeball.api.schemas.system import NextOut
from timeball.api.views import (
    Document,
    answer,
    fire_time_document,
    job_document,
    to_bytes,
)
from timeball.api.waiting import Wait, awaited_execution, shown_execution
from timeball.api.wishes import (
    copy_of,
    fields_of,
    moment_from,
    of_job,
    page_request,
    searched_executions,
    searched_jobs,
    told,
    version_from,
)
from timeball.commands import Actor, Created, Told
from timeball.domain.ids import ExecutionId, show_execution, show_job
from timeball.domain.job import SPEC_FIELDS
from timeball.domain.redaction import refuse_redacted
from timeball.domain.search import ExecutionFilter, JobFilter, JobOrder, PageRequest
from timeball.errors import Conflict
from timeball.insights import JobView

router = APIRouter(prefix="/jobs", tags=["jobs"])

JobRef = Annotated[str, Path(max_length=200, description="A job's id or name.")]
IfMatch = Annotated[str | None, Header(description='The ETag that the change is made for, such as `"3"`.')]
Why = Annotated[Words | None, Query(description="Why; it goes into the audit.")]
IdempotencyKey = Annotated[
    str | None, Header(description="Sent again with the same key within 24 hours, the first answer comes again.")
]
TheFilter = Annotated[JobFilter, Depends(searched_jobs)]
ThePage = Annotated[PageRequest, Depends(page_request)]
Sort = Annotated[JobOrder, Query(description="The order; a minus means the largest first. By name: named jobs only.")]

# All of a job, so that nothing is lost on the way out and in again; its last execution is no part of it.
_COLUMNS = [name for name in JobOut.model_fields if name != "last_execution"]
_FULL_EXAMPLE = EXECUTION_EXAMPLE | {
    "payload": {},
    "result": None,
    "fingerprint": None,
    "stop_requested": None,
    "attempt_list": [],
    "timeline": [{"at": MOMENT, "what": "scheduled"}],
}


CREATED_EXAMPLE = JOB_EXAMPLE | {"execution_id": EXECUTION_ID, "warnings": []}
_CREATE: dict[str, Any] = described(
    Role.EDITOR, CREATED_EXAMPLE, status=201, request=NEW_JOB_EXAMPLE, has_body=True, fails=[409]
)
_CREATE["responses"][200] = {
    "description": "The job that holds the unique_key",
    "model": JobCreated,
    "content": {"application/json": {"example": CREATED_EXAMPLE}},
}


@router.post("", response_model=JobCreated, **_CREATE)
async def create_job(body: JobIn, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None) -> Response:
    """Create a job: once (`scheduled_at`), every (`interval_seconds`), cron (`schedule`), or run by hand.

    A one-off whose `unique_key` is alive is not made again; the answer then shows the job that holds the key.
    """
    return await created_job(desk, caller, told(body))


async def created_job(desk: Desk, caller: Caller, wish: Told) -> Response:
    """Create a job with what its handler declares, and show it."""
    done = await desk.commands.complete([wish])
    created = await desk.commands.create(done.specs[0], actor=caller.acting(), deed=caller.deed)
    return await shown_creation(desk, created, done.warnings)


async def shown_creation(desk: Desk, created: Created, warnings: Sequence[str]) -> Response:
    """A job that was created; or the one that holds its unique key."""
    job_id = created.job_id
    if not created.is_new and created.execution_id is not None:
        job_id = (await desk.insights.find_execution(str(created.execution_id))).job_id
    view = await desk.insights.view_job(str(job_id))
    execution_id = None if created.execution_id is None else show_execution(created.execution_id)
    headers = _etag(view) | {"Location": f"/api/v1/jobs/{show_job(job_id)}"}
    document = job_document(view) | {"execution_id": execution_id, "warnings": list(warnings)}
    return answer(document, 201 if created.is_new else 200, headers)


@router.get("", response_model=ListOut[JobOut], **described(Role.VIEWER, listed(JOB_EXAMPLE)))
async def list_jobs(
    desk: TheDesk, wanted: TheFilter, page: ThePage, shape: JobShape, sort: Sort = JobOrder.NEWEST
) -> Response:
    """List jobs. Searching payloads needs the role editor: it would tell a viewer what is hidden from them.

    In the place of a payload of more than 8 KB stands a note, `{"$timeball": "..."}`; the job itself and the export show it.
    """
    return answer(await jobs_page(await desk.insights.jobs(wanted, sort, page), page, shape, desk.insights))


@router.get(
    "/export",
    response_class=Response,
    **described_export("id,name,handler\r\n"),
)
async def export_jobs(
    desk: TheDesk,
    wanted: TheFilter,
    kind: Annotated[Format, Query(alias="format")] = "csv",
    bom: WithMark = False,
) -> Response:
    """All jobs that match, as CSV or JSON lines. Cells that a spreadsheet would run begin with an apostrophe."""

    async def read(request: PageRequest) -> Any:
        return await desk.insights.jobs(wanted, JobOrder.NEWEST, request)

    return await exported(kind, "jobs", _COLUMNS, read, _job_cells if kind == "csv" else job_document, has_mark=bom)


def _job_cells(view: JobView) -> Document:
    """A job for a row of CSV, where an empty cell means the default of a field and `null` that it is switched off."""
    document = job_document(view)
    no_timeout = {"timeout_ms": "null"} if document["timeout_ms"] is None else {}
    return document | {"payload": to_bytes(document["payload"]).decode()} | no_timeout


@router.get("/{job}", response_model=JobOut, **described(Role.VIEWER, JOB_EXAMPLE, fails=[404]))
async def get_job(job: JobRef, desk: TheDesk, shape: JobShape) -> Response:
    """One job. Its ETag is its version."""
    view = await desk.insights.view_job(job)
    return answer(await job_answer(view, shape, desk.insights), headers=_etag(view))


_CHANGE: dict[str, Any] = described(
    Role.EDITOR,
    JOB_EXAMPLE | {"warnings": []},
    request={"priority": 90},
    has_body=True,
    fails=[404, 409, 412],
)


@router.put("/{job}", response_model=JobChanged, **_CHANGE)
async def replace_job(
    job: JobRef, body: JobPatch, desk: TheDesk, caller: TheCaller, reason: Why = None, if_match: IfMatch = None
) -> Response:
    """Change the fields that are given; the same as PATCH. Takes effect with the next occurrence."""
    return await _change(job, body, desk, caller.acting(reason), if_match)


@router.patch("/{job}", response_model=JobChanged, **_CHANGE)
async def change_job(
    job: JobRef, body: JobPatch, desk: TheDesk, caller: TheCaller, reason: Why = None, if_match: IfMatch = None
) -> Response:
    """Change the fields that are given. Takes effect with the next occurrence."""
    return await _change(job, body, desk, caller.acting(reason), if_match)


async def _change(job: str, body: JobPatch, desk: Desk, actor: Actor, if_match: str | None) -> Response:
    found = await desk.insights.find_job(job)
    expected = version_from(if_match)
    try:
        changed = await desk.commands.update(found.id, fields_of(body), actor, expected, is_unchecked=body.unchecked)
    except Conflict as error:
        raise stale(error) from error
    view = await desk.insights.view_job(str(changed.id))
    warnings = await desk.commands.warn(changed.handler) if "handler" in body.model_fields_set else []
    return answer(job_document(view) | {"warnings": warnings}, headers=_etag(view))


def stale(error: Conflict) -> Refusal | Conflict:
    """A change that was made for another version is a failed precondition; any other conflict is what it is."""
    version = error.facts.get("version")
    if version is None:
        return error
    return Refusal(412, "precondition_failed", str(error), hint=error.hint, headers=_tag(version))


_DELETE: dict[str, Any] = described(Role.EDITOR, None, status=204, fails=[404, 409, 412])


@router.delete("/{job}", response_class=Response, **_DELETE)
async def delete_job(
    job: JobRef,
    desk: TheDesk,
    caller: TheCaller,
    reason: Why = None,
    if_match: IfMatch = None,
) -> Response:
    """Take a job out of service: what waits is cancelled, its name is free again, its history stays."""
    found = await desk.insights.find_job(job)
    expected = version_from(if_match)
    if expected is not None and expected != found.version:
        raise Refusal(
            412,
            "precondition_failed",
            f"the job has version {found.version}",
            hint="read it again",
            headers=_tag(found.version),
        )
    await desk.commands.delete(found.id, caller.acting(reason))
    return Response(status_code=204)


@router.post(
    "/{job}/pause",
    response_model=JobOut,
    **described(
        Role.OPERATOR, JOB_EXAMPLE, request={"until": MOMENT, "reason": "maintenance"}, has_body=True, fails=[404, 409]
    ),
)
async def pause_job(
    job: JobRef, desk: TheDesk, caller: TheCaller, body: PauseIn | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Let nothing of a job start until it is resumed, by hand or at `until`."""
    body = body or PauseIn()
    found = await desk.insights.find_job(job)
    await desk.commands.pause(found.id, moment_from(body.until, "until", found.timezone), caller.acting(body.reason))
    return answer(job_document(await desk.insights.view_job(str(found.id))))


@router.post(
    "/{job}/resume",
    response_model=JobOut,
    **described(Role.OPERATOR, JOB_EXAMPLE, request={"reason": "done"}, has_body=True, fails=[404, 409]),
)
async def resume_job(
    job: JobRef, desk: TheDesk, caller: TheCaller, body: Reason | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Let a paused job go on from now; what fell into the pause is recorded as skipped."""
    found = await desk.insights.find_job(job)
    await desk.commands.resume(found.id, caller.acting((body or Reason()).reason))
    return answer(job_document(await desk.insights.view_job(str(found.id))))


RUN: dict[str, Any] = described(
    Role.OPERATOR, _FULL_EXAMPLE, status=202, request={"reason": "again"}, has_body=True, fails=[404, 409]
)
RUN["responses"][200] = {
    "description": "It ended while `wait` lasted",
    "model": ExecutionFull,
    "content": {"application/json": {"example": _FULL_EXAMPLE}},
}


@router.post("/{job}/trigger", response_model=ExecutionFull, **RUN)
async def trigger_job(
    job: JobRef,
    desk: TheDesk,
    caller: TheCaller,
    wait: Wait,
    body: RunIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run a job now, beside its schedule. Another payload needs the role editor.

    With `wait` the answer comes when the execution has ended (200), or when the wait is over (202).
    """
    body = checked_run(body, caller)
    found = await desk.insights.find_job(job)
    execution_id = await desk.commands.trigger(
        found.id, body.payload, caller.acting(body.reason), caller.deed, is_unchecked=body.unchecked
    )
    return await awaited_execution(desk, execution_id, wait)


@router.post(
    "/{job}/cancel",
    response_model=ExecutionFull,
    **described(Role.OPERATOR, _FULL_EXAMPLE, request={"reason": "not needed"}, has_body=True, fails=[404, 409]),
)
async def cancel_job(
    job: JobRef, desk: TheDesk, caller: TheCaller, body: Reason | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Cancel the current execution of a job: the one that runs, or else waits. A schedule goes on with its next occurrence."""
    found = await desk.insights.find_job(job)
    current = await desk.insights.current_execution(found.id)
    if current is None:
        raise Conflict("nothing of this job waits or runs")
    await cancel_one(desk, current.id, caller.acting((body or Reason()).reason))
    return await shown_execution(desk, current.id, 200)


@router.post("/{job}/retry", response_model=ExecutionFull, **RUN)
async def retry_job(
    job: JobRef,
    desk: TheDesk,
    caller: TheCaller,
    wait: Wait,
    body: RunIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run the last ended execution of a job again, as a new one. Another payload needs the role editor."""
    body = checked_run(body, caller)
    found = await desk.insights.find_job(job)
    last = await desk.insights.last_ended(found.id)
    if last is None:
        raise Conflict("no execution of this job has ended", hint="trigger it instead")
    execution_id = await desk.commands.retry(
        last.id, body.payload, caller.acting(body.reason), caller.deed, is_unchecked=body.unchecked
    )
    return await awaited_execution(desk, execution_id, wait)


@router.post(
    "/{job}/duplicate",
    response_model=JobCreated,
    **described(
        Role.EDITOR,
        CREATED_EXAMPLE,
        status=201,
        request={"name": "daily-report-2", "scheduled_at": MOMENT},
        has_body=True,
        fails=[404, 409],
    ),
)
async def duplicate_job(
    job: JobRef, desk: TheDesk, caller: TheCaller, body: JobPatch | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create a copy of a job, with other values for the fields that are given."""
    found = await desk.insights.find_job(job)
    fields, is_unchecked = ({}, False) if body is None else (fields_of(body), body.unchecked)
    # A copy is told everything by what it copies; the contract of another handler has a word all the same.
    names = (
        SPEC_FIELDS - {"delivery"} | fields.keys()
        if fields.get("handler", found.handler) != found.handler
        else SPEC_FIELDS
    )
    return await created_job(desk, caller, Told(copy_of(found, fields, desk.insights.now()), names, is_unchecked))


@router.post(
    "/{job}/backfill",
    response_model=ExecutionIds,
    **described(
        Role.EDITOR,
        {"count": 1, "execution_ids": [EXECUTION_ID]},
        status=202,
        request={"start": "2026-11-01T00:00:00Z", "end": "2026-11-08T00:00:00Z"},
        has_body=True,
        fails=[404, 409],
    ),
)
async def backfill_job(
    job: JobRef, body: BackfillIn, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run a job once for every occurrence that its schedule names in a span of the past, ten a second."""
    found = await desk.insights.find_job(job)
    start, end = (moment_from(getattr(body, side), side, found.timezone) for side in ("start", "end"))
    assert start is not None
    assert end is not None
    ids = await desk.commands.backfill(found.id, start, end, caller.acting(body.reason), caller.deed)
    return answer({"count": len(ids), "execution_ids": [show_execution(one) for one in ids]}, 202)


@router.get(
    "/{job}/executions",
    response_model=ListOut[ExecutionOut],
    **described(Role.VIEWER, listed(EXECUTION_EXAMPLE), fails=[404]),
)
async def list_executions_of_job(
    job: JobRef,
    desk: TheDesk,
    wanted: Annotated[ExecutionFilter, Depends(searched_executions)],
    page: ThePage,
    shape: ExecutionShape,
) -> Response:
    """The executions of a job, the latest first."""
    found = await desk.insights.find_job(job)
    return answer(
        await executions_page(
            await desk.insights.executions(of_job(wanted, found.id), page), page, shape, desk.insights
        )
    )


_NEXT_EXAMPLE = {
    "description": "At 06:00 (UTC)",
    "next": [{"at": MOMENT, "local": "2026-11-16T06:00:00+00:00", "is_due": True, "note": None}],
}


@router.get("/{job}/next", response_model=NextOut, **described(Role.VIEWER, _NEXT_EXAMPLE, fails=[404]))
async def next_of_job(job: JobRef, desk: TheDesk, count: Annotated[int, Query(ge=1, le=100)] = 10) -> Response:
    """When a job runs next, with the changes of the clock marked."""
    found = await desk.insights.find_job(job)
    times = desk.insights.next_times(found.rule, found.timezone, desk.insights.now(), count)
    return answer({"description": found.rule.describe(), "next": [fire_time_document(time) for time in times]})


def checked_run(body: RunIn | None, caller: TheCaller) -> RunIn:
    """A payload of one's own is an edit for one run, so it needs the role that edits."""
    body = body or RunIn()
    if body.payload is not None:
        caller.needs(Role.EDITOR, "another payload")
        refuse_redacted(body.payload)
    return body


async def cancel_one(desk: Desk, execution_id: ExecutionId, actor: Any) -> None:
    """Cancel an execution; Conflict if it has ended."""
    if execution_id not in await desk.commands.cancel([execution_id], actor):
        raise Conflict("this execution has ended, or is being stopped already", hint="retry makes a new one")


def _etag(view: JobView) -> dict[str, str]:
    return _tag(view.job.version)


def _tag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}
