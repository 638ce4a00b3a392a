"""`timeball jobs`: what to run and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.job_options import Arguments, JobOptions, read_moment
from timeball.cli.render import Column, Kind
from timeball.cli.session import Session
from timeball.cli.tree import Limit, Reason, Yes, command, listing, noun

if TYPE_CHECKING:
    from timeball.client import AsyncClient

jobs = noun(
    "jobs",
    "Jobs: what to run and when.",
    ["timeball jobs", "timeball jobs --status paused --queue mail", "timeball jobs show nightly"],
)

JobRef = Annotated[str, typer.Argument(metavar="JOB", help="A job's name or id.")]


@dataclass(frozen=True)
class JobSearchOptions:
    """Which jobs are meant."""

    status: Annotated[
        str | None, typer.Option("--status", help="active, paused, finished; or states of the latest execution.")
    ] = None
    kind: Annotated[str | None, typer.Option("--kind", help="once, every, cron or manual.")] = None
    handler: Annotated[str | None, typer.Option("--handler", help="The handler's name.")] = None
    queue: Annotated[str | None, typer.Option("--queue", help="The queue's name.")] = None
    tag: Annotated[str | None, typer.Option("--tag", help="A tag.")] = None
    search: Annotated[str | None, typer.Option("--search", help="Part of the name.")] = None
    payload: Annotated[str | None, typer.Option("--payload", help="Part of the payload, as JSON text.")] = None
    query: Annotated[
        str | None, typer.Option("-q", "--query", help="In the language of search: 'queue:mail -tag:test'.")
    ] = None
    since: Annotated[str | None, typer.Option("--since", help="Created since: an instant, or a span ago.")] = None
    until: Annotated[str | None, typer.Option("--until", help="Created up to.")] = None

    def wanted(self) -> dict[str, Any]:
        """The filter as the API takes it."""
        found = {
            "status": self.status,
            "kind": self.kind,
            "handler": self.handler,
            "queue": self.queue,
            "tag": self.tag,
            "search": self.search,
            "payload": self.payload,
            "q": self.query,
            "start_date": None if self.since is None else read_moment(self.since, "--since"),
            "end_date": None if self.until is None else read_moment(self.until, "--until"),
        }
        return {name: value for name, value in found.items() if value is not None}


def schedule_words(job: Any) -> str:
    """When a job runs, in a few words."""
    match job["kind"]:
        case "cron":
            zone = "" if job["timezone"] == "UTC" else f" {job['timezone']}"
            return f"{job['schedule']}{zone}"
        case "every":
            from datetime import timedelta

            from timeball.domain.spans import show_span

            return f"every {show_span(timedelta(seconds=job['interval_seconds']))}"
        case kind:
            return str(kind)


_COLUMNS = [
    Column("name", lambda job: job["name"] or job["id"]),
    Column("status", kind=Kind.STATE),
    Column("schedule", schedule_words),
    Column("next run", "next_run_at", Kind.INSTANT),
    Column("last", "last_execution.state", Kind.STATE),
    Column("handler"),
    Column("queue"),
]
DETAILS = [
    Column("id"),
    Column("name"),
    Column("description"),
    Column("status", kind=Kind.STATE),
    Column("handler"),
    Column("schedule", schedule_words),
    Column("next run", "next_run_at", Kind.INSTANT),
    Column("last run", "last_execution.finished_at", Kind.INSTANT),
    Column("last state", "last_execution.state", Kind.STATE),
    Column("paused until", "paused_until", Kind.INSTANT),
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
    Column("created", "created_at", Kind.INSTANT),
    Column("updated", "updated_at", Kind.INSTANT),
    Column("execution", "execution_id"),
]


@listing(
    jobs,
    "timeball jobs list --queue mail",
    "timeball jobs list -q 'queue:mail -tag:test'",
    "timeball jobs list --status paused -o json",
)
def list_jobs(
    session: Session,
    wanted: JobSearchOptions,
    sort: Annotated[str | None, typer.Option("--sort", help="name, next_run_at, ...; a minus turns it round.")] = None,
    limit: Limit = 50,
) -> None:
    """List jobs, the newest first."""

    async def look(client: AsyncClient) -> list[Any]:
        return await first(client.jobs.iterate(sort=sort, limit=min(limit, 200), **wanted.wanted()), limit)

    session.printer.rows(session.talk(look), _COLUMNS, empty="no jobs match; make one with: timeball jobs create")


async def first(items: Any, number: int) -> list[Any]:
    """The first items of a list that may be endless."""
    found: list[Any] = []
    async for item in items:
        found.append(item)
        if len(found) >= number:
            break
    return found


@command(jobs, "show", "timeball jobs show nightly", "timeball jobs show nightly --json")
def show_job(session: Session, job: JobRef) -> None:
    """Show one job."""
    session.printer.details(session.talk(lambda client: client.jobs.get(job)), DETAILS)


@command(
    jobs,
    "create",
    'timeball jobs create report test.echo --cron "30 2 * * *" --tz Europe/Berlin',
    "timeball jobs create beat test.log message=hello --every 10s --tag demo",
    "timeball jobs create on-demand test.echo",
)
def create_job(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; no other job may have it.")],
    handler: Annotated[
        str, typer.Argument(metavar="HANDLER", help="What runs, such as http.webhook or app.mail:send.")
    ],
    options: JobOptions,
    arguments: Arguments = None,
) -> None:
    """Create a job: by cron, every so often, once, or to be triggered."""
    fields = options.fields(arguments)
    _show_written(session, session.talk(lambda client: client.jobs.create(handler, name, **fields)))


def _show_written(session: Session, job: Any) -> None:
    session.printer.details(job, DETAILS)
    session.printer.warn(job)


@command(
    jobs, "edit", 'timeball jobs edit nightly --cron "0 4 * * *"', "timeball jobs edit nightly --set max_running=1"
)
def edit_job(
    session: Session,
    job: JobRef,
    options: JobOptions,
    rename: Annotated[str | None, typer.Option("--rename", help="Another name.")] = None,
    handler: Annotated[str | None, typer.Option("--handler", help="Another handler.")] = None,
) -> None:
    """Change a job; without options, in your editor. Takes effect with the next occurrence."""
    fields = _rescheduled(options.fields())
    fields |= {name: value for name, value in (("name", rename), ("handler", handler)) if value is not None}

    async def change(client: AsyncClient) -> Any:
        present = await client.jobs.get(job)
        changes: Any = fields or _edited(present)
        return await client.jobs.update(present.id, present.version, **changes) if changes else present

    _show_written(session, session.talk(change))


def _rescheduled(fields: dict[str, Any]) -> dict[str, Any]:
    """One kind of schedule in the place of another: what made up the old one goes."""
    kinds = ("schedule", "interval_seconds", "scheduled_at")
    if not any(name in fields for name in kinds):
        return fields
    return {**dict.fromkeys(kinds), **fields}


def _edited(present: Any) -> dict[str, Any]:
    from timeball.cli.editor import edited_fields

    return edited_fields(present.model_dump(mode="json"))


@command(jobs, "pause", "timeball jobs pause nightly --until 2027-01-04T06:00 --reason holidays")
def pause_job(
    session: Session,
    job: JobRef,
    until: Annotated[str | None, typer.Option("--until", help="When it goes on by itself; on the job's clock.")] = None,
    reason: Reason = None,
) -> None:
    """Let nothing of a job start until it is resumed."""
    session.printer.details(session.talk(lambda client: client.jobs.pause(job, until, reason)), DETAILS)


@command(jobs, "resume", "timeball jobs resume nightly")
def resume_job(session: Session, job: JobRef, reason: Reason = None) -> None:
    """Let a paused job go on from now; what fell into the pause is recorded as skipped."""
    session.printer.details(session.talk(lambda client: client.jobs.resume(job, reason)), DETAILS)


@command(jobs, "trigger", "timeball jobs trigger nightly", "timeball jobs trigger nightly day=2026-11-01 --wait")
def trigger_job(
    session: Session,
    job: JobRef,
    arguments: Arguments = None,
    reason: Reason = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; exit code 6 if it did not succeed.")] = False,
) -> None:
    """Run a job now, beside its schedule; with another payload, if one is given."""
    from timeball.cli.following import started
    from timeball.cli.job_options import read_pairs

    payload = read_pairs(arguments or (), "the payload") or None
    started(session, lambda client: client.jobs.trigger(job, payload, reason), wait=wait)


@command(jobs, "duplicate", "timeball jobs duplicate nightly nightly-2 --queue slow")
def duplicate_job(
    session: Session,
    job: JobRef,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The copy's name; by itself JOB-copy.")] = None,
    options: JobOptions = JobOptions(),
) -> None:
    """Create a copy of a job, with other values for the given options."""
    fields: Any = _rescheduled(options.fields()) | ({} if name is None else {"name": name})
    _show_written(session, session.talk(lambda client: client.jobs.duplicate(job, **fields)))


@command(jobs, "delete", "timeball jobs delete by-hand --yes")
def delete_job(session: Session, job: JobRef, yes: Yes = False, reason: Reason = None) -> None:
    """Take a job out of service: what waits is cancelled, its name is free again, its history stays."""

    async def delete(client: AsyncClient) -> None:
        found = await client.jobs.get(job)
        session.printer.confirm(f"Delete {found.name or found.id} and cancel what waits of it?", yes=yes)
        await client.jobs.delete(found.id, reason=reason)

    session.talk(delete)
    session.printer.say(f"{job} is deleted")


@command(jobs, "next", "timeball jobs next nightly -n 5")
def next_of_job(
    session: Session, job: JobRef, count: Annotated[int, typer.Option("-n", "--count", min=1, max=100)] = 10
) -> None:
    """Show when a job runs next, with the changes of the clock marked."""
    times = session.talk(lambda client: client.jobs.next(job, count))
    if not session.printer.is_for_programs:
        session.printer.say(times.description)
    columns = [Column("at", kind=Kind.INSTANT), Column("local"), Column("note")]
    session.printer.rows(times.next, columns, empty="it does not run by itself any more")


@command(jobs, "cancel", "timeball jobs cancel nightly")
def cancel_job(session: Session, job: JobRef, reason: Reason = None) -> None:
    """Cancel the execution of a job that runs, or else waits; its schedule goes on."""
    from timeball.cli.runs import DETAILS

    session.printer.details(session.talk(lambda client: client.jobs.cancel(job, reason)), DETAILS)
