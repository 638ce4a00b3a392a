"""Jobs, as calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from timeball.client.calls import Call, Page, a, a_page, at, get, nothing, post, raw, spelled
from timeball.client.models import (
    BulkCreated,
    BulkResult,
    ChangedJob,
    CreatedJob,
    Execution,
    ExecutionDetails,
    ExecutionIds,
    Explanation,
    FireTimes,
    Job,
    Operation,
    Revision,
    SyncResult,
)
from timeball.client.operations import what_came_of_many
from timeball.client.verbs import Download, Face, Group, Verb, Walk
from timeball.client.wishes import ExecutionSearch, JobChanges, JobFields, JobSearch, Moment

ExportFormat = Literal["csv", "jsonl", "json"]


def create(handler: str, name: str | None = None, **fields: Unpack[JobChanges]) -> Call[CreatedJob]:
    """Create a job: once (`scheduled_at`), every (`interval_seconds`), cron (`schedule`); without any of these a named
    job waits to be triggered, and one without a name runs at once."""
    wish = {"handler": handler, **_wish(fields)}
    return post("/jobs", a(CreatedJob), wish if name is None else {**wish, "name": name})


def create_many(
    jobs: Sequence[Mapping[str, Any]], mode: Literal["all_or_nothing", "per_item"] = "all_or_nothing"
) -> Call[BulkCreated]:
    """Create up to 10,000 jobs; all or none of them, unless `mode="per_item"`."""
    return post("/jobs/bulk", a(BulkCreated), {"jobs": [_wish(job) for job in jobs], "mode": mode})


def fetch(job: str) -> Call[Job]:
    """The job of an id or name."""
    return get(at("jobs", job), a(Job))


def search(
    *,
    sort: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
    include: Literal["total"] | None = None,
    **wanted: Unpack[JobSearch],
) -> Call[Page[Job]]:
    """Jobs that match; *q* is the language of search: `status:paused queue:mail -tag:test`."""
    return get("/jobs", a_page(Job), sort=sort, limit=limit, cursor=cursor, include=include, **wanted)


def update(
    job: str, version: int | None = None, reason: str | None = None, **fields: Unpack[JobFields]
) -> Call[ChangedJob]:
    """Change the given fields of a job; Conflict if *version* is given and not its version any more."""
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return Call("PATCH", at("jobs", job), a(ChangedJob), body=_wish(fields), headers=headers).having(reason=reason)


def delete(job: str, version: int | None = None, reason: str | None = None) -> Call[None]:
    """Take a job out of service: what waits is cancelled, its name is free again, its history stays."""
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return Call("DELETE", at("jobs", job), nothing, headers=headers).having(reason=reason)


def pause(job: str, until: Moment | None = None, reason: str | None = None) -> Call[Job]:
    """Let nothing of a job start until it is resumed, by hand or at *until*."""
    return post(at("jobs", job, "pause"), a(Job), {"until": until, "reason": reason})


def resume(job: str, reason: str | None = None) -> Call[Job]:
    """Let a paused job go on from now."""
    return post(at("jobs", job, "resume"), a(Job), {"reason": reason})


def trigger(
    job: str, payload: Any = None, reason: str | None = None, *, wait: str | None = None, unchecked: bool = False
) -> Call[ExecutionDetails]:
    """Run a job now, beside its schedule; with another payload, if one is given.

    With *wait*, such as `30s`, the answer comes when it has ended, or when the wait is over.
    """
    body = {"payload": payload, "reason": reason, "unchecked": unchecked}
    return post(at("jobs", job, "trigger"), a(ExecutionDetails), body, wait=wait)


def cancel(job: str, reason: str | None = None) -> Call[ExecutionDetails]:
    """Cancel the execution of a job that runs, or else waits."""
    return post(at("jobs", job, "cancel"), a(ExecutionDetails), {"reason": reason})


def retry(
    job: str, payload: Any = None, reason: str | None = None, *, wait: str | None = None, unchecked: bool = False
) -> Call[ExecutionDetails]:
    """Run the last ended execution of a job again, as a new one; *wait* as for `trigger`."""
    body = {"payload": payload, "reason": reason, "unchecked": unchecked}
    return post(at("jobs", job, "retry"), a(ExecutionDetails), body, wait=wait)


def duplicate(job: str, **fields: Unpack[JobFields]) -> Call[CreatedJob]:
    """Create a copy of a job, with other values for the given fields."""
    return Call("POST", at("jobs", job, "duplicate"), a(CreatedJob), body=_wish(fields))


def backfill(job: str, start: Moment, end: Moment, reason: str | None = None) -> Call[ExecutionIds]:
    """Run a job once for every occurrence that its schedule names after *start*, up to and with *end*."""
    return post(at("jobs", job, "backfill"), a(ExecutionIds), {"start": start, "end": end, "reason": reason})


def next_times(job: str, count: int = 10) -> Call[FireTimes]:
    """When a job runs next, with the changes of the clock marked."""
    return get(at("jobs", job, "next"), a(FireTimes), count=count)


def list_executions(
    job: str, *, limit: int | None = None, cursor: str | None = None, **wanted: Unpack[ExecutionSearch]
) -> Call[Page[Execution]]:
    """The executions of a job, the latest first."""
    return get(at("jobs", job, "executions"), a_page(Execution), limit=limit, cursor=cursor, **wanted)


def explain(job: str) -> Call[Explanation]:
    """Why a job does not run: told of what of it runs, or else waits, or else of the job itself."""
    return get(at("jobs", job, "explain"), a(Explanation))


def list_revisions(job: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[Revision]]:
    """Who changed what of a job, when and why, the latest first."""
    return get(at("jobs", job, "revisions"), a_page(Revision), limit=limit, cursor=cursor)


def bulk(
    action: Literal["pause", "resume", "trigger", "cancel", "retry", "delete"],
    *,
    ids: Sequence[str] | None = None,
    matching: Mapping[str, Any] | None = None,
    reason: str | None = None,
    dry_run: bool = False,
    expected_count: int | None = None,
) -> Call[BulkResult | Operation]:
    """Do the same to many jobs, up to 500 named by *ids* or all that a filter finds.

    Of up to 500 the answer tells what came of each; more become an Operation, whose end `operations.wait` awaits.
    """
    body = {
        "ids": None if ids is None else list(ids),
        "filter": matching,
        "reason": reason,
        "dry_run": dry_run,
        "expected_count": expected_count,
    }
    return post(at("jobs", "bulk", action), what_came_of_many(), body)


def export(format: ExportFormat = "csv", bom: bool = False, **wanted: Unpack[JobSearch]) -> Call[bytes]:
    """All jobs that match, as CSV, JSON lines or one JSON list; *bom* begins a CSV with a byte order mark."""
    return get("/jobs/export", raw, format=format, bom=bom or None, **wanted)


def calendar(job: str, days: int | None = None) -> Call[bytes]:
    """When a job is to run next, as an iCalendar file."""
    return get(at("jobs", job, "calendar.ics"), raw, days=days)


def sync(
    jobs: Sequence[Mapping[str, Any]],
    declared_by: str,
    *,
    prune: bool = False,
    dry_run: bool = False,
    reason: str | None = None,
) -> Call[SyncResult]:
    """Make the jobs of these names what is declared here; with *dry_run*, only tell what would change."""
    body = {"jobs": [_wish(job) for job in jobs], "declared_by": declared_by, "prune": prune, "dry_run": dry_run}
    return post("/jobs/sync", a(SyncResult), body | {"reason": reason})


def _wish(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as they are sent; None is sent too, for it takes something away."""
    return {name: spelled(value) for name, value in fields.items()}


class Jobs(Group[Face]):
    """What can be done with jobs."""

    create = Verb(create)
    create_many = Verb(create_many)
    get = Verb(fetch)
    list = Verb(search)
    iterate = Walk(search)
    update = Verb(update)
    delete = Verb(delete)
    pause = Verb(pause)
    resume = Verb(resume)
    trigger = Verb(trigger)
    cancel = Verb(cancel)
    retry = Verb(retry)
    duplicate = Verb(duplicate)
    backfill = Verb(backfill)
    next = Verb(next_times)
    executions = Verb(list_executions)
    iterate_executions = Walk(list_executions)
    explain = Verb(explain)
    revisions = Verb(list_revisions)
    iterate_revisions = Walk(list_revisions)
    bulk = Verb(bulk)
    export = Download(export)
    calendar = Verb(calendar)
    sync = Verb(sync)
