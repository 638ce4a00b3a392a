"""Executions with their attempts, logs and dead letters; and bulk operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from timeball.domain.bulk_operation import Operation, OperationId, OperationItem
from timeball.domain.execution import Attempt, Execution, ExecutionState
from timeball.domain.follow_ups import NO_LINKS, ExecutionLinks
from timeball.domain.payload_references import (
    PayloadReference,
    ReferenceValues,
    has_references,
    references_in,
    resolve_references,
)
from timeball.domain.search import (
    DeadLetterGroup,
    DeadLetterGrouping,
    ExecutionFilter,
    PageRequest,
    ResultPage,
    read_cursor,
    write_cursor,
)
from timeball.domain.values.ids import ExecutionId, JobId, parse_id
from timeball.errors import InvalidInput, NotFound, quote_text

if TYPE_CHECKING:
    from timeball.store.diagnostics import DoctorStore
    from timeball.store.search.listing import ListingStore
    from timeball.store.store import Store
    from timeball.store.timeline import TimelineStore
    from timeball.store.types import LogRecord


@dataclass(frozen=True, slots=True)
class ResolvedPayload:
    """A payload with the values that its references have in an attempt: the last one, or the next of an execution that waits."""

    payload: str
    attempt: int
    references: Sequence[PayloadReference]


@dataclass(frozen=True, slots=True)
class ExecutionView:
    """An execution with its unsuccessful attempts, its payload, and the reason if it is asked to stop."""

    execution: Execution
    attempts: Sequence[Attempt]
    payload: str
    fingerprint: str | None
    stop: str | None
    resolved: ResolvedPayload | None = None
    links: ExecutionLinks = NO_LINKS


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines of a log. The cursor continues after the last line, also while more lines are being written."""

    lines: Sequence[LogRecord]
    next_cursor: str | None
    has_more: bool


class ExecutionQueries:
    """Reads executions."""

    def __init__(self, store: Store, listing: ListingStore, diagnostics: DoctorStore, timelines: TimelineStore) -> None:
        self._store = store
        self._listing = listing
        self._diagnostics = diagnostics
        self._timelines = timelines

    async def find(self, reference: str) -> Execution:
        """An execution by its id; NotFound if there is none."""
        try:
            execution_id = ExecutionId(parse_id("exe", reference))
        except InvalidInput:
            raise NotFound("execution", quote_text(reference)) from None
        execution = await self._store.history.find(execution_id)
        if execution is None:
            raise NotFound("execution", quote_text(reference))
        return execution

    async def enqueued_with_key(self, key: str, limit: int) -> list[JobId]:
        """The one-offs that were enqueued with a unique key, the latest first; each has one execution, of the same id."""
        return await self._store.jobs.enqueued_with_key(key, limit)

    async def with_key(self, key: str) -> Execution | None:
        """The execution that has a unique key, or else the latest one-off that was enqueued with it."""
        holder = await self._store.jobs.holder_of(key)
        candidates = [] if holder is None else [holder]
        candidates += map(ExecutionId, await self._store.jobs.enqueued_with_key(key, 1))
        for execution_id in candidates:
            execution = await self._store.history.find(execution_id)
            if execution is not None:
                return execution
        return None

    async def view(self, reference: str) -> ExecutionView:
        """An execution in full."""
        execution = await self.find(reference)
        attempts = await self._store.history.attempts(execution.id)
        extras = await self._listing.execution_extras(execution.id)
        payload = extras.get("payload_text") or "null"
        resolved = await self._resolved(execution, payload)
        links = await self._store.follow_ups.links(execution.id, execution.job_id)
        return ExecutionView(
            execution, attempts, payload, extras.get("fingerprint"), extras.get("stop"), resolved, links
        )

    async def _resolved(self, execution: Execution, payload: str) -> ResolvedPayload | None:
        has_begun = execution.state.is_final or execution.state is ExecutionState.RUNNING
        if not has_references(payload) or (has_begun and not execution.attempts):
            return None
        ahead = 0 if has_begun else 1
        values = ReferenceValues(
            scheduled_for=execution.scheduled_for,
            execution_id=execution.id,
            attempt=execution.attempts + ahead,
            fence=execution.fence + ahead,
        )
        try:
            schedule = await self._store.jobs.schedule_of(execution.job_id, execution.version)
            resolved = resolve_references(payload, values.with_schedule(schedule))
        except (NotFound, InvalidInput):
            # The version of the job is no longer kept, or the payload was written past the checks.
            return None
        return ResolvedPayload(resolved, values.attempt, references_in(payload))

    async def page(self, execution_filter: ExecutionFilter, request: PageRequest) -> ResultPage[Execution]:
        """A page of executions, the latest first."""
        return await self._listing.executions(execution_filter, request)

    async def attempts(self, executions: Sequence[Execution]) -> dict[ExecutionId, list[Attempt]]:
        """The unsuccessful attempts of some executions, each list in order."""
        return await self._diagnostics.attempts([execution.id for execution in executions])

    async def unsuccessful_tries(self, since: datetime, until: datetime, limit: int) -> list[dict[str, Any]]:
        """The attempts that failed, timed out or were lost in a period, the latest first."""
        return await self._diagnostics.unsuccessful_tries(since, until, limit)

    async def log(self, reference: str, cursor: str | None, limit: int) -> LogPage:
        """A page of an execution's log lines, in order."""
        execution = await self.find(reference)
        lines = await self._store.history.log(execution.id, _log_position(cursor), limit + 1)
        shown = lines[:limit]
        last = shown[-1] if shown else None
        next_cursor = cursor if last is None else write_cursor("log", str(last.fence), str(last.number), execution.id)
        return LogPage(shown, next_cursor, len(lines) > limit)

    async def current_of(self, job_id: JobId) -> Execution | None:
        """The running execution of a job, or else the waiting one that will start first."""
        execution_id = await self._store.history.current_of(job_id)
        return None if execution_id is None else await self._store.history.find(execution_id)

    async def last_ended_of(self, job_id: JobId) -> Execution | None:
        """The latest execution of a job that has ended."""
        execution_id = await self._store.history.last_ended_of(job_id)
        return None if execution_id is None else await self._store.history.find(execution_id)

    async def next_due(self, most: int) -> list[dict[str, Any]]:
        """The occurrences that fall due next, the soonest first."""
        return await self._timelines.next_due(most)

    async def waiting_counts(self) -> dict[str, int]:
        """How many are scheduled, retrying, queued and running; more than 10,000 shows as 10,001."""
        return await self._listing.waiting_counts()

    async def dead_groups(self, limit: int, by: DeadLetterGrouping = DeadLetterGrouping.ERROR) -> list[DeadLetterGroup]:
        """The latest dead letters that are not settled, grouped by error or by where they ran."""
        return await self._listing.dead_groups(limit, by)

    async def dead_count(self) -> int:
        """How many dead letters are not settled, counted up to 10,000."""
        return await self._listing.dead_count()


def _log_position(cursor: str | None) -> tuple[int, int]:
    """The fence and the number of the last line before a cursor."""
    if cursor is None:
        return 0, 0
    fence, number, _ = read_cursor(cursor, "log", 3)
    if not all(text is not None and text.isascii() and text.isdecimal() and len(text) < 10 for text in (fence, number)):
        raise InvalidInput("cursor does not belong to this list", field="cursor")
    return int(fence or 0), int(number or 0)


class OperationQueries:
    """Reads bulk operations."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, reference: str) -> Operation:
        """An operation by its id; NotFound if there is none."""
        try:
            operation = await self._store.operations.find(OperationId(parse_id("op", reference)))
        except InvalidInput:
            operation = None
        if operation is None:
            raise NotFound("operation", quote_text(reference))
        return operation

    async def page(self, request: PageRequest) -> ResultPage[Operation]:
        """A page of operations, the latest first."""
        return await self._store.operations.page(request.limit, request.cursor)

    async def items(self, operation_id: OperationId, status: str | None, after: int, limit: int) -> list[OperationItem]:
        """The items of an operation after a number, with the result of each."""
        return await self._store.operations.items(operation_id, status, after, limit)
