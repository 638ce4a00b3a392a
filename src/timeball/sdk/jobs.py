"""Jobs from a program, without a server: schedules that it makes as it goes, and `tb.jobs`.

Everything goes through the commands and queries that the API uses, so a rule that holds there holds here. The program is its own
author: it holds the database's password, so there is nothing that it may not do, and secrets in its payloads are not hidden from it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast

import orjson
from pydantic import Field

from timeball.api.models.executions import OperationOut as Operation
from timeball.api.models.executions import operation_document
from timeball.api.models.jobs import JobOut as Job
from timeball.api.models.jobs import job_document
from timeball.api.models.system import ExplanationOut as Explanation
from timeball.api.models.system import FireTimeOut as FireTime
from timeball.api.models.system import explanation_document, fire_time_document, instant_document
from timeball.application.commands.jobs import DefinedJob
from timeball.application.commands.requests import JobRequest
from timeball.domain.backfill import Backfill, BackfillSelection, BackfillSource
from timeball.domain.expiry import NEVER, parse_expiry
from timeball.domain.job import JobView
from timeball.domain.job_fields import JobSpec
from timeball.domain.scheduling.civil_time import parse_instant
from timeball.domain.search import JOB_FIELDS, JobFilter, JobOrder, PageRequest, parse_query, where
from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.domain.values.json_text import to_json
from timeball.domain.values.wording import Duration
from timeball.errors import InvalidInput, NotFound
from timeball.sdk.enqueue import EnqueueClient, SdkRuntime
from timeball.sdk.handlers import EnqueueTarget
from timeball.sdk.options import FollowUpCall, InstantInput, UpdateOptions, check_options, follow_ups, job_fields
from timeball.sdk.runs import Run
from timeball.sdk.schedules import ScheduleRequest, timing_fields
from timeball.sdk.transactions import TransactionWork
from timeball.store.db.database import CallerConnection

__all__ = ["Explanation", "FireTime", "Job", "Jobs", "ScheduleAction", "ScheduledJob", "schedule", "schedule_many"]

Answer = TypeVar("Answer")
ScheduleAction = Literal["create", "change", "leave"]
JobSort = Literal["-created_at", "created_at", "name", "-name"]
# `Jobs` has a method of this name.
FireTimes = list[FireTime]

Word = TypeVar("Word", bound=StrEnum)

_PAGE = 200


class BackfillOptions(TypedDict, total=False):
    """What a backfill runs, and how."""

    only: Literal["missing", "failed", "all"]
    by: Literal["versions", "present"]
    max_running: int
    priority: int
    newest_first: bool
    payload: Any


class ScheduledJob(Job):
    """A job that `.schedule(...)` has created, changed, or left as it is."""

    action: ScheduleAction = Field(description="`leave` if the job of this name was as asked for.")
    warnings: list[str] = Field(
        description="What may be wrong with it, such as a handler that no worker has published."
    )


async def schedule(request: ScheduleRequest, runtime: SdkRuntime, connection: CallerConnection | None) -> ScheduledJob:
    """Create or change the job of a schedule."""
    await runtime.now()  # compares the clocks: the first occurrence is computed from this time
    (spec,), warnings = await _complete([request], runtime)
    defined = await runtime.commands.jobs.define(spec, runtime.actor(None), connection)
    view = defined.view or await runtime.queries.jobs.view(str(defined.job.id), connection)
    return ScheduledJob.model_validate_json(_json(view, action=_action(defined), warnings=warnings))


async def schedule_many(
    requests: Sequence[ScheduleRequest], runtime: SdkRuntime, connection: CallerConnection | None
) -> dict[str, ScheduleAction]:
    """Create or change the jobs of many schedules, all or none; says what was done, by name."""
    await runtime.now()
    specs, _ = await _complete(requests, runtime)
    defined = await runtime.commands.jobs.define_all(specs, runtime.actor(None), connection)
    return {done.job.name or "": _action(done) for done in defined}


async def _complete(requests: Sequence[ScheduleRequest], runtime: SdkRuntime) -> tuple[list[JobSpec], list[str]]:
    """The definitions, with the published options of handlers that are not declared here; and the warnings for these."""
    if all(request.is_complete for request in requests):
        return [request.spec for request in requests], []
    resolved = await runtime.commands.contracts.resolve(
        [JobRequest(request.spec, request.given_fields) for request in requests]
    )
    return resolved.specs, resolved.warnings


def _action(defined: DefinedJob) -> ScheduleAction:
    return cast(ScheduleAction, defined.action.value)


def _json(view: JobView, **more: object) -> bytes:
    return orjson.dumps(job_document(view, shows_secrets=True) | more)


def _job(view: JobView) -> Job:
    return Job.model_validate_json(_json(view))


class Jobs:
    """`tb.jobs`: the jobs of the installation, by name or by id (`job_...`); NotFound if there is none.

    Methods for coroutines have an `a` before their names. With *connection*, a change is written in the caller's transaction, and holds
    if that commits; `get` reads there, too. *reason* is kept in the audit.
    """

    def __init__(self, client: EnqueueClient, target_of: Callable[[str], EnqueueTarget]) -> None:
        self._client = client
        self._target_of = target_of

    # reading

    def get(self, job: str, *, connection: Any = None) -> Job:
        """A job with its status, its next instant and how it last ended."""
        return self._client.call_within(connection, partial(_get, job), "get")

    async def aget(self, job: str, *, connection: Any = None) -> Job:
        """Like `get`, for coroutines."""
        return await self._client.acall_within(connection, partial(_get, job), "get")

    def list(self, search: str = "", *, owner: str | None = None, sort: JobSort = "-created_at") -> Iterator[Job]:
        """The jobs that a search finds, such as `name:digest-* status:paused`; read page by page while you go through them.

        With *owner* only those that belong to it.
        """
        request: PageRequest | None = PageRequest(limit=_PAGE)
        while request is not None:
            jobs, request = self._client.background_loop.call(partial(_page, search, owner, sort, request))
            yield from jobs

    async def alist(
        self, search: str = "", *, owner: str | None = None, sort: JobSort = "-created_at"
    ) -> AsyncIterator[Job]:
        """Like `list`, for coroutines: `async for job in tb.jobs.alist(...)`."""
        request: PageRequest | None = PageRequest(limit=_PAGE)
        while request is not None:
            jobs, request = await self._client.background_loop.acall(partial(_page, search, owner, sort, request))
            for job in jobs:
                yield job

    def next(self, job: str, count: int = 10) -> FireTimes:
        """The next instants of a job's schedule, with notes where the clock changes; also while it is paused."""
        return self._client.background_loop.call(partial(_next, job, count))

    async def anext(self, job: str, count: int = 10) -> FireTimes:
        """Like `next`, for coroutines."""
        return await self._client.background_loop.acall(partial(_next, job, count))

    def explain(self, job: str, *, at: datetime | str | None = None) -> Explanation:
        """Why a job does not run: a sentence, and every gate that its execution has to pass.

        With *at*: what became of the occurrence at that instant and why, or which gates will bind one that lies ahead.
        """
        return self._client.background_loop.call(partial(_explain, job, at))

    async def aexplain(self, job: str, *, at: datetime | str | None = None) -> Explanation:
        """Like `explain`, for coroutines."""
        return await self._client.background_loop.acall(partial(_explain, job, at))

    # changing

    def update(
        self,
        job: str,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        at: InstantInput | None = None,
        after: str | None = None,
        version: int | None = None,
        reason: str | None = None,
        connection: Any = None,
        **options: Unpack[UpdateOptions],
    ) -> Job:
        """Change what is given, and nothing else; it takes effect with the next occurrence.

        Conflict if *version* is given and is not that of the job: another change came first.
        """
        work = self._updating(job, cron, every, at, after, version, reason, options)
        return self._client.call_within(connection, work, "update")

    async def aupdate(
        self,
        job: str,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        at: InstantInput | None = None,
        after: str | None = None,
        version: int | None = None,
        reason: str | None = None,
        connection: Any = None,
        **options: Unpack[UpdateOptions],
    ) -> Job:
        """Like `update`, for coroutines."""
        work = self._updating(job, cron, every, at, after, version, reason, options)
        return await self._client.acall_within(connection, work, "update")

    def pause(
        self, job: str, until: InstantInput | None = None, reason: str | None = None, *, connection: Any = None
    ) -> Job:
        """Start no execution of a job until `resume` or the instant *until*; one without an offset is on the job's clock."""
        return self._client.call_within(connection, partial(_pause, job, until, reason), "pause")

    async def apause(
        self, job: str, until: InstantInput | None = None, reason: str | None = None, *, connection: Any = None
    ) -> Job:
        """Like `pause`, for coroutines."""
        return await self._client.acall_within(connection, partial(_pause, job, until, reason), "pause")

    def resume(self, job: str, reason: str | None = None, *, connection: Any = None) -> Job:
        """Resume a paused job; occurrences that fell into the pause are recorded as skipped."""
        return self._client.call_within(connection, partial(_resume, job, reason), "resume")

    async def aresume(self, job: str, reason: str | None = None, *, connection: Any = None) -> Job:
        """Like `resume`, for coroutines."""
        return await self._client.acall_within(connection, partial(_resume, job, reason), "resume")

    def delete(self, job: str, reason: str | None = None, *, missing_ok: bool = False, connection: Any = None) -> None:
        """Delete a job: its waiting executions are cancelled, its name is free again, its history stays.

        With *missing_ok* it is no error if there is no such job.
        """
        self._client.call_within(connection, partial(_delete, job, reason, missing_ok), "delete")

    async def adelete(
        self, job: str, reason: str | None = None, *, missing_ok: bool = False, connection: Any = None
    ) -> None:
        """Like `delete`, for coroutines."""
        await self._client.acall_within(connection, partial(_delete, job, reason, missing_ok), "delete")

    # changing all schedules of an owner, all or none; each returns how many it changed

    def pause_all(
        self, owner: str, until: InstantInput | None = None, reason: str | None = None, *, connection: Any = None
    ) -> int:
        """Pause every schedule of an owner until `resume_all` or the instant *until*; one without an offset is in UTC."""
        return self._client.call_within(connection, partial(_pause_all, owner, until, reason), "pause_all")

    async def apause_all(
        self, owner: str, until: InstantInput | None = None, reason: str | None = None, *, connection: Any = None
    ) -> int:
        """Like `pause_all`, for coroutines."""
        return await self._client.acall_within(connection, partial(_pause_all, owner, until, reason), "pause_all")

    def resume_all(self, owner: str, reason: str | None = None, *, connection: Any = None) -> int:
        """Resume every paused schedule of an owner."""
        return self._client.call_within(connection, partial(_resume_all, owner, reason), "resume_all")

    async def aresume_all(self, owner: str, reason: str | None = None, *, connection: Any = None) -> int:
        """Like `resume_all`, for coroutines."""
        return await self._client.acall_within(connection, partial(_resume_all, owner, reason), "resume_all")

    def delete_all(self, owner: str, reason: str | None = None, *, connection: Any = None) -> int:
        """Delete every schedule of an owner: waiting executions are cancelled, the history stays."""
        return self._client.call_within(connection, partial(_delete_all, owner, reason), "delete_all")

    async def adelete_all(self, owner: str, reason: str | None = None, *, connection: Any = None) -> int:
        """Like `delete_all`, for coroutines."""
        return await self._client.acall_within(connection, partial(_delete_all, owner, reason), "delete_all")

    # running

    def trigger(
        self,
        job: str,
        payload: Any = None,
        reason: str | None = None,
        *,
        expires: Duration | datetime | None = None,
        meta: Mapping[str, Any] | None = None,
        on_success: FollowUpCall | None = None,
        on_failure: FollowUpCall | None = None,
    ) -> Run[Any]:
        """Run a job now, in addition to its schedule; *payload* replaces the job's own for this run.

        It is skipped if it has not begun when it *expires*: after a span such as `10m`, or at an instant.
        *meta* takes the place of the job's, and *on_success* and *on_failure* that of the calls that follow the runs of the job:
        `on_success=archive.call(tb.result)`.
        """
        calls = follow_ups(on_success, on_failure)
        work = partial(_trigger, job, payload, reason, expires, meta, calls)
        return self._run(self._client.background_loop.call(work))

    async def atrigger(
        self,
        job: str,
        payload: Any = None,
        reason: str | None = None,
        *,
        expires: Duration | datetime | None = None,
        meta: Mapping[str, Any] | None = None,
        on_success: FollowUpCall | None = None,
        on_failure: FollowUpCall | None = None,
    ) -> Run[Any]:
        """Like `trigger`, for coroutines."""
        calls = follow_ups(on_success, on_failure)
        work = partial(_trigger, job, payload, reason, expires, meta, calls)
        return self._run(await self._client.background_loop.acall(work))

    def backfill(
        self,
        job: str,
        from_: InstantInput,
        until: InstantInput | None = None,
        *,
        reason: str | None = None,
        **options: Unpack[BackfillOptions],
    ) -> Operation:
        """Run the occurrences of a job from *from_* up to *until* (by default now) that were missed, that failed, or all.

        It is an operation, which the API processes or a scheduler feed: at most `max_running` of its runs are unfinished at a time.
        """
        return self._client.background_loop.call(partial(_backfill, job, from_, until, reason, options))

    async def abackfill(
        self,
        job: str,
        from_: InstantInput,
        until: InstantInput | None = None,
        *,
        reason: str | None = None,
        **options: Unpack[BackfillOptions],
    ) -> Operation:
        """Like `backfill`, for coroutines."""
        return await self._client.background_loop.acall(partial(_backfill, job, from_, until, reason, options))

    def _run(self, ids: tuple[JobId, ExecutionId]) -> Run[Any]:
        job_id, execution_id = ids
        return Run(self._client.background_loop, execution_id, job_id)

    def _updating(
        self,
        job: str,
        cron: str | None,
        every: Duration | None,
        at: InstantInput | None,
        after: str | None,
        version: int | None,
        reason: str | None,
        options: UpdateOptions,
    ) -> TransactionWork[SdkRuntime, Job]:
        check_options(options, UpdateOptions, "update()")
        has_rhythm = any(value is not None for value in (cron, every, at, after))
        fields = {**job_fields(options), **(timing_fields(cron, every, at, after) if has_rhythm else {})}
        if not fields and "arguments" not in options:
            raise InvalidInput("update() was given nothing to change", hint='update("digest-17", "0 8 * * *")')

        async def update(runtime: SdkRuntime, connection: CallerConnection | None) -> Job:
            target = await runtime.queries.jobs.find(job, connection)
            handler = self._target_of(fields.get("handler", target.handler))
            if "arguments" in options:
                fields["payload"] = orjson.Fragment(handler.encode((), options["arguments"]))
            await runtime.commands.jobs.update(
                target.id, fields, runtime.actor(reason), version, connection, is_unchecked=handler.is_declared_here
            )
            return await _get(str(target.id), runtime, connection)

        return update


async def _get(job: str, runtime: SdkRuntime, connection: CallerConnection | None) -> Job:
    return _job(await runtime.queries.jobs.view(job, connection))


async def _page(
    search: str, owner: str | None, sort: JobSort, request: PageRequest, runtime: SdkRuntime
) -> tuple[Sequence[Job], PageRequest | None]:
    terms = (*parse_query(search, JOB_FIELDS), *where(owner=owner))
    page = await runtime.queries.jobs.page(JobFilter(terms), _order(sort), request)
    following = None if page.next_cursor is None else PageRequest(limit=request.limit, cursor=page.next_cursor)
    return [_job(view) for view in page.items], following


def _order(sort: str) -> JobOrder:
    try:
        return JobOrder(sort)
    except ValueError:
        raise unexpected_value("sort", sort, list_choices(JobOrder)) from None


async def _next(job: str, count: int, runtime: SdkRuntime) -> FireTimes:
    if not 1 <= count <= _PAGE:
        raise unexpected_value("count", count, f"1 to {_PAGE}")
    await runtime.now()
    target = await runtime.queries.jobs.find(job)
    times = await runtime.queries.jobs.next_times_of(target, count)
    return [FireTime.model_validate(fire_time_document(time)) for time in times]


async def _explain(job: str, at: datetime | str | None, runtime: SdkRuntime) -> Explanation:
    if at is None:
        document = explanation_document(await runtime.queries.explain.job(job))
    else:
        document = instant_document(await runtime.queries.instants.of_job(job, at))
    return Explanation.model_validate_json(orjson.dumps(document))


async def _pause(
    job: str,
    until: InstantInput | None,
    reason: str | None,
    runtime: SdkRuntime,
    connection: CallerConnection | None,
) -> Job:
    target = await runtime.queries.jobs.find(job, connection)
    ends_at = None if until is None else parse_instant(until, target.timezone, "until")
    await runtime.commands.jobs.pause(target.id, ends_at, runtime.actor(reason), connection)
    return await _get(str(target.id), runtime, connection)


async def _resume(job: str, reason: str | None, runtime: SdkRuntime, connection: CallerConnection | None) -> Job:
    target = await runtime.queries.jobs.find(job, connection)
    await runtime.commands.jobs.resume(target.id, runtime.actor(reason), connection)
    return await _get(str(target.id), runtime, connection)


async def _delete(
    job: str, reason: str | None, missing_ok: bool, runtime: SdkRuntime, connection: CallerConnection | None
) -> None:
    try:
        target = await runtime.queries.jobs.find(job, connection)
        await runtime.commands.jobs.delete(target.id, runtime.actor(reason), connection)
    except NotFound:
        if not missing_ok:
            raise


async def _pause_all(
    owner: str,
    until: InstantInput | None,
    reason: str | None,
    runtime: SdkRuntime,
    connection: CallerConnection | None,
) -> int:
    ends_at = None if until is None else parse_instant(until, "UTC", "until")
    return await runtime.commands.jobs.pause_all(owner, ends_at, runtime.actor(reason), connection)


async def _resume_all(owner: str, reason: str | None, runtime: SdkRuntime, connection: CallerConnection | None) -> int:
    return await runtime.commands.jobs.resume_all(owner, runtime.actor(reason), connection)


async def _delete_all(owner: str, reason: str | None, runtime: SdkRuntime, connection: CallerConnection | None) -> int:
    return await runtime.commands.jobs.delete_all(owner, runtime.actor(reason), connection)


async def _trigger(
    job: str,
    payload: Any,
    reason: str | None,
    expires: Duration | datetime | None,
    meta: Mapping[str, Any] | None,
    calls: Mapping[str, Any] | None,
    runtime: SdkRuntime,
) -> tuple[JobId, ExecutionId]:
    target = await runtime.queries.jobs.find(job)
    expiry = NEVER if expires is None else parse_expiry(expires, timezone=target.timezone)
    actor = runtime.actor(reason)
    return target.id, await runtime.commands.executions.trigger(
        target.id, payload, actor, expiry=expiry, meta=meta, calls=calls
    )


async def _backfill(
    job: str,
    from_: InstantInput,
    until: InstantInput | None,
    reason: str | None,
    options: BackfillOptions,
    runtime: SdkRuntime,
) -> Operation:
    now = await runtime.now()
    target = await runtime.queries.jobs.find(job)
    since = parse_instant(from_, target.timezone, "from_")
    payload = options.get("payload")
    backfill = Backfill(
        job_id=target.id,
        since=since,
        until=max(now, since) if until is None else parse_instant(until, target.timezone, "until"),
        only=_word(BackfillSelection, "only", options.get("only", "missing")),
        by=_word(BackfillSource, "by", options.get("by", "versions")),
        max_running=options.get("max_running", 1),
        priority=options.get("priority", 0),
        newest_first=options.get("newest_first", False),
        payload=None if payload is None else to_json(payload),
    )
    started = await runtime.commands.backfills.start(backfill, runtime.actor(reason))
    return Operation.model_validate_json(orjson.dumps(operation_document(started)))


def _word(words: type[Word], name: str, word: str) -> Word:
    try:
        return words(word)
    except ValueError:
        raise unexpected_value(name, word, list_choices(words)) from None
