"""`timeball jobs sync`: a file that says which jobs there are to be."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from timeball.cli.job_files import JobsFile, file_format, read_jobs
from timeball.cli.jobs import jobs
from timeball.cli.planning import show_plan, summary
from timeball.cli.session import Session
from timeball.cli.transfer import Format
from timeball.cli.tree import DryRun, Reason, Yes, command

__all__ = ["jobs"]

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
    session: Session,
    file: JobsFile,
    format_: Format = None,
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
