"""Many jobs in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from timeball.api.auth import Caller, Role, TheCaller
from timeball.api.described import EXECUTION_ID, JOB_ID, NEW_JOB_EXAMPLE, described
from timeball.api.desk import Desk, TheDesk
from timeball.api.many import (
    all_jobs_matching,
    check_count,
    described_many,
    done_to_many,
    each_of,
    going_on,
    item_document,
    summed_up,
)
from timeball.api.problems import MOST_ERRORS, Refusal
from timeball.api.routes.jobs import IdempotencyKey
from timeball.api.schemas.bulk import BulkCreated, BulkJobs, BulkOut, JobBulkIn
from timeball.api.schemas.jobs import JobIn
from timeball.api.views import Document, answer
from timeball.api.wishes import check_search, job_filter, told
from timeball.commands import Actor, Told
from timeball.domain.deed import Deed
from timeball.domain.ids import JobId, show_execution, show_job
from timeball.domain.instants import shown
from timeball.domain.job import JobSpec
from timeball.domain.operation import OperationAction, OperationSubject
from timeball.domain.redaction import REDACTED, refuse_redacted
from timeball.domain.text import to_json
from timeball.errors import Conflict, InvalidInput, NotAllowed, NotFound

router = APIRouter(prefix="/jobs/bulk", tags=["jobs"])

_MOST = 10_000
_READ_AT_A_TIME = 100
_NONE = object()
# With one of these a job is more than a payload in a queue, and cannot be written in bulk.
_SINGULAR = frozenset(
    {"name", "schedule", "interval_seconds", "unique_key", "max_running", "limit_key", "starts_at", "ends_at"}
)
_ITEM = {"index": 0, "status": "created", "job_id": JOB_ID, "execution_id": EXECUTION_ID, "error": None}
_CREATE: dict[str, Any] = described(
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
    request: Request, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create up to 10,000 jobs: all or nothing by default, or each for itself (`"mode": "per_item"`).

    One-offs that differ only in their payloads are by far the quickest: they are copied into the database in one go.
    """
    # By hand: ten thousand models would take longer than the database does.
    document = request.state.document
    payloads = await asyncio.to_thread(_alike, document)
    if payloads is not None:
        return await _copy(desk, caller, document["jobs"][0], payloads)
    wishes = await _read_in_pieces(document)
    if wishes.mode == "per_item":
        deeds = [None] * len(wishes.jobs) if caller.deed is None else caller.deed.parts(len(wishes.jobs))
        told_each = await asyncio.to_thread(lambda: [_told_or_refused(job) for job in wishes.jobs])
        completed, warnings = await desk.commands.complete_each([one for one in told_each if isinstance(one, Told)])
        specs_in_order = iter(completed)
        wanted = [next(specs_in_order) if isinstance(one, Told) else one for one in told_each]
        each = enumerate(zip(wanted, deeds, strict=True))
        results = [await _create_one(desk, caller.acting(), number, spec, deed) for number, (spec, deed) in each]
        return _created(results, warnings)
    told_all = await asyncio.to_thread(
        lambda: [_at(number, partial(told, job)) for number, job in enumerate(wishes.jobs)]
    )
    done = await desk.commands.complete(told_all, "jobs/{}".format)
    specs = done.specs
    try:
        made = await desk.commands.create_all(specs, actor=caller.acting(), deed=caller.deed)
    except InvalidInput:
        for number, spec in enumerate(specs):
            _at(number, partial(desk.commands.prepare, [spec], caller.acting()))
            await asyncio.sleep(0)
        raise
    return _created(
        [_item(number, one.job_id, one.execution_id, is_new=one.is_new) for number, one in enumerate(made)],
        done.warnings,
    )


def _alike(document: Any) -> list[Any] | None:
    """The payloads, if the jobs are one-offs that differ in nothing else."""
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list) or not 2 <= len(jobs) <= _MOST or set(document) - {"jobs", "mode"}:
        return None
    if document.get("mode", "all_or_nothing") != "all_or_nothing" or not all(isinstance(job, dict) for job in jobs):
        return None
    # Taken out and put back: copies of ten thousand jobs would cost more than all the rest of this.
    payloads = [job.pop("payload", _NONE) for job in jobs]
    if _are_equal(jobs):
        return [{} if payload is _NONE else payload for payload in payloads]
    for job, payload in zip(jobs, payloads, strict=True):
        if payload is not _NONE:
            job["payload"] = payload
    return None


def _are_equal(jobs: list[dict[str, Any]]) -> bool:
    first = jobs[0]
    # Only plain values, and the list of tags: what is nested deeply could not be compared.
    is_plain = all(not isinstance(value, dict | list) for name, value in first.items() if name != "tags")
    try:
        return is_plain and not _SINGULAR & set(first) and all(job == first for job in jobs)
    except RecursionError:
        return False


async def _copy(desk: Desk, caller: Caller, first: dict[str, Any], payloads: list[Any]) -> Response:
    wish = _read({"jobs": [first | {"payload": {}}]}).jobs[0]
    texts = await asyncio.to_thread(
        lambda: [_at(number, partial(_payload_text, payload)) for number, payload in enumerate(payloads)]
    )
    wanted = replace(told(wish), payloads=texts)
    try:
        done = await desk.commands.complete([wanted])
        spec = done.specs[0]
        if spec.max_running is not None:
            # The handler's limit: a bulk enqueue knows none, creating does, and is all or none too.
            specs = [replace(spec, payload=payload) for payload in payloads]
            made = await desk.commands.create_all(specs, actor=caller.acting(), deed=caller.deed)
            return _created(
                [_item(number, one.job_id, one.execution_id, is_new=one.is_new) for number, one in enumerate(made)],
                done.warnings,
            )
        ids = await desk.commands.enqueue_many(spec, texts, caller.acting(), caller.deed)
    except InvalidInput as error:
        raise error.below("jobs") from error
    return _created([_copied(number, show_execution(one)) for number, one in enumerate(ids)], done.warnings)


def _copied(number: int, shown: str) -> Document:
    """An enqueued execution bears its job's id."""
    job_id = f"job{shown[3:]}"
    return {"index": number, "status": "created", "job_id": job_id, "execution_id": shown, "error": None}


def _payload_text(payload: Any) -> str:
    text = to_json(payload)
    if REDACTED in text:
        refuse_redacted(payload)
    return text


def _read(document: Any) -> BulkJobs:
    try:
        return BulkJobs.model_validate(document)
    except ValidationError as error:
        found = [{**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)]
        raise RequestValidationError(found, body=document) from error


async def _read_in_pieces(document: Any) -> BulkJobs:
    """Some jobs at a time, so that others are answered meanwhile; until as many problems are found as are told."""
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list) or len(jobs) <= _READ_AT_A_TIME:
        return _read(document)
    if len(jobs) > _MOST:
        raise InvalidInput(f"jobs has {len(jobs)} items, expected 1 to {_MOST}", field="jobs", hint="send less at once")
    read: list[JobIn] = []
    problems: list[Any] = []
    wishes: BulkJobs | None = None
    for first in range(0, len(jobs), _READ_AT_A_TIME):
        try:
            piece = BulkJobs.model_validate(document | {"jobs": jobs[first : first + _READ_AT_A_TIME]})
        except ValidationError as error:
            problems += [_moved(item, first) for item in error.errors(include_url=False)]
            if len(problems) >= MOST_ERRORS:
                break
        else:
            wishes = piece
            read += piece.jobs
        await asyncio.sleep(0)
    if problems or wishes is None:
        raise RequestValidationError(problems, body=document)
    return BulkJobs.model_construct(jobs=read, mode=wishes.mode)


def _moved(problem: Any, first: int) -> Any:
    """A problem of a piece of the jobs, at its place among all of them."""
    match problem["loc"]:
        case ("jobs", int(number), *steps):
            return {**problem, "loc": ("body", "jobs", first + number, *steps)}
        case steps:
            return {**problem, "loc": ("body", *steps)}


def _at(number: int, work: Callable[[], Any]) -> Any:
    """Say which of the jobs does not fit."""
    try:
        return work()
    except InvalidInput as error:
        raise error.below(f"jobs/{number}") from error


def _told_or_refused(job: JobIn) -> Told | InvalidInput:
    try:
        return told(job)
    except InvalidInput as error:
        return error


async def _create_one(
    desk: Desk, actor: Actor, number: int, spec: JobSpec | InvalidInput, deed: Deed | None
) -> Document:
    try:
        if isinstance(spec, InvalidInput):
            raise spec
        made = await desk.commands.create(spec, actor=actor, deed=deed)
    except (InvalidInput, Conflict, NotAllowed) as error:
        return {"index": number, "status": "failed", "job_id": None, "execution_id": None, "error": str(error)}
    return _item(number, made.job_id, made.execution_id, is_new=made.is_new)


def _item(number: int, job_id: Any, execution_id: Any, *, is_new: bool) -> Document:
    return {
        "index": number,
        "status": "created" if is_new else "existing",
        "job_id": show_job(job_id) if is_new else None,
        "execution_id": None if execution_id is None else show_execution(execution_id),
        "error": None,
    }


def _created(results: list[Document], warnings: list[str]) -> Response:
    failed = sum(item["status"] == "failed" for item in results)
    created = sum(item["status"] == "created" for item in results)
    return answer({"created": created, "failed": failed, "results": results, "warnings": warnings}, 201)


_EXAMPLE = {"ids": ["daily-report", JOB_ID], "reason": "a bad release"}
_DELETE: dict[str, Any] = described_many(_EXAMPLE, Role.EDITOR)
_MANY: dict[str, Any] = described_many(_EXAMPLE)


@router.post("/delete", response_model=BulkOut, **_DELETE)
async def delete_jobs(
    body: JobBulkIn, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Take many jobs out of service, named or found by a filter; what waits of them is cancelled, their history stays.

    Up to 500 are done at once; more become an operation (202).
    """
    return await _change(OperationAction.DELETE, body, desk, caller)


@router.post("/{action}", response_model=BulkOut, **_MANY)
async def change_jobs(
    action: Annotated[Literal["pause", "resume", "trigger", "cancel", "retry"], Path()],
    body: JobBulkIn,
    desk: TheDesk,
    caller: TheCaller,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Do the same to many jobs, named or found by a filter.

    `cancel` gives up what runs or waits of each, `retry` runs again what ended last.
    Up to 500 are done at once, and the answer tells of each; more become an operation (202) that is asked about at
    `/operations/{id}`. With `dry_run` the first 500 that would be touched are shown.
    """
    return await _change(OperationAction(action), body, desk, caller)


async def _change(action: OperationAction, body: JobBulkIn, desk: Desk, caller: Caller) -> Response:
    if (body.ids is None) == (body.filter is None):
        raise Refusal(422, "invalid_input", "give either ids or a filter", hint="a filter may be empty: {}")
    actor = caller.acting(body.reason)
    if body.ids is not None and not body.dry_run:
        return await _each(desk, actor, action, body.ids, body.expected_count, caller.deed)
    return await done_to_many(
        desk,
        actor,
        action,
        await _chosen(desk, caller, body),
        subject=OperationSubject.JOB,
        dry_run=body.dry_run,
        expected_count=body.expected_count,
        deed=caller.deed,
    )


async def _chosen(desk: Desk, caller: Caller, body: JobBulkIn) -> list[JobId]:
    if body.filter is None:
        return [(await desk.insights.find_job(one)).id for one in body.ids or ()]
    chosen = body.filter
    wanted = job_filter(chosen.status, handler=chosen.handler, queue=chosen.queue, tag=chosen.tag, q=chosen.q)
    check_search(wanted, caller)
    return await all_jobs_matching(desk, replace(wanted, is_named=chosen.named))


async def _each(
    desk: Desk,
    actor: Actor,
    action: OperationAction,
    references: list[str],
    expected_count: int | None,
    deed: Deed | None,
) -> Response:
    """Tells of each job under the name it was given by; one that is not there does not hold back the others."""
    begun = await desk.commands.begun_operation(deed)
    if begun is not None:
        return going_on(begun)
    meant: dict[str, JobId] = {}
    for reference in references:
        with suppress(NotFound):
            meant[reference] = (await desk.insights.find_job(reference)).id
    ids = list(dict.fromkeys(meant.values()))
    check_count(len(ids), expected_count, OperationSubject.JOB)
    items = await each_of(desk, actor, action, ids, subject=OperationSubject.JOB, deed=deed)
    done = {item.job_id: item_document(item) for item in items}
    return answer(summed_up([done.get(meant.get(one), _missing(one)) | {"id": one} for one in references]))


def _missing(reference: str) -> Document:
    return {"status": "failed", "execution_id": None, "error": str(NotFound("job", shown(reference)))}
