"""What lists can be asked for: filters, pages and cursors."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import UUID

import orjson

from timeball.domain.execution import ExecutionState, Origin
from timeball.domain.ids import JobId
from timeball.domain.job import JobStatus
from timeball.domain.schedule import ScheduleKind
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.domain.query import Term

LARGEST_PAGE = 200
# How far totals are exact, and how deep pages can be numbered.
EXACT_UP_TO = 10_000

Item = TypeVar("Item")


class JobOrder(StrEnum):
    """The orders in which jobs can be listed; a minus means the largest first."""

    NEWEST = "-created_at"
    OLDEST = "created_at"
    NAME = "name"
    NAME_BACKWARDS = "-name"

    @property
    def is_by_name(self) -> bool:
        """Whether only jobs that have a name are listed."""
        return self in (JobOrder.NAME, JobOrder.NAME_BACKWARDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs; what is None does not matter."""

    status: JobStatus | None = None
    # The states in which the latest execution may be.
    states: tuple[ExecutionState, ...] = ()
    kind: ScheduleKind | None = None
    handler: str | None = None
    queue: str | None = None
    tag: str | None = None
    search: str | None = None
    is_named: bool = False
    payload: str | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None
    due_from: datetime | None = None
    due_until: datetime | None = None
    # What a search in words asks for besides.
    terms: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFilter:
    """Which executions. Times are those that their ids bear: the scheduled instant of an occurrence, else the creation."""

    states: tuple[ExecutionState, ...] = ()
    job_id: JobId | None = None
    handler: str | None = None
    queue: str | None = None
    origin: Origin | None = None
    # What killed the dead; `none` means those of which no fingerprint is known.
    fingerprint: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    # Only the dead that nobody has retried from the dead-letter list, or discarded.
    is_unsettled: bool = False
    # What a search in words asks for besides.
    terms: tuple[Term, ...] = ()

    def possible_states(self) -> tuple[ExecutionState, ...]:
        """The states that the filter and the terms of its search leave; none if they contradict each other."""
        left = set(self.states or ExecutionState)
        for term in self.terms:
            if term.field == "status":
                left = left - set(term.values) if term.is_negated else left & set(term.values)
        return tuple(state for state in ExecutionState if state in left)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A page by cursor, or by number."""

    limit: int = 50
    cursor: str | None = None
    page: int | None = None
    with_total: bool = False
    # Who only wants to know about how many there are need not wait until ten thousand are counted.
    exact_up_to: int = EXACT_UP_TO

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= LARGEST_PAGE:
            raise InvalidInput(f"limit is {self.limit}, expected 1 to {LARGEST_PAGE}", field="limit")
        if self.page is None:
            return
        if self.cursor is not None:
            raise InvalidInput("page and cursor are both given, expected one of them", field="page")
        if self.page < 1 or self.page * self.limit > EXACT_UP_TO:
            raise InvalidInput(
                f"page is {self.page}, expected 1 to {EXACT_UP_TO // self.limit}",
                field="page",
                hint="follow next_cursor to go further",
            )

    @property
    def offset(self) -> int:
        return 0 if self.page is None else (self.page - 1) * self.limit


@dataclass(frozen=True, slots=True)
class Total:
    """How many there are: exact up to 10,000, or as far as was asked for, then an estimate."""

    count: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some of a list, and where the rest begins."""

    items: Sequence[Item]
    next_cursor: str | None = None
    total: Total | None = None
    # Set when a search was broken off: everything back to this instant has been looked at (lists by name have none),
    # and this request has looked at so many rows.
    searched_to: datetime | None = None
    looked_at: int | None = None


def write_cursor(order: str, *position: object) -> str:
    """A cursor: opaque to callers, and only good for the order it was made in."""
    return urlsafe_b64encode(orjson.dumps([order, *position], default=str)).decode().rstrip("=")


def read_cursor(cursor: str, order: str, length: int) -> list[str | None]:
    """The position behind a cursor; InvalidInput if it was not made by us, or for another order."""
    try:
        made_for, *position = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        is_ours = made_for == order and len(position) == length
        is_text = all(value is None or (isinstance(value, str) and "\0" not in value) for value in position)
        if is_ours and is_text:
            UUID(position[-1])
            return list(position)
    except (ValueError, TypeError, AttributeError):
        pass
    raise InvalidInput(
        f"cursor {cursor[:60]!r} is none of this list", field="cursor", hint="use next_cursor as it was given, or none"
    )
