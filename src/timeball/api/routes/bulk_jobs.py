"""Many jobs in one call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from timeball.api.auth import Role, TheCaller
from timeball.api.described import BULK_EXAMPLE, EXECUTION_ID, JOB_ID, NEW_JOB_EXAMPLE, described
from timeball.api.desk import Desk, TheDesk
from timeball.api.redaction import refuse_redacted
from timeball.api.routes.jobs import IdempotencyKey, cancel_one
from timeball.api.schemas.bulk import BulkCreated, BulkJobs, BulkOut, JobRefs
from timeball.api.schemas.jobs import JobIn
from timeball.api.views import Document, answer
from timeball.api.wishes import spec_from
from timeball.domain.ids import ExecutionId, show_execution, show_job
from timeball.domain.job import Job
from timeball.domain.text import to_json
from timeball.errors import Conflict, InvalidInput, NotFound

router = APIRouter(prefix="/jobs/bulk", tags=["jobs"])

_MOST = 10_000
# With one of these a job is more than a payload in a queue, and cannot be written in bulk.
_SINGULAR = frozenset(
    {"name", "schedule", "interval_seconds", "unique_key", "max_running", "limit_key", "starts_at", "ends_at"}
)
_ITEM = {"index": 0, "status": "created", "job_id": JOB_ID, "execution_id": EXECUTION_ID, "error": None}
_CREATE: dict[str, Any] = described(
    Role.EDITOR, {"created": 1, "failed": 0, "results": [_ITEM]}, status=201, has_body=True, fails=[409]
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
async def create_jobs(request: Request, desk: TheDesk, idempotency_key: IdempotencyKey = None) -> Response:
    """Create up to 10,000 jobs: all or nothing by default, or each for itself (`"mode": "per_item"`).

    One-offs that differ only in their payloads are by far the quickest: they are copied into the database in one go.
    """
    # By hand: ten thousand models would take longer than the database does.
    document = orjson.loads(await request.body() or b"null")
    payloads = _alike(document)
    if payloads is not None:
        return await _copy(desk, document["jobs"][0], payloads)
    wishes = _read(document)
    if wishes.mode == "per_item":
        return _created([await _create_one(desk, number, job) for number, job in enumerate(wishes.jobs)])
    specs = [_at(number, lambda job=job: spec_from(job)) for number, job in enumerate(wishes.jobs)]  # type: ignore[misc]
    try:
        made = await desk.commands.create_all(specs)
    except InvalidInput:
        for number, spec in enumerate(specs):
            _at(number, lambda spec=spec: desk.commands.prepare([spec]))  # type: ignore[misc]
        raise
    return _created([_item(number, one.job_id, one.execution_id, is_new=one.is_new) for number, one in enumerate(made)])


def _alike(document: Any) -> list[Any] | None:
    """The payloads, if the jobs are one-offs that differ in nothing else."""
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list) or not 2 <= len(jobs) <= _MOST or set(document) - {"jobs", "mode"}:
        return None
    if document.get("mode", "all_or_nothing") != "all_or_nothing" or not all(isinstance(job, dict) for job in jobs):
        return None
    payloads = [job.get("payload", {}) for job in jobs]
    rest = [{name: value for name, value in job.items() if name != "payload"} for job in jobs]
    is_alike = not _SINGULAR & set(rest[0]) and all(one == rest[0] for one in rest)
    return payloads if is_alike else None


async def _copy(desk: Desk, first: dict[str, Any], payloads: list[Any]) -> Response:
    wish = _read({"jobs": [first | {"payload": {}}]}).jobs[0]
    texts = [_at(number, lambda payload=payload: _payload_text(payload)) for number, payload in enumerate(payloads)]  # type: ignore[misc]
    ids = await desk.commands.enqueue_many(spec_from(wish), texts)
    return _created([_copied(number, show_execution(one)) for number, one in enumerate(ids)])


def _copied(number: int, shown: str) -> Document:
    """An enqueued execution bears its job's id."""
    job_id = f"job{shown[3:]}"
    return {"index": number, "status": "created", "job_id": job_id, "execution_id": shown, "error": None}


def _payload_text(payload: Any) -> str:
    refuse_redacted(payload)
    return to_json(payload)


def _read(document: Any) -> BulkJobs:
    try:
        return BulkJobs.model_validate(document)
    except ValidationError as error:
        found = [{**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)]
        raise RequestValidationError(found) from error


def _at(number: int, work: Callable[[], Any]) -> Any:
    """Say which of the jobs does not fit."""
    try:
        return work()
    except InvalidInput as error:
        field = f"jobs/{number}" + (f"/{error.field}" if error.field else "")
        raise InvalidInput(f"jobs[{number}]: {error}", field=field, hint=error.hint) from error


async def _create_one(desk: Desk, number: int, job: JobIn) -> Document:
    try:
        made = await desk.commands.create(spec_from(job))
    except (InvalidInput, Conflict) as error:
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


def _created(results: list[Document]) -> Response:
    failed = sum(item["status"] == "failed" for item in results)
    created = sum(item["status"] == "created" for item in results)
    return answer({"created": created, "failed": failed, "results": results}, 201)


_MANY: dict[str, Any] = described(
    Role.OPERATOR, BULK_EXAMPLE, request={"ids": ["daily-report", JOB_ID], "reason": "a bad release"}, has_body=True
)


@router.post("/cancel", response_model=BulkOut, **_MANY)
async def cancel_jobs(
    body: JobRefs, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Cancel the current execution of each of up to 500 jobs."""

    async def cancel(job: Job) -> ExecutionId:
        current = await desk.insights.current_execution(job.id)
        if current is None:
            raise Conflict("nothing of this job waits or runs")
        await cancel_one(desk, current.id, caller.acting(body.reason))
        return current.id

    return await _each(desk, body.ids, cancel)


@router.post("/retry", response_model=BulkOut, **_MANY)
async def retry_jobs(
    body: JobRefs, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run the last ended execution of each of up to 500 jobs again."""

    async def retry(job: Job) -> ExecutionId:
        last = await desk.insights.last_ended(job.id)
        if last is None:
            raise Conflict("no execution of this job has ended")
        return await desk.commands.retry(last.id, None, caller.acting(body.reason))

    return await _each(desk, body.ids, retry)


async def _each(desk: Desk, references: list[str], act: Callable[[Job], Awaitable[ExecutionId]]) -> Response:
    results: list[Document] = []
    for reference in references:
        try:
            done = await act(await desk.insights.find_job(reference))
            results.append({"id": reference, "status": "done", "execution_id": show_execution(done), "error": None})
        except (NotFound, Conflict, InvalidInput) as error:
            results.append({"id": reference, "status": "failed", "execution_id": None, "error": str(error)})
    return answer(summed_up(results))


def summed_up(results: list[Document], *, has_more: bool = False) -> Document:
    """What came of each, and how many."""
    failed = sum(item["status"] == "failed" for item in results)
    return {"done": len(results) - failed, "failed": failed, "has_more": has_more, "results": results}
