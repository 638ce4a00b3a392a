"""The days of the calendar versions that rows cite: read once and kept, because a version never changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from timeball.domain.scheduling.calendars import CalendarVersion, parse_days
from timeball.store.db.rows import CalendarKey, CitedCalendars, cited_calendars

if TYPE_CHECKING:
    from timeball.store.db.database import Database, WithinConnection

_MOST_KEPT = 1_000
_NO_CALENDARS: CitedCalendars = {}


class CalendarCache:
    """The days of calendar versions, as rows cite them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[CalendarKey, CalendarVersion] = {}

    async def of(self, rows: Iterable[Any], connection: WithinConnection | None = None) -> CitedCalendars:
        """The calendars that these rows of jobs cite. Rows without calendars cost no statement."""
        cited = {key for row in rows if row["calendars"] is not None for key in cited_calendars(row)}
        if not cited:
            return _NO_CALENDARS
        if missing := cited - self._kept.keys():
            if len(self._kept) > _MOST_KEPT:
                self._kept = {key: self._kept[key] for key in cited & self._kept.keys()}
            rows_of = await self._database.fetch(
                "calendar_versions",
                connection,
                names=[key.name for key in sorted(missing)],
                versions=[key.version for key in sorted(missing)],
            )
            versions = {(row["name"], row["version"]): version_from(row) for row in rows_of}
            self._kept |= {key: versions[key.name, key.version] for key in missing}
        return {key: self._kept[key] for key in cited}


def version_from(row: Any) -> CalendarVersion:
    """A version of a calendar from its row."""
    return CalendarVersion(row["name"], row["version"], parse_days(row["days"]))
