"""The change stream: the events since a position, read from records that exist anyway.

A position is a snapshot of the database, which knows of every transaction whether it was committed. So no event is repeated or left out,
in whatever order transactions commit, and any process can continue from a position that another has returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.alerts import format_alert_id
from timeball.domain.change_event import EXECUTION_STARTED, ChangeEvent, change_event_id
from timeball.domain.execution import Progress
from timeball.domain.values.ids import JobId, format_execution_id, format_id
from timeball.errors import InvalidInput
from timeball.store.db.rows import progress_from
from timeball.store.types import ChangeBatch, ChangePage, RecordedChange

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.pool import Connection

_POSITION = re.compile(r"([0-9]{1,19}):([0-9]{1,19}):((?:[0-9]{1,19},)*[0-9]{1,19})?")
_LARGEST = 2**63 - 1
_JOB_SUBJECT, _ALERT_SUBJECT = "job:", "alert:"


# Actions about keys, sessions and webhooks are not published: a webhook would tell of itself.
_PRIVATE = ("key.", "session.", "webhook.")


class ChangeStream:
    """Reads the change stream."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def position(self) -> str:
        """The present position."""
        position: str = await self._database.fetch_value("position")
        return position

    async def since(self, position: str, limit: int) -> ChangeBatch:
        """The events since a position, in the order of time; InvalidInput if it is not a position."""
        rows = await self._database.fetch(
            "changes", position=checked_position(position), limit=limit + 1, transactions=None
        )
        records = [row for row in rows if row["source"] is not None]
        is_complete = len(records) <= limit and not rows[0]["is_from_elsewhere"]
        events = [event for row in records[:limit] for event in _events_of(row)] if is_complete else []
        return ChangeBatch(rows[0]["position"], events, is_complete)

    async def page(self, position: str, transactions: int, connection: Connection) -> ChangePage:
        """All events of the next transactions behind a position, by time; those of one execution in the order of its attempts."""
        rows = await self._database.fetch(
            "changes", connection, position=position, limit=None, transactions=transactions
        )
        first = rows[0]
        records = [] if first["is_from_elsewhere"] else [row for row in rows if row["source"] is not None]
        changes = [RecordedChange(event, row["recorded"]) for row in _in_order(records) for event in _events_of(row)]
        return ChangePage(first["position"], changes, first["has_more"], first["is_from_elsewhere"])

    async def started(self, limit: int) -> list[tuple[ChangeEvent, Progress | None]]:
        """The starts of the executions that run now, the earliest first, and how far they are."""
        rows = await self._database.fetch("started_executions", limit=limit)
        return [(_start_of(row), progress_from(row)) for row in reversed(rows)]


def _in_order(rows: Sequence[Any]) -> list[Any]:
    """Rows by time; but those of one execution by their fence, because each attempt is timed by the clock of its worker."""
    latest: dict[UUID, datetime] = {}
    timed = []
    for row in sorted(rows, key=lambda row: (row["fence"], row["source"] == "finished", row["at"])):
        latest[row["id"]] = at = max(row["at"], latest.get(row["id"], row["at"]))
        timed.append((at, row))
    return [row for _, row in sorted(timed, key=itemgetter(0))]


def checked_position(position: str) -> str:
    """The position, if it has the form of one; InvalidInput otherwise."""
    is_form = _POSITION.fullmatch(position) is not None
    numbers = [int(number) for number in re.findall(r"[0-9]+", position)] if is_form else []
    if is_form and max(numbers) <= _LARGEST and 0 < numbers[0] <= numbers[1]:
        inside = numbers[2:]
        if inside == sorted(set(inside)) and all(numbers[0] <= number < numbers[1] for number in inside):
            return position
    raise InvalidInput(
        f"since is {position[:60]!r}, which is not a position of the stream",
        field="since",
        hint="use the id of an event, or next_cursor, as it was given",
    )


def _events_of(row: Any) -> Iterator[ChangeEvent]:
    if row["source"] == "audit":
        if not row["what"].startswith(_PRIVATE):
            yield _action_of(row)
        return
    if row["started_at"] is not None and row["try"] is not None:
        yield _start_of(row)
    yield _end_of(row)


def _start_of(row: Any) -> ChangeEvent:
    started_at = row["started_at"]
    is_first = row["try"] == 1 and row["origin"] not in ("backfill", "after")
    data = {"attempt": row["try"], "lateness_ms": _milliseconds(row["scheduled_for"], started_at) if is_first else None}
    return _about_execution(EXECUTION_STARTED, started_at, row, data)


def _end_of(row: Any) -> ChangeEvent:
    kind = "execution" if row["source"] == "finished" else "attempt"
    data = {
        "attempt": row["attempts"],
        "duration_ms": _milliseconds(row["started_at"], row["at"]),
        "error_type": row["error_type"],
        "reason": row["reason"],
    }
    if row["will_retry"] is not None:
        data["will_retry"] = row["will_retry"]
    return _about_execution(f"{kind}.{row['what']}", row["at"], row, data)


def _about_execution(what: str, at: datetime, row: Any, data: dict[str, Any]) -> ChangeEvent:
    worker = row["worker"]
    # While an execution runs, only its worker knows the exact moment of the start: an id made from it would change at the end.
    moment = row["scheduled_for"] if what == EXECUTION_STARTED else at
    return ChangeEvent(
        id=change_event_id(moment, what, row["id"], row["fence"]),
        type=what,
        at=at,
        subject=format_execution_id(row["id"]),
        job_id=JobId(row["job_id"]),
        queue=row["queue"],
        handler=row["handler"],
        data=data
        | {"scheduled_for": row["scheduled_for"], "worker": None if worker is None else format_id("wrk", worker)},
    )


def _action_of(row: Any) -> ChangeEvent:
    subject: str = row["subject"]
    job_id = JobId(UUID(subject.removeprefix(_JOB_SUBJECT))) if _names_a_job(subject) else None
    data = {"reason": row["reason"]}
    if subject.startswith(_ALERT_SUBJECT):
        data |= {"kind": row["kind"], "severity": row["severity"]}
        subject = format_alert_id(UUID(subject.removeprefix(_ALERT_SUBJECT)))
    return ChangeEvent(
        id=change_event_id(row["at"], "audit", row["id"]),
        type=row["what"],
        at=row["at"],
        subject=subject if job_id is None else format_id("job", job_id),
        job_id=job_id,
        queue=subject.removeprefix("queue:") if subject.startswith("queue:") else None,
        data=data,
    )


def _names_a_job(subject: str) -> bool:
    return re.fullmatch(r"job:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", subject) is not None


def _milliseconds(since: datetime | None, until: datetime) -> float | None:
    return None if since is None else round((until - since).total_seconds() * 1000, 3)
