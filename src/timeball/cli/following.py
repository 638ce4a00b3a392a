"""Watching one execution: its log as it is written, its states as they change, and how it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from timeball.cli.render import Column, Kind, to_json
from timeball.cli.session import Session
from timeball.errors import ExecutionFailed

if TYPE_CHECKING:
    from timeball.client import AsyncClient

FINAL = frozenset({"succeeded", "cancelled", "dead", "skipped"})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
# Lines are written beside the outcome, and perhaps a moment after it.
LAST_WORDS_SECONDS = 0.3
# What waits for longer is told why.
_PATIENCE_SECONDS = 2.0
_STARTED = [Column("execution", "id"), Column("state", kind=Kind.STATE), Column("handler"), Column("queue")]


def started(session: Session, start: Callable[[AsyncClient], Awaitable[Any]], *, wait: bool) -> None:
    """Start an execution and show it, or wait for its end and show its result."""
    if not wait:
        session.printer.details(session.talk(start), _STARTED)
        return

    async def follow(client: AsyncClient) -> Any:
        begun = await start(client)
        return await watched(client, session, begun.id)

    show_end(session, session.talk(follow))


async def watched(client: AsyncClient, session: Session, execution_id: str) -> Any:
    """Follow an execution to its end: log lines and changes of state go to stderr."""
    from asyncio import sleep
    from time import monotonic

    pause, state, cursor = _FIRST_PAUSE, None, None
    waits_since: float | None = monotonic()
    session.printer.say(f"{execution_id}")
    while True:
        # The state first: what is written before the end is seen is read after it.
        found = await client.executions.get(execution_id)
        cursor, said = await _say_log(client, session, execution_id, cursor)
        if found.state in FINAL:
            await sleep(LAST_WORDS_SECONDS)
            await _say_log(client, session, execution_id, cursor)
        if found.state != state:
            session.printer.say(f"  {found.state}" + (f" on {found.worker}" if found.worker else ""))
        if found.state in FINAL:
            return found
        if waits_since is not None and monotonic() - waits_since > _PATIENCE_SECONDS:
            waits_since = None
            if found.state not in ("running", "scheduled", "retrying"):
                session.printer.say(f"  {(await client.executions.explain(execution_id)).headline}")
        pause = _FIRST_PAUSE if said or found.state != state else min(pause * 1.5, _LONGEST_PAUSE)
        state = found.state
        await sleep(pause)


async def _say_log(
    client: AsyncClient, session: Session, execution_id: str, cursor: str | None
) -> tuple[str | None, int]:
    said = 0
    while True:
        page = await client.executions.logs(execution_id, cursor=cursor)
        for line in page.data:
            session.printer.say(log_words(session, line))
        said += len(page.data)
        cursor = page.next_cursor
        if not page.has_more:
            return cursor, said


def log_words(session: Session, line: Any) -> str:
    """A line of a log, as people read it."""
    # Further lines stand to the right of it, so that none passes for a line of ours.
    message = line.message.replace("\n", "\n" + " " * 23)
    return f"  {line.at:%H:%M:%S}.{line.at.microsecond // 1000:03d} {line.level:<7} {message}"


def show_end(session: Session, ended: Any) -> None:
    """Print the result of an execution; ExecutionFailed if it did not succeed."""
    if session.printer.is_for_programs:
        session.printer.json(ended.model_dump(mode="json"))
    elif ended.state == "succeeded" and ended.result is not None:
        session.printer.line(ended.result if isinstance(ended.result, str) else to_json(ended.result))
    if ended.state != "succeeded":
        words = ended.error or ended.reason
        error = ExecutionFailed(ended.id, ended.state, f"{ended.error_type}: {words}" if ended.error_type else words)
        error.hint = f"timeball runs show {ended.id} tells more; timeball runs retry {ended.id} tries again"
        raise error
