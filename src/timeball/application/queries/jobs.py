"""Jobs with their situation, their revisions and fire times; and job templates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import orjson

from timeball.domain.freeze import Freeze, frozen_windows, window_at
from timeball.domain.job import Job, JobView, rule_of
from timeball.domain.job_fields import JobSpec
from timeball.domain.payload_references import VersionSchedule, preview_payload
from timeball.domain.scheduling.calendars import possible_names
from timeball.domain.scheduling.civil_time import changes_between
from timeball.domain.scheduling.schedule import Cron, NoteKind, Occurrence, Schedule
from timeball.domain.search import JobFilter, JobOrder, PageRequest, RecentRuns, ResultPage
from timeball.domain.template import Template, TemplateId
from timeball.domain.values.ids import JobId, parse_id
from timeball.errors import InvalidInput, NotFound, quote_text

if TYPE_CHECKING:
    from timeball.domain.execution import Execution
    from timeball.store.db.database import WithinConnection
    from timeball.store.diagnostics import DoctorStore
    from timeball.store.search.listing import ListingStore
    from timeball.store.store import Store

_YEAR, _NEAR_A_CHANGE = timedelta(days=370), timedelta(hours=2)
# An every-second schedule has thousands of occurrences near a clock change.
_MAX_NEAR_A_CHANGE = 50
# Fields that only the engine uses, or that a revision shows elsewhere.
_INTERNAL_FIELDS = frozenset({"id", "shard", "version", "paused_left", "paused_from"})


_OF_CALENDARS = (NoteKind.MOVED_BY_CALENDAR, NoteKind.LEFT_OUT_BY_CALENDAR)


@dataclass(frozen=True, slots=True)
class FireTime:
    """An instant of a schedule, the local time that the clock of its zone shows, and whether it falls into a freeze."""

    occurrence: Occurrence
    local: datetime
    is_frozen: bool = False


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field, before and after."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One change of a job. The instants bound the occurrences for which its version answers, where that is kept."""

    at: datetime | None
    actor: str | None
    action: str
    reason: str | None
    version: int | None
    changes: tuple[FieldChange, ...] = ()
    effective_from: datetime | None = None
    effective_until: datetime | None = None


class JobQueries:
    """Reads jobs."""

    def __init__(self, store: Store, listing: ListingStore, diagnostics: DoctorStore) -> None:
        self._store = store
        self._listing = listing
        self._diagnostics = diagnostics

    async def find(self, reference: str, connection: WithinConnection | None = None) -> Job:
        """A job by its id or its name; NotFound if there is none, or if it was deleted. *connection* sees its own transaction."""
        job = await self._find_by_id(reference, connection) or await self._find_by_name(reference, connection)
        if job is None:
            raise NotFound("job", quote_text(reference))
        return job

    async def _find_by_id(self, reference: str, connection: WithinConnection | None) -> Job | None:
        try:
            job_id = JobId(parse_id("job", reference))
        except InvalidInput:
            return None
        job = (await self._store.jobs.find([job_id], connection)).get(job_id)
        return None if job is None or job.deleted_at is not None else job

    async def _find_by_name(self, reference: str, connection: WithinConnection | None) -> Job | None:
        # The database cannot hold a NUL, so no job has such a name.
        return None if "\0" in reference else await self._store.jobs.find_by_name(reference, connection)

    async def view(self, reference: str, connection: WithinConnection | None = None) -> JobView:
        """One job with its situation."""
        return (await self.views([await self.find(reference, connection)], connection))[0]

    async def views(self, jobs: Sequence[Job], connection: WithinConnection | None = None) -> list[JobView]:
        """Jobs with their situations, in the order given."""
        situations = await self._listing.job_situations([job.id for job in jobs], connection)
        return [JobView(job, situations[job.id]) for job in jobs]

    async def views_by_id(self, executions: Sequence[Execution]) -> dict[JobId, JobView]:
        """The jobs of some executions, as far as they still exist."""
        ids = list({execution.job_id for execution in executions})
        jobs = await self._store.jobs.find(ids)
        return {view.job.id: view for view in await self.views(list(jobs.values()))}

    async def page(self, job_filter: JobFilter, order: JobOrder, request: PageRequest) -> ResultPage[JobView]:
        """A page of jobs."""
        page = await self._listing.jobs(job_filter, order, request)
        views = await self.views(page.items)
        return ResultPage(views, page.next_cursor, page.total, page.searched_to, page.looked_at)

    async def exist(self) -> bool:
        """Whether there is any job at all."""
        return bool((await self._listing.jobs(JobFilter(), JobOrder.NEWEST, PageRequest(limit=1))).items)

    async def names(self, ids: Sequence[JobId]) -> dict[JobId, str | None]:
        """The names of these jobs."""
        return await self._listing.job_names(list(dict.fromkeys(ids)))

    async def recent_runs(self, ids: Sequence[JobId], count: int) -> dict[JobId, RecentRuns]:
        """States and durations of the latest executions of each of these jobs, the oldest first."""
        return await self._listing.recent_runs(ids, count)

    async def rule_of(self, spec: JobSpec, now: datetime) -> Schedule:
        """The schedule of a spec, by the present days of its calendars; InvalidInput if it cannot be one."""
        names = possible_names((*spec.skip_on, *spec.only_on))
        return rule_of(spec, now, await self._store.calendars.present(names) if names else {})

    def next_times(self, rule: Schedule, timezone: str, after: datetime, count: int) -> list[FireTime]:
        """The next instants of a schedule, with those that a clock change skips or a calendar leaves out among them."""
        zone = ZoneInfo(rule.timezone if isinstance(rule, Cron) else timezone)
        times: list[FireTime] = []
        due = 0
        for occurrence in islice(rule.occurrences(after, with_skipped=True), 3 * count):
            times.append(FireTime(occurrence, occurrence.at.astimezone(zone)))
            due += occurrence.is_due
            if due == count:
                break
        return times

    async def freezes_of(self, job: Job) -> list[Freeze]:
        """The freezes that hold this job now, or will; in the order in which they begin."""
        now = self._store.env.clock.now()
        return [
            freeze
            for freeze in (await self._store.freezes.list()).freezes
            if freeze.until_at > now and freeze.holds(job.queue, job.id, job.tags)
        ]

    async def next_times_of(self, job: Job, count: int) -> list[FireTime]:
        """The next instants of a job; those that fall into a freeze are marked."""
        times = self.next_times(job.rule, job.timezone, self._store.env.clock.now(), count)
        windows = frozen_windows(await self.freezes_of(job))
        return [
            replace(time, is_frozen=window_at(windows, time.occurrence.at + job.jitter) is not None) for time in times
        ]

    def next_payload(
        self, payload: str, schedule: VersionSchedule, times: Sequence[FireTime], job_id: JobId | None = None
    ) -> str | None:
        """The payload of the first of these times, with the values of its references; None if there is no such time, or no reference."""
        first = next((time.occurrence.at for time in times if time.occurrence.is_due), None)
        # A wrong payload is refused where it is written; a stored one that is wrong is shown as it is.
        with suppress(InvalidInput):
            return None if first is None else preview_payload(payload, schedule, first, job_id)
        return None

    def clock_changes(self, rule: Schedule, after: datetime, count: int) -> list[FireTime]:
        """The occurrences that the clock changes of about a year move, skip or repeat; none for other schedules than cron."""
        if not isinstance(rule, Cron):
            return []
        zone = ZoneInfo(rule.timezone)
        times: list[FireTime] = []
        for change in changes_between(zone, after, after + _YEAR):
            near = rule.occurrences(
                max(after, change.at - _NEAR_A_CHANGE), change.at + _NEAR_A_CHANGE, with_skipped=True
            )
            noted = (
                occurrence
                for occurrence in islice(near, _MAX_NEAR_A_CHANGE)
                if occurrence.note is not None and occurrence.note.kind not in _OF_CALENDARS
            )
            times += [FireTime(occurrence, occurrence.at.astimezone(zone)) for occurrence in noted]
        return times[:count]

    async def revisions(self, reference: str, request: PageRequest) -> ResultPage[Revision]:
        """A page of a job's changes, the latest first; the last one is its creation."""
        job = await self.find(reference)
        page = await self._listing.audit(f"job:{job.id}", None, request)
        versions = await self._diagnostics.versions(job.id)
        # The audit of a job also holds triggers and backfills, which do not change it.
        revisions = [_revision(row, versions) for row in page.items if _is_change(row)]
        is_last_page = page.next_cursor is None
        if is_last_page and not any(revision.action == "job.create" for revision in revisions):
            revisions.append(_creation(job, versions))
        # Ids of one millisecond are in no order, versions are. A pause has no version and comes after the creation.
        revisions.sort(key=lambda revision: (revision.at or job.created_at, revision.version or math.inf), reverse=True)
        return ResultPage(revisions, page.next_cursor, page.total)


def _is_change(row: Mapping[str, Any]) -> bool:
    return row["before"] is not None or row["action"] == "job.create"


def _revision(row: Mapping[str, Any], versions: Mapping[int, Mapping[str, Any]]) -> Revision:
    before, after = (_json_object(row[side]) for side in ("before", "after"))
    version = after.get("version") if isinstance(after.get("version"), int) else None
    period = versions.get(version or 0, {})
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
        effective_from=period.get("effective_from"),
        effective_until=period.get("effective_until"),
    )


def _creation(job: Job, versions: Mapping[int, Mapping[str, Any]]) -> Revision:
    period = versions.get(1, {})
    return Revision(
        at=job.created_at,
        actor=job.created_by or job.declared_by,
        action="job.create",
        reason=None,
        version=1,
        effective_from=period.get("effective_from"),
        effective_until=period.get("effective_until"),
    )


def _json_object(text: str | None) -> dict[str, Any]:
    value = None if text is None else orjson.loads(text)
    return value if isinstance(value, dict) else {}


class TemplateQueries:
    """Reads job templates."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, reference: str) -> Template:
        """A template by its id or its name; NotFound if there is none."""
        template: Template | None = None
        with suppress(InvalidInput):
            template = await self._store.templates.find(TemplateId(parse_id("tpl", reference)))
        if template is None and "\0" not in reference:
            template = await self._store.templates.find_by_name(reference)
        if template is None:
            raise NotFound("template", quote_text(reference))
        return template

    async def page(self, request: PageRequest) -> ResultPage[Template]:
        """A page of templates, by name."""
        return await self._store.templates.page(request.limit, request.cursor)
