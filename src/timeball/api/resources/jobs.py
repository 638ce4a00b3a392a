"""Routes of jobs: create, list, change, pause, trigger, backfill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from timeball.api.auth import Caller, CurrentCaller, Role
from timeball.api.context import ApiContext, Context
from timeball.api.documents import (
    ExecutionSelection,
    JobSelection,
    WaitParam,
    copy_spec,
    execution_response,
    executions_page,
    fire_time_document,
    given_fields,
    job_document,
    job_request,
    jobs_page,
    selected_job,
    wait_for_execution,
)
from timeball.api.errors import HttpProblem
from timeball.api.models import PageOut, ReasonIn
from timeball.api.models.executions import ExecutionFull, ExecutionIds, ExecutionOut
from timeball.api.models.jobs import BackfillIn, JobChanged, JobCreated, JobIn, JobOut, JobPatch, PauseIn, RunIn
from timeball.api.models.system import NextOut
from timeball.api.openapi import (
    CREATED_EXAMPLE,
    EXECUTION_EXAMPLE,
    EXECUTION_ID,
    INSTANT_EXAMPLE,
    JOB_EXAMPLE,
    NEW_JOB_EXAMPLE,
    export_options,
    page_example,
    route_options,
)
from timeball.api.params import (
    IdempotencyKey,
    IfMatch,
    JobFilterParams,
    JobRef,
    JobSort,
    PageParams,
    ReasonParam,
    allowed_execution_filter,
    optional_instant,
    parse_if_match,
    within_job,
)
from timeball.api.responses import ByteOrderMark, Document, ExportFormat, export_response, json_bytes, json_response
from timeball.application.commands.jobs import CreatedJob
from timeball.application.commands.requests import Actor, JobRequest
from timeball.application.queries.views import JobView
from timeball.domain.job import SPEC_FIELDS
from timeball.domain.search import ExecutionFilter, JobOrder, PageRequest
from timeball.domain.values.ids import ExecutionId, format_execution_id, format_job_id
from timeball.domain.values.redaction import refuse_redacted
from timeball.errors import Conflict

router = APIRouter(prefix="/jobs", tags=["jobs"])


# All of a job, so that nothing is lost on the way out and in again; its last execution is no part of it.
_COLUMNS = [name for name in JobOut.model_fields if name != "last_execution"]
_FULL_EXAMPLE = EXECUTION_EXAMPLE | {
    "payload": {},
    "result": None,
    "fingerprint": None,
    "stop_requested": None,
    "attempt_list": [],
    "timeline": [{"at": INSTANT_EXAMPLE, "what": "scheduled"}],
}


_CREATE: dict[str, Any] = route_options(
    Role.EDITOR, CREATED_EXAMPLE, status=201, request=NEW_JOB_EXAMPLE, has_body=True, fails=[409]
)
_CREATE["responses"][200] = {
    "description": "The job that holds the unique_key",
    "model": JobCreated,
    "content": {"application/json": {"example": CREATED_EXAMPLE}},
}


@router.post("", response_model=JobCreated, **_CREATE)
async def create_job(
    body: JobIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create a job: once (`scheduled_at`), every (`interval_seconds`), cron (`schedule`), or run by hand.

    A one-off whose `unique_key` is alive is not made again; the answer then shows the job that holds the key.
    """
    return await create_and_show(context, caller, job_request(body))


async def create_and_show(context: ApiContext, caller: Caller, wish: JobRequest) -> Response:
    """Create a job with what its handler declares, and show it."""
    done = await context.commands.contracts.resolve([wish])
    created = await context.commands.jobs.create(done.specs[0], actor=caller.as_actor(), idempotency=caller.idempotency)
    return await creation_response(context, created, done.warnings)


async def creation_response(context: ApiContext, created: CreatedJob, warnings: Sequence[str]) -> Response:
    """A job that was created; or the one that holds its unique key."""
    job_id = created.job_id
    if not created.is_new and created.execution_id is not None:
        job_id = (await context.queries.find_execution(str(created.execution_id))).job_id
    view = await context.queries.view_job(str(job_id))
    execution_id = None if created.execution_id is None else format_execution_id(created.execution_id)
    headers = _etag(view) | {"Location": f"/api/v1/jobs/{format_job_id(job_id)}"}
    document = job_document(view) | {"execution_id": execution_id, "warnings": list(warnings)}
    return json_response(document, 201 if created.is_new else 200, headers)


@router.get("", response_model=PageOut[JobOut], **route_options(Role.VIEWER, page_example(JOB_EXAMPLE)))
async def list_jobs(
    context: Context,
    wanted: JobFilterParams,
    page: PageParams,
    selection: JobSelection,
    sort: JobSort = JobOrder.NEWEST,
) -> Response:
    """List jobs. Searching payloads needs the role editor: it would tell a viewer what is hidden from them.

    In the place of a payload of more than 8 KB stands a note, `{"$timeball": "..."}`; the job itself and the export show it.
    """
    return json_response(
        await jobs_page(await context.queries.jobs(wanted, sort, page), page, selection, context.queries)
    )


@router.get(
    "/export",
    response_class=Response,
    **export_options("id,name,handler\r\n"),
)
async def export_jobs(
    context: Context,
    wanted: JobFilterParams,
    kind: Annotated[ExportFormat, Query(alias="format")] = "csv",
    bom: ByteOrderMark = False,
) -> Response:
    """All jobs that match, as CSV or JSON lines. Cells that a spreadsheet would run begin with an apostrophe."""

    async def read(request: PageRequest) -> Any:
        return await context.queries.jobs(wanted, JobOrder.NEWEST, request)

    return await export_response(
        kind, "jobs", _COLUMNS, read, _job_cells if kind == "csv" else job_document, has_mark=bom
    )


def _job_cells(view: JobView) -> Document:
    """A job for a row of CSV, where an empty cell means the default of a field and `null` that it is switched off."""
    document = job_document(view)
    no_timeout = {"timeout_ms": "null"} if document["timeout_ms"] is None else {}
    return document | {"payload": json_bytes(document["payload"]).decode()} | no_timeout


@router.get("/{job}", response_model=JobOut, **route_options(Role.VIEWER, JOB_EXAMPLE, fails=[404]))
async def get_job(job: JobRef, context: Context, selection: JobSelection) -> Response:
    """One job. Its ETag is its version."""
    view = await context.queries.view_job(job)
    return json_response(await selected_job(view, selection, context.queries), headers=_etag(view))


_CHANGE: dict[str, Any] = route_options(
    Role.EDITOR,
    JOB_EXAMPLE | {"warnings": []},
    request={"priority": 90},
    has_body=True,
    fails=[404, 409, 412],
)


@router.put("/{job}", response_model=JobChanged, **_CHANGE)
async def replace_job(
    job: JobRef,
    body: JobPatch,
    context: Context,
    caller: CurrentCaller,
    reason: ReasonParam = None,
    if_match: IfMatch = None,
) -> Response:
    """Change the fields that are given; the same as PATCH. Takes effect with the next occurrence."""
    return await _change(job, body, context, caller.as_actor(reason), if_match)


@router.patch("/{job}", response_model=JobChanged, **_CHANGE)
async def change_job(
    job: JobRef,
    body: JobPatch,
    context: Context,
    caller: CurrentCaller,
    reason: ReasonParam = None,
    if_match: IfMatch = None,
) -> Response:
    """Change the fields that are given. Takes effect with the next occurrence."""
    return await _change(job, body, context, caller.as_actor(reason), if_match)


async def _change(job: str, body: JobPatch, context: ApiContext, actor: Actor, if_match: str | None) -> Response:
    found = await context.queries.find_job(job)
    expected = parse_if_match(if_match)
    try:
        changed = await context.commands.jobs.update(
            found.id, given_fields(body), actor, expected, is_unchecked=body.unchecked
        )
    except Conflict as error:
        raise precondition_error(error) from error
    view = await context.queries.view_job(str(changed.id))
    warnings = await context.commands.contracts.warn(changed.handler) if "handler" in body.model_fields_set else []
    return json_response(job_document(view) | {"warnings": warnings}, headers=_etag(view))


def precondition_error(error: Conflict) -> HttpProblem | Conflict:
    """A change that was made for another version is a failed precondition; any other conflict is what it is."""
    version = error.facts.get("version")
    if version is None:
        return error
    return HttpProblem(412, "precondition_failed", str(error), hint=error.hint, headers=_etag_of_version(version))


_DELETE: dict[str, Any] = route_options(Role.EDITOR, None, status=204, fails=[404, 409, 412])


@router.delete("/{job}", response_class=Response, **_DELETE)
async def delete_job(
    job: JobRef,
    context: Context,
    caller: CurrentCaller,
    reason: ReasonParam = None,
    if_match: IfMatch = None,
) -> Response:
    """Take a job out of service: what waits is cancelled, its name is free again, its history stays."""
    found = await context.queries.find_job(job)
    expected = parse_if_match(if_match)
    if expected is not None and expected != found.version:
        raise HttpProblem(
            412,
            "precondition_failed",
            f"the job has version {found.version}",
            hint="read it again",
            headers=_etag_of_version(found.version),
        )
    await context.commands.jobs.delete(found.id, caller.as_actor(reason))
    return Response(status_code=204)


@router.post(
    "/{job}/pause",
    response_model=JobOut,
    **route_options(
        Role.OPERATOR,
        JOB_EXAMPLE,
        request={"until": INSTANT_EXAMPLE, "reason": "maintenance"},
        has_body=True,
        fails=[404, 409],
    ),
)
async def pause_job(
    job: JobRef,
    context: Context,
    caller: CurrentCaller,
    body: PauseIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Let nothing of a job start until it is resumed, by hand or at `until`."""
    body = body or PauseIn()
    found = await context.queries.find_job(job)
    await context.commands.jobs.pause(
        found.id, optional_instant(body.until, "until", found.timezone), caller.as_actor(body.reason)
    )
    return json_response(job_document(await context.queries.view_job(str(found.id))))


@router.post(
    "/{job}/resume",
    response_model=JobOut,
    **route_options(Role.OPERATOR, JOB_EXAMPLE, request={"reason": "done"}, has_body=True, fails=[404, 409]),
)
async def resume_job(
    job: JobRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Let a paused job go on from now; what fell into the pause is recorded as skipped."""
    found = await context.queries.find_job(job)
    await context.commands.jobs.resume(found.id, caller.as_actor((body or ReasonIn()).reason))
    return json_response(job_document(await context.queries.view_job(str(found.id))))


RUN_OPTIONS: dict[str, Any] = route_options(
    Role.OPERATOR, _FULL_EXAMPLE, status=202, request={"reason": "again"}, has_body=True, fails=[404, 409]
)
RUN_OPTIONS["responses"][200] = {
    "description": "It ended while `wait` lasted",
    "model": ExecutionFull,
    "content": {"application/json": {"example": _FULL_EXAMPLE}},
}


@router.post("/{job}/trigger", response_model=ExecutionFull, **RUN_OPTIONS)
async def trigger_job(
    job: JobRef,
    context: Context,
    caller: CurrentCaller,
    wait: WaitParam,
    body: RunIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run a job now, beside its schedule. Another payload needs the role editor.

    With `wait` the answer comes when the execution has ended (200), or when the wait is over (202).
    """
    body = check_run_payload(body, caller)
    found = await context.queries.find_job(job)
    execution_id = await context.commands.executions.trigger(
        found.id, body.payload, caller.as_actor(body.reason), caller.idempotency, is_unchecked=body.unchecked
    )
    return await wait_for_execution(context, execution_id, wait)


@router.post(
    "/{job}/cancel",
    response_model=ExecutionFull,
    **route_options(Role.OPERATOR, _FULL_EXAMPLE, request={"reason": "not needed"}, has_body=True, fails=[404, 409]),
)
async def cancel_job(
    job: JobRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Cancel the current execution of a job: the one that runs, or else waits. A schedule goes on with its next occurrence."""
    found = await context.queries.find_job(job)
    current = await context.queries.current_execution(found.id)
    if current is None:
        raise Conflict("the job has no waiting or running execution")
    await cancel_or_conflict(context, current.id, caller.as_actor((body or ReasonIn()).reason))
    return await execution_response(context, current.id, 200)


@router.post("/{job}/retry", response_model=ExecutionFull, **RUN_OPTIONS)
async def retry_job(
    job: JobRef,
    context: Context,
    caller: CurrentCaller,
    wait: WaitParam,
    body: RunIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run the last ended execution of a job again, as a new one. Another payload needs the role editor."""
    body = check_run_payload(body, caller)
    found = await context.queries.find_job(job)
    last = await context.queries.last_ended(found.id)
    if last is None:
        raise Conflict("no execution of the job has finished", hint="trigger it instead")
    execution_id = await context.commands.executions.retry(
        last.id, body.payload, caller.as_actor(body.reason), caller.idempotency, is_unchecked=body.unchecked
    )
    return await wait_for_execution(context, execution_id, wait)


@router.post(
    "/{job}/duplicate",
    response_model=JobCreated,
    **route_options(
        Role.EDITOR,
        CREATED_EXAMPLE,
        status=201,
        request={"name": "daily-report-2", "scheduled_at": INSTANT_EXAMPLE},
        has_body=True,
        fails=[404, 409],
    ),
)
async def duplicate_job(
    job: JobRef,
    context: Context,
    caller: CurrentCaller,
    body: JobPatch | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a copy of a job, with other values for the fields that are given."""
    found = await context.queries.find_job(job)
    fields, is_unchecked = ({}, False) if body is None else (given_fields(body), body.unchecked)
    # A copy is told everything by what it copies; the contract of another handler has a word all the same.
    names = (
        SPEC_FIELDS - {"delivery"} | fields.keys()
        if fields.get("handler", found.handler) != found.handler
        else SPEC_FIELDS
    )
    return await create_and_show(
        context, caller, JobRequest(copy_spec(found, fields, context.queries.now()), names, is_unchecked)
    )


@router.post(
    "/{job}/backfill",
    response_model=ExecutionIds,
    **route_options(
        Role.EDITOR,
        {"count": 1, "execution_ids": [EXECUTION_ID]},
        status=202,
        request={"start": "2026-11-01T00:00:00Z", "end": "2026-11-08T00:00:00Z"},
        has_body=True,
        fails=[404, 409],
    ),
)
async def backfill_job(
    job: JobRef, body: BackfillIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run a job once for every occurrence that its schedule names in a span of the past, ten a second."""
    found = await context.queries.find_job(job)
    start, end = (optional_instant(getattr(body, side), side, found.timezone) for side in ("start", "end"))
    assert start is not None
    assert end is not None
    ids = await context.commands.executions.backfill(
        found.id, start, end, caller.as_actor(body.reason), caller.idempotency
    )
    return json_response({"count": len(ids), "execution_ids": [format_execution_id(one) for one in ids]}, 202)


@router.get(
    "/{job}/executions",
    response_model=PageOut[ExecutionOut],
    **route_options(Role.VIEWER, page_example(EXECUTION_EXAMPLE), fails=[404]),
)
async def list_executions_of_job(
    job: JobRef,
    context: Context,
    wanted: Annotated[ExecutionFilter, Depends(allowed_execution_filter)],
    page: PageParams,
    selection: ExecutionSelection,
) -> Response:
    """The executions of a job, the latest first."""
    found = await context.queries.find_job(job)
    return json_response(
        await executions_page(
            await context.queries.executions(within_job(wanted, found.id), page), page, selection, context.queries
        )
    )


_NEXT_EXAMPLE = {
    "description": "At 06:00 (UTC)",
    "next": [{"at": INSTANT_EXAMPLE, "local": "2026-11-16T06:00:00+00:00", "is_due": True, "note": None}],
}


@router.get("/{job}/next", response_model=NextOut, **route_options(Role.VIEWER, _NEXT_EXAMPLE, fails=[404]))
async def next_of_job(job: JobRef, context: Context, count: Annotated[int, Query(ge=1, le=100)] = 10) -> Response:
    """When a job runs next, with the changes of the clock marked."""
    found = await context.queries.find_job(job)
    times = context.queries.next_times(found.rule, found.timezone, context.queries.now(), count)
    return json_response({"description": found.rule.describe(), "next": [fire_time_document(time) for time in times]})


def check_run_payload(body: RunIn | None, caller: CurrentCaller) -> RunIn:
    """A payload of one's own is an edit for one run, so it needs the role that edits."""
    body = body or RunIn()
    if body.payload is not None:
        caller.needs(Role.EDITOR, "another payload")
        refuse_redacted(body.payload)
    return body


async def cancel_or_conflict(context: ApiContext, execution_id: ExecutionId, actor: Any) -> None:
    """Cancel an execution; Conflict if it has ended."""
    if execution_id not in await context.commands.executions.cancel([execution_id], actor):
        raise Conflict("the execution has finished or is already being cancelled", hint="retry makes a new one")


def _etag(view: JobView) -> dict[str, str]:
    return _etag_of_version(view.job.version)


def _etag_of_version(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}
