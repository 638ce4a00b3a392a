"""The numbers of this moment, cheap however much there is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from timeball.domain.search import EXACT_UP_TO
from timeball.store.database import Database

# What is ready for longer than this is late: a free slot would have taken it.
LATE_AFTER = timedelta(seconds=2)


class Gauges:
    """Reads the numbers of this moment."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def present(self) -> dict[str, Any]:
        """What waits, runs, is late and is dead; each counted up to 10,001."""
        return dict(await self._database.fetch_row("present_numbers", most=EXACT_UP_TO, late_after=LATE_AFTER) or {})

    async def database(self) -> dict[str, Any]:
        """How the database itself is."""
        return dict(await self._database.fetch_row("database_numbers") or {})
