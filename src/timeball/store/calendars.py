"""Calendars: found, created, changed, deleted, each change audited; and the days of the versions that jobs cite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.calendar import Calendar
from timeball.domain.scheduling.calendars import CalendarVersion, parse_days, possible_names
from timeball.domain.values.ids import JobId
from timeball.errors import Conflict, NotFound
from timeball.store.db.columns import write_audit
from timeball.store.db.rows import version_from

if TYPE_CHECKING:
    from timeball.domain.search import ResultPage
    from timeball.store.db.database import Database, WithinConnection
    from timeball.store.db.pool import Connection
    from timeball.store.types import AuditEntry

_BY_NAME = "calendar"
_FIRST_ID = JobId(UUID(int=0))
# More jobs than these are not counted.
MOST_COUNTED = 10_000


class CalendarStore:
    """The calendars of this database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, name: str, version: int | None = None) -> Calendar | None:
        """A calendar with its present days, or with those of an earlier version."""
        row = await self._database.fetch_row("find_calendar", name=name, version=version)
        return None if row is None else _calendar_from(row)

    async def page(self, limit: int, cursor: str | None) -> ResultPage[Calendar]:
        """A page of calendars, by name."""
        # Here and not above: a node lists no calendars.
        from timeball.domain.search import ResultPage, read_cursor, write_cursor

        after = "" if cursor is None else read_cursor(cursor, _BY_NAME, 2)[0] or ""
        rows = await self._database.fetch("list_calendars", after=after, limit=limit + 1)
        items = [_calendar_from(row) for row in rows[:limit]]
        return ResultPage(items, write_cursor(_BY_NAME, items[-1].name, _FIRST_ID) if len(rows) > limit else None)

    async def present(
        self, names: Collection[str], connection: WithinConnection | None = None
    ) -> dict[str, CalendarVersion]:
        """The present versions of these calendars; those that do not exist are missing."""
        if not names:
            return {}
        rows = await self._database.fetch("present_calendars", connection, names=sorted(names))
        return {row["name"]: version_from(row) for row in rows}

    async def jobs_of(self, name: str, limit: int) -> list[tuple[JobId, str | None]]:
        """Some jobs that use a calendar, by id."""
        rows = await self._database.fetch("jobs_of_calendar", name=name, after=_FIRST_ID, version=None, limit=limit)
        return [(JobId(row["id"]), row["name"]) for row in rows]

    async def count_jobs_of(self, name: str) -> int:
        """The number of jobs that use a calendar, counted up to a limit."""
        number: int = await self._database.fetch_value("count_jobs_of_calendar", name=name, limit=MOST_COUNTED)
        return number

    async def to_follow(self) -> list[tuple[str, int]]:
        """The calendars that some jobs may not follow yet, each with its present version."""
        return [(row["name"], row["version"]) for row in await self._database.fetch("calendars_to_follow")]

    async def add(self, calendar: Calendar, audit: AuditEntry) -> Calendar:
        """Insert a calendar; Conflict if its name is taken."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> Calendar:
            row = await self._database.fetch_row(
                "add_calendar",
                connection,
                name=calendar.name,
                description=calendar.description,
                source=_json(calendar.source),
            )
            if row is None:
                raise Conflict(
                    f"there is already a calendar named {calendar.name!r}",
                    hint="choose another name, or change that one",
                )
            return await self._write_version(connection, row, calendar, None, note, audit, "calendar.create")

        done: Calendar = await self._database.once(work, note)
        return done

    async def change(self, name: str, decide: Callable[[Calendar], Calendar], audit: AuditEntry) -> Calendar:
        """Replace a calendar by what *decide* makes of it; its version goes up by one, unless nothing differs."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> Calendar:
            before = await self._locked(connection, name)
            after = decide(before)
            if (after.description, after.source, after.days) == (before.description, before.source, before.days):
                return before
            row = await self._database.fetch_row(
                "write_calendar",
                connection,
                name=name,
                description=after.description,
                source=_json(after.source),
                version=before.version + 1,
            )
            return await self._write_version(connection, row, after, before, note, audit, "calendar.update")

        done: Calendar = await self._database.once(work, note)
        return done

    async def delete(self, name: str, check: Callable[[Calendar], None], audit: AuditEntry) -> None:
        """Delete a calendar, unless *check* raises, or a job uses it: then Conflict names some of the jobs."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> None:
            before = await self._locked(connection, name)
            check(before)
            rows = await self._database.fetch(
                "jobs_of_calendar", connection, name=name, after=_FIRST_ID, version=None, limit=_NAMED + 1
            )
            if rows:
                raise _in_use(name, [row["name"] or str(row["id"]) for row in rows])
            await self._database.fetch("delete_calendar", connection, name=name)
            subject = f"calendar:{name}"
            await write_audit(self._database, connection, note, audit, "calendar.delete", subject, _facts(before), None)

        await self._database.once(work, note)

    async def _locked(self, connection: Connection, name: str) -> Calendar:
        if not possible_names([name]) or await self._database.fetch_row("lock_calendar", connection, name=name) is None:
            raise NotFound("calendar", name)
        return _calendar_from(await self._database.fetch_row("find_calendar", connection, name=name, version=None))

    async def _write_version(
        self,
        connection: Connection,
        row: Any,
        calendar: Calendar,
        before: Calendar | None,
        note: UUID,
        audit: AuditEntry,
        action: str,
    ) -> Calendar:
        entries = calendar.days.entries
        await self._database.fetch(
            "add_calendar_version", connection, name=calendar.name, version=row["version"], days=entries
        )
        after = _calendar_from({**row, "shown_version": row["version"], "days": entries})
        subject = f"calendar:{calendar.name}"
        await write_audit(
            self._database,
            connection,
            note,
            audit,
            action,
            subject,
            None if before is None else _facts(before),
            _facts(after),
        )
        return after


# The jobs that a refusal names.
_NAMED = 10


def _in_use(name: str, jobs: list[str]) -> Conflict:
    more = " and others" if len(jobs) > _NAMED else ""
    return Conflict(
        f"the calendar {name!r} is used by {', '.join(jobs[:_NAMED])}{more}",
        hint="take it out of skip_on and only_on of these jobs first",
        jobs=jobs[:_NAMED],
    )


def _facts(calendar: Calendar) -> dict[str, Any]:
    """What the audit keeps of a calendar: the days themselves are in its versions."""
    return {
        "description": calendar.description,
        "source": dict(calendar.source),
        "version": calendar.version,
        "days": len(calendar.days.entries),
    }


def _json(source: Iterable[Any]) -> str:
    return orjson.dumps(dict(source)).decode()


def _calendar_from(row: Any) -> Calendar:
    return Calendar(
        name=row["name"],
        description=row["description"],
        source=orjson.loads(row["source_text"]),
        days=parse_days(row["days"]),
        version=row["shown_version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
