"""Reads calendars, the days that come next, and the jobs that use them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from timeball.domain.calendar import Calendar
from timeball.domain.scheduling.calendars import possible_names
from timeball.domain.search import PageRequest, ResultPage
from timeball.domain.values.ids import JobId
from timeball.errors import NotFound, quote_text

if TYPE_CHECKING:
    from timeball.store.store import Store

_NEXT_DAYS = 10
_SOME_JOBS = 20


@dataclass(frozen=True, slots=True)
class CalendarView:
    """A calendar, the next of its days from today on (UTC), how many jobs use it, and some of them."""

    calendar: Calendar
    next_days: list[date]
    jobs: int
    some_jobs: list[tuple[JobId, str | None]]


class CalendarQueries:
    """Reads calendars."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, name: str, version: int | None = None) -> CalendarView:
        """A calendar, in its present version or an earlier one; NotFound if there is none."""
        calendar = await self._store.calendars.find(name, version) if possible_names([name]) else None
        if calendar is None:
            raise NotFound("calendar", quote_text(name) + ("" if version is None else f" version {version}"))
        return await self.view(calendar)

    async def page(self, request: PageRequest) -> ResultPage[CalendarView]:
        """A page of calendars, by name."""
        page = await self._store.calendars.page(request.limit, request.cursor)
        return ResultPage([await self.view(calendar) for calendar in page.items], page.next_cursor)

    async def view(self, calendar: Calendar) -> CalendarView:
        """A calendar with what is known about it."""
        today = self._store.env.clock.now().date()
        jobs = await self._store.calendars.jobs_of(calendar.name, _SOME_JOBS)
        number = len(jobs) if len(jobs) < _SOME_JOBS else await self._store.calendars.count_jobs_of(calendar.name)
        return CalendarView(calendar, calendar.days.from_day(today, _NEXT_DAYS), number, jobs)
