"""Drop-in routes: requests of clients that were written for a home-made scheduler, translated to the same commands as all others.

Such a scheduler knows one kind of job: a type, its data, and one instant. Here that is an execution, so `_id` is the id of an execution.
Two dialects are understood. One posts `{type, data, scheduledTime}` below `/api/v1`; the other `{task: {type, data}, scheduled_at}`
below `/api`. Everything else is as in every route: keys and roles, limits, Idempotency-Key, audit, problem+json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from timeball.api.auth import Caller, CurrentCaller, Role
from timeball.api.models import InstantText, Label, ReasonIn, RequestModel, ShortText
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, export_options, route_options
from timeball.api.params import ApiContext, Context, ExecutionRef, IdempotencyKey
from timeball.api.resources.jobs import cancel_or_conflict
from timeball.api.resources.operations import MAX_INLINE, run_each
from timeball.api.responses import (
    ByteOrderMark,
    Document,
    ExportFormat,
    export_response,
    in_thread_if_large,
    json_bytes,
    json_response,
)
from timeball.application.commands.jobs import CreatedJob
from timeball.application.commands.requests import Actor, JobRequest
from timeball.domain.bulk_operation import OperationAction, OperationItem, OperationSubject
from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.job import Job, copy_spec
from timeball.domain.job_fields import SPEC_FIELDS, JobSpec
from timeball.domain.scheduling.civil_time import parse_instant
from timeball.domain.search import ExecutionFilter, PageRequest, ResultPage, SearchRelation, SearchTerm, where
from timeball.domain.template import Template
from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.domain.values.ids import ExecutionId, format_execution_id, format_id, id_created_at, parse_id
from timeball.domain.values.redaction import redact, redact_fields_in_list, redact_in_list, refuse_redacted
from timeball.errors import InvalidInput

router = APIRouter(tags=["drop-in"])


# Words: the types and data of such clients, and the states as they call them.

_HANDLERS = {
    "email": "email.send",
    "send_email": "email.send",
    "create_folder": "folder.create",
    "write_file": "file.write",
}
# The same backwards, by dialect; any other handler is called as it is.
_TYPES = {"email.send": "email", "folder.create": "create_folder", "file.write": "write_file"}
_TASK_TYPES = _TYPES | {"email.send": "send_email"}

# A field of a handler's payload, and how such clients spell it.
_SPELLINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "email.send": {
        "to": ("to", "recipient", "recipients", "email"),
        "message": ("message", "body", "text", "content"),
        "reply_to": ("reply_to", "replyTo"),
    },
    "file.write": {"content": ("content", "data", "text", "body", "message")},
}
# A path may come in two parts: the folder it is in, and its name.
_FOLDERS = ("path", "folderPath", "folder_path", "directory", "dir")
_PATH_PARTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "folder.create": (_FOLDERS, ("folderName", "folder_name", "folder", "name")),
    "file.write": ((*_FOLDERS, "folder"), ("filePath", "file_path", "fileName", "file_name", "filename", "name")),
}

_STATES: Mapping[str, tuple[ExecutionState, ...]] = {
    "pending": (ExecutionState.SCHEDULED, ExecutionState.RETRYING),
    "picked": (ExecutionState.QUEUED,),
    "running": (ExecutionState.RUNNING,),
    "completed": (ExecutionState.SUCCEEDED,),
    "failed": (ExecutionState.DEAD,),
    "cancelled": (ExecutionState.CANCELLED, ExecutionState.SKIPPED),
}
_WORDS = {state: word for word, states in _STATES.items() for state in states}
StatusWord = Literal["pending", "picked", "running", "completed", "failed", "cancelled"]


def handler_of(type_: str) -> str:
    """The handler that a type means: one of the usual words, or the name of a handler itself."""
    return _HANDLERS.get(type_, type_)


def payload_of(type_: str, data: Any, field: str = "data") -> Any:
    """The payload of a handler from the data that such a client sends; the data of other types are payloads already."""
    refuse_redacted(data, field)
    if type_ not in _HANDLERS:
        return data
    if not isinstance(data, dict):
        raise InvalidInput(f"{field} of the type {type_} is not an object", field=field, hint="send a JSON object")
    handler, payload = _HANDLERS[type_], dict(data)
    for name, spellings in _SPELLINGS.get(handler, {}).items():
        if (spelt := _spelling(data, spellings, field)) is not None:
            payload[name] = payload.pop(spelt)
    if handler in _PATH_PARTS:
        payload |= _path_of(payload, handler, field)
    if handler == "file.write":
        # As the usual calls do; our own default keeps a file that is there.
        payload.setdefault("mode", "overwrite")
    return payload


def _spelling(data: Mapping[str, Any], spellings: Sequence[str], field: str) -> str | None:
    given = [name for name in spellings if name in data]
    if len(given) > 1:
        raise InvalidInput(
            f"{given[0]} and {given[1]} are both given and mean the same, expected one of them",
            field=f"{field}/{given[1]}",
            hint="leave out one",
        )
    return given[0] if given else None


def _path_of(payload: dict[str, Any], handler: str, field: str) -> dict[str, Any]:
    """Take the parts of a path out of a payload, and join them."""
    spelt = (_spelling(payload, spellings, field) for spellings in _PATH_PARTS[handler])
    parts = {name: payload.pop(name) for name in spelt if name is not None}
    if len(parts) < 2:
        return {"path": next(iter(parts.values()))} if parts else {}
    for name, part in parts.items():
        if not isinstance(part, str):
            raise InvalidInput(f"{name} is {type(part).__name__}, expected text", field=f"{field}/{name}")
    folder, name = parts.values()
    return {"path": f"{folder.rstrip('/')}/{name.lstrip('/')}"}


@contextmanager
def _pointing_to(**names: str) -> Iterator[None]:
    """Let errors about fields of a job point to where this request has them: `payload` is `data`."""
    try:
        yield
    except InvalidInput as error:
        error.errors = tuple({**item, "pointer": _pointer(item["pointer"], names)} for item in error.errors)
        raise


def _pointer(pointer: str, names: Mapping[str, str]) -> str:
    field, _, rest = pointer.removeprefix("/job").removeprefix("/").partition("/")
    return "/".join(("", names.get(field, field), *([rest] if rest else ())))


# Bodies.


class TypedJobIn(RequestModel):
    """A job of the one dialect: a type, its data, and one instant; without one it runs now."""

    type: Label = Field(description="`email`, `send_email`, `create_folder`, `write_file`, or the name of a handler.")
    data: Any = Field(default_factory=dict, description="What the handler is given.")
    scheduledTime: InstantText | None = None  # noqa: N815 (the clients call it so)


class TaskIn(RequestModel):
    """What to do."""

    type: Label = Field(description="`email`, `send_email`, `create_folder`, `write_file`, or the name of a handler.")
    data: Any = Field(default_factory=dict, description="What the handler is given.")


class TaskJobIn(RequestModel):
    """A job of the other dialect: a task and one instant; without one it runs now."""

    task: TaskIn
    scheduled_at: InstantText | None = None


class TaskCopyIn(RequestModel):
    """When a copy runs: now, unless an instant is given or the original lies ahead."""

    scheduled_at: InstantText | None = None


class TaskTemplateIn(RequestModel):
    """A task under a name."""

    name: Label
    task: TaskIn


class TaskTemplateUse(RequestModel):
    """A job of a template: when, if not now, and with other data, if any are given."""

    scheduled_at: InstantText | None = None
    data: Any = None


class TaskIdsIn(RequestModel):
    """Some jobs, by id."""

    ids: list[Label] = Field(max_length=MAX_INLINE)


class _WithId(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    id: str = Field(alias="_id")


class TypedJobOut(_WithId):
    """A job as the one dialect shows it."""

    type: str
    data: Any
    status: StatusWord
    scheduledTime: datetime  # noqa: N815
    createdAt: datetime  # noqa: N815


class TypedJobAnswer(BaseModel):
    """One job."""

    success: bool
    job: TypedJobOut


class TaskOut(BaseModel):
    """What to do; secrets hidden."""

    type: str
    data: Any


class TaskJobOut(_WithId):
    """A job as the other dialect shows it."""

    task: TaskOut
    status: StatusWord
    scheduled_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    error: str | None
    retry_of: str | None


class TaskJobAnswer(BaseModel):
    """One job."""

    success: bool
    job: TaskJobOut


class TaskJobsAnswer(BaseModel):
    """A page of jobs, the latest first; a total of more than 10,000 is an estimate."""

    success: bool
    jobs: list[TaskJobOut]
    page: int
    limit: int
    total: int
    totalPages: int  # noqa: N815


class TaskStats(BaseModel):
    """How many jobs there are by status; a count of what waits stops at 10,001."""

    total: int
    pending: int
    picked: int
    running: int
    completed: int
    failed: int
    cancelled: int


class TaskStatsAnswer(BaseModel):
    """The counts."""

    success: bool
    stats: TaskStats


class TaskResultOut(_WithId):
    """What became of one job; a retry has made `job`."""

    success: bool
    job: str | None
    error: str | None


class TaskBulkAnswer(BaseModel):
    """What became of some jobs."""

    success: bool
    done: int
    failed: int
    results: list[TaskResultOut]


class TaskTemplateOut(_WithId):
    """A task under a name; secrets hidden."""

    name: str
    task: TaskOut
    created_at: datetime


class TaskTemplateAnswer(BaseModel):
    """One template."""

    success: bool
    template: TaskTemplateOut


class TaskTemplatesAnswer(BaseModel):
    """Templates by name; `next_cursor` continues the list."""

    success: bool
    templates: list[TaskTemplateOut]
    next_cursor: str | None


class DoneAnswer(BaseModel):
    """It is done."""

    success: bool


_MAIL = {"to": "ada@example.com", "subject": "Hello", "message": "How are you?"}
_TYPED_EXAMPLE = {
    "success": True,
    "job": {
        "_id": EXECUTION_ID,
        "type": "email",
        "data": _MAIL,
        "status": "pending",
        "scheduledTime": INSTANT_EXAMPLE,
        "createdAt": "2026-11-15T09:30:00Z",
    },
}
_TASK = {"type": "send_email", "data": _MAIL}
_TASK_JOB = {
    "_id": EXECUTION_ID,
    "task": _TASK,
    "status": "pending",
    "scheduled_at": INSTANT_EXAMPLE,
    "created_at": "2026-11-15T09:30:00Z",
    "started_at": None,
    "finished_at": None,
    "attempts": 0,
    "error": None,
    "retry_of": None,
}
_TASK_EXAMPLE = {"success": True, "job": _TASK_JOB}
_TEMPLATE = {
    "_id": "tpl_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "name": "hello",
    "task": _TASK,
    "created_at": "2026-11-15T09:30:00Z",
}
_BULK_EXAMPLE = {
    "success": True,
    "done": 1,
    "failed": 0,
    "results": [{"_id": EXECUTION_ID, "success": True, "job": None, "error": None}],
}
_STATS_EXAMPLE = dict(zip(TaskStats.model_fields, (1_443, 2, 0, 1, 1_430, 9, 1), strict=True))


# Answers.


class _TaskRun(NamedTuple):
    """An execution with its job, which may be gone, and its payload as JSON text."""

    execution: Execution
    job: Job | None
    payload: str

    @property
    def created_at(self) -> datetime:
        """When it was asked for: an occurrence has the instant of its job, all others one in their ids."""
        created = None if self.job is None else self.job.created_at
        is_first = created is not None and self.execution.origin in ("schedule", "enqueue")
        return created if is_first and created is not None else id_created_at(self.execution.id)


async def _read_run(context: ApiContext, reference: str) -> _TaskRun:
    view = await context.queries.executions.view(reference)
    jobs = await context.queries.jobs.views_by_id([view.execution])
    job = jobs.get(view.execution.job_id)
    return _TaskRun(view.execution, None if job is None else job.job, view.payload)


async def _runs_page(context: ApiContext, filters: ExecutionFilter, request: PageRequest) -> ResultPage[_TaskRun]:
    page = await context.queries.executions.page(filters, request)
    views = await context.queries.jobs.views_by_id(page.items)
    jobs = {job_id: view.job for job_id, view in views.items()}
    runs = [
        _TaskRun(execution, job, "null" if job is None else job.payload)
        for execution in page.items
        for job in (jobs.get(execution.job_id),)
    ]
    return ResultPage(runs, page.next_cursor, page.total, page.searched_to, page.looked_at)


def _typed_document(run: _TaskRun) -> Document:
    execution = run.execution
    return {
        "_id": format_execution_id(execution.id),
        "type": _TYPES.get(execution.handler, execution.handler),
        "data": redact(orjson.loads(run.payload)),
        "status": _WORDS[execution.state],
        "scheduledTime": execution.scheduled_for,
        "createdAt": run.created_at,
    }


def _task_document(run: _TaskRun, *, in_list: bool = False) -> Document:
    execution = run.execution
    data = redact_in_list(run.payload) if in_list else redact(orjson.loads(run.payload))
    return {
        "_id": format_execution_id(execution.id),
        "task": {"type": _TASK_TYPES.get(execution.handler, execution.handler), "data": data},
        "status": _WORDS[execution.state],
        "scheduled_at": execution.scheduled_for,
        "created_at": run.created_at,
        "started_at": execution.started_at,
        "finished_at": execution.finished_at,
        "attempts": execution.attempts,
        "error": execution.error or execution.reason,
        "retry_of": None if execution.retry_of is None else format_execution_id(execution.retry_of),
    }


async def _typed_answer(context: ApiContext, reference: str, status: int = 200) -> Response:
    run = await _read_run(context, reference)
    document = await in_thread_if_large(lambda: _typed_document(run), len(run.payload))
    return json_response({"success": True, "job": document}, status)


async def _task_answer(context: ApiContext, reference: str, status: int = 200) -> Response:
    run = await _read_run(context, reference)
    document = await in_thread_if_large(lambda: _task_document(run), len(run.payload))
    return json_response({"success": True, "job": document}, status)


def _template_document(template: Template, *, in_list: bool = False) -> Document:
    job = dict(template.job)
    shown = redact_fields_in_list(json_bytes(job).decode()) if in_list else redact(job)
    handler = str(job["handler"])
    return {
        "_id": format_id("tpl", template.id),
        "name": template.name,
        "task": {"type": _TASK_TYPES.get(handler, handler), "data": shown.get("payload", {})},
        "created_at": template.created_at,
    }


# Commands.


def _instant(context: ApiContext, text: str | None, field: str) -> datetime | None:
    """An instant of a request; one without an offset is on the clock of this server's zone."""
    return None if text is None else parse_instant(text, context.zone, field)


async def _create(context: ApiContext, caller: Caller, type_: str, payload: Any, at: datetime | None) -> CreatedJob:
    fields = {"handler": handler_of(type_), "payload": payload} | ({} if at is None else {"scheduled_at": at})
    return await _create_spec(context, caller, JobRequest(JobSpec(**fields), fields.keys()))


async def _create_spec(context: ApiContext, caller: Caller, request: JobRequest) -> CreatedJob:
    resolved = await context.commands.contracts.resolve([request])
    return await context.commands.jobs.create(
        resolved.specs[0], actor=caller.as_actor(), idempotency=caller.idempotency
    )


def _reference(created: CreatedJob) -> str:
    # A one-off has its execution from the beginning.
    assert created.execution_id is not None
    return format_execution_id(created.execution_id)


def _creation(example: Any, request: Any, fails: Sequence[int] = ()) -> dict[str, Any]:
    return route_options(Role.EDITOR, example, status=201, request=request, has_body=True, fails=[409, *fails])


@router.post(
    "/api/v1/create-job",
    response_model=TypedJobAnswer,
    **_creation(_TYPED_EXAMPLE, {"type": "email", "data": _MAIL, "scheduledTime": INSTANT_EXAMPLE}),
)
async def create_typed_job(
    body: TypedJobIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create a job that runs once: at `scheduledTime`, or now. A time without an offset is in the zone of this server."""
    at = _instant(context, body.scheduledTime, "scheduledTime")
    payload = payload_of(body.type, body.data)
    with _pointing_to(payload="data", handler="type"):
        created = await _create(context, caller, body.type, payload, at)
    return await _typed_answer(context, _reference(created), 201)


@router.get(
    "/api/v1/job/{execution}",
    response_model=TypedJobAnswer,
    **route_options(Role.VIEWER, _TYPED_EXAMPLE, fails=[404]),
)
async def get_typed_job(execution: ExecutionRef, context: Context) -> Response:
    """One job, by its `_id`."""
    return await _typed_answer(context, execution)


@router.post(
    "/api/job",
    response_model=TaskJobAnswer,
    **_creation(_TASK_EXAMPLE, {"task": _TASK, "scheduled_at": INSTANT_EXAMPLE}),
)
async def create_task_job(
    body: TaskJobIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create a job that runs once: at `scheduled_at`, or now. A time without an offset is in the zone of this server."""
    at = _instant(context, body.scheduled_at, "scheduled_at")
    payload = payload_of(body.task.type, body.task.data, "task/data")
    with _pointing_to(payload="task/data", handler="task/type"):
        created = await _create(context, caller, body.task.type, payload, at)
    return await _task_answer(context, _reference(created), 201)


def _filters(
    context: Context,
    status: Annotated[ShortText | None, Query(description=f"{list_choices(_STATES)}; several with commas.")] = None,
    task_type: Annotated[ShortText | None, Query(alias="taskType", description="A type, as it is posted.")] = None,
    search: Annotated[ShortText | None, Query(description="Part of the job's name, or the `_id`.")] = None,
    start_date: Annotated[
        str | None, Query(alias="startDate", max_length=64, description="Created from this date or instant on.")
    ] = None,
    end_date: Annotated[
        str | None,
        Query(alias="endDate", max_length=64, description="Created up to this instant, or to the end of this date."),
    ] = None,
) -> ExecutionFilter:
    """The filter of a list. What is empty is not asked for: forms send every field."""
    words = [word.strip() for word in (status or "").split(",") if word.strip()]
    unknown = next((word for word in words if word not in _STATES), None)
    if unknown is not None:
        raise unexpected_value("status", unknown, list_choices(_STATES))
    terms = where(
        status=tuple(state for word in words for state in _STATES[word]),
        handler=handler_of(task_type) if task_type else None,
        after=_instant(context, start_date or None, "startDate"),
        before=_end(context, end_date) if end_date else None,
    )
    words_in_names = SearchTerm("", SearchRelation.LIKE, (search,)) if search else None
    return ExecutionFilter(terms if words_in_names is None else (*terms, words_in_names))


def _end(context: ApiContext, text: str) -> datetime:
    """The end of a span, which is not part of it: behind the instant that was given, or behind that date."""
    with suppress(ValueError, OverflowError):
        return parse_instant((date.fromisoformat(text) + timedelta(days=1)).isoformat(), context.zone, "endDate")
    # An id has the milliseconds of its instant.
    return parse_instant(text, context.zone, "endDate") + timedelta(milliseconds=1)


TaskFilterParams = Annotated[ExecutionFilter, Depends(_filters)]


@router.get(
    "/api/jobs",
    response_model=TaskJobsAnswer,
    **route_options(
        Role.VIEWER, {"success": True, "jobs": [_TASK_JOB], "page": 1, "limit": 20, "total": 1, "totalPages": 1}
    ),
)
async def list_task_jobs(
    context: Context,
    filters: TaskFilterParams,
    page: Annotated[int, Query(ge=1, le=10_000)] = 1,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    """Jobs, the latest first. `data` is that of the job; a large one is replaced by a note."""
    found = await _runs_page(context, filters, PageRequest(limit=limit, page=page, with_total=True))
    documents = await in_thread_if_large(
        lambda: [_task_document(run, in_list=True) for run in found.items], sum(len(run.payload) for run in found.items)
    )
    total = len(documents) if found.total is None else found.total.count
    pages = {"page": page, "limit": limit, "total": total, "totalPages": -(-total // limit)}
    return json_response({"success": True, "jobs": documents} | pages)


_EXPORT_COLUMNS = ["_id", "type", "data", *(name for name in _TASK_JOB if name not in ("_id", "task"))]


def _flat_document(run: _TaskRun) -> Document:
    document = _task_document(run)
    task = document.pop("task")
    return {**document, **task}


@router.get("/api/jobs/export", response_class=Response, **export_options("_id,type,data\r\n"))
async def export_task_jobs(
    context: Context,
    filters: TaskFilterParams,
    kind: Annotated[ExportFormat, Query(alias="format")] = "csv",
    bom: ByteOrderMark = False,
) -> Response:
    """All matching jobs as CSV, JSON lines or JSON."""

    async def read(request: PageRequest) -> ResultPage[_TaskRun]:
        return await _runs_page(context, filters, request)

    return await export_response(kind, "jobs", _EXPORT_COLUMNS, read, _flat_document, has_mark=bom)


@router.get(
    "/api/stats",
    response_model=TaskStatsAnswer,
    **route_options(Role.VIEWER, {"success": True, "stats": _STATS_EXAMPLE}),
)
async def task_stats(context: Context) -> Response:
    """How many jobs there are by status: what waits and runs now, and all that has ever ended, a few seconds behind."""
    counts = dict(await context.queries.executions.waiting_counts())
    for rollup in await context.queries.metrics.ever():
        for state in ("succeeded", "dead", "cancelled", "skipped"):
            counts[state] = counts.get(state, 0) + getattr(rollup.counts, state)
    stats = {word: sum(counts.get(state.value, 0) for state in states) for word, states in _STATES.items()}
    return json_response({"success": True, "stats": {"total": sum(stats.values())} | stats})


# The fields of a copy that are not those of its original: it runs once, under no name.
_ONCE = dict.fromkeys(
    ("name", "schedule", "interval_seconds", "scheduled_at", "starts_at", "ends_at", "max_executions")
)


@router.post(
    "/api/duplicate/{execution}",
    response_model=TaskJobAnswer,
    **_creation(_TASK_EXAMPLE, {"scheduled_at": INSTANT_EXAMPLE}, fails=[404]),
)
async def duplicate_task_job(
    execution: ExecutionRef,
    context: Context,
    caller: CurrentCaller,
    body: TaskCopyIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a copy that runs once: at `scheduled_at`, at the instant of the original if that lies ahead, or now."""
    at = _instant(context, None if body is None else body.scheduled_at, "scheduled_at")
    original = await _read_run(context, execution)
    job = await context.queries.jobs.find(str(original.execution.job_id))
    instant = at or max(context.queries.now(), original.execution.scheduled_for)
    spec = copy_spec(job, _ONCE | {"scheduled_at": instant}, context.queries.now())
    copied = replace(spec, payload=orjson.loads(original.payload))
    created = await _create_spec(context, caller, JobRequest(copied, SPEC_FIELDS.keys()))
    return await _task_answer(context, _reference(created), 201)


_ACTION: dict[str, Any] = route_options(
    Role.OPERATOR, _TASK_EXAMPLE, request={"reason": "a bad address"}, has_body=True, fails=[404, 409]
)


def _actor(caller: Caller, body: ReasonIn | None) -> Actor:
    return caller.as_actor((body or ReasonIn()).reason)


@router.post("/api/retry/{execution}", response_model=TaskJobAnswer, **_ACTION)
async def retry_task_job(
    execution: ExecutionRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run a job that has ended again, now. That is a new job with an `_id` of its own; the old one stays as it is."""
    target = await context.queries.executions.find(execution)
    again = await context.commands.executions.retry(target.id, None, _actor(caller, body), caller.idempotency)
    return await _task_answer(context, format_execution_id(again))


@router.post("/api/cancel/{execution}", response_model=TaskJobAnswer, **_ACTION)
async def cancel_task_job(
    execution: ExecutionRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Cancel a job: one that waits at once; one that runs is asked to stop."""
    target = await context.queries.executions.find(execution)
    await cancel_or_conflict(context, target.id, _actor(caller, body))
    return await _task_answer(context, format_execution_id(target.id))


_BULK: dict[str, Any] = route_options(
    Role.OPERATOR, _BULK_EXAMPLE, request={"ids": [EXECUTION_ID]}, has_body=True, fails=[409]
)


@router.post("/api/bulk/cancel", response_model=TaskBulkAnswer, **_BULK)
async def cancel_task_jobs(
    body: TaskIdsIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Cancel up to 500 jobs."""
    return await _bulk(context, caller, OperationAction.CANCEL, body)


@router.post("/api/bulk/retry", response_model=TaskBulkAnswer, **_BULK)
async def retry_task_jobs(
    body: TaskIdsIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run up to 500 jobs that have ended again; each result names the new job."""
    return await _bulk(context, caller, OperationAction.RETRY, body)


async def _bulk(context: ApiContext, caller: Caller, action: OperationAction, body: TaskIdsIn) -> Response:
    ids = list(dict.fromkeys(ExecutionId(parse_id("exe", id_)) for id_ in body.ids))
    started = await context.commands.operations.find_started(caller.idempotency)
    if started is None:
        items = await run_each(
            context,
            caller.as_actor(),
            action,
            ids,
            subject=OperationSubject.EXECUTION,
            idempotency=caller.idempotency,
        )
    else:
        items = await context.queries.operations.items(started.id, None, 0, MAX_INLINE)
    results = [_result_document(item) for item in items]
    failed = sum(not result["success"] for result in results)
    return json_response({"success": failed == 0, "done": len(results) - failed, "failed": failed, "results": results})


def _result_document(item: OperationItem) -> Document:
    assert item.execution_id is not None
    return {
        "_id": format_execution_id(item.execution_id),
        "success": item.status == "done",
        "job": None if item.result_id is None else format_execution_id(item.result_id),
        "error": item.error,
    }


TaskTemplateRef = Annotated[str, Path(max_length=200, description="A template's `_id` or name.")]


@router.get(
    "/api/templates",
    response_model=TaskTemplatesAnswer,
    **route_options(Role.VIEWER, {"success": True, "templates": [_TEMPLATE], "next_cursor": None}),
)
async def list_task_templates(
    context: Context,
    limit: Annotated[int, Query(ge=1, le=200)] = 200,
    cursor: Annotated[str | None, Query(max_length=1_000)] = None,
) -> Response:
    """Templates by name."""
    page = await context.queries.templates.page(PageRequest(limit=limit, cursor=cursor))
    documents = [_template_document(template, in_list=True) for template in page.items]
    return json_response({"success": True, "templates": documents, "next_cursor": page.next_cursor})


@router.post(
    "/api/templates",
    response_model=TaskTemplateAnswer,
    **_creation({"success": True, "template": _TEMPLATE}, {"name": "hello", "task": _TASK}),
)
async def create_task_template(
    body: TaskTemplateIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Store a task under a name."""
    job = {
        "handler": handler_of(body.task.type),
        "payload": payload_of(body.task.type, body.task.data, "task/data"),
    }
    with _pointing_to(payload="task/data", handler="task/type"):
        template = await context.commands.templates.create(body.name, job, None, caller.as_actor())
    return json_response({"success": True, "template": _template_document(template)}, 201)


@router.delete(
    "/api/templates/{template}",
    response_model=DoneAnswer,
    **route_options(Role.EDITOR, {"success": True}, fails=[404, 409]),
)
async def delete_task_template(template: TaskTemplateRef, context: Context, caller: CurrentCaller) -> Response:
    """Delete a template; jobs that were created from it stay."""
    target = await context.queries.templates.find(template)
    await context.commands.templates.delete(target.id, caller.as_actor())
    return json_response({"success": True})


@router.post(
    "/api/templates/{template}/use",
    response_model=TaskJobAnswer,
    **_creation(_TASK_EXAMPLE, {"scheduled_at": INSTANT_EXAMPLE}, fails=[404]),
)
async def use_task_template(
    template: TaskTemplateRef,
    context: Context,
    caller: CurrentCaller,
    body: TaskTemplateUse | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a job from a template that runs once: at `scheduled_at`, or now; with `data` in place of the template's, if given."""
    body = body or TaskTemplateUse()
    at = _instant(context, body.scheduled_at, "scheduled_at")
    target = await context.queries.templates.find(template)
    overrides = _ONCE | {"scheduled_at": at}
    if body.data is not None:
        handler = str(target.job["handler"])
        overrides["payload"] = payload_of(_TYPES.get(handler, handler), body.data)
    with _pointing_to(payload="data"):
        created, _ = await context.commands.templates.use(
            target, overrides, None, caller.as_actor(), caller.idempotency
        )
    return await _task_answer(context, _reference(created), 201)
