"""Lists and searches: the search language, filters, pages, cursors, and groups of dead letters.

The search language of every front: `status:dead queue:mail handler:app.mail.* payload.user.id:42 after:-2h -tag:test`.
A term names a field, so that the store can answer every search: `field:value`, with `*` for any text, commas for
alternatives, `>` and `<` for numbers and durations, quotes around text with blanks, and a minus for what must not hold.
A bare word is searched in names and ids. All terms must hold.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import orjson

from timeball.domain.execution import ExecutionState, Origin, parse_states
from timeball.domain.job import JobStatus
from timeball.domain.scheduling.civil_time import parse_instant
from timeball.domain.scheduling.schedule import ScheduleKind
from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.domain.values.wording import parse_duration
from timeball.errors import InvalidInput, quote_text

MAX_QUERY_LENGTH = 1_000
MAX_TERMS = 30
_TERM = re.compile(r'(-?)((?:"[^"]*"|[^\s"])+)')
_FIELD = re.compile(r"([A-Za-z_]+(?:\.[^:\"\s]+)?):(.*)", re.DOTALL)

SearchValue: TypeAlias = str | int | timedelta | datetime


class SearchFieldKind(StrEnum):
    """The type of a field's values."""

    TEXT = "text"
    STATE = "state"
    CHOICE = "choice"
    NUMBER = "number"
    SPAN = "span"
    MOMENT = "moment"
    JSON = "json"


class SearchRelation(StrEnum):
    """How a field is compared with a value."""

    IS = "is"
    LIKE = "like"
    # A part of the text, without wildcards and ignoring case; for parameters. The search language has LIKE instead.
    CONTAINS = "contains"
    MORE = "more"
    LESS = "less"


@dataclass(frozen=True, slots=True)
class SearchTerm:
    """One condition: the field compares so with one of the values. An instant may be a duration from now."""

    field: str
    relation: SearchRelation
    values: tuple[SearchValue, ...]
    path: tuple[str, ...] = ()
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class SearchField:
    """A field of the search language. *column* is the column of a job that it searches, if it searches nothing else."""

    kind: SearchFieldKind
    choices: tuple[str, ...] = ()
    column: str | None = None


_SHARED = {
    "queue": SearchField(SearchFieldKind.TEXT, column="queue"),
    "handler": SearchField(SearchFieldKind.TEXT, column="handler"),
    "tag": SearchField(SearchFieldKind.TEXT),
    "created_by": SearchField(SearchFieldKind.TEXT),
    "priority": SearchField(SearchFieldKind.NUMBER, column="priority"),
    "payload": SearchField(SearchFieldKind.JSON),
    "meta": SearchField(SearchFieldKind.JSON),
    "after": SearchField(SearchFieldKind.MOMENT),
    "before": SearchField(SearchFieldKind.MOMENT),
}
EXECUTION_FIELDS: Mapping[str, SearchField] = _SHARED | {
    "status": SearchField(SearchFieldKind.STATE),
    "job": SearchField(SearchFieldKind.TEXT),
    "group": SearchField(SearchFieldKind.TEXT),
    "worker": SearchField(SearchFieldKind.TEXT),
    "error": SearchField(SearchFieldKind.TEXT),
    "fingerprint": SearchField(SearchFieldKind.TEXT),
    "settled": SearchField(SearchFieldKind.CHOICE, ("yes", "no")),
    "origin": SearchField(SearchFieldKind.CHOICE, tuple(Origin)),
    "attempts": SearchField(SearchFieldKind.NUMBER),
    "late": SearchField(SearchFieldKind.SPAN),
    "waits": SearchField(SearchFieldKind.SPAN),
    "took": SearchField(SearchFieldKind.SPAN),
}
JOB_FIELDS: Mapping[str, SearchField] = _SHARED | {
    "status": SearchField(SearchFieldKind.STATE, tuple(JobStatus)),
    "name": SearchField(SearchFieldKind.TEXT, column="name"),
    "owner": SearchField(SearchFieldKind.TEXT, column="owner"),
    "kind": SearchField(SearchFieldKind.CHOICE, tuple(ScheduleKind), column="kind"),
    "zone": SearchField(SearchFieldKind.TEXT, column="timezone"),
    "due_after": SearchField(SearchFieldKind.MOMENT),
    "due_before": SearchField(SearchFieldKind.MOMENT),
}


def where(
    relation: SearchRelation = SearchRelation.IS, **values: SearchValue | Sequence[SearchValue] | None
) -> tuple[SearchTerm, ...]:
    """Terms from plain values, one for each field: `where(queue="mail", status=("dead", "running"))`.

    None and an empty list add no term. Several values are alternatives.
    """
    terms = []
    for field, value in values.items():
        several = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        alternatives = tuple(alternative for alternative in several if alternative is not None)
        if alternatives:
            terms.append(SearchTerm(field, relation, alternatives))
    return tuple(terms)


def parse_query(text: str, fields: Mapping[str, SearchField]) -> tuple[SearchTerm, ...]:
    """The terms of a search; InvalidInput names the term that does not fit and what is expected."""
    if len(text) > MAX_QUERY_LENGTH or "\0" in text:
        raise InvalidInput(f"the search is longer than {MAX_QUERY_LENGTH} characters, or contains a NUL", field="q")
    if text.count('"') % 2:
        raise InvalidInput(
            f"the search {quote_text(text)!r} has a quote that does not end", field="q", hint='"two words"'
        )
    terms = tuple(_term(word, fields, is_negated=bool(minus)) for minus, word in _TERM.findall(text))
    if len(terms) > MAX_TERMS:
        raise InvalidInput(f"the search has {len(terms)} terms, expected at most {MAX_TERMS}", field="q")
    return terms


def _term(word: str, fields: Mapping[str, SearchField], *, is_negated: bool) -> SearchTerm:
    match = None if word.startswith('"') else _FIELD.fullmatch(word)
    if match is None:
        return SearchTerm("", SearchRelation.LIKE, (word.replace('"', ""),), is_negated=is_negated)
    name, *path = match[1].split(".")
    field = fields.get(name)
    if field is None or bool(path) != (field.kind is SearchFieldKind.JSON):
        raise _unknown(match[1], fields)
    return _valued(name, tuple(path), field, match[2], is_negated)


def _valued(name: str, path: tuple[str, ...], field: SearchField, given: str, is_negated: bool) -> SearchTerm:
    text, relation = given, SearchRelation.IS
    if given[:1] in (">", "<") and field.kind in (SearchFieldKind.NUMBER, SearchFieldKind.SPAN):
        text, relation = given[1:], SearchRelation.MORE if given[0] == ">" else SearchRelation.LESS
    elif field.kind is SearchFieldKind.SPAN:
        relation = SearchRelation.MORE
    words = [text.replace('"', "")] if '"' in text else text.split(",")
    if not all(words):
        raise InvalidInput(f"{name}: is followed by nothing", field="q", hint=f"write {name}:value, without a blank")
    if (
        field.kind in (SearchFieldKind.TEXT, SearchFieldKind.JSON)
        and any("*" in word for word in words)
        and '"' not in text
    ):
        relation = SearchRelation.LIKE
    values = tuple(value for word in words for value in _values(name, field, word))
    return SearchTerm(name, relation, values, path, is_negated)


def _values(name: str, field: SearchField, word: str) -> tuple[SearchValue, ...]:
    match field.kind:
        case SearchFieldKind.TEXT | SearchFieldKind.JSON:
            return (word,)
        case SearchFieldKind.STATE:
            return (word,) if word in field.choices else parse_states([word], "status")
        case SearchFieldKind.CHOICE:
            return (_chosen(name, field, word),)
        case SearchFieldKind.NUMBER:
            return (_number(name, word),)
        case SearchFieldKind.SPAN:
            return (parse_duration(word, name),)
        case SearchFieldKind.MOMENT:
            return (_moment(name, word),)


def _chosen(name: str, field: SearchField, word: str) -> str:
    if word not in field.choices:
        raise unexpected_value(name, word, list_choices(field.choices), field="q")
    return word


def _number(name: str, word: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", word, re.ASCII):
        raise unexpected_value(name, word, "a whole number, or one after > or <", field="q")
    return int(word)


def _moment(name: str, word: str) -> timedelta | datetime:
    """`-2h` and `+10m` count from now; any other word is an instant, in UTC unless it has an offset."""
    if word[0] in "+-" and not word[1:5].isdecimal():
        span = parse_duration(word[1:], name)
        return -span if word[0] == "-" else span
    return parse_instant(word, "UTC", name)


def _unknown(name: str, fields: Mapping[str, SearchField]) -> InvalidInput:
    import difflib  # slow to import, and needed only for misspelt names

    names = [f"{key}.key" if field.kind is SearchFieldKind.JSON else key for key, field in fields.items()]
    near = difflib.get_close_matches(name, list(fields), 1)
    hint = f"did you mean {near[0]}:?" if near else 'put quotes around text that contains a colon: "a:b"'
    return InvalidInput(f"{quote_text(name)}: cannot be searched; known are {', '.join(names)}", field="q", hint=hint)


# Executions that are dead and not yet retried or discarded.
DEAD_LETTERS = where(status=ExecutionState.DEAD, settled="no")
# The word for errors without a fingerprint.
NO_FINGERPRINT = "none"


class DeadLetterGrouping(StrEnum):
    """What dead letters are grouped by; an error is identified by its fingerprint."""

    ERROR = "error"
    HANDLER = "handler"
    QUEUE = "queue"

    @property
    def field(self) -> str:
        """The search field that selects the executions of one group."""
        return "fingerprint" if self is DeadLetterGrouping.ERROR else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead executions with the same error, handler or queue; error and frame are those of the latest.

    *deaths* counts them in equal parts of the time from *since* to *until*, which is the same for all groups of a list.
    """

    by: DeadLetterGrouping
    key: str
    executions: int
    error_type: str | None
    latest_error: str | None
    latest_id: ExecutionId
    top_frame: str | None
    handlers: Sequence[str]
    queues: Sequence[str]
    first_at: datetime
    last_at: datetime
    deaths: Sequence[int]
    since: datetime
    until: datetime


MAX_PAGE_SIZE = 200
# Totals are exact up to this number, and pages can be numbered up to it.
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


class RecentRuns(NamedTuple):
    """States and durations of executions; an execution that never started has a duration of zero."""

    states: Sequence[str]
    milliseconds: Sequence[float]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs: those for which all terms hold.

    `status` is the job's own (active, paused, finished) or the state of its latest execution; `after` and `before` are about
    its creation, `due_after` and `due_before` about its next occurrence.
    """

    terms: tuple[SearchTerm, ...] = ()
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionFilter:
    """Which executions: those for which all terms hold, of one job if *job_id* is given.

    `after` and `before` are about the time in the id: the scheduled instant of an occurrence, else the creation.
    """

    terms: tuple[SearchTerm, ...] = ()
    job_id: JobId | None = None

    def possible_states(self) -> tuple[ExecutionState, ...]:
        """The states that the terms leave; none if they contradict each other."""
        left = set(ExecutionState)
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
    # A caller that needs only a rough total need not wait for a count of ten thousand.
    exact_up_to: int = EXACT_UP_TO

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_PAGE_SIZE:
            raise unexpected_value("limit", self.limit, f"1 to {MAX_PAGE_SIZE}")
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
    """The number of items: exact up to 10,000 or the requested limit, then an estimate."""

    count: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ResultPage(Generic[Item]):
    """A page of a list, and the cursor of the rest."""

    items: Sequence[Item]
    next_cursor: str | None = None
    total: Total | None = None
    # Set when a search ran out of time: everything back to this instant was searched (lists by name have none), and
    # this request looked at this many rows.
    searched_to: datetime | None = None
    looked_at: int | None = None


def write_cursor(order: str, *position: object) -> str:
    """A cursor: opaque to callers, and valid only for the order that it was made for."""
    return urlsafe_b64encode(orjson.dumps([order, *position], default=str)).decode().rstrip("=")


def read_cursor(cursor: str, order: str, length: int) -> list[str | None]:
    """The position behind a cursor; InvalidInput if it belongs to another list or order."""
    try:
        made_for, *position = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        is_ours = made_for == order and len(position) == length
        is_text = all(value is None or (isinstance(value, str) and "\0" not in value) for value in position)
        if is_ours and is_text:
            UUID(position[-1])
            return list(position)
    except (ValueError, TypeError, AttributeError):
        pass
    raise foreign_cursor()


def foreign_cursor() -> InvalidInput:
    """The error for a cursor that another list gave, or none."""
    return InvalidInput(
        "cursor does not belong to this list", field="cursor", hint="use next_cursor as it was given, or none"
    )
