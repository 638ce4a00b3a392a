"""`timeball jobs`: list, create, change, import, export and sync jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.files import (
    Bom,
    FileFormat,
    JobsFile,
    ToFile,
    edited_fields,
    file_format,
    read_jobs,
    write_download,
)
from timeball.cli.job_options import (
    Arguments,
    JobFilterFlags,
    JobFlags,
    MetaOption,
    expiry_fields,
    read_moment,
    read_pairs,
)
from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession, take
from timeball.cli.tree import DryRun, Limit, Reason, Yes, command, command_group, list_command
from timeball.cli.views import (
    JOB_DETAILS,
    RUN_DETAILS,
    PartialFailure,
    follow_operation,
    schedule_text,
    show_fire_times,
    show_operation,
    show_plan,
    start_and_show,
    summarise_plan,
)
from timeball.domain.job_fields import TIME_FIELDS

if TYPE_CHECKING:
    from timeball.client import AsyncClient

jobs = command_group(
    "jobs",
    "Jobs: what to run and when.",
    ["timeball jobs", "timeball jobs --status paused --queue mail", "timeball jobs show nightly"],
)

JobRef = Annotated[str, typer.Argument(metavar="JOB", help="A job's name or id.")]


_COLUMNS = [
    Column("name", lambda job: job["name"] or job["id"]),
    Column("status", kind=ColumnKind.STATE),
    Column("schedule", schedule_text),
    Column("next run", "next_run_at", ColumnKind.INSTANT),
    Column("last", "last_execution.state", ColumnKind.STATE),
    Column("handler"),
    Column("queue"),
]


@list_command(
    jobs,
    "timeball jobs list --queue mail",
    "timeball jobs list -q 'queue:mail -tag:test'",
    "timeball jobs list --status paused -o json",
)
def list_jobs(
    session: CliSession,
    filters: JobFilterFlags,
    sort: Annotated[
        str | None, typer.Option("--sort", help="A field, such as name or next_run_at; -name sorts backwards.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List jobs, the newest first."""

    async def read(client: AsyncClient) -> list[Any]:
        return await take(client.jobs.iterate(sort=sort, limit=min(limit, 200), **filters.params()), limit)

    session.printer.rows(session.talk(read), _COLUMNS, empty="no jobs match; create one with: timeball jobs create")


@command(jobs, "show", "timeball jobs show nightly", "timeball jobs show nightly --json")
def show_job(session: CliSession, job: JobRef) -> None:
    """Show one job."""
    session.printer.details(session.talk(lambda client: client.jobs.get(job)), JOB_DETAILS)


@command(
    jobs,
    "create",
    'timeball jobs create report test.echo --cron "30 2 * * *" --tz Europe/Berlin',
    "timeball jobs create beat test.log message=hello --every 10s --tag demo",
    "timeball jobs create on-demand test.echo --manual",
    "timeball jobs create hello test.echo",
)
def create_job(
    session: CliSession,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the job; it must be unique.")],
    handler: Annotated[
        str, typer.Argument(metavar="HANDLER", help="The handler to run, such as http.webhook or app.mail:send.")
    ],
    options: JobFlags,
    arguments: Arguments = None,
) -> None:
    """Create a job. It runs by cron (--cron), at an interval (--every), once (--at, --in), after another job (--after),
    when triggered (--manual), or now."""
    fields = options.fields(arguments)
    _show_saved(session, session.talk(lambda client: client.jobs.create(handler, name, **fields)))


def _show_saved(session: CliSession, job: Any) -> None:
    session.printer.details(job, JOB_DETAILS)
    session.printer.warn(job)


@command(
    jobs, "edit", 'timeball jobs edit nightly --cron "0 4 * * *"', "timeball jobs edit nightly --set max_running=1"
)
def edit_job(
    session: CliSession,
    job: JobRef,
    options: JobFlags,
    rename: Annotated[str | None, typer.Option("--rename", help="A new name.")] = None,
    handler: Annotated[str | None, typer.Option("--handler", help="A new handler.")] = None,
) -> None:
    """Change a job; without options, in your editor. Changes apply from the next occurrence on."""
    fields = _replace_schedule(options.fields())
    fields |= {name: value for name, value in (("name", rename), ("handler", handler)) if value is not None}

    async def change(client: AsyncClient) -> Any:
        current = await client.jobs.get(job)
        changes: Any = fields or edited_fields(current.model_dump(mode="json"))
        return await client.jobs.update(current.id, current.version, **changes) if changes else current

    _show_saved(session, session.talk(change))


def _replace_schedule(fields: dict[str, Any]) -> dict[str, Any]:
    """A new schedule replaces the old one of any kind: the fields of the other kinds become null."""
    if not any(name in fields for name in TIME_FIELDS):
        return fields
    return {**dict.fromkeys(TIME_FIELDS), **fields}


@command(jobs, "pause", "timeball jobs pause nightly --until 2027-01-04T06:00 --reason holidays")
def pause_job(
    session: CliSession,
    job: JobRef,
    until: Annotated[
        str | None, typer.Option("--until", help="When it resumes by itself; in the time zone of the job.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Pause a job: it starts nothing until it is resumed."""
    session.printer.details(session.talk(lambda client: client.jobs.pause(job, until, reason)), JOB_DETAILS)


@command(jobs, "resume", "timeball jobs resume nightly")
def resume_job(session: CliSession, job: JobRef, reason: Reason = None) -> None:
    """Resume a paused job from now on. Occurrences during the pause are recorded as skipped."""
    session.printer.details(session.talk(lambda client: client.jobs.resume(job, reason)), JOB_DETAILS)


@command(
    jobs,
    "trigger",
    "timeball jobs trigger nightly",
    "timeball jobs trigger nightly day=2026-11-01 --wait",
    "timeball jobs trigger nightly --expires 10m",
)
def trigger_job(
    session: CliSession,
    job: JobRef,
    arguments: Arguments = None,
    reason: Reason = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; exit code 6 if it does not succeed.")] = False,
    expires: Annotated[
        str | None,
        typer.Option("--expires", help="Skip it if it has not begun after this span, such as 10m; or an instant."),
    ] = None,
    meta: MetaOption = None,
) -> None:
    """Run a job now, in addition to its schedule. KEY=VALUE gives another payload."""
    payload = read_pairs(arguments or (), "the payload") or None
    words: Any = expiry_fields(expires) | {"meta": read_pairs(meta or (), "--meta") or None}
    start_and_show(session, lambda client: client.jobs.trigger(job, payload, reason, **words), wait=wait)


@command(jobs, "duplicate", "timeball jobs duplicate nightly nightly-2 --queue slow")
def duplicate_job(
    session: CliSession,
    job: JobRef,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The name of the copy. Default: JOB-copy.")] = None,
    options: JobFlags = JobFlags(),
) -> None:
    """Create a copy of a job. Options override its values."""
    fields: Any = _replace_schedule(options.fields()) | ({} if name is None else {"name": name})
    _show_saved(session, session.talk(lambda client: client.jobs.duplicate(job, **fields)))


@command(jobs, "delete", "timeball jobs delete by-hand --yes")
def delete_job(session: CliSession, job: JobRef, yes: Yes = False, reason: Reason = None) -> None:
    """Delete a job. Waiting executions are cancelled, the name is free again, the history stays."""

    async def delete(client: AsyncClient) -> None:
        current = await client.jobs.get(job)
        session.printer.confirm(f"Delete {current.name or current.id} and cancel its waiting executions?", yes=yes)
        await client.jobs.delete(current.id, reason=reason)

    session.talk(delete)
    session.printer.say(f"{job} is deleted")


@command(jobs, "next", "timeball jobs next nightly -n 5")
def next_of_job(
    session: CliSession,
    job: JobRef,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=100, help="How many to show.")] = 10,
) -> None:
    """Show when a job runs next, with what changes its times; and the payload of the next run, if it has references."""
    show_fire_times(session, session.talk(lambda client: client.jobs.next(job, count)))


@command(jobs, "cancel", "timeball jobs cancel nightly")
def cancel_job(session: CliSession, job: JobRef, reason: Reason = None) -> None:
    """Cancel the running or else the waiting execution of a job. Its schedule goes on."""
    session.printer.details(session.talk(lambda client: client.jobs.cancel(job, reason)), RUN_DETAILS)


_BATCH = 1_000


@command(jobs, "export", "timeball jobs export --to jobs.csv", "timeball jobs export --queue mail --format jsonl")
def export_jobs(
    session: CliSession, filters: JobFilterFlags, to: ToFile = None, format_: FileFormat = None, bom: Bom = False
) -> None:
    """Export the jobs that match. The format is CSV, JSON lines or one JSON list."""
    kind = file_format(format_, to)
    write_download(session, to, lambda client: client.jobs.export(kind, bom, **filters.params()))


@command(
    jobs,
    "import",
    "timeball jobs import jobs.csv",
    "timeball jobs import jobs.jsonl --per-item",
    "timeball jobs import jobs.jsonl --dry-run",
)
def import_jobs(
    session: CliSession,
    file: JobsFile,
    format_: FileFormat = None,
    per_item: Annotated[
        bool, typer.Option("--per-item", help="Skip jobs that are not valid, and list them at the end.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Create the jobs of a file, a thousand at a time. Without --per-item, a thousand is created whole or not at all."""
    documents, paused = read_jobs(file, file_format(format_, file))
    if paused:
        session.printer.say(f"{paused} of these jobs were paused when they were exported; they are imported as active")
    if dry_run:
        session.printer.rows(
            documents, [Column("name"), Column("handler"), Column("queue")], empty="the file contains no jobs"
        )
        session.printer.say(f"would create {len(documents)} jobs")
        return
    failures = session.talk(lambda client: _create_in_batches(client, session, documents, per_item))
    for failure in failures[:20]:
        session.printer.say(failure)
    if failures:
        raise PartialFailure(f"{len(failures)} of {len(documents)} jobs were not created")


async def _create_in_batches(
    client: AsyncClient, session: CliSession, documents: list[dict[str, Any]], per_item: bool
) -> list[str]:
    failures: list[str] = []
    with session.printer.progress("jobs imported", len(documents)) as advance:
        for start in range(0, len(documents), _BATCH):
            batch = documents[start : start + _BATCH]
            result = await client.jobs.create_many(batch, "per_item" if per_item else "all_or_nothing")
            advance(result.created)
            session.printer.warn(result)
            failures += [f"line {start + item.index + 1}: {item.error}" for item in result.results if item.error]
    return failures


class BackfillOnly(StrEnum):
    """Which occurrences a backfill runs."""

    MISSING = "missing"
    FAILED = "failed"
    ALL = "all"


class BackfillBy(StrEnum):
    """Whose instants a backfill takes."""

    VERSIONS = "versions"
    PRESENT = "present"


_COUNT_COLUMNS = [
    Column("verdict", kind=ColumnKind.STATE),
    Column("reason"),
    Column("count", kind=ColumnKind.NUMBER),
    Column("would run", "would_run", ColumnKind.NUMBER),
]


@command(
    jobs,
    "backfill",
    "timeball jobs backfill nightly --from 7d --dry-run",
    "timeball jobs backfill nightly --from 2026-11-01 --until 2026-11-08 --max-running 2 --yes --wait",
    "timeball jobs backfill nightly --from 7d --only failed --yes",
)
def backfill_job(
    session: CliSession,
    job: JobRef,
    start: Annotated[str, typer.Option("--from", help="From this instant on, or how long ago, such as 7d.")],
    arguments: Arguments = None,
    end: Annotated[str, typer.Option("--until", help="Up to this instant, or how long ago. Default: now.")] = "0s",
    only: Annotated[
        BackfillOnly,
        typer.Option(
            "--only", help="missing: skipped and not filled in yet; failed: without a success; all: what is over."
        ),
    ] = BackfillOnly.MISSING,
    by: Annotated[
        BackfillBy,
        typer.Option("--by", help="versions: the instants named at the time; present: those of the present schedule."),
    ] = BackfillBy.VERSIONS,
    max_running: Annotated[
        int, typer.Option("--max-running", min=1, help="How many of its runs may be unfinished at a time.")
    ] = 1,
    priority: Annotated[int, typer.Option("--priority", min=0, max=100, help="The priority of its runs.")] = 0,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="Begin with the latest occurrence.")] = False,
    reason: Reason = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    wait: Annotated[bool, typer.Option("--wait", help="Show the progress, and wait until all of it has run.")] = False,
) -> None:
    """Run occurrences of the past: what was missed, what failed, or all. A running API creates the runs as places come free.

    KEY=VALUE gives all of them another payload.
    """
    since, until = read_moment(start, "--from"), read_moment(end, "--until")
    payload = read_pairs(arguments or (), "the payload") or None

    async def work(client: AsyncClient) -> None:
        printer = session.printer
        if dry_run or not yes:
            preview = await client.jobs.preview_backfill(job, since, until, only=only.value, by=by.value)
            if dry_run or not printer.is_for_programs:
                printer.rows(preview.counts, _COUNT_COLUMNS, empty="no occurrences in this span")
            more = "" if preview.counted_until is None else " or more"
            if dry_run:
                printer.say(f"would run {job} {preview.would_run}{more} times")
                return
            printer.confirm(f"Run {job} {preview.would_run}{more} times?", yes=yes)
        operation = await client.jobs.backfill(
            job,
            since,
            until,
            only=only.value,
            by=by.value,
            max_running=max_running,
            priority=priority,
            order="desc" if newest_first else "asc",
            payload=payload,
            reason=reason,
        )
        if wait:
            await follow_operation(client, session, f"backfill {job}", operation)
        else:
            show_operation(session, operation)

    session.talk(work)


Prune = Annotated[
    bool, typer.Option("--prune", help="Also delete jobs that this file declared before and declares no more.")
]
DeclaredBy = Annotated[
    str | None, typer.Option("--declared-by", help="The name of the declaration. Default: file FILE.")
]


@command(
    jobs,
    "sync",
    "timeball jobs sync jobs.jsonl --dry-run",
    "timeball jobs sync jobs.jsonl --prune --yes",
    "timeball jobs sync jobs.json --declared-by billing --yes",
)
def sync_jobs(
    session: CliSession,
    file: JobsFile,
    format_: FileFormat = None,
    declared_by: DeclaredBy = None,
    prune: Prune = False,
    reason: Reason = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Bring jobs in line with a file. They are created, changed or left as they are, and deleted only with --prune."""
    documents, _paused = read_jobs(file, file_format(format_, file))
    origin = declared_by or f"file {file.name}"

    def sync(*, is_dry: bool) -> Any:
        return session.talk(
            lambda client: client.jobs.sync(documents, origin, prune=prune, dry_run=is_dry, reason=reason)
        )

    if dry_run or not yes:
        plan = sync(is_dry=True)
        show_plan(session, [plan])
        if dry_run:
            return
        session.printer.confirm(f"{summarise_plan([plan])}. Continue?", yes=yes)
    show_plan(session, [sync(is_dry=False)])
