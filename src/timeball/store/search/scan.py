"""Composed queries, and scans for what no index leads to: chunk by chunk, within a time limit."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import orjson

from timeball.domain.search import PageRequest, ResultPage, Total

if TYPE_CHECKING:
    from timeball.store.db.database import Database

# Queries that are put together: only texts written by us are glued; every value that comes from outside is a parameter.

# A list that takes longer is given up. Searches go in stretches, which end long before.
_TIMEOUT_SECONDS = 10


class QueryParameters:
    """The parameters of a composed query, in the order they were added."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def add(self, value: Any, kind: str) -> str:
        """Give a value, get its place."""
        self.given.append(value)
        return f"${len(self.given)}::{kind}"


class QueryReader:
    """Runs composed queries."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def clock(self) -> Any:
        """The clock that searches go by."""
        return self._database.env.clock

    async def fetch(self, text: str, values: QueryParameters) -> list[Any]:
        """The rows of a query."""
        async with self._database.connection() as connection:
            rows: list[Any] = await connection.fetch(text, *values.given, timeout=_TIMEOUT_SECONDS)
            return rows

    async def count(self, text: str, values: QueryParameters, limit: int) -> int:
        """How many rows a query has, counted up to *limit*."""
        counted = f"SELECT count(*) FROM (SELECT 1 FROM ({text}) AS whole LIMIT {int(limit)}) AS few"
        return int((await self.fetch(counted, values))[0][0])

    async def estimate(self, text: str, values: QueryParameters) -> int:
        """How many rows a query has, as the planner believes: nothing is read."""
        plan = await self.fetch(f"EXPLAIN (FORMAT JSON) {text}", values)
        return int(orjson.loads(plan[0][0])[0]["Plan"]["Plan Rows"])

    async def explain(self, text: str, values: QueryParameters) -> str:
        """Run a query, and say what it read."""
        rows = await self.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {text}", values)
        return "\n".join(row[0] for row in rows)


def literal(moment: datetime) -> str:
    """An instant of ours inside a text."""
    return f"'{moment.isoformat()}'::timestamptz"


# Searching for what no index leads to, in bounded work.
#
# A list is walked in its own order, a stretch of so many rows at a time, and each stretch is one query that reads no more than
# those rows. A page that is not full when its time is up says how far the search has come, and its cursor goes on from there.
# So whatever is asked for, however rare it is, a request ends soon, and who follows the cursors sees everything.

# How many rows are looked at in the first stretch of a search, which is all that most need, and in each further one.
FIRST_CHUNK = 1_000
CHUNK = 10_000


# For how long stretches are added for one page.
SCAN_SECONDS = 2.0

Item = TypeVar("Item")
Position = TypeVar("Position")


class ScannedList(Protocol[Item, Position]):
    """A list that can be walked in stretches; a place is where one ends and the next begins."""

    async def end(self, start: Position | None, length: int) -> Position | None:
        """Where a stretch of so many rows that begins at *start* ends; None is at the end of the list."""
        ...

    async def items(self, start: Position | None, end: Position | None, skip: int, limit: int) -> list[Item]:
        """What matches within a stretch, in order."""
        ...

    async def count(self, start: Position | None, end: Position | None, limit: int) -> int:
        """How many match within a stretch, counted up to *limit*."""
        ...

    async def estimate(self) -> int:
        """How many match in all, as the planner believes."""
        ...

    async def guess(self, exact_up_to: int) -> int | None:
        """How many match, told by a few of them; None if there are not too many to be judged one by one."""
        ...

    def start(self, cursor: str) -> Position:
        """The place that a cursor means."""
        ...

    def cursor_after(self, item: Item) -> str:
        """The cursor of what follows an item."""
        ...

    def cursor_at(self, place: Position) -> str:
        """The cursor of what follows a place."""
        ...

    def moment_of(self, place: Position) -> datetime | None:
        """The instant up to which a search that has come so far has looked; None if the list is in another order."""
        ...


class BoundedScan(Generic[Item, Position]):
    """One request to a list: a page, and a total if it was asked for, both within one span of time."""

    def __init__(self, reader: QueryReader, search: ScannedList[Item, Position], request: PageRequest) -> None:
        self._search = search
        self._request = request
        self._clock = reader.clock
        self._deadline = self._clock.monotonic() + SCAN_SECONDS

    async def page(self) -> ResultPage[Item]:
        """What was asked for."""
        request, search = self._request, self._search
        begun = None if request.cursor is None else search.start(request.cursor)
        found, end, looked_at = await self._gather(begun)
        items = found[: request.limit]
        if len(found) > request.limit:
            return ResultPage(items, search.cursor_after(items[-1]), await self._total())
        if end is None:
            is_all = begun is None and request.offset == 0 and request.with_total
            return ResultPage(items, None, Total(len(items), is_exact=True) if is_all else await self._total())
        # The time is up: a total that cost as much again would be no better.
        total = Total(request.offset + len(items), is_exact=False) if request.with_total else None
        return ResultPage(items, search.cursor_at(end), total, search.moment_of(end), looked_at)

    async def _gather(self, begun: Position | None) -> tuple[list[Item], Position | None, int]:
        """One item more than the page has, if there are so many; where the search stopped; and how many rows it took."""
        found: list[Item] = []
        start, skip, looked_at = begun, self._request.offset, 0
        while True:
            length = CHUNK if looked_at else FIRST_CHUNK
            end = await self._search.end(start, length)
            looked_at += length
            passed = await self._passed(start, end, skip)
            if passed is None:
                found += await self._search.items(start, end, skip, self._request.limit + 1 - len(found))
            skip = 0 if passed is None else skip - passed
            if end is None or len(found) > self._request.limit or self._is_over():
                return found, end, looked_at
            start = end

    async def _passed(self, start: Position | None, end: Position | None, skip: int) -> int | None:
        """How many of those that are to be skipped a stretch has, if it has no others."""
        if not skip or end is None:
            return None
        passed = await self._search.count(start, end, skip + 1)
        return None if passed > skip else passed

    async def _total(self) -> Total | None:
        """How many match: exact as far as was asked for, then an estimate; or as many as were found in time."""
        if not self._request.with_total:
            return None
        limit = self._request.exact_up_to
        guessed = await self._search.guess(limit)
        if guessed is not None:
            return Total(guessed, is_exact=False)
        counted, start, length = 0, None, FIRST_CHUNK
        while True:
            end = await self._search.end(start, length)
            length = CHUNK
            counted += await self._search.count(start, end, limit + 1 - counted)
            if counted > limit:
                return Total(max(await self._search.estimate(), counted), is_exact=False)
            if end is None or self._is_over():
                return Total(counted, is_exact=end is None)
            start = end

    def _is_over(self) -> bool:
        return bool(self._clock.monotonic() >= self._deadline)


MAX_CANDIDATES = 10_000
