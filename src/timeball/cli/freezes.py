"""`timeball freeze`, `freezes` and `unfreeze`: spans in which nothing starts."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import typer

from timeball.cli.job_options import read_moment_ahead
from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession
from timeball.cli.tree import Reason, command, ungrouped_commands

commands = ungrouped_commands()

_COLUMNS = [
    Column("id"),
    Column("what", lambda freeze: freeze["queue"] or freeze["tag"] or freeze["job"] or "everything"),
    Column("scope"),
    Column("state", kind=ColumnKind.STATE),
    Column("from", kind=ColumnKind.INSTANT),
    Column("until", kind=ColumnKind.INSTANT),
    Column("afterwards"),
    Column("reason"),
    Column("by", "created_by"),
]
_AFTERWARDS = ("skip", "latest", "all")


@command(
    commands,
    "freeze",
    'timeball freeze --queue billing --until mon-08:00 --reason "release"',
    "timeball freeze --everything --until 2h",
)
def create_freeze(
    session: CliSession,
    until: Annotated[str, typer.Option("--until", help="Its end: mon-08:00, 18:30, 2027-01-04T06:00 or in 2h.")],
    queue: Annotated[str | None, typer.Option("--queue", help="Freeze this queue.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Freeze the jobs with this tag.")] = None,
    job: Annotated[str | None, typer.Option("--job", help="Freeze this job.")] = None,
    everything: Annotated[bool, typer.Option("--everything", help="Freeze the whole installation.")] = False,
    start: Annotated[str | None, typer.Option("--from", help="Its beginning. Default: now.")] = None,
    afterwards: Annotated[
        str, typer.Option("--afterwards", help="Which occurrences run when it is over: skip (none), latest or all.")
    ] = "skip",
    reason: Reason = None,
) -> None:
    """Let nothing of a queue, a tag, a job or of everything start until an instant. Running executions go on."""
    if afterwards not in _AFTERWARDS:
        from timeball.domain.values.field_errors import unexpected_value

        raise unexpected_value("--afterwards", afterwards, "skip, latest or all", field="afterwards")
    end = read_moment_ahead(until, "--until")
    begin = None if start is None else read_moment_ahead(start, "--from")
    freeze = session.talk(
        lambda client: client.freezes.create(
            end,
            queue=queue,
            tag=tag,
            job=job,
            everything=everything,
            start=begin,
            afterwards=cast(Literal["skip", "latest", "all"], afterwards),
            reason=reason,
        )
    )
    session.printer.details(freeze, _COLUMNS)


@command(commands, "freezes", "timeball freezes", "timeball freezes --all")
def list_freezes(
    session: CliSession,
    is_all: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
) -> None:
    """List the freezes that hold now or are to come."""
    freezes = session.talk(lambda client: client.freezes.list(past=is_all))
    session.printer.rows(freezes, _COLUMNS, empty="nothing is frozen")


@command(commands, "unfreeze", "timeball unfreeze FREEZE")
def end_freeze(
    session: CliSession,
    freeze: Annotated[str, typer.Argument(metavar="FREEZE", help="The id of a freeze, frz_...")],
    reason: Reason = None,
) -> None:
    """End a freeze now: what it held back goes on."""
    session.talk(lambda client: client.freezes.end(freeze, reason))
    session.printer.say(f"{freeze} is over")
