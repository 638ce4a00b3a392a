"""Composed queries, and scans for what no index leads to: chunk by chunk, within a time limit."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import orjson

from timeball.domain.search import PageRequest, ResultPage, Total

if TYPE_CHECKING:
    from timeball.store.db.database import Database

# A query that takes longer is cancelled. A scan goes in chunks, each of which ends long before.
_TIMEOUT_SECONDS = 10


class QueryParameters:
    """The parameters of a composed query, in the order they were added."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def add(self, value: Any, kind: str) -> str:
        """Add a value, and return its placeholder."""
        self.given.append(value)
        return f"${len(self.given)}::{kind}"


class QueryReader:
    """Runs composed queries. Only text of this package is composed; every value from outside is a parameter."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def clock(self) -> Any:
        """The clock of scans."""
        return self._database.env.clock

    async def fetch(self, text: str, values: QueryParameters) -> list[Any]:
        """The rows of a query."""
        async with self._database.connection() as connection:
            rows: list[Any] = await connection.fetch(text, *values.given, timeout=_TIMEOUT_SECONDS)
            return rows

    async def count(self, text: str, values: QueryParameters, limit: int) -> int:
        """The number of rows of a query, counted up to *limit*."""
        counted = f"SELECT count(*) FROM (SELECT 1 FROM ({text}) AS whole LIMIT {int(limit)}) AS few"
        return int((await self.fetch(counted, values))[0][0])

    async def estimate(self, text: str, values: QueryParameters) -> int:
        """The number of rows of a query, as the planner estimates it: nothing is read."""
        plan = await self.fetch(f"EXPLAIN (FORMAT JSON) {text}", values)
        return int(orjson.loads(plan[0][0])[0]["Plan"]["Plan Rows"])

    async def explain(self, text: str, values: QueryParameters) -> str:
        """Run a query, and return its plan with what it read."""
        rows = await self.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {text}", values)
        return "\n".join(row[0] for row in rows)


def literal(moment: datetime) -> str:
    """An instant as part of the text."""
    return f"'{moment.isoformat()}'::timestamptz"


# A list is scanned in its own order, one chunk of rows at a time. Each chunk is one query that reads no more than its rows. A page that is
# not full when its time is up says how far the scan has come, and its cursor continues from there. So a request ends soon, however rare
# the matches are, and a client that follows the cursors sees all of them.

# The number of rows of the first chunk, which is enough for most requests, and of each further one.
FIRST_CHUNK = 1_000
CHUNK = 10_000


# For how long further chunks are read for one page.
SCAN_SECONDS = 2.0

Item = TypeVar("Item")
Position = TypeVar("Position")


class ScannedList(Protocol[Item, Position]):
    """A list that can be scanned in chunks; a position is where one chunk ends and the next begins."""

    async def end(self, start: Position | None, length: int) -> Position | None:
        """The end of a chunk of *length* rows that begins at *start*; None is the end of the list."""
        ...

    async def items(self, start: Position | None, end: Position | None, skip: int, limit: int) -> list[Item]:
        """The matches of a chunk, in order."""
        ...

    async def count(self, start: Position | None, end: Position | None, limit: int) -> int:
        """The number of matches in a chunk, counted up to *limit*."""
        ...

    async def estimate(self) -> int:
        """The number of all matches, as the planner estimates it."""
        ...

    async def guess(self, exact_up_to: int) -> int | None:
        """The number of all matches, estimated from a few candidates; None if there are few enough to check each."""
        ...

    def start(self, cursor: str) -> Position:
        """The position of a cursor."""
        ...

    def cursor_after(self, item: Item) -> str:
        """The cursor after an item."""
        ...

    def cursor_at(self, place: Position) -> str:
        """The cursor after a position."""
        ...

    def moment_of(self, place: Position) -> datetime | None:
        """The instant up to which a scan has come at a position; None if the list is not in the order of time."""
        ...


class BoundedScan(Generic[Item, Position]):
    """One request to a list: a page, and a total if it is requested, both within one time limit."""

    def __init__(self, reader: QueryReader, search: ScannedList[Item, Position], request: PageRequest) -> None:
        self._search = search
        self._request = request
        self._clock = reader.clock
        self._deadline = self._clock.monotonic() + SCAN_SECONDS

    async def page(self) -> ResultPage[Item]:
        """The page."""
        request, search = self._request, self._search
        begun = None if request.cursor is None else search.start(request.cursor)
        matches, end, looked_at = await self._gather(begun)
        items = matches[: request.limit]
        if len(matches) > request.limit:
            return ResultPage(items, search.cursor_after(items[-1]), await self._total())
        if end is None:
            is_all = begun is None and request.offset == 0 and request.with_total
            return ResultPage(items, None, Total(len(items), is_exact=True) if is_all else await self._total())
        # The time is up, and a total would cost as much again.
        total = Total(request.offset + len(items), is_exact=False) if request.with_total else None
        return ResultPage(items, search.cursor_at(end), total, search.moment_of(end), looked_at)

    async def _gather(self, begun: Position | None) -> tuple[list[Item], Position | None, int]:
        """The items of the page and one more, if there are so many; the position where the scan stopped; and the number of rows it read."""
        matches: list[Item] = []
        start, skip, looked_at = begun, self._request.offset, 0
        while True:
            length = CHUNK if looked_at else FIRST_CHUNK
            end = await self._search.end(start, length)
            looked_at += length
            passed = await self._passed(start, end, skip)
            if passed is None:
                matches += await self._search.items(start, end, skip, self._request.limit + 1 - len(matches))
            skip = 0 if passed is None else skip - passed
            if end is None or len(matches) > self._request.limit or self._is_over():
                return matches, end, looked_at
            start = end

    async def _passed(self, start: Position | None, end: Position | None, skip: int) -> int | None:
        """The number of items of a chunk that are skipped, if all of them are."""
        if not skip or end is None:
            return None
        passed = await self._search.count(start, end, skip + 1)
        return None if passed > skip else passed

    async def _total(self) -> Total | None:
        """The number of matches: exact up to the requested number, beyond it an estimate; or the number that was found in time."""
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
