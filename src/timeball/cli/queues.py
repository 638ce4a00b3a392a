"""`timeball queues`: depth, pauses and limits."""

from __future__ import annotations

from typing import Annotated

import typer

from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession
from timeball.cli.tree import Reason, command, command_group, list_command
from timeball.domain.values.field_errors import unexpected_value

queues = command_group(
    "queues", "Queues: what waits, what runs, what is held back.", ["timeball queues", "timeball queues pause mail"]
)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]

_COLUMNS = [
    Column("name"),
    Column("state", lambda queue: "paused" if queue["is_paused"] else "active", ColumnKind.STATE),
    Column("depth", kind=ColumnKind.NUMBER),
    Column("running", kind=ColumnKind.NUMBER),
    Column("max running", kind=ColumnKind.NUMBER),
    Column("oldest", "oldest_at", ColumnKind.INSTANT),
    Column("reason", "pause_reason"),
]


@list_command(queues, "timeball queues", "timeball queues list -o json")
def list_queues(session: CliSession) -> None:
    """List the queues that have something ready or running, a pause or a limit."""
    found = session.talk(lambda client: client.queues.list())
    session.printer.rows(found, _COLUMNS, empty="no queue has anything waiting or running")


@command(queues, "show", "timeball queues show mail")
def show_queue(session: CliSession, queue: QueueName) -> None:
    """Show one queue."""
    session.printer.details(session.talk(lambda client: client.queues.get(queue)), _COLUMNS)


@command(queues, "pause", 'timeball queues pause mail --reason "mail server down"')
def pause_queue(session: CliSession, queue: QueueName, reason: Reason = None) -> None:
    """Let nothing of a queue be claimed; what runs goes on."""
    session.printer.details(session.talk(lambda client: client.queues.pause(queue, reason)), _COLUMNS)


@command(queues, "resume", "timeball queues resume mail")
def resume_queue(session: CliSession, queue: QueueName, reason: Reason = None) -> None:
    """Let a paused queue go on."""
    session.printer.details(session.talk(lambda client: client.queues.resume(queue, reason)), _COLUMNS)


@command(queues, "limit", "timeball queues limit mail 10", "timeball queues limit mail none")
def limit_queue(
    session: CliSession,
    queue: QueueName,
    number: Annotated[str, typer.Argument(metavar="N|none", help="How many may run together; none takes it away.")],
    reason: Reason = None,
) -> None:
    """Let at most so many executions of a queue run together, across all workers."""
    limit = _limit(number)
    session.printer.details(session.talk(lambda client: client.queues.limit(queue, limit, reason)), _COLUMNS)


@command(queues, "purge", "timeball queues purge mail --confirm mail")
def purge_queue(
    session: CliSession,
    queue: QueueName,
    confirm: Annotated[str | None, typer.Option("--confirm", help="The queue's name once more.")] = None,
    reason: Reason = None,
) -> None:
    """Cancel everything that is queued there and has not begun; what runs goes on, and so do schedules."""
    if confirm is None:
        confirm = session.printer.ask(f"This cancels all that waits in {queue}. Type its name to go on:", "--confirm")
    typed = confirm
    with session.printer.progress("executions cancelled") as advance:
        purged = session.talk(lambda client: client.queues.purge(queue, confirm=typed, reason=reason))
        advance(purged.cancelled)
    session.printer.details(purged, [Column("queue"), Column("cancelled")])


def _limit(text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise unexpected_value("the limit", text, "a whole number from 1 on, or none", field="max_running")
    return int(text)
