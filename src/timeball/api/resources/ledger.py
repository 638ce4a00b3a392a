"""The ledger of a job: what became of its occurrences, and which are expected."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.models.ledger import LedgerOut
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, page_example, route_options
from timeball.api.params import ApiContext, Context, JobRef, optional_instant, split_commas
from timeball.api.responses import Document, json_response, page_document
from timeball.application.queries.ledger import LedgerPage, LedgerQuery
from timeball.domain.freeze import Freeze, format_freeze_id
from timeball.domain.job import Job
from timeball.domain.policies import SkipReason, Verdict
from timeball.domain.scheduling.verdicts import LedgerLine
from timeball.domain.search import MAX_PAGE_SIZE, PageRequest
from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.domain.values.ids import format_execution_id

router = APIRouter(prefix="/jobs", tags=["jobs"])

_RANGE_EXAMPLE = {
    "scheduled_for": None,
    "from": "2026-11-16T05:59:05Z",
    "until": "2026-11-16T05:59:25Z",
    "count": 5,
    "verdict": "skipped",
    "reason": "misfire",
    "freeze": None,
    "origin": "schedule",
    "filled": 0,
    "execution_id": None,
    "state": None,
    "version": 1,
    "tzdata": "2025b",
}
_SINGLE_EXAMPLE = _RANGE_EXAMPLE | {
    "scheduled_for": INSTANT_EXAMPLE,
    "from": None,
    "until": None,
    "count": 1,
    "verdict": "ran",
    "reason": None,
    "execution_id": EXECUTION_ID,
    "state": "succeeded",
}
_EXAMPLE: dict[str, Any] = page_example(_RANGE_EXAMPLE) | {
    "data": [_RANGE_EXAMPLE, _SINGLE_EXAMPLE],
    "from": "2026-11-09T06:00:00Z",
    "until": "2026-11-17T06:00:00Z",
    "order": "asc",
    "history_from": None,
}

Word = TypeVar("Word", bound=StrEnum)


@router.get("/{job}/occurrences", response_model=LedgerOut, **route_options(Role.VIEWER, _EXAMPLE, fails=[404]))
async def list_occurrences(
    job: JobRef,
    context: Context,
    since: Annotated[
        str | None, Query(alias="from", max_length=64, description="The first instant; by default seven days ago.")
    ] = None,
    until: Annotated[
        str | None, Query(max_length=64, description="The last instant; by default 24 hours from now.")
    ] = None,
    verdict: Annotated[
        list[str] | None,
        Query(max_length=12, description=f"Only these: {list_choices(Verdict)}. Repeat it, or separate by commas."),
    ] = None,
    reason: Annotated[
        list[str] | None,
        Query(max_length=24, description=f"Only skipped for these: {list_choices(SkipReason)}."),
    ] = None,
    order: Annotated[Literal["asc", "desc"], Query(description="`desc`: the latest first.")] = "asc",
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="The size of a page.")] = 50,
    cursor: Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the previous page.")] = None,
) -> Response:
    """What became of every occurrence of a job in a span of time, and which are expected: the ledger.

    Consecutive occurrences that were skipped for one reason are one entry, a range, which is shown whole if it crosses the edge of the
    span. What a calendar leaves out (`calendar`), or a clock change with `on_gap=skip` (`clock_gap`), has its entries, too, though no
    record. A time without an offset is on the clock of the job's zone. A page that is not full but has a `next_cursor` has looked at as
    many records as one page may: the cursor goes on from there.
    """
    target = await context.queries.jobs.find(job)
    query = ledger_query(
        context,
        target,
        since=since,
        until=until,
        verdicts=read_words(verdict, Verdict, "verdict"),
        reasons=read_words(reason, SkipReason, "reason"),
        newest_first=order == "desc",
    )
    request = PageRequest(limit=limit, cursor=cursor)
    return json_response(ledger_document(await context.queries.ledger.page(target, query, request), request))


def ledger_query(
    context: ApiContext,
    job: Job,
    *,
    since: str | None = None,
    until: str | None = None,
    verdicts: frozenset[Verdict] = frozenset(),
    reasons: frozenset[SkipReason] = frozenset(),
    newest_first: bool = False,
) -> LedgerQuery:
    """The query of these parameters; the default span is the last seven days and the next 24 hours."""
    first, last = context.queries.ledger.default_span()
    return LedgerQuery(
        since=optional_instant(since, "from", job.timezone) or first,
        until=optional_instant(until, "until", job.timezone) or last,
        verdicts=verdicts,
        reasons=frozenset(reasons),
        newest_first=newest_first,
    )


def read_words(given: list[str] | None, words: type[Word], name: str) -> frozenset[Word]:
    """The words of an enum in a parameter; InvalidInput names one that it does not have."""
    found = split_commas(given)
    unknown = next((word for word in found if word not in list(words)), None)
    if unknown is not None:
        raise unexpected_value(name, unknown, list_choices(words))
    return frozenset(words(word) for word in found)


def ledger_document(ledger: LedgerPage, request: PageRequest) -> Document:
    """A page of the ledger as the API shows it."""
    return page_document(ledger.page, request, line_document) | {
        "from": ledger.query.since,
        "until": ledger.query.until,
        "order": "desc" if ledger.query.newest_first else "asc",
        "history_from": ledger.history_from,
    }


def _freeze_document(freeze: Freeze) -> Document:
    return {
        "id": format_freeze_id(freeze.id),
        "what": freeze.what,
        "until": freeze.until_at,
        "actor": freeze.actor,
        "reason": freeze.reason,
    }


def line_document(line: LedgerLine) -> Document:
    """A line of the ledger as the API shows it."""
    return {
        "scheduled_for": None if line.is_range else line.first,
        "from": line.first if line.is_range else None,
        "until": line.last if line.is_range else None,
        "count": line.count,
        "verdict": line.verdict,
        "reason": line.reason,
        "freeze": line.freeze and _freeze_document(line.freeze),
        "origin": line.origin,
        "filled": line.filled,
        "execution_id": None if line.execution_id is None else format_execution_id(line.execution_id),
        "state": line.state,
        "version": line.version,
        "tzdata": line.tzdata,
    }
