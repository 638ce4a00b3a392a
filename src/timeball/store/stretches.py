"""Searching for what no index leads to, in bounded work.

A list is walked in its own order, a stretch of so many rows at a time, and each stretch is one query that reads no more than
those rows. A page that is not full when its time is up says how far the search has come, and its cursor goes on from there.
So whatever is asked for, however rare it is, a request ends soon, and who follows the cursors sees everything.
"""

from __future__ import annotations

from datetime import datetime
from typing import Generic, Protocol, TypeVar

from timeball.domain.search import Page, PageRequest, Total
from timeball.store.composing import Reader

# How many rows are looked at in the first stretch of a search, which is all that most need, and in each further one.
FIRST_STRETCH = 1_000
STRETCH = 10_000
# For how long stretches are added for one page.
SEARCH_SECONDS = 2.0

Item = TypeVar("Item")
Place = TypeVar("Place")


class Search(Protocol[Item, Place]):
    """A list that can be walked in stretches; a place is where one ends and the next begins."""

    async def end(self, start: Place | None, length: int) -> Place | None:
        """Where a stretch of so many rows that begins at *start* ends; None is at the end of the list."""
        ...

    async def items(self, start: Place | None, end: Place | None, skip: int, most: int) -> list[Item]:
        """What matches within a stretch, in order."""
        ...

    async def count(self, start: Place | None, end: Place | None, most: int) -> int:
        """How many match within a stretch, counted up to *most*."""
        ...

    async def estimate(self) -> int:
        """How many match in all, as the planner believes."""
        ...

    async def guess(self, exact_up_to: int) -> int | None:
        """How many match, told by a few of them; None if there are not too many to be judged one by one."""
        ...

    def start(self, cursor: str) -> Place:
        """The place that a cursor means."""
        ...

    def cursor_after(self, item: Item) -> str:
        """The cursor of what follows an item."""
        ...

    def cursor_at(self, place: Place) -> str:
        """The cursor of what follows a place."""
        ...

    def moment_of(self, place: Place) -> datetime | None:
        """The instant up to which a search that has come so far has looked; None if the list is in another order."""
        ...


class Walk(Generic[Item, Place]):
    """One request to a list: a page, and a total if it was asked for, both within one span of time."""

    def __init__(self, reader: Reader, search: Search[Item, Place], request: PageRequest) -> None:
        self._search = search
        self._request = request
        self._clock = reader.clock
        self._deadline = self._clock.monotonic() + SEARCH_SECONDS

    async def page(self) -> Page[Item]:
        """What was asked for."""
        request, search = self._request, self._search
        begun = None if request.cursor is None else search.start(request.cursor)
        found, end, looked_at = await self._gather(begun)
        items = found[: request.limit]
        if len(found) > request.limit:
            return Page(items, search.cursor_after(items[-1]), await self._total())
        if end is None:
            is_all = begun is None and request.offset == 0 and request.with_total
            return Page(items, None, Total(len(items), is_exact=True) if is_all else await self._total())
        # The time is up: a total that cost as much again would be no better.
        total = Total(request.offset + len(items), is_exact=False) if request.with_total else None
        return Page(items, search.cursor_at(end), total, search.moment_of(end), looked_at)

    async def _gather(self, begun: Place | None) -> tuple[list[Item], Place | None, int]:
        """One item more than the page has, if there are so many; where the search stopped; and how many rows it took."""
        found: list[Item] = []
        start, skip, looked_at = begun, self._request.offset, 0
        while True:
            length = STRETCH if looked_at else FIRST_STRETCH
            end = await self._search.end(start, length)
            looked_at += length
            passed = await self._passed(start, end, skip)
            if passed is None:
                found += await self._search.items(start, end, skip, self._request.limit + 1 - len(found))
            skip = 0 if passed is None else skip - passed
            if end is None or len(found) > self._request.limit or self._is_over():
                return found, end, looked_at
            start = end

    async def _passed(self, start: Place | None, end: Place | None, skip: int) -> int | None:
        """How many of those that are to be skipped a stretch has, if it has no others."""
        if not skip or end is None:
            return None
        passed = await self._search.count(start, end, skip + 1)
        return None if passed > skip else passed

    async def _total(self) -> Total | None:
        """How many match: exact as far as was asked for, then an estimate; or as many as were found in time."""
        if not self._request.with_total:
            return None
        most = self._request.exact_up_to
        guessed = await self._search.guess(most)
        if guessed is not None:
            return Total(guessed, is_exact=False)
        counted, start, length = 0, None, FIRST_STRETCH
        while True:
            end = await self._search.end(start, length)
            length = STRETCH
            counted += await self._search.count(start, end, most + 1 - counted)
            if counted > most:
                return Total(max(await self._search.estimate(), counted), is_exact=False)
            if end is None or self._is_over():
                return Total(counted, is_exact=end is None)
            start = end

    def _is_over(self) -> bool:
        return bool(self._clock.monotonic() >= self._deadline)
