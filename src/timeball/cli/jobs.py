"""`timeball jobs`: list, create, change, import, export and sync jobs."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.files import Bom, FileFormat, JobsFile, ToFile, file_format, read_jobs, write_download
from timeball.cli.job_options import Arguments, JobFilterFlags, JobFlags, read_moment
from timeball.cli.output import Column, ColumnKind
from timeball.cli.run import PartialFailure
from timeball.cli.schedules import show_plan, summary
from timeball.cli.session import CliSession, take
from timeball.cli.tree import DryRun, Limit, Reason, Yes, command, command_group, list_command

if TYPE_CHECKING:
    from timeball.client import AsyncClient


# `timeball jobs`: what to run and when.

jobs = command_group(
    "jobs",
    "Jobs: what to run and when.",
    ["timeball jobs", "timeball jobs --status paused --queue mail", "timeball jobs show nightly"],
)

JobRef = Annotated[str, typer.Argument(metavar="JOB", help="A job's name or id.")]


def schedule_text(job: Any) -> str:
    """When a job runs, in a few words."""
    match job["kind"]:
        case "cron":
            zone = "" if job["timezone"] == "UTC" else f" {job['timezone']}"
            return f"{job['schedule']}{zone}"
        case "every":
            from datetime import timedelta

            from timeball.domain.values.wording import format_duration

            return f"every {format_duration(timedelta(seconds=job['interval_seconds']))}"
        case kind:
            return str(kind)


_COLUMNS = [
    Column("name", lambda job: job["name"] or job["id"]),
    Column("status", kind=ColumnKind.STATE),
    Column("schedule", schedule_text),
    Column("next run", "next_run_at", ColumnKind.INSTANT),
    Column("last", "last_execution.state", ColumnKind.STATE),
    Column("handler"),
    Column("queue"),
]
JOB_DETAILS = [
    Column("id"),
    Column("name"),
    Column("description"),
    Column("status", kind=ColumnKind.STATE),
    Column("handler"),
    Column("schedule", schedule_text),
    Column("next run", "next_run_at", ColumnKind.INSTANT),
    Column("last run", "last_execution.finished_at", ColumnKind.INSTANT),
    Column("last state", "last_execution.state", ColumnKind.STATE),
    Column("paused until", "paused_until", ColumnKind.INSTANT),
    Column("pause reason"),
    Column("queue"),
    Column("priority"),
    Column("payload"),
    Column("tags"),
    Column("retries", "max_retries"),
    Column("timeout ms"),
    Column("misfire"),
    Column("overlap"),
    Column("max running"),
    Column("unique key"),
    Column("declared by"),
    Column("created by"),
    Column("version"),
    Column("created", "created_at", ColumnKind.INSTANT),
    Column("updated", "updated_at", ColumnKind.INSTANT),
    Column("execution", "execution_id"),
]


@list_command(
    jobs,
    "timeball jobs list --queue mail",
    "timeball jobs list -q 'queue:mail -tag:test'",
    "timeball jobs list --status paused -o json",
)
def list_jobs(
    session: CliSession,
    wanted: JobFilterFlags,
    sort: Annotated[str | None, typer.Option("--sort", help="name, next_run_at, ...; a minus turns it round.")] = None,
    limit: Limit = 50,
) -> None:
    """List jobs, the newest first."""

    async def look(client: AsyncClient) -> list[Any]:
        return await take(client.jobs.iterate(sort=sort, limit=min(limit, 200), **wanted.wanted()), limit)

    session.printer.rows(session.talk(look), _COLUMNS, empty="no jobs match; make one with: timeball jobs create")


@command(jobs, "show", "timeball jobs show nightly", "timeball jobs show nightly --json")
def show_job(session: CliSession, job: JobRef) -> None:
    """Show one job."""
    session.printer.details(session.talk(lambda client: client.jobs.get(job)), JOB_DETAILS)


@command(
    jobs,
    "create",
    'timeball jobs create report test.echo --cron "30 2 * * *" --tz Europe/Berlin',
    "timeball jobs create beat test.log message=hello --every 10s --tag demo",
    "timeball jobs create on-demand test.echo",
)
def create_job(
    session: CliSession,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; no other job may have it.")],
    handler: Annotated[
        str, typer.Argument(metavar="HANDLER", help="What runs, such as http.webhook or app.mail:send.")
    ],
    options: JobFlags,
    arguments: Arguments = None,
) -> None:
    """Create a job: by cron, every so often, once, or to be triggered."""
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
    rename: Annotated[str | None, typer.Option("--rename", help="Another name.")] = None,
    handler: Annotated[str | None, typer.Option("--handler", help="Another handler.")] = None,
) -> None:
    """Change a job; without options, in your editor. Takes effect with the next occurrence."""
    fields = _replace_schedule(options.fields())
    fields |= {name: value for name, value in (("name", rename), ("handler", handler)) if value is not None}

    async def change(client: AsyncClient) -> Any:
        present = await client.jobs.get(job)
        changes: Any = fields or _edited(present)
        return await client.jobs.update(present.id, present.version, **changes) if changes else present

    _show_saved(session, session.talk(change))


def _replace_schedule(fields: dict[str, Any]) -> dict[str, Any]:
    """One kind of schedule in the place of another: what made up the old one goes."""
    kinds = ("schedule", "interval_seconds", "scheduled_at")
    if not any(name in fields for name in kinds):
        return fields
    return {**dict.fromkeys(kinds), **fields}


def _edited(present: Any) -> dict[str, Any]:
    from timeball.cli.files import edited_fields

    return edited_fields(present.model_dump(mode="json"))


@command(jobs, "pause", "timeball jobs pause nightly --until 2027-01-04T06:00 --reason holidays")
def pause_job(
    session: CliSession,
    job: JobRef,
    until: Annotated[str | None, typer.Option("--until", help="When it goes on by itself; on the job's clock.")] = None,
    reason: Reason = None,
) -> None:
    """Let nothing of a job start until it is resumed."""
    session.printer.details(session.talk(lambda client: client.jobs.pause(job, until, reason)), JOB_DETAILS)


@command(jobs, "resume", "timeball jobs resume nightly")
def resume_job(session: CliSession, job: JobRef, reason: Reason = None) -> None:
    """Let a paused job go on from now; what fell into the pause is recorded as skipped."""
    session.printer.details(session.talk(lambda client: client.jobs.resume(job, reason)), JOB_DETAILS)


@command(jobs, "trigger", "timeball jobs trigger nightly", "timeball jobs trigger nightly day=2026-11-01 --wait")
def trigger_job(
    session: CliSession,
    job: JobRef,
    arguments: Arguments = None,
    reason: Reason = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; exit code 6 if it did not succeed.")] = False,
) -> None:
    """Run a job now, beside its schedule; with another payload, if one is given."""
    from timeball.cli.job_options import read_pairs
    from timeball.cli.run import start_and_show

    payload = read_pairs(arguments or (), "the payload") or None
    start_and_show(session, lambda client: client.jobs.trigger(job, payload, reason), wait=wait)


@command(jobs, "duplicate", "timeball jobs duplicate nightly nightly-2 --queue slow")
def duplicate_job(
    session: CliSession,
    job: JobRef,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The copy's name; by itself JOB-copy.")] = None,
    options: JobFlags = JobFlags(),
) -> None:
    """Create a copy of a job, with other values for the given options."""
    fields: Any = _replace_schedule(options.fields()) | ({} if name is None else {"name": name})
    _show_saved(session, session.talk(lambda client: client.jobs.duplicate(job, **fields)))


@command(jobs, "delete", "timeball jobs delete by-hand --yes")
def delete_job(session: CliSession, job: JobRef, yes: Yes = False, reason: Reason = None) -> None:
    """Take a job out of service: what waits is cancelled, its name is free again, its history stays."""

    async def delete(client: AsyncClient) -> None:
        found = await client.jobs.get(job)
        session.printer.confirm(f"Delete {found.name or found.id} and cancel what waits of it?", yes=yes)
        await client.jobs.delete(found.id, reason=reason)

    session.talk(delete)
    session.printer.say(f"{job} is deleted")


@command(jobs, "next", "timeball jobs next nightly -n 5")
def next_of_job(
    session: CliSession, job: JobRef, count: Annotated[int, typer.Option("-n", "--count", min=1, max=100)] = 10
) -> None:
    """Show when a job runs next, with the changes of the clock marked."""
    times = session.talk(lambda client: client.jobs.next(job, count))
    if not session.printer.is_for_programs:
        session.printer.say(times.description)
    columns = [Column("at", kind=ColumnKind.INSTANT), Column("local"), Column("note")]
    session.printer.rows(times.next, columns, empty="it does not run by itself any more")


@command(jobs, "cancel", "timeball jobs cancel nightly")
def cancel_job(session: CliSession, job: JobRef, reason: Reason = None) -> None:
    """Cancel the execution of a job that runs, or else waits; its schedule goes on."""
    from timeball.cli.runs import RUN_DETAILS

    session.printer.details(session.talk(lambda client: client.jobs.cancel(job, reason)), RUN_DETAILS)


# Jobs in and out in bulk: `jobs export`, `jobs import`, `jobs backfill`, `runs export`.

_BATCH = 1_000


@command(jobs, "export", "timeball jobs export --to jobs.csv", "timeball jobs export --queue mail --format jsonl")
def export_jobs(
    session: CliSession, wanted: JobFilterFlags, to: ToFile = None, format_: FileFormat = None, bom: Bom = False
) -> None:
    """Write all jobs that match, as CSV, JSON lines or one JSON list."""
    kind = file_format(format_, to)
    write_download(session, to, lambda client: client.jobs.export(kind, bom, **wanted.wanted()))


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
        bool, typer.Option("--per-item", help="Leave out what does not fit, and tell at the end.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Create many jobs, a thousand at a time; each thousand whole or not at all, unless --per-item."""
    wishes, paused = read_jobs(file, file_format(format_, file))
    if paused:
        session.printer.say(f"{paused} of these jobs were paused when they were exported; they are imported active")
    if dry_run:
        session.printer.rows(wishes, [Column("name"), Column("handler"), Column("queue")], empty="the file has no jobs")
        session.printer.say(f"would create {len(wishes)} jobs")
        return
    failures = session.talk(lambda client: _create_in_batches(client, session, wishes, per_item))
    for failure in failures[:20]:
        session.printer.say(failure)
    if failures:
        raise PartialFailure(f"{len(failures)} of {len(wishes)} jobs were not created")


async def _create_in_batches(
    client: AsyncClient, session: CliSession, wishes: list[dict[str, Any]], per_item: bool
) -> list[str]:
    failures: list[str] = []
    with session.printer.progress("jobs imported", len(wishes)) as advance:
        for start in range(0, len(wishes), _BATCH):
            part = wishes[start : start + _BATCH]
            made = await client.jobs.create_many(part, "per_item" if per_item else "all_or_nothing")
            advance(made.created)
            session.printer.warn(made)
            failures += [f"line {start + item.index + 1}: {item.error}" for item in made.results if item.error]
    return failures


@command(
    jobs,
    "backfill",
    "timeball jobs backfill nightly --from 2026-11-01 --to 2026-11-08 --dry-run",
    "timeball jobs backfill nightly --from 2026-11-01 --to 2026-11-08 --yes",
)
def backfill_job(
    session: CliSession,
    job: JobRef,
    start: Annotated[str, typer.Option("--from", help="After this instant, or a span ago.")],
    end: Annotated[str, typer.Option("--to", help="Up to and with this instant, or a span ago.")],
    reason: Reason = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Run a job once for every occurrence that its schedule names in a span of the past."""
    after, until = read_moment(start, "--from"), read_moment(end, "--to")

    async def work(client: AsyncClient) -> None:
        printer = session.printer
        times = [] if yes and not dry_run else await _occurrences(client, job, after, until)
        number = f"{len(times)}{' or more' if len(times) == _MAX_OCCURRENCES else ''}"
        if dry_run:
            printer.rows(
                times, [Column("at", kind=ColumnKind.INSTANT), Column("local"), Column("note")], empty="no occurrence"
            )
            printer.say(f"would run {job} {number} times")
            return
        printer.confirm(f"Run {job} {number} times?", yes=yes)
        with printer.progress("executions created") as advance:
            made = await client.jobs.backfill(job, after, until, reason)
            advance(made.count)
        printer.rows([{"id": one} for one in made.execution_ids], [Column("id")], empty="no occurrence in this span")

    session.talk(work)


_MAX_OCCURRENCES = 100


async def _occurrences(client: AsyncClient, reference: str, after: Any, until: Any) -> list[Any]:
    job = await client.jobs.get(reference)
    shown = await client.schedules.preview(
        schedule=job.schedule,
        interval_seconds=job.interval_seconds,
        scheduled_at=job.scheduled_at,
        timezone=job.timezone,
        on_gap=job.on_gap,
        on_repeat=job.on_repeat,
        after=after,
        count=_MAX_OCCURRENCES,
    )
    return [time for time in islice(shown.next, _MAX_OCCURRENCES) if time.is_due and time.at <= until]


# `timeball jobs sync`: a file that says which jobs there are to be.

Prune = Annotated[bool, typer.Option("--prune", help="Also delete what this file declared once and declares no more.")]
DeclaredBy = Annotated[
    str | None, typer.Option("--declared-by", help="Whose declaration it is; by itself that of a file of this name.")
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
    """Make the jobs of a file what it says: they are created, changed or left, and deleted only with --prune."""
    wishes, _paused = read_jobs(file, file_format(format_, file))
    whose = declared_by or f"file {file.name}"

    def synced(is_dry: bool) -> Any:
        return session.talk(lambda client: client.jobs.sync(wishes, whose, prune=prune, dry_run=is_dry, reason=reason))

    if dry_run or not yes:
        planned = synced(True)
        show_plan(session, [planned])
        if dry_run:
            return
        session.printer.confirm(f"{summary([planned])}. Do it?", yes=yes)
    show_plan(session, [synced(False)])
