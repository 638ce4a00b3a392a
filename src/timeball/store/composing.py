"""Queries that are put together: only texts written by us are glued; every value that comes from outside is a parameter."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from timeball.store.database import Database

# A list that takes longer is given up. Searches go in stretches, which end long before.
_PATIENCE_SECONDS = 10


class Values:
    """The parameters of a composed query, in the order they were added."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def add(self, value: Any, kind: str) -> str:
        """Give a value, get its place."""
        self.given.append(value)
        return f"${len(self.given)}::{kind}"


class Reader:
    """Runs composed queries."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def clock(self) -> Any:
        """The clock that searches go by."""
        return self._database.env.clock

    async def fetch(self, text: str, values: Values) -> list[Any]:
        """The rows of a query."""
        async with self._database.connection() as connection:
            rows: list[Any] = await connection.fetch(text, *values.given, timeout=_PATIENCE_SECONDS)
            return rows

    async def count(self, text: str, values: Values, most: int) -> int:
        """How many rows a query has, counted up to *most*."""
        counted = f"SELECT count(*) FROM (SELECT 1 FROM ({text}) AS whole LIMIT {int(most)}) AS few"
        return int((await self.fetch(counted, values))[0][0])

    async def estimate(self, text: str, values: Values) -> int:
        """How many rows a query has, as the planner believes: nothing is read."""
        plan = await self.fetch(f"EXPLAIN (FORMAT JSON) {text}", values)
        return int(orjson.loads(plan[0][0])[0]["Plan"]["Plan Rows"])

    async def explain(self, text: str, values: Values) -> str:
        """Run a query, and say what it read."""
        rows = await self.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {text}", values)
        return "\n".join(row[0] for row in rows)


def literal(moment: datetime) -> str:
    """An instant of ours inside a text."""
    return f"'{moment.isoformat()}'::timestamptz"
