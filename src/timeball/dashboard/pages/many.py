"""One action on many: those that were selected, or all that match a search, counted and confirmed before anything is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import counted
from timeball.domain.search import LARGEST_PAGE, Page, PageRequest

MOST = 500


@dataclass(frozen=True, slots=True)
class Many:
    """What a bulk form asks for."""

    action: str
    ids: list[str]
    is_matching: bool
    q: str
    status: str
    reason: str | None
    # Up to when: a list of what has come so far means no more than that, however long it takes to agree.
    until: str
    # How many the visitor was shown and agreed to; None if they have not been asked yet.
    expected: int | None

    @classmethod
    def of(cls, visit: Visit) -> Many:
        """Read it from the form of a request."""
        expected = visit.form.get("expected", "")
        return cls(
            action=visit.form.get("action", ""),
            ids=visit.form_list("ids")[:MOST],
            is_matching=visit.form.get("matching") == "yes",
            q=visit.form.get("q", ""),
            status=visit.form.get("status", ""),
            reason=visit.form.get("reason") or None,
            until=visit.form.get("until", ""),
            expected=int(expected) if expected.isascii() and expected.isdecimal() else None,
        )


@dataclass(frozen=True, slots=True)
class Matching:
    """The first of all that match."""

    items: Sequence[Any]
    has_more: bool


async def ids_of_matching(read: Callable[[PageRequest], Awaitable[Page[Any]]]) -> Matching:
    """Read all that match, up to 500."""
    items: list[Any] = []
    cursor: str | None = None
    while len(items) < MOST:
        page = await read(PageRequest(limit=min(LARGEST_PAGE, MOST - len(items)), cursor=cursor))
        items += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    return Matching(items, cursor is not None)


def confirm_many(
    visit: Visit, wish: Many, count: int, *, noun: str, path: str, has_more: bool = False, until: str = ""
) -> Response:
    """Say how many it would be, and ask."""
    return visit.page(
        "confirm_many.html",
        wish=wish,
        count=count,
        has_more=has_more,
        noun=noun,
        path=path,
        back=visit.back("/"),
        until=until,
    )


def sum_up(done: int, noun: str, verb: str, failed: Sequence[str]) -> str:
    """What came of it, in a sentence."""
    text = f"{counted(done, noun)} {verb}."
    if failed:
        text += f" {len(failed)} could not be: {failed[0]}"
    return text
