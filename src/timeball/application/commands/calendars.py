"""Create, change and delete calendars; the jobs that use one follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from timeball.application.commands.requests import LOCAL, Actor, check_version
from timeball.domain.calendar import Calendar, CalendarDays, country_days, ics_days, listed_days
from timeball.domain.scheduling.calendars import check_calendar
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.store.store import Store
    from timeball.store.types import AuditEntry

# The jobs that a request moves to a new version itself; a scheduler goes on with the others.
_FOLLOWED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class WrittenCalendar:
    """A calendar that was created or changed, what could not be taken over, and whether all of its jobs follow it already."""

    calendar: Calendar
    warnings: list[str]
    is_followed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DaysRequest:
    """The days of a calendar as a caller gives them: exactly one of a list, the text of an iCalendar file, and a country."""

    days: Iterable[str] | None = None
    ics: str | None = None
    country: str | None = None
    subdivision: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.days is None and self.ics is None and self.country is None

    def read(self) -> CalendarDays:
        """The days, checked."""
        given = [name for name in ("days", "ics", "country") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) + " are given" if given else "none of them is given"
            raise InvalidInput(f"{found}, expected one of days, ics and country", field=given[-1] if given else "days")
        if self.subdivision is not None and self.country is None:
            raise InvalidInput("subdivision is given without a country", field="subdivision")
        if self.ics is not None:
            return ics_days(self.ics)
        if self.country is not None:
            return country_days(self.country, self.subdivision)
        return listed_days(self.days or ())


class CalendarCommands:
    """Create, change and delete calendars."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(
        self, name: str, days: DaysRequest, description: str | None = None, actor: Actor = LOCAL
    ) -> WrittenCalendar:
        """Create a calendar; Conflict if its name is taken."""
        name, description = check_calendar(name, description)
        read = await _read(days)
        calendar = Calendar(name=name, description=description, source=read.source, days=read.days)
        return WrittenCalendar(await self._store.calendars.add(calendar, actor.entry), read.warnings)

    async def update(
        self,
        name: str,
        fields: Mapping[str, Any],
        days: DaysRequest,
        actor: Actor = LOCAL,
        expected_version: int | None = None,
    ) -> WrittenCalendar:
        """Change the description or the days of a calendar; each job that uses it gets a new version, and its next occurrence anew.

        Many jobs follow one after the other: up to a thousand before this returns, the others soon after.
        """
        read = None if days.is_empty and days.subdivision is None else await _read(days)

        def decide(present: Calendar) -> Calendar:
            check_version("calendar", present.version, expected_version)
            if "description" in fields:
                present = replace(present, description=check_calendar(name, fields["description"])[1])
            return present if read is None else replace(present, days=read.days, source=read.source)

        calendar = await self._store.calendars.change(name, decide, actor.entry)
        return WrittenCalendar(
            calendar, [] if read is None else read.warnings, await self._follow(calendar, actor.entry)
        )

    async def delete(self, name: str, actor: Actor = LOCAL, expected_version: int | None = None) -> None:
        """Delete a calendar; Conflict names the jobs that use it, if there are any."""
        await self._store.calendars.delete(
            name, lambda present: check_version("calendar", present.version, expected_version), actor.entry
        )

    async def _follow(self, calendar: Calendar, audit: AuditEntry) -> bool:
        reason = audit.reason or f"calendar {calendar.name} has version {calendar.version}"
        return await self._store.jobs.follow_calendar(
            calendar.name, calendar.version, replace(audit, reason=reason), _FOLLOWED_AT_ONCE
        )


async def _read(days: DaysRequest) -> CalendarDays:
    # In a thread: a long file, or a hundred years of holidays, would block the event loop.
    return await asyncio.to_thread(days.read)
