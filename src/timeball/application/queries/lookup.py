"""Pages of jobs and executions, single ones in full, revisions, dead letters, queues, nodes, audit and health."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import orjson

from timeball.application.queries.calendar import CalendarQuery
from timeball.application.queries.doctor import Doctor
from timeball.application.queries.explain import Explainer
from timeball.application.queries.forecast import ForecastQuery, InstantLoadQuery
from timeball.application.queries.handlers import HandlerQuery
from timeball.application.queries.metrics import MetricsQuery
from timeball.application.queries.timeline import TimelineQuery
from timeball.application.queries.views import (
    AttentionItem,
    Calendar,
    ExecutionView,
    FieldChange,
    FireTime,
    Forecast,
    ForecastRequest,
    HealthCheck,
    InstantLoad,
    InstantLoadRequest,
    JobView,
    LogPage,
    Revision,
    SpreadAdvice,
    SpreadRequest,
    Timeline,
    TimelineRequest,
)
from timeball.config.settings import Settings
from timeball.domain.bulk_operation import Operation, OperationId, OperationItem
from timeball.domain.execution import Attempt, Execution
from timeball.domain.explain.diagnosis import Diagnosis
from timeball.domain.explain.explanation import Explanation
from timeball.domain.forecast.demand import Collision
from timeball.domain.job import Job
from timeball.domain.node import NodeKind, NodeStatus, report_broker
from timeball.domain.scheduling.civil_time import changes_between
from timeball.domain.scheduling.schedule import Cron, Schedule
from timeball.domain.search import (
    DeadLetterGroup,
    DeadLetterGrouping,
    ExecutionFilter,
    JobFilter,
    JobOrder,
    PageRequest,
    ResultPage,
    read_cursor,
    write_cursor,
)
from timeball.domain.template import Template, TemplateId
from timeball.domain.values.ids import ExecutionId, JobId, parse_id
from timeball.errors import InvalidInput, NotFound, StoreError, quote_text
from timeball.store.db.migrate import newest_known
from timeball.store.diagnostics import DoctorStore, ExplainStore
from timeball.store.search.listing import ListingStore, RecentRuns
from timeball.store.store import Store
from timeball.store.timeline import TimelineStore

# What there is: pages of jobs and executions, one of each in full, dead letters, queues, nodes, health.

_HEALTH_SECONDS = 3.0
_YEAR, _NEAR = timedelta(days=370), timedelta(hours=2)


class Queries:
    """What can be known about jobs, executions, queues and nodes."""

    def __init__(self, store: Store, listing: ListingStore, settings: Settings) -> None:
        self._store = store
        self._listing = listing
        self._explainer = Explainer(store, ExplainStore(store.database))
        self._inspection = DoctorStore(store.database)
        self._revisions = RevisionQuery(listing, self._inspection)
        self._outlook = outlook = TimelineStore(store.database)
        self._doctor = Doctor(store, listing, self._explainer, outlook, settings)
        self._timelines = TimelineQuery(store, outlook)
        self._forecasts = ForecastQuery(store, outlook)
        self._landings = InstantLoadQuery(store, outlook)
        self._calendars = CalendarQuery(store, outlook)
        self.metrics = MetricsQuery(store, listing)
        self.handlers = HandlerQuery(store)

    # why

    async def explain_execution(self, reference: str) -> Explanation:
        """Why an execution is where it is."""
        return await self._explainer.execution(await self.find_execution(reference))

    async def explain_job(self, reference: str) -> Explanation:
        """Why a job does not run: told of what of it runs or waits, or else of the job itself."""
        job = await self.find_job(reference)
        current = await self.current_execution(job.id)
        return await (self._explainer.job(job) if current is None else self._explainer.execution(current))

    async def diagnose(self) -> list[Diagnosis]:
        """Whether everything is in order, line by line."""
        return await self._doctor.look()

    async def attention(self) -> list[AttentionItem]:
        """What needs a human, the gravest first, each with where to look and why."""
        return await self._doctor.attention()

    # time

    async def timeline(self, request: TimelineRequest) -> Timeline:
        """Past, running and predicted runs on one axis."""
        return await self._timelines.draw(request)

    async def forecast(self, request: ForecastRequest) -> Forecast:
        """Demand against slots for the next days, hour by hour."""
        return await self._forecasts.forecast(request)

    async def collisions(self, request: ForecastRequest) -> list[Collision]:
        """Where jobs want more slots than there are, the worst first."""
        return await self._forecasts.collisions(request)

    async def forecast_with_collisions(self, request: ForecastRequest) -> tuple[Forecast, list[Collision]]:
        """Both, from one look ahead."""
        return await self._forecasts.both(request)

    async def spread(self, request: SpreadRequest) -> SpreadAdvice | None:
        """How the jobs of a collision could be spread; None if nothing collides there."""
        return await self._forecasts.spread(request)

    async def landing(self, request: InstantLoadRequest) -> InstantLoad:
        """What else runs at an instant, and how many slots that needs."""
        return await self._landings.at(request)

    async def calendar(self, request: ForecastRequest) -> Calendar:
        """What is to run in the next days, as entries of a calendar."""
        return await self._calendars.of_all(request)

    async def calendar_of_job(self, reference: str, days: int) -> tuple[Job, Calendar]:
        """A job, and when it is to run."""
        job = await self.find_job(reference)
        return job, await self._calendars.of_job(job, days)

    # jobs

    async def find_job(self, reference: str) -> Job:
        """A job by its id or its name; NotFound if there is none, or if it was deleted."""
        job = await self._job_by_id(reference) or await self._job_by_name(reference)
        if job is None:
            raise NotFound("job", quote_text(reference))
        return job

    async def _job_by_id(self, reference: str) -> Job | None:
        try:
            job_id = JobId(parse_id("job", reference))
        except InvalidInput:
            return None
        job = (await self._store.jobs.find([job_id])).get(job_id)
        return None if job is None or job.deleted_at is not None else job

    async def _job_by_name(self, reference: str) -> Job | None:
        # A text the database cannot hold is nobody's name.
        return None if "\0" in reference else await self._store.jobs.find_by_name(reference)

    async def view_jobs(self, jobs: Sequence[Job]) -> list[JobView]:
        """Jobs with how they stand, in the order given."""
        situations = await self._listing.job_situations([job.id for job in jobs])
        return [JobView(job, situations[job.id]) for job in jobs]

    async def view_job(self, reference: str) -> JobView:
        """One job with how it stands."""
        return (await self.view_jobs([await self.find_job(reference)]))[0]

    async def jobs(self, wanted: JobFilter, order: JobOrder, request: PageRequest) -> ResultPage[JobView]:
        """A page of jobs."""
        page = await self._listing.jobs(wanted, order, request)
        views = await self.view_jobs(page.items)
        return ResultPage(views, page.next_cursor, page.total, page.searched_to, page.looked_at)

    async def has_jobs(self) -> bool:
        """Whether there is any job at all."""
        return bool((await self._listing.jobs(JobFilter(), JobOrder.NEWEST, PageRequest(limit=1))).items)

    async def job_names(self, ids: Sequence[JobId]) -> dict[JobId, str | None]:
        """What these jobs are called."""
        return await self._listing.job_names(list(dict.fromkeys(ids)))

    async def recent_runs(self, ids: Sequence[JobId], count: int) -> dict[JobId, RecentRuns]:
        """How the latest executions of each of these jobs ended and how long they took, the oldest first."""
        return await self._listing.recent_runs(ids, count)

    def clock_changes(self, rule: Schedule, after: datetime, count: int) -> list[FireTime]:
        """What the next changes of the clock do to a schedule, within about a year; nothing if it reads no clock."""
        if not isinstance(rule, Cron):
            return []
        zone = ZoneInfo(rule.timezone)
        found: list[FireTime] = []
        for change in changes_between(zone, after, after + _YEAR):
            near = rule.occurrences(max(after, change.at - _NEAR), change.at + _NEAR, with_skipped=True)
            # An every-second schedule has a great many of them around a change.
            found += [FireTime(one, one.at.astimezone(zone)) for one in islice(near, 50) if one.note is not None]
        return found[:count]

    async def jobs_of(self, executions: Sequence[Execution]) -> dict[JobId, JobView]:
        """The jobs of some executions, as far as they are still there."""
        ids = list({execution.job_id for execution in executions})
        jobs = await self._store.jobs.find(ids)
        return {view.job.id: view for view in await self.view_jobs(list(jobs.values()))}

    async def revisions(self, reference: str, request: PageRequest) -> ResultPage[Revision]:
        """Who changed what of a job, the latest first."""
        return await self._revisions.of(await self.find_job(reference), request)

    def next_times(self, rule: Schedule, timezone: str, after: datetime, count: int) -> list[FireTime]:
        """The next instants of a schedule, and what its clock changes leave out on the way."""
        zone = ZoneInfo(rule.timezone if isinstance(rule, Cron) else timezone)
        found: list[FireTime] = []
        due = 0
        for occurrence in islice(rule.occurrences(after, with_skipped=True), 2 * count):
            found.append(FireTime(occurrence, occurrence.at.astimezone(zone)))
            due += occurrence.is_due
            if due == count:
                break
        return found

    def now(self) -> datetime:
        """The database's time, as well as it is known here."""
        return self._store.env.clock.now()

    # executions

    async def executions(self, wanted: ExecutionFilter, request: PageRequest) -> ResultPage[Execution]:
        """A page of executions, the latest first."""
        return await self._listing.executions(wanted, request)

    async def find_execution(self, reference: str) -> Execution:
        """An execution by its id; NotFound if there is none."""
        try:
            execution_id = ExecutionId(parse_id("exe", reference))
        except InvalidInput:
            raise NotFound("execution", quote_text(reference)) from None
        found = await self._store.history.find(execution_id)
        if found is None:
            raise NotFound("execution", quote_text(reference))
        return found

    async def view_execution(self, reference: str) -> ExecutionView:
        """An execution in full."""
        execution = await self.find_execution(reference)
        attempts = await self._store.history.attempts(execution.id)
        extras = await self._listing.execution_extras(execution.id)
        payload = extras.get("payload_text") or "null"
        return ExecutionView(execution, attempts, payload, extras.get("fingerprint"), extras.get("stop"))

    async def attempts_of(self, executions: Sequence[Execution]) -> dict[ExecutionId, list[Attempt]]:
        """The unsuccessful tries of some executions, each in order."""
        return await self._inspection.attempts([execution.id for execution in executions])

    async def unsuccessful_tries(self, since: datetime, until: datetime, limit: int) -> list[dict[str, Any]]:
        """The tries that failed, timed out or were lost within a span, the latest first."""
        return await self._inspection.unsuccessful_tries(since, until, limit)

    async def log(self, reference: str, cursor: str | None, limit: int) -> LogPage:
        """Lines of an execution's log, in order, behind a cursor."""
        execution = await self.find_execution(reference)
        lines = await self._store.history.log(execution.id, _log_position(cursor), limit + 1)
        shown = lines[:limit]
        last = shown[-1] if shown else None
        next_cursor = cursor if last is None else write_cursor("log", str(last.fence), str(last.number), execution.id)
        return LogPage(shown, next_cursor, len(lines) > limit)

    async def current_execution(self, job_id: JobId) -> Execution | None:
        """What of a job runs, or else waits: the one that is furthest on its way."""
        found = await self._store.history.current_of(job_id)
        return None if found is None else await self._store.history.find(found)

    async def last_ended(self, job_id: JobId) -> Execution | None:
        """The latest execution of a job that has ended."""
        found = await self._store.history.last_ended_of(job_id)
        return None if found is None else await self._store.history.find(found)

    async def next_due(self, most: int) -> list[dict[str, Any]]:
        """What falls due next, the soonest first."""
        return await self._outlook.next_due(most)

    async def dead_groups(self, limit: int, by: DeadLetterGrouping = DeadLetterGrouping.ERROR) -> list[DeadLetterGroup]:
        """The latest dead that nobody has dealt with, by what killed them or by where they ran."""
        return await self._listing.dead_groups(limit, by)

    async def dead_count(self) -> int:
        """How many of the dead nobody has dealt with, counted up to 10,000."""
        return await self._listing.dead_count()

    # templates

    async def templates(self, request: PageRequest) -> ResultPage[Template]:
        """A page of templates, by name."""
        return await self._store.templates.page(request.limit, request.cursor)

    async def find_template(self, reference: str) -> Template:
        """A template by its id or its name; NotFound if there is none."""
        found: Template | None = None
        with suppress(InvalidInput):
            found = await self._store.templates.find(TemplateId(parse_id("tpl", reference)))
        if found is None and "\0" not in reference:
            found = await self._store.templates.find_by_name(reference)
        if found is None:
            raise NotFound("template", quote_text(reference))
        return found

    # operations

    async def operations(self, request: PageRequest) -> ResultPage[Operation]:
        """A page of operations, the latest first."""
        return await self._store.operations.page(request.limit, request.cursor)

    async def find_operation(self, reference: str) -> Operation:
        """An operation by its id; NotFound if there is none."""
        try:
            found = await self._store.operations.find(OperationId(parse_id("op", reference)))
        except InvalidInput:
            found = None
        if found is None:
            raise NotFound("operation", quote_text(reference))
        return found

    async def operation_items(
        self, operation_id: OperationId, status: str | None, after: int, limit: int
    ) -> list[OperationItem]:
        """What came of each execution of an operation, behind a number."""
        return await self._store.operations.items(operation_id, status, after, limit)

    # machinery

    async def queues(self) -> list[dict[str, Any]]:
        """Queues that have something ready or running, a pause or a limit: up to 200, whose oldest waits longest first."""
        return await self._listing.queues(by_need=True)

    async def queue_page(self, request: PageRequest) -> ResultPage[dict[str, Any]]:
        """All queues by name, a page at a time."""
        return await self._listing.queue_page(request)

    async def queue(self, name: str) -> dict[str, Any]:
        """One queue; one that nobody has used is simply empty."""
        return (await self._listing.queues(name))[0]

    async def nodes(self, kind: NodeKind | None = None) -> list[NodeStatus]:
        """Every worker or scheduler that is believed alive."""
        return [node for node in await self._store.nodes.list() if kind is None or node.kind is kind]

    async def audit(self, subject: str | None, actor: str | None, request: PageRequest) -> ResultPage[dict[str, Any]]:
        """Who changed what, the latest first."""
        return await self._listing.audit(subject, actor, request)

    async def waiting_counts(self) -> dict[str, int]:
        """How much is scheduled, retrying, queued and running; more than 10,000 shows as 10,001."""
        return await self._listing.waiting_counts()

    # health

    async def health(self) -> list[HealthCheck]:
        """Look whether the database answers, has our schema, and whether somebody schedules and works."""
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                schema = await self._listing.schema()
                nodes = await self.nodes()
                ownerless = await self._listing.ownerless_shards()
        except (StoreError, TimeoutError) as error:
            detail = str(error) or f"no answer within {_HEALTH_SECONDS:g} s"
            return [HealthCheck("database", "fail", quote_text(detail, 200))]
        is_current = schema == newest_known()
        return [
            HealthCheck("database", "ok", "it answers"),
            HealthCheck(
                "schema", "ok" if is_current else "fail", f"it is {schema}, this program needs {newest_known()}"
            ),
            _alive_check(nodes, NodeKind.SCHEDULER),
            _alive_check(nodes, NodeKind.WORKER),
            HealthCheck(
                "shards", "ok" if not ownerless else "warn", f"{ownerless} of {self._store.shards} without an owner"
            ),
            broker_check(nodes),
        ]


def _log_position(cursor: str | None) -> tuple[int, int]:
    """The fence and the number of the last line before a cursor."""
    if cursor is None:
        return 0, 0
    fence, number, _ = read_cursor(cursor, "log", 3)
    if not all(text is not None and text.isascii() and text.isdecimal() and len(text) < 10 for text in (fence, number)):
        raise InvalidInput("cursor is none of this list", field="cursor")
    return int(fence or 0), int(number or 0)


def _alive_check(nodes: Sequence[NodeStatus], kind: NodeKind) -> HealthCheck:
    number = sum(node.kind is kind for node in nodes)
    return HealthCheck(f"{kind.value}s", "ok" if number else "warn", f"{number} alive")


# Whether due work is carried as it was meant to be, as a line of the health report.


def broker_check(nodes: Sequence[NodeStatus]) -> HealthCheck:
    """One line about the broker; it never fails, because work goes on without one."""
    report = report_broker(nodes)
    return HealthCheck("broker", "ok" if report.is_fine else "warn", report.detail)


# How a job came to be as it is: who changed what, and which version answered for which time.

# What the engine keeps for itself, or what the revision says elsewhere.
_INTERNAL_FIELDS = frozenset({"id", "shard", "version", "paused_left", "paused_from"})


class RevisionQuery:
    """Reads the history of definitions."""

    def __init__(self, listing: ListingStore, inspection: DoctorStore) -> None:
        self._listing = listing
        self._inspection = inspection

    async def of(self, job: Job, request: PageRequest) -> ResultPage[Revision]:
        """The changes of a job, the latest first; the last of all is its creation."""
        page = await self._listing.audit(f"job:{job.id}", None, request)
        spans = await self._inspection.versions(job.id)
        # Triggers and backfills stand in the audit of their job, too, and change nothing of it.
        found = [_revision(row, spans) for row in page.items if _is_change(row)]
        is_last = page.next_cursor is None
        if is_last and not any(revision.action == "job.create" for revision in found):
            found.append(_creation(job, spans))
        # Ids made within one millisecond are in no order; versions are. A pause has none, and comes after the creation.
        found.sort(key=lambda revision: (revision.at or job.created_at, revision.version or math.inf), reverse=True)
        return ResultPage(found, page.next_cursor, page.total)


def _is_change(row: Mapping[str, Any]) -> bool:
    return row["before"] is not None or row["action"] == "job.create"


def _revision(row: Mapping[str, Any], spans: Mapping[int, Mapping[str, Any]]) -> Revision:
    before, after = (_read(row[side]) for side in ("before", "after"))
    version = after.get("version") if isinstance(after.get("version"), int) else None
    span = spans.get(version or 0, {})
    return Revision(
        at=row["at"],
        actor=row["actor"],
        action=row["action"],
        reason=row["reason"],
        version=version,
        changes=tuple(
            FieldChange(name, before.get(name), after.get(name))
            for name in dict.fromkeys((*before, *after))
            if name not in _INTERNAL_FIELDS
        ),
        effective_from=span.get("effective_from"),
        effective_until=span.get("effective_until"),
    )


def _creation(job: Job, spans: Mapping[int, Mapping[str, Any]]) -> Revision:
    first = spans.get(1, {})
    return Revision(
        at=job.created_at,
        actor=job.created_by or job.declared_by,
        action="job.create",
        reason=None,
        version=1,
        effective_from=first.get("effective_from"),
        effective_until=first.get("effective_until"),
    )


def _read(text: str | None) -> dict[str, Any]:
    value = None if text is None else orjson.loads(text)
    return value if isinstance(value, dict) else {}
