"""Many jobs in one request: create them, apply one action to them, or sync them with a declaration."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from timeball.api.auth import Caller, CurrentCaller, Role
from timeball.api.errors import MAX_ERRORS, HttpProblem
from timeball.api.models.executions import BulkCreated, BulkJobsIn, BulkOut, JobBulkIn
from timeball.api.models.jobs import JobIn, SyncIn, SyncOut
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, JOB_ID, NEW_JOB_EXAMPLE, route_options
from timeball.api.params import (
    ApiContext,
    Context,
    IdempotencyKey,
    check_payload_search,
    job_filter,
    job_request,
    optional_instant,
)
from timeball.api.resources.operations import (
    accepted_operation,
    bulk_options,
    bulk_summary,
    check_expected_count,
    item_document,
    matching_job_ids,
    run_bulk,
    run_each,
)
from timeball.api.responses import Document, json_response
from timeball.application.commands.jobs import CreatedJob
from timeball.application.commands.requests import Actor, JobRequest
from timeball.domain.bulk_operation import OperationAction, OperationSubject
from timeball.domain.job import Job
from timeball.domain.job_changes import SyncAction, SyncedJob
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import IdempotentRequest, JobId, format_execution_id, format_job_id
from timeball.domain.values.json_text import to_json
from timeball.domain.values.redaction import REDACTED, redact, refuse_redacted
from timeball.errors import Conflict, InvalidInput, NotAllowed, NotFound, quote_text

router = APIRouter(prefix="/jobs/bulk", tags=["jobs"])

_MAX_JOBS = 10_000
_READ_BATCH = 100
_ABSENT = object()


# A job with one of these fields cannot be written by the bulk statement.
_SINGLE_JOB_FIELDS = frozenset(
    {"name", "schedule", "interval_seconds", "unique_key", "max_running", "limit_key", "starts_at", "ends_at", "owner"}
)
_ITEM = {"index": 0, "status": "created", "job_id": JOB_ID, "execution_id": EXECUTION_ID, "error": None}
_CREATE: dict[str, Any] = route_options(
    Role.EDITOR,
    {"created": 1, "failed": 0, "results": [_ITEM], "warnings": []},
    status=201,
    has_body=True,
    fails=[409],
    is_heavy=True,
)
_CREATE["openapi_extra"]["requestBody"] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"$ref": "#/components/schemas/BulkJobs"},
            "example": {"jobs": [NEW_JOB_EXAMPLE], "mode": "all_or_nothing"},
        }
    },
}


@router.post("", response_model=BulkCreated, **_CREATE)
async def create_jobs(
    request: Request, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create up to 10,000 jobs: all or nothing by default, or each on its own (`"mode": "per_item"`).

    One-offs that differ only in their payloads are by far the fastest: one statement copies them into the database.
    """
    # By hand: validating ten thousand models takes longer than writing the jobs.
    document = request.state.document
    payloads = await asyncio.to_thread(_payloads_if_uniform, document)
    if payloads is not None:
        return await _create_uniform(context, caller, document["jobs"][0], payloads)
    bulk = await _read_in_batches(document)
    if bulk.mode == "per_item":
        return await _create_each(context, caller, bulk.jobs)
    requests = await asyncio.to_thread(
        lambda: [_at(number, partial(job_request, job)) for number, job in enumerate(bulk.jobs)]
    )
    resolved = await context.commands.contracts.resolve(requests, "jobs/{}".format)
    specs = resolved.specs
    try:
        created = await context.commands.jobs.create_all(specs, actor=caller.as_actor(), idempotency=caller.idempotency)
    except InvalidInput:
        for number, spec in enumerate(specs):
            _at(number, partial(context.commands.jobs.prepare, [spec], caller.as_actor()))
            await asyncio.sleep(0)
        raise
    return _created_response(_created_items(created), resolved.warnings)


async def _create_each(context: ApiContext, caller: Caller, jobs: list[JobIn]) -> Response:
    idempotencies = [None] * len(jobs) if caller.idempotency is None else caller.idempotency.parts(len(jobs))
    requests = await asyncio.to_thread(lambda: [_request_or_error(job) for job in jobs])
    resolved, warnings = await context.commands.contracts.resolve_each(
        [request for request in requests if isinstance(request, JobRequest)]
    )
    resolved_in_order = iter(resolved)
    specs = [next(resolved_in_order) if isinstance(request, JobRequest) else request for request in requests]
    results = [
        await _create_one(context, caller.as_actor(), number, spec, idempotency)
        for number, (spec, idempotency) in enumerate(zip(specs, idempotencies, strict=True))
    ]
    return _created_response(results, warnings)


def _payloads_if_uniform(document: Any) -> list[Any] | None:
    """The payloads, if the jobs are one-offs that differ in nothing else."""
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list) or not 2 <= len(jobs) <= _MAX_JOBS or set(document) - {"jobs", "mode"}:
        return None
    if document.get("mode", "all_or_nothing") != "all_or_nothing" or not all(isinstance(job, dict) for job in jobs):
        return None
    # Taken out and put back: copying ten thousand jobs would cost more than the rest of this function.
    payloads = [job.pop("payload", _ABSENT) for job in jobs]
    if _are_equal(jobs):
        return [{} if payload is _ABSENT else payload for payload in payloads]
    for job, payload in zip(jobs, payloads, strict=True):
        if payload is not _ABSENT:
            job["payload"] = payload
    return None


def _are_equal(jobs: list[dict[str, Any]]) -> bool:
    first = jobs[0]
    # Only plain values and the list of tags: comparing deeply nested values could fail.
    is_plain = all(not isinstance(value, dict | list) for name, value in first.items() if name != "tags")
    try:
        return is_plain and not _SINGLE_JOB_FIELDS & set(first) and all(job == first for job in jobs)
    except RecursionError:
        return False


async def _create_uniform(context: ApiContext, caller: Caller, first: dict[str, Any], payloads: list[Any]) -> Response:
    job = _read({"jobs": [first | {"payload": {}}]}).jobs[0]
    texts = await asyncio.to_thread(
        lambda: [_at(number, partial(_payload_text, payload)) for number, payload in enumerate(payloads)]
    )
    request = replace(job_request(job), payloads=texts)
    try:
        resolved = await context.commands.contracts.resolve([request])
        spec = resolved.specs[0]
        if spec.max_running is not None:
            # The handler declares a limit, which a bulk enqueue does not support.
            specs = [replace(spec, payload=payload) for payload in payloads]
            created = await context.commands.jobs.create_all(
                specs, actor=caller.as_actor(), idempotency=caller.idempotency
            )
            return _created_response(_created_items(created), resolved.warnings)
        ids = await context.commands.jobs.enqueue_many(spec, texts, caller.as_actor(), caller.idempotency)
    except InvalidInput as error:
        raise error.below("jobs") from error
    items = [_uniform_item(number, format_execution_id(id_)) for number, id_ in enumerate(ids)]
    return _created_response(items, resolved.warnings)


def _uniform_item(number: int, execution_id: str) -> Document:
    """An enqueued job and its execution have the same id."""
    job_id = f"job{execution_id[3:]}"
    return {"index": number, "status": "created", "job_id": job_id, "execution_id": execution_id, "error": None}


def _payload_text(payload: Any) -> str:
    text = to_json(payload)
    if REDACTED in text:
        refuse_redacted(payload)
    return text


def _read(document: Any) -> BulkJobsIn:
    try:
        return BulkJobsIn.model_validate(document)
    except ValidationError as error:
        problems = [{**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)]
        raise RequestValidationError(problems, body=document) from error


async def _read_in_batches(document: Any) -> BulkJobsIn:
    """Validate some jobs at a time, so that the loop serves other requests; stop after as many problems as a response lists."""
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list) or len(jobs) <= _READ_BATCH:
        return _read(document)
    if len(jobs) > _MAX_JOBS:
        raise InvalidInput(
            f"jobs has {len(jobs)} items, expected 1 to {_MAX_JOBS}", field="jobs", hint="send less at once"
        )
    read: list[JobIn] = []
    problems: list[Any] = []
    bulk: BulkJobsIn | None = None
    for first in range(0, len(jobs), _READ_BATCH):
        try:
            batch = BulkJobsIn.model_validate(document | {"jobs": jobs[first : first + _READ_BATCH]})
        except ValidationError as error:
            problems += [_shift_problem(item, first) for item in error.errors(include_url=False)]
            if len(problems) >= MAX_ERRORS:
                break
        else:
            bulk = batch
            read += batch.jobs
        await asyncio.sleep(0)
    if problems or bulk is None:
        raise RequestValidationError(problems, body=document)
    return BulkJobsIn.model_construct(jobs=read, mode=bulk.mode)


def _shift_problem(problem: Any, first: int) -> Any:
    """A problem of a batch that begins at job *first*, with its place in the whole body."""
    match problem["loc"]:
        case ("jobs", int(number), *steps):
            return {**problem, "loc": ("body", "jobs", first + number, *steps)}
        case steps:
            return {**problem, "loc": ("body", *steps)}


def _at(number: int, work: Callable[[], Any]) -> Any:
    """Do *work* for one job; an InvalidInput then names the job."""
    try:
        return work()
    except InvalidInput as error:
        raise error.below(f"jobs/{number}") from error


def _request_or_error(job: JobIn) -> JobRequest | InvalidInput:
    try:
        return job_request(job)
    except InvalidInput as error:
        return error


async def _create_one(
    context: ApiContext, actor: Actor, number: int, spec: JobSpec | InvalidInput, idempotency: IdempotentRequest | None
) -> Document:
    try:
        if isinstance(spec, InvalidInput):
            raise spec
        created = await context.commands.jobs.create(spec, actor=actor, idempotency=idempotency)
    except (InvalidInput, Conflict, NotAllowed) as error:
        return {"index": number, "status": "failed", "job_id": None, "execution_id": None, "error": str(error)}
    return _created_item(number, created)


def _created_items(created: Sequence[CreatedJob]) -> list[Document]:
    return [_created_item(number, job) for number, job in enumerate(created)]


def _created_item(number: int, created: CreatedJob) -> Document:
    execution_id = created.execution_id
    return {
        "index": number,
        "status": "created" if created.is_new else "existing",
        "job_id": format_job_id(created.job_id) if created.is_new else None,
        "execution_id": None if execution_id is None else format_execution_id(execution_id),
        "error": None,
    }


def _created_response(results: list[Document], warnings: list[str]) -> Response:
    failed = sum(item["status"] == "failed" for item in results)
    created = sum(item["status"] == "created" for item in results)
    return json_response({"created": created, "failed": failed, "results": results, "warnings": warnings}, 201)


_EXAMPLE = {"ids": ["daily-report", JOB_ID], "reason": "a bad release"}
_DELETE: dict[str, Any] = bulk_options(_EXAMPLE, Role.EDITOR)
_MANY: dict[str, Any] = bulk_options(_EXAMPLE)


@router.post("/delete", response_model=BulkOut, **_DELETE)
async def delete_jobs(
    body: JobBulkIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Delete many jobs, given by id or name or by a filter; their waiting executions are cancelled, their history stays.

    Up to 500 are done at once; more become an operation (202).
    """
    return await _change(OperationAction.DELETE, body, context, caller)


@router.post("/{action}", response_model=BulkOut, **_MANY)
async def change_jobs(
    action: Annotated[Literal["pause", "resume", "trigger", "cancel", "retry"], Path()],
    body: JobBulkIn,
    context: Context,
    caller: CurrentCaller,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Pause, resume, trigger, cancel or retry many jobs, given by id or name or by a filter; `until` ends the pauses.

    `cancel` cancels the running or else the waiting execution of each job, `retry` runs its last finished execution again.
    Up to 500 are done at once, and the response lists each; more become an operation (202), whose progress is at
    `/operations/{id}`. With `dry_run` the response lists the first 500 that would be affected.
    """
    return await _change(OperationAction(action), body, context, caller)


async def _change(action: OperationAction, body: JobBulkIn, context: ApiContext, caller: Caller) -> Response:
    if (body.ids is None) == (body.filter is None):
        raise HttpProblem(
            422,
            "invalid_input",
            "ids and filter are both given or both missing, expected one of them",
            hint="a filter may be empty: {}",
        )
    until = optional_instant(body.until, "until")
    if until is not None and action is not OperationAction.PAUSE:
        raise InvalidInput(f"until is given with {action}, expected only with pause", field="until")
    actor = caller.as_actor(body.reason)
    if body.ids is not None and not body.dry_run:
        return await _each(context, actor, action, body.ids, until, body.expected_count, caller.idempotency)
    return await run_bulk(
        context,
        actor,
        action,
        await _chosen(context, caller, body),
        subject=OperationSubject.JOB,
        until=until,
        dry_run=body.dry_run,
        expected_count=body.expected_count,
        idempotency=caller.idempotency,
    )


async def _chosen(context: ApiContext, caller: Caller, body: JobBulkIn) -> list[JobId]:
    if body.filter is None:
        return [(await context.queries.jobs.find(reference)).id for reference in body.ids or ()]
    given = body.filter
    filters = job_filter(given.status, handler=given.handler, queue=given.queue, tag=given.tag, q=given.q)
    check_payload_search(filters, caller)
    return await matching_job_ids(context, replace(filters, is_named=given.named))


async def _each(
    context: ApiContext,
    actor: Actor,
    action: OperationAction,
    references: list[str],
    until: datetime | None,
    expected_count: int | None,
    idempotency: IdempotentRequest | None,
) -> Response:
    """Lists each job under the reference in the request; one that does not exist does not hold back the others."""
    started = await context.commands.operations.find_started(idempotency)
    if started is not None:
        return accepted_operation(started)
    job_ids: dict[str, JobId] = {}
    for reference in references:
        with suppress(NotFound):
            job_ids[reference] = (await context.queries.jobs.find(reference)).id
    ids = list(dict.fromkeys(job_ids.values()))
    check_expected_count(len(ids), expected_count, OperationSubject.JOB)
    items = await run_each(
        context, actor, action, ids, subject=OperationSubject.JOB, until=until, idempotency=idempotency
    )
    done = {item.job_id: item_document(item) for item in items}
    results = [done.get(job_ids.get(reference), _missing(reference)) | {"id": reference} for reference in references]
    return json_response(bulk_summary(results))


def _missing(reference: str) -> Document:
    return {"status": "failed", "execution_id": None, "error": str(NotFound("job", quote_text(reference)))}


sync_router = APIRouter(prefix="/jobs", tags=["jobs"])

_SHOWN_TIMES = 3
_SYNC_EXAMPLE = {
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
            "next_after": [INSTANT_EXAMPLE],
        }
    ],
    "warnings": [],
}


@sync_router.post(
    "/sync",
    response_model=SyncOut,
    **route_options(
        Role.EDITOR,
        _SYNC_EXAMPLE,
        request={"jobs": [NEW_JOB_EXAMPLE], "dry_run": True},
        has_body=True,
        fails=[404, 409],
    ),
)
async def sync_jobs(
    body: SyncIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Bring the jobs of these names in line with their declarations: create, change or leave them; delete only with `prune`.

    Everything is checked before anything is written. With `dry_run` the response is the plan, with fire times before and after.
    """
    resolved = await context.commands.contracts.resolve(
        [_at(number, partial(job_request, job)) for number, job in enumerate(body.jobs)], "jobs/{}".format
    )
    synchronise = context.commands.jobs.plan_sync if body.dry_run else context.commands.jobs.sync
    steps = await synchronise(resolved.specs, body.declared_by, prune=body.prune, actor=caller.as_actor(body.reason))
    counts = Counter(step.step for step in steps)
    # In a thread: the next times of a thousand jobs take seconds.
    documents = await asyncio.to_thread(lambda: [_document(context, step, is_done=not body.dry_run) for step in steps])
    return json_response(
        {
            "dry_run": body.dry_run,
            "created": counts[SyncAction.CREATE],
            "changed": counts[SyncAction.CHANGE],
            "left": counts[SyncAction.LEAVE],
            "deleted": counts[SyncAction.DELETE],
            "jobs": documents,
            "warnings": resolved.warnings,
        }
    )


def _document(context: ApiContext, step: SyncedJob, *, is_done: bool) -> Document:
    now = context.queries.now()
    job = step.after if is_done and step.after is not None else step.before
    changes = {name: {"before": before, "after": after} for name, (before, after) in step.changes.items()}
    return {
        "name": step.name,
        "action": step.step,
        "id": None if job is None else format_job_id(job.id),
        "version": None if job is None else job.version,
        "changes": {name: _hidden(name, change) for name, change in changes.items()},
        "next_before": _times(context, step.before, now),
        "next_after": _times(context, step.after, now),
    }


def _hidden(name: str, change: Document) -> Document:
    return {side: redact(value) for side, value in change.items()} if name == "payload" else change


def _times(context: ApiContext, job: Job | None, now: datetime) -> list[datetime]:
    if job is None:
        return []
    times = context.queries.jobs.next_times(job.rule, job.timezone, now, _SHOWN_TIMES)
    return [time.occurrence.at for time in times if time.occurrence.is_due]
