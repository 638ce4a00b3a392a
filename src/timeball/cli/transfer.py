"""Jobs in and out in bulk: `jobs export`, `jobs import`, `jobs backfill`, `runs export`."""

from __future__ import annotations

import sys
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.bulk import SomeFailed
from timeball.cli.job_files import JobsFile, file_format, read_jobs
from timeball.cli.job_options import read_moment
from timeball.cli.jobs import JobRef, JobSearchOptions, jobs
from timeball.cli.render import Column, Kind
from timeball.cli.runs import RunSearchOptions, runs
from timeball.cli.session import Session
from timeball.cli.tree import DryRun, Reason, Yes, command
from timeball.cli.words import harmless
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.client import AsyncClient

# The nouns, with the commands of this file added.
__all__ = ["jobs", "runs"]

_BATCH = 1_000

To = Annotated[Path | None, typer.Option("--to", help="A file to write; none means stdout.")]
Format = Annotated[
    str | None, typer.Option("--format", help="csv, jsonl or json; by itself what the file's name says.")
]
Bom = Annotated[bool, typer.Option("--bom", help="Begin a CSV with a byte order mark, which Excel needs for UTF-8.")]


@command(jobs, "export", "timeball jobs export --to jobs.csv", "timeball jobs export --queue mail --format jsonl")
def export_jobs(
    session: Session, wanted: JobSearchOptions, to: To = None, format_: Format = None, bom: Bom = False
) -> None:
    """Write all jobs that match, as CSV, JSON lines or one JSON list."""
    kind = file_format(format_, to)
    _download(session, to, lambda client: client.jobs.export(kind, bom, **wanted.wanted()))


@command(runs, "export", "timeball runs export --status dead --to dead.csv")
def export_runs(
    session: Session, wanted: RunSearchOptions, to: To = None, format_: Format = None, bom: Bom = False
) -> None:
    """Write all executions that match, as CSV, JSON lines or one JSON list."""
    kind = file_format(format_, to)
    _download(session, to, lambda client: client.executions.export(kind, bom, **wanted.wanted()))


def _download(session: Session, to: Path | None, ask: Callable[[AsyncClient], AsyncIterator[bytes]]) -> None:
    async def write(client: AsyncClient) -> None:
        with _opened(to) as file, session.printer.progress("bytes exported") as advance:
            async for chunk in ask(client):
                file.write(chunk)
                advance(len(chunk))
            file.flush()

    session.talk(write)


@contextmanager
def _opened(to: Path | None) -> Iterator[IO[bytes] | _TextSink]:
    if to is None:
        raw = None if sys.stdout.isatty() else getattr(sys.stdout, "buffer", None)
        yield raw or _TextSink(sys.stdout)
        return
    try:
        file = to.open("wb")
    except OSError as error:
        raise InvalidInput(
            f"--to is {to}, which cannot be written: {error.strerror}",
            field="to",
            hint="name a file in a folder that is there and that you may write to",
        ) from None
    with file:
        yield file


class _TextSink:
    """A text stream that takes bytes: a terminal, which gets no control characters, or what has taken the place of stdout."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        # A chunk may end within a character.
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def write(self, chunk: bytes) -> None:
        text = self._decoder.decode(chunk)
        self._stream.write(harmless(text) if self._stream.isatty() else text)

    def flush(self) -> None:
        self._stream.flush()


@command(
    jobs,
    "import",
    "timeball jobs import jobs.csv",
    "timeball jobs import jobs.jsonl --per-item",
    "timeball jobs import jobs.jsonl --dry-run",
)
def import_jobs(
    session: Session,
    file: JobsFile,
    format_: Format = None,
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
    failures = session.talk(lambda client: _created(client, session, wishes, per_item))
    for failure in failures[:20]:
        session.printer.say(failure)
    if failures:
        raise SomeFailed(f"{len(failures)} of {len(wishes)} jobs were not created")


async def _created(client: AsyncClient, session: Session, wishes: list[dict[str, Any]], per_item: bool) -> list[str]:
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
    session: Session,
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
        number = f"{len(times)}{' or more' if len(times) == _MOST_SHOWN else ''}"
        if dry_run:
            printer.rows(
                times, [Column("at", kind=Kind.INSTANT), Column("local"), Column("note")], empty="no occurrence"
            )
            printer.say(f"would run {job} {number} times")
            return
        printer.confirm(f"Run {job} {number} times?", yes=yes)
        with printer.progress("executions created") as advance:
            made = await client.jobs.backfill(job, after, until, reason)
            advance(made.count)
        printer.rows([{"id": one} for one in made.execution_ids], [Column("id")], empty="no occurrence in this span")

    session.talk(work)


_MOST_SHOWN = 100


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
        count=_MOST_SHOWN,
    )
    return [time for time in islice(shown.next, _MOST_SHOWN) if time.is_due and time.at <= until]
