"""Routes of jobs: create, list, change, pause, trigger, backfill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from timeball.api.auth import Caller, CurrentCaller, Role
from timeball.api.documents import (
    ExecutionSelection,
    JobSelection,
    WaitParam,
    execution_response,
    executions_page,
    jobs_page,
    resolved_payload_document,
    selected_job,
    wait_for_execution,
)
from timeball.api.errors import HttpProblem, precondition_error
from timeball.api.models import PageOut, ReasonIn
from timeball.api.models.executions import ExecutionFull, ExecutionOut, OperationOut
from timeball.api.models.jobs import (
    BackfillIn,
    BackfillPreviewOut,
    JobChanged,
    JobCreated,
    JobIn,
    JobOut,
    JobPatch,
    PauseIn,
    RunIn,
    TriggerIn,
    job_document,
)
from timeball.api.models.system import NextOut, fire_time_document
from timeball.api.openapi import (
    CREATED_EXAMPLE,
    EXECUTION_EXAMPLE,
    INSTANT_EXAMPLE,
    JOB_EXAMPLE,
    NEW_JOB_EXAMPLE,
    export_options,
    page_example,
    route_options,
)
from timeball.api.params import (
    ApiContext,
    Context,
    IdempotencyKey,
    IfMatch,
    JobFilterParams,
    JobRef,
    JobSort,
    PageParams,
    ReasonParam,
    allowed_execution_filter,
    given_fields,
    job_request,
    optional_instant,
    parse_if_match,
    within_job,
)
from timeball.api.resources.operations import OPERATION_EXAMPLE, accepted_operation
from timeball.api.responses import (
    ByteOrderMark,
    Document,
    ExportFormat,
    etag_of_version,
    export_response,
    json_bytes,
    json_response,
)
from timeball.application.commands.requests import Actor, JobRequest
from timeball.domain.backfill import Backfill, BackfillPreview, BackfillSelection, BackfillSource
from timeball.domain.expiry import Expiry
from timeball.domain.follow_ups import FOLLOW_UP_FIELDS
from timeball.domain.job import JobView, copy_spec
from timeball.domain.job_fields import SPEC_FIELDS
from timeball.domain.payload_references import VersionSchedule
from timeball.domain.search import ExecutionFilter, JobOrder, PageRequest
from timeball.domain.values.ids import ExecutionId, format_execution_id, format_job_id
from timeball.domain.values.json_text import to_json
from timeball.domain.values.redaction import refuse_redacted
from timeball.errors import Conflict

if TYPE_CHECKING:
    from timeball.application.commands.jobs import CreatedJob

router = APIRouter(prefix="/jobs", tags=["jobs"])


# Every field of a job, so that an export can be imported again; the last execution is not part of the job.
_COLUMNS = [name for name in JobOut.model_fields if name != "last_execution"]
_FULL_EXAMPLE = EXECUTION_EXAMPLE | {
    "payload": {},
    "resolved": None,
    "result": None,
    "fingerprint": None,
    "stop_requested": None,
    "follows": None,
    "followed_by": [],
    "group": None,
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
    """Create a job: once (`scheduled_at`), every (`interval_seconds`), by cron (`schedule`), after each success of another job
    (`after`), or run by hand (`"schedule": "manual"`).

    A job with no time runs now.

    If an unfinished one-off has the same `unique_key`, no job is created, and the response shows the job that holds the key.
    """
    return await create_and_show(context, caller, job_request(body))


async def create_and_show(context: ApiContext, caller: Caller, request: JobRequest) -> Response:
    """Create a job with the options that its handler declares, and show it."""
    resolved = await context.commands.contracts.resolve([request])
    created = await context.commands.jobs.create(
        resolved.specs[0], actor=caller.as_actor(), idempotency=caller.idempotency, is_shown=True
    )
    return await creation_response(context, created, resolved.warnings)


async def creation_response(context: ApiContext, created: CreatedJob, warnings: Sequence[str]) -> Response:
    """The job that was created, as it was written; or the one that holds its unique key."""
    view = created.view or await _view_existing(context, created)
    execution_id = None if created.execution_id is None else format_execution_id(created.execution_id)
    headers = _etag(view) | {"Location": f"/api/v1/jobs/{format_job_id(view.job.id)}"}
    document = job_document(view) | {"execution_id": execution_id, "warnings": list(warnings)}
    return json_response(document, 201 if created.is_new else 200, headers)


async def _view_existing(context: ApiContext, created: CreatedJob) -> JobView:
    """A job that this request has not written: it holds the unique key, or an earlier request of the same key wrote it."""
    job_id = created.job_id
    if not created.is_new and created.execution_id is not None:
        job_id = (await context.queries.executions.find(str(created.execution_id))).job_id
    return await context.queries.jobs.view(str(job_id))


@router.get("", response_model=PageOut[JobOut], **route_options(Role.VIEWER, page_example(JOB_EXAMPLE)))
async def list_jobs(
    context: Context,
    filters: JobFilterParams,
    page: PageParams,
    selection: JobSelection,
    sort: JobSort = JobOrder.NEWEST,
) -> Response:
    """List jobs. Searching payloads needs the role editor, because it would reveal secrets to a viewer.

    A payload of more than 8 KB is replaced by a note, `{"$timeball": "..."}`; `GET /jobs/{job}` and the export show it.
    """
    return json_response(
        await jobs_page(await context.queries.jobs.page(filters, sort, page), page, selection, context.queries)
    )


@router.get(
    "/export",
    response_class=Response,
    **export_options("id,name,handler\r\n"),
)
async def export_jobs(
    context: Context,
    filters: JobFilterParams,
    kind: Annotated[ExportFormat, Query(alias="format")] = "csv",
    bom: ByteOrderMark = False,
) -> Response:
    """All matching jobs as CSV, JSON lines or JSON. Cells that a spreadsheet would run begin with an apostrophe."""

    async def read(request: PageRequest) -> Any:
        return await context.queries.jobs.page(filters, JobOrder.NEWEST, request)

    return await export_response(
        kind, "jobs", _COLUMNS, read, _job_cells if kind == "csv" else job_document, has_mark=bom
    )


def _job_cells(view: JobView) -> Document:
    """A job as a row of CSV: an empty cell means the default of a field, `null` that it is switched off."""
    document = job_document(view)
    no_timeout = {"timeout_ms": "null"} if document["timeout_ms"] is None else {}
    return document | {"payload": json_bytes(document["payload"]).decode()} | no_timeout


@router.get("/{job}", response_model=JobOut, **route_options(Role.VIEWER, JOB_EXAMPLE, fails=[404]))
async def get_job(job: JobRef, context: Context, selection: JobSelection) -> Response:
    """One job. Its ETag is its version."""
    view = await context.queries.jobs.view(job)
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
    """Change the given fields; the same as PATCH. The change takes effect with the next occurrence."""
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
    """Change the given fields. The change takes effect with the next occurrence."""
    return await _change(job, body, context, caller.as_actor(reason), if_match)


async def _change(job: str, body: JobPatch, context: ApiContext, actor: Actor, if_match: str | None) -> Response:
    target = await context.queries.jobs.find(job)
    expected = parse_if_match(if_match)
    try:
        changed = await context.commands.jobs.update(
            target.id, given_fields(body), actor, expected, is_unchecked=body.unchecked
        )
    except Conflict as error:
        raise precondition_error(error) from error
    view = await context.queries.jobs.view(str(changed.id))
    warnings = await context.commands.contracts.warn(changed.handler) if "handler" in body.model_fields_set else []
    return json_response(job_document(view) | {"warnings": warnings}, headers=_etag(view))


_DELETE: dict[str, Any] = route_options(Role.EDITOR, None, status=204, fails=[404, 409, 412])


@router.delete("/{job}", response_class=Response, **_DELETE)
async def delete_job(
    job: JobRef,
    context: Context,
    caller: CurrentCaller,
    reason: ReasonParam = None,
    if_match: IfMatch = None,
) -> Response:
    """Delete a job: its waiting executions are cancelled, its name is free again, its history stays."""
    target = await context.queries.jobs.find(job)
    expected = parse_if_match(if_match)
    if expected is not None and expected != target.version:
        raise HttpProblem(
            412,
            "precondition_failed",
            f"the job has version {target.version}, expected {expected}",
            hint="read the job again, and repeat the request with its ETag",
            headers=etag_of_version(target.version),
        )
    await context.commands.jobs.delete(target.id, caller.as_actor(reason))
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
    """Pause a job: none of its executions starts until it is resumed, by a request or at `until`."""
    body = body or PauseIn()
    target = await context.queries.jobs.find(job)
    await context.commands.jobs.pause(
        target.id, optional_instant(body.until, "until", target.timezone), caller.as_actor(body.reason)
    )
    return json_response(job_document(await context.queries.jobs.view(str(target.id))))


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
    """Resume a paused job from now on; occurrences during the pause are recorded as skipped."""
    target = await context.queries.jobs.find(job)
    await context.commands.jobs.resume(target.id, caller.as_actor((body or ReasonIn()).reason))
    return json_response(job_document(await context.queries.jobs.view(str(target.id))))


RUN_OPTIONS: dict[str, Any] = route_options(
    Role.OPERATOR, _FULL_EXAMPLE, status=202, request={"reason": "again"}, has_body=True, fails=[404, 409]
)
RUN_OPTIONS["responses"][200] = {
    "description": "The execution finished during `wait`",
    "model": ExecutionFull,
    "content": {"application/json": {"example": _FULL_EXAMPLE}},
}


@router.post("/{job}/trigger", response_model=ExecutionFull, **RUN_OPTIONS)
async def trigger_job(
    job: JobRef,
    context: Context,
    caller: CurrentCaller,
    wait: WaitParam,
    body: TriggerIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run a job now, in addition to its schedule. Another payload needs the role editor.

    With `wait` the response comes when the execution has finished (200), or when the wait is over (202).
    With `start_within_seconds` or `expires_at` the execution is skipped if it has not begun by then. With `meta` it has that in place of
    the meta of the job, and with `on_success` or `on_failure` these calls follow it, in place of those that follow the job; both need the
    role editor, too.
    """
    body = body or TriggerIn()
    check_run_payload(body, caller)
    if body.meta is not None:
        caller.needs(Role.EDITOR, "other meta")
        refuse_redacted(body.meta, "meta")
    calls = {name: getattr(body, name) for name in FOLLOW_UP_FIELDS if getattr(body, name) is not None}
    if calls:
        caller.needs(Role.EDITOR, "calls that follow")
        refuse_redacted(calls, "on_success")
    target = await context.queries.jobs.find(job)
    expires_at = optional_instant(body.expires_at, "expires_at", target.timezone)
    execution_id = await context.commands.executions.trigger(
        target.id,
        body.payload,
        caller.as_actor(body.reason),
        caller.idempotency,
        is_unchecked=body.unchecked,
        expiry=Expiry(start_within_seconds=body.start_within_seconds, expires_at=expires_at),
        meta=body.meta,
        calls=calls or None,
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
    """Cancel the current execution of a job: the running one, or else the waiting one. The schedule goes on with its next occurrence."""
    target = await context.queries.jobs.find(job)
    current = await context.queries.executions.current_of(target.id)
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
    """Run the last finished execution of a job again, as a new one. Another payload needs the role editor."""
    body = check_run_payload(body, caller)
    target = await context.queries.jobs.find(job)
    last = await context.queries.executions.last_ended_of(target.id)
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
    """Create a copy of a job, with other values for the given fields."""
    target = await context.queries.jobs.find(job)
    fields, is_unchecked = ({}, False) if body is None else (given_fields(body), body.unchecked)
    # A copy takes every field from the original; only for another handler, that handler's contract decides on delivery.
    names = (
        SPEC_FIELDS.keys() - {"delivery"} | fields.keys()
        if fields.get("handler", target.handler) != target.handler
        else SPEC_FIELDS.keys()
    )
    return await create_and_show(
        context, caller, JobRequest(copy_spec(target, fields, context.queries.now()), names, is_unchecked)
    )


_BACKFILL_EXAMPLE = OPERATION_EXAMPLE | {
    "action": "backfill",
    "state": "pending",
    "total": 0,
    "done": 0,
    "failed": 0,
    "progress": 0.0,
    "reason": "the outage of Monday",
    "started_at": None,
}
_PREVIEW_EXAMPLE = {
    "from": "2026-11-01T00:00:00Z",
    "until": "2026-11-08T00:00:00Z",
    "would_run": 5,
    "counts": [
        {"verdict": "ran", "reason": None, "count": 163, "would_run": 0},
        {"verdict": "skipped", "reason": "misfire", "count": 5, "would_run": 5},
    ],
    "counted_until": None,
}
_BACKFILL: dict[str, Any] = route_options(
    Role.EDITOR,
    _BACKFILL_EXAMPLE,
    status=202,
    request={
        "from": "2026-11-01T00:00:00Z",
        "until": "2026-11-08T00:00:00Z",
        "only": "missing",
        "max_running": 2,
        "reason": "the outage of Monday",
    },
    has_body=True,
    fails=[404, 409],
)
_BACKFILL["responses"][200] = {
    "description": "With `dry_run`: what would run",
    "model": BackfillPreviewOut,
    "content": {"application/json": {"example": _PREVIEW_EXAMPLE}},
}


@router.post("/{job}/backfill", response_model=OperationOut, **_BACKFILL)
async def backfill_job(
    job: JobRef, body: BackfillIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run past occurrences of a job: those that were missed, those that failed, or all.

    It is an operation, which can be paused and cancelled. It creates executions as places come free: at most `max_running` of them are
    unfinished at a time. They run the job as it is now, each with the instant of its occurrence. An occurrence that did not run is filled
    in once, however often it is asked for; what is run again runs once for each backfill. With `dry_run` nothing is written: the response
    (200) counts the occurrences by verdict and reason.
    """
    check_run_payload(body, caller)
    target = await context.queries.jobs.find(job)
    since = optional_instant(body.from_, "from", target.timezone)
    until = optional_instant(body.until, "until", target.timezone)
    assert since is not None
    backfill = Backfill(
        job_id=target.id,
        since=since,
        until=max(context.queries.now(), since) if until is None else until,
        only=BackfillSelection(body.only),
        by=BackfillSource(body.by),
        max_running=body.max_running,
        priority=body.priority,
        newest_first=body.order == "desc",
        payload=None if body.payload is None else to_json(body.payload),
    )
    if body.dry_run:
        return json_response(_preview_document(await context.commands.backfills.preview(backfill)))
    return accepted_operation(
        await context.commands.backfills.start(
            backfill, caller.as_actor(body.reason), caller.idempotency, is_unchecked=body.unchecked
        )
    )


def _preview_document(preview: BackfillPreview) -> Document:
    return {
        "from": preview.backfill.since,
        "until": preview.backfill.until,
        "would_run": preview.would_run,
        "counts": [
            {"verdict": one.verdict, "reason": one.reason, "count": one.count, "would_run": one.would_run}
            for one in preview.counts
        ],
        "counted_until": preview.counted_until,
    }


@router.get(
    "/{job}/executions",
    response_model=PageOut[ExecutionOut],
    **route_options(Role.VIEWER, page_example(EXECUTION_EXAMPLE), fails=[404]),
)
async def list_executions_of_job(
    job: JobRef,
    context: Context,
    filters: Annotated[ExecutionFilter, Depends(allowed_execution_filter)],
    page: PageParams,
    selection: ExecutionSelection,
) -> Response:
    """The executions of a job, the latest first."""
    target = await context.queries.jobs.find(job)
    return json_response(
        await executions_page(
            await context.queries.executions.page(within_job(filters, target.id), page),
            page,
            selection,
            context.queries,
        )
    )


_NEXT_EXAMPLE = {
    "description": "At 06:00 (UTC)",
    "next": [
        {"at": INSTANT_EXAMPLE, "local": "2026-11-16T06:00:00+00:00", "is_due": True, "is_frozen": False, "note": None}
    ],
    "payload": {"file": "report-2026-11-16.csv"},
}


@router.get("/{job}/next", response_model=NextOut, **route_options(Role.VIEWER, _NEXT_EXAMPLE, fails=[404]))
async def next_of_job(job: JobRef, context: Context, count: Annotated[int, Query(ge=1, le=100)] = 10) -> Response:
    """The next times of a job, with notes where the clock changes and marks where it is frozen; and the payload of the next one, if it
    has references."""
    target = await context.queries.jobs.find(job)
    times = await context.queries.jobs.next_times_of(target, count)
    schedule = VersionSchedule(target.rule, target.timezone)
    payload = context.queries.jobs.next_payload(target.payload, schedule, times, target.id)
    return json_response(
        {
            "description": target.rule.describe(),
            "next": [fire_time_document(time) for time in times],
            "payload": resolved_payload_document(payload),
        }
    )


def check_run_payload(body: RunIn | None, caller: CurrentCaller) -> RunIn:
    """Require the role editor if the request brings its own payload: that edits the job for one run."""
    body = body or RunIn()
    if body.payload is not None:
        caller.needs(Role.EDITOR, "another payload")
        refuse_redacted(body.payload)
    return body


async def cancel_or_conflict(context: ApiContext, execution_id: ExecutionId, actor: Any) -> None:
    """Cancel an execution; Conflict if it has finished."""
    if execution_id not in await context.commands.executions.cancel([execution_id], actor):
        raise Conflict("the execution has finished or is already being cancelled", hint="retry creates a new execution")


def _etag(view: JobView) -> dict[str, str]:
    return etag_of_version(view.job.version)
