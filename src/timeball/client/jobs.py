"""`client.jobs`, `client.templates` and `client.calendars`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from timeball.client.executions import parse_bulk_result
from timeball.client.requests import (
    ApiRequest,
    ClientType,
    DownloadMethod,
    IterateMethod,
    Method,
    Page,
    Resource,
    encode_value,
    get,
    parse_model,
    parse_nothing,
    parse_page,
    path_of,
    post,
    raw_content,
)
from timeball.client.types import (
    BackfillPreview,
    BulkCreated,
    BulkResult,
    Calendar,
    ChangedJob,
    CreatedJob,
    Execution,
    ExecutionDetails,
    ExecutionFilterParams,
    Explanation,
    FireTimes,
    Job,
    JobFilterParams,
    JobOptionParams,
    JobParams,
    Moment,
    OccurrenceEntry,
    Operation,
    Revision,
    SyncResult,
    Template,
    WrittenCalendar,
    WrittenTemplate,
)

ExportFormat = Literal["csv", "jsonl", "json"]


def create(handler: str, name: str | None = None, **fields: Unpack[JobOptionParams]) -> ApiRequest[CreatedJob]:
    """Create a job: once (`scheduled_at`), every (`interval_seconds`), by cron (`schedule`), `after` another job, or run by hand.

    That is `schedule="manual"`. With no time it runs now.
    """
    body = {"handler": handler, **_encode_fields(fields)}
    return post("/jobs", parse_model(CreatedJob), body if name is None else {**body, "name": name})


def create_many(
    jobs: Sequence[Mapping[str, Any]], mode: Literal["all_or_nothing", "per_item"] = "all_or_nothing"
) -> ApiRequest[BulkCreated]:
    """Create up to 10,000 jobs: all or nothing, unless `mode="per_item"`."""
    return post("/jobs/bulk", parse_model(BulkCreated), {"jobs": [_encode_fields(job) for job in jobs], "mode": mode})


def fetch(job: str) -> ApiRequest[Job]:
    """A job by id or name."""
    return get(path_of("jobs", job), parse_model(Job))


def search(
    *,
    sort: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
    include: Literal["total"] | None = None,
    **filters: Unpack[JobFilterParams],
) -> ApiRequest[Page[Job]]:
    """Matching jobs; *q* is a search: `status:paused queue:mail -tag:test`."""
    return get("/jobs", parse_page(Job), sort=sort, limit=limit, cursor=cursor, include=include, **filters)


def update(
    job: str, version: int | None = None, reason: str | None = None, **fields: Unpack[JobParams]
) -> ApiRequest[ChangedJob]:
    """Change the given fields of a job; Conflict if *version* is given and outdated."""
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return ApiRequest(
        "PATCH", path_of("jobs", job), parse_model(ChangedJob), body=_encode_fields(fields), headers=headers
    ).with_params(reason=reason)


def delete(job: str, version: int | None = None, reason: str | None = None) -> ApiRequest[None]:
    """Delete a job: its waiting executions are cancelled, its name is free again, its history stays."""
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return ApiRequest("DELETE", path_of("jobs", job), parse_nothing, headers=headers).with_params(reason=reason)


def pause(job: str, until: Moment | None = None, reason: str | None = None) -> ApiRequest[Job]:
    """Pause a job: none of its executions starts until it is resumed, by `resume` or at *until*."""
    return post(path_of("jobs", job, "pause"), parse_model(Job), {"until": until, "reason": reason})


def resume(job: str, reason: str | None = None) -> ApiRequest[Job]:
    """Resume a paused job from now on."""
    return post(path_of("jobs", job, "resume"), parse_model(Job), {"reason": reason})


def trigger(
    job: str,
    payload: Any = None,
    reason: str | None = None,
    *,
    wait: str | None = None,
    unchecked: bool = False,
    start_within_seconds: int | None = None,
    expires_at: Moment | None = None,
    meta: dict[str, Any] | None = None,
    on_success: dict[str, Any] | None = None,
    on_failure: dict[str, Any] | None = None,
) -> ApiRequest[ExecutionDetails]:
    """Run a job now, in addition to its schedule; with *payload*, if given.

    With *wait*, such as `30s`, the response comes when it has finished, or when the wait is over. The run is skipped if it has not begun
    after *start_within_seconds*, or by *expires_at*. Its *meta* takes the place of the job's,
    and *on_success* and *on_failure* that of the calls that follow the job: `{"handler": "mail.send", "payload": {}}`.
    """
    body = {
        "payload": payload,
        "reason": reason,
        "unchecked": unchecked,
        "start_within_seconds": start_within_seconds,
        "expires_at": expires_at,
        "meta": meta,
        "on_success": on_success,
        "on_failure": on_failure,
    }
    return post(path_of("jobs", job, "trigger"), parse_model(ExecutionDetails), body, wait=wait)


def cancel(job: str, reason: str | None = None) -> ApiRequest[ExecutionDetails]:
    """Cancel the running execution of a job, or else the waiting one."""
    return post(path_of("jobs", job, "cancel"), parse_model(ExecutionDetails), {"reason": reason})


def retry(
    job: str, payload: Any = None, reason: str | None = None, *, wait: str | None = None, unchecked: bool = False
) -> ApiRequest[ExecutionDetails]:
    """Run the last finished execution of a job again, as a new one; *wait* as for `trigger`."""
    body = {"payload": payload, "reason": reason, "unchecked": unchecked}
    return post(path_of("jobs", job, "retry"), parse_model(ExecutionDetails), body, wait=wait)


def duplicate(job: str, **fields: Unpack[JobParams]) -> ApiRequest[CreatedJob]:
    """Create a copy of a job, with other values for the given fields."""
    return ApiRequest("POST", path_of("jobs", job, "duplicate"), parse_model(CreatedJob), body=_encode_fields(fields))


def backfill(
    job: str,
    from_: Moment,
    until: Moment | None = None,
    *,
    only: Literal["missing", "failed", "all"] = "missing",
    by: Literal["versions", "present"] = "versions",
    max_running: int = 1,
    priority: int = 0,
    order: Literal["asc", "desc"] = "asc",
    payload: Any = None,
    reason: str | None = None,
    unchecked: bool = False,
) -> ApiRequest[Operation]:
    """Run the occurrences of a job from *from_* up to *until* (by default now) that were missed, that failed, or all.

    It is an operation, for `operations.wait`: at most *max_running* of its executions are unfinished at a time.
    """
    body = {
        "from": from_,
        "until": until,
        "only": only,
        "by": by,
        "max_running": max_running,
        "priority": priority,
        "order": order,
        "payload": payload,
        "reason": reason,
        "unchecked": unchecked,
    }
    return post(path_of("jobs", job, "backfill"), parse_model(Operation), body)


def preview_backfill(
    job: str,
    from_: Moment,
    until: Moment | None = None,
    *,
    only: Literal["missing", "failed", "all"] = "missing",
    by: Literal["versions", "present"] = "versions",
) -> ApiRequest[BackfillPreview]:
    """How many occurrences a backfill would run, by verdict and reason; nothing is written."""
    body = {"from": from_, "until": until, "only": only, "by": by, "dry_run": True}
    return post(path_of("jobs", job, "backfill"), parse_model(BackfillPreview), body)


def next_times(job: str, count: int = 10) -> ApiRequest[FireTimes]:
    """The next times of a job, with notes where the clock changes."""
    return get(path_of("jobs", job, "next"), parse_model(FireTimes), count=count)


def list_executions(
    job: str, *, limit: int | None = None, cursor: str | None = None, **filters: Unpack[ExecutionFilterParams]
) -> ApiRequest[Page[Execution]]:
    """The executions of a job, the latest first."""
    return get(path_of("jobs", job, "executions"), parse_page(Execution), limit=limit, cursor=cursor, **filters)


def list_occurrences(
    job: str,
    *,
    from_: Moment | None = None,
    until: Moment | None = None,
    verdict: Sequence[str] | str | None = None,
    reason: Sequence[str] | str | None = None,
    order: Literal["asc", "desc"] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> ApiRequest[Page[OccurrenceEntry]]:
    """What became of every occurrence of a job in a span, and which are expected; by default the last seven days and the next 24 hours."""
    return get(
        path_of("jobs", job, "occurrences"),
        parse_page(OccurrenceEntry),
        from_=from_,
        until=until,
        verdict=verdict,
        reason=reason,
        order=order,
        limit=limit,
        cursor=cursor,
    )


def explain(job: str, *, at: Moment | None = None) -> ApiRequest[Explanation]:
    """Why a job does not run: explains its running execution, or else the waiting one, or else the job itself.

    With *at*: what became of the occurrence at that instant and why, or which gates will bind one that lies ahead. A time without an
    offset is on the clock of the job's zone.
    """
    return get(path_of("jobs", job, "explain"), parse_model(Explanation), at=at)


def list_revisions(job: str, *, limit: int | None = None, cursor: str | None = None) -> ApiRequest[Page[Revision]]:
    """The changes of a job with actor, time and reason, the latest first."""
    return get(path_of("jobs", job, "revisions"), parse_page(Revision), limit=limit, cursor=cursor)


def bulk(
    action: Literal["pause", "resume", "trigger", "cancel", "retry", "delete"],
    *,
    ids: Sequence[str] | None = None,
    matching: Mapping[str, Any] | None = None,
    reason: str | None = None,
    until: Moment | None = None,
    dry_run: bool = False,
    expected_count: int | None = None,
) -> ApiRequest[BulkResult | Operation]:
    """Apply one action to many jobs: up to 500 given by *ids*, or all that match a filter; *until* ends a pause.

    For up to 500 the response has the result of each; more become an Operation, for `operations.wait`.
    """
    body = {
        "ids": None if ids is None else list(ids),
        "filter": matching,
        "reason": reason,
        "until": until,
        "dry_run": dry_run,
        "expected_count": expected_count,
    }
    return post(path_of("jobs", "bulk", action), parse_bulk_result(), body)


def export(format: ExportFormat = "csv", bom: bool = False, **filters: Unpack[JobFilterParams]) -> ApiRequest[bytes]:
    """All matching jobs as CSV, JSON lines or one JSON list; *bom* begins a CSV with a byte order mark."""
    return get("/jobs/export", raw_content, format=format, bom=bom or None, **filters)


def calendar(job: str, days: int | None = None) -> ApiRequest[bytes]:
    """The next runs of a job as an iCalendar file."""
    return get(path_of("jobs", job, "calendar.ics"), raw_content, days=days)


def sync(
    jobs: Sequence[Mapping[str, Any]],
    declared_by: str,
    *,
    prune: bool = False,
    dry_run: bool = False,
    reason: str | None = None,
) -> ApiRequest[SyncResult]:
    """Bring the jobs of these names in line with their declarations; with *dry_run*, only show what would change."""
    body = {
        "jobs": [_encode_fields(job) for job in jobs],
        "declared_by": declared_by,
        "prune": prune,
        "dry_run": dry_run,
    }
    return post("/jobs/sync", parse_model(SyncResult), body | {"reason": reason})


def _encode_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as they are sent; None is sent too, because it clears a field."""
    return {name: encode_value(value) for name, value in fields.items()}


class JobsApi(Resource[ClientType]):
    """Jobs."""

    create = Method(create)
    create_many = Method(create_many)
    get = Method(fetch)
    list = Method(search)
    iterate = IterateMethod(search)
    update = Method(update)
    delete = Method(delete)
    pause = Method(pause)
    resume = Method(resume)
    trigger = Method(trigger)
    cancel = Method(cancel)
    retry = Method(retry)
    duplicate = Method(duplicate)
    backfill = Method(backfill)
    preview_backfill = Method(preview_backfill)
    next = Method(next_times)
    executions = Method(list_executions)
    iterate_executions = IterateMethod(list_executions)
    occurrences = Method(list_occurrences)
    iterate_occurrences = IterateMethod(list_occurrences)
    explain = Method(explain)
    revisions = Method(list_revisions)
    iterate_revisions = IterateMethod(list_revisions)
    bulk = Method(bulk)
    export = DownloadMethod(export)
    calendar = Method(calendar)
    sync = Method(sync)


def search_templates(*, limit: int | None = None, cursor: str | None = None) -> ApiRequest[Page[Template]]:
    """All templates."""
    return get("/templates", parse_page(Template), limit=limit, cursor=cursor)


def fetch_template(template: str) -> ApiRequest[Template]:
    """A template by id or name."""
    return get(path_of("templates", template), parse_model(Template))


def create_template(name: str, job: Mapping[str, Any], description: str | None = None) -> ApiRequest[WrittenTemplate]:
    """Store a job as a template; `{{name}}` in its payload is filled in when it is used."""
    return post(
        "/templates",
        parse_model(WrittenTemplate),
        {"name": name, "job": _encode_fields(job), "description": description},
    )


def update_template(template: str, version: int | None = None, **changes: Any) -> ApiRequest[WrittenTemplate]:
    """Change the given fields of a template (name, description, job); `job` is replaced as a whole."""
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return ApiRequest(
        "PATCH", path_of("templates", template), parse_model(WrittenTemplate), body=changes, headers=headers
    )


def delete_template(template: str) -> ApiRequest[None]:
    """Delete a template; jobs that were created from it stay."""
    return ApiRequest("DELETE", path_of("templates", template), parse_nothing)


def use_template(
    template: str, variables: Mapping[str, Any] | None = None, **overrides: Unpack[JobParams]
) -> ApiRequest[CreatedJob]:
    """Create a job from a template, with values for its variables and other values for the given fields."""
    body: dict[str, Any] = dict(_encode_fields(overrides))
    if variables is not None:
        body["variables"] = dict(variables)
    return ApiRequest("POST", path_of("templates", template, "use"), parse_model(CreatedJob), body=body)


class TemplatesApi(Resource[ClientType]):
    """Templates."""

    list = Method(search_templates)
    iterate = IterateMethod(search_templates)
    get = Method(fetch_template)
    create = Method(create_template)
    update = Method(update_template)
    delete = Method(delete_template)
    use = Method(use_template)


def search_calendars(*, limit: int | None = None, cursor: str | None = None) -> ApiRequest[Page[Calendar]]:
    """All calendars."""
    return get("/calendars", parse_page(Calendar), limit=limit, cursor=cursor)


def fetch_calendar(calendar: str, version: int | None = None) -> ApiRequest[Calendar]:
    """A calendar by name, in its present version or an earlier one."""
    return get(path_of("calendars", calendar), parse_model(Calendar), version=version)


def create_calendar(
    name: str,
    days: Sequence[str] | None = None,
    *,
    ics: str | None = None,
    country: str | None = None,
    subdivision: str | None = None,
    description: str | None = None,
) -> ApiRequest[WrittenCalendar]:
    """Create a calendar from a list of days, the text of an iCalendar file, or the holidays of a country."""
    body = {"name": name, "days": days, "ics": ics, "country": country, "subdivision": subdivision}
    body["description"] = description
    return ApiRequest("POST", "/calendars", parse_model(WrittenCalendar), body=body)


def update_calendar(calendar: str, version: int | None = None, **changes: Any) -> ApiRequest[WrittenCalendar]:
    """Change the description or the days of a calendar (`days`, `ics`, or `country` and `subdivision`); its jobs follow."""
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return ApiRequest(
        "PATCH", path_of("calendars", calendar), parse_model(WrittenCalendar), body=changes, headers=headers
    )


def delete_calendar(calendar: str) -> ApiRequest[None]:
    """Delete a calendar that no job uses."""
    return ApiRequest("DELETE", path_of("calendars", calendar), parse_nothing)


class CalendarsApi(Resource[ClientType]):
    """Calendars."""

    list = Method(search_calendars)
    iterate = IterateMethod(search_calendars)
    get = Method(fetch_calendar)
    create = Method(create_calendar)
    update = Method(update_calendar)
    delete = Method(delete_calendar)
