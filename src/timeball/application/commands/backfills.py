"""Backfills: start one, say what it would do, and feed it step by step.

A step is short: it notes which executions have ended, and creates others in the free places, looking at a few thousand occurrences at
most. Then the operation rests, and any API process takes the next step, or the scheduler that keeps house. So a backfill goes on after a
crash of any process, and other operations do not wait for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

from timeball.application.commands.requests import LOCAL, Actor, new_ids
from timeball.domain.backfill import (
    MAX_RUNNING,
    Backfill,
    BackfillPreview,
    BackfillSource,
    Occurrences,
    OccurrenceStanding,
    unique_key_conflict,
)
from timeball.domain.bulk_operation import (
    Operation,
    OperationAction,
    OperationId,
    OperationState,
)
from timeball.domain.execution import Origin
from timeball.domain.scheduling.civil_time import MIN_INSTANT, format_instant
from timeball.domain.scheduling.ledger import VersionPeriod
from timeball.domain.values.field_errors import unexpected_value
from timeball.errors import Conflict, InvalidInput, NotFound, quote_text
from timeball.store.types import ExecutionRequest

if TYPE_CHECKING:
    from timeball.application.commands.jobs import JobCommands
    from timeball.application.commands.requests import ContractChecks
    from timeball.domain.job import Job
    from timeball.domain.values.ids import IdempotentRequest
    from timeball.env import Env
    from timeball.store.ledger import LedgerStore
    from timeball.store.store import Store

# How long a backfill rests after a step that has filled its places.
FEED_REST = timedelta(milliseconds=200)
_PAGE = 500
_MAX_LOOKED_AT = 5_000
_MAX_COUNTED = 100_000


@dataclass(frozen=True, slots=True)
class _FoundPlaces:
    """The occurrences for the free places of a backfill, and how far it has looked for them."""

    chosen: Sequence[OccurrenceStanding]
    cursor: datetime


class BackfillCommands:
    """Start, preview and feed backfills."""

    def __init__(self, store: Store, env: Env, contracts: ContractChecks, jobs: JobCommands) -> None:
        self._store = store
        self._env = env
        self._contracts = contracts
        self._jobs = jobs

    @cached_property
    def _ledger(self) -> LedgerStore:
        # Here and not above: a node that feeds no backfill does not need it.
        from timeball.store.ledger import LedgerStore

        return LedgerStore(self._store.database)

    async def start(
        self,
        backfill: Backfill,
        actor: Actor = LOCAL,
        idempotency: IdempotentRequest | None = None,
        *,
        is_unchecked: bool = False,
    ) -> Operation:
        """Store a backfill as an operation; the API processes feed it, or a scheduler.

        A payload that the handler's published contract refuses is accepted only if *is_unchecked*.
        """
        new_id = OperationId(next(new_ids(self._env, 1, idempotency)))
        if idempotency is not None and idempotency.is_repeated:
            started = await self._store.operations.find(new_id)
            if started is not None:
                return started
        job, backfill = await self._prepare(backfill)
        if job.unique_key is not None:
            raise unique_key_conflict(job.unique_key)
        if backfill.payload is not None:
            if not is_unchecked:
                await self._contracts.check_contract(job.handler, backfill.payload)
            self._contracts.check_payload(job.handler, backfill.payload, actor)
            is_confined = actor.is_confined(backfill.payload)
            backfill = replace(backfill, handler=job.handler, bound_secrets_only=is_confined)
        return await self._store.operations.begin(new_id, OperationAction.BACKFILL, [], actor.entry, backfill=backfill)

    async def preview(self, backfill: Backfill) -> BackfillPreview:
        """What a backfill would do; nothing is written. It counts the first hundred thousand occurrences of the span."""
        job, backfill = await self._prepare(backfill)
        preview = BackfillPreview(backfill)
        async for page in self._pages(job, backfill, None):
            if preview.total >= _MAX_COUNTED:
                break
            preview.count(page)
            preview.counted_until = page[-1].at
        else:
            preview.counted_until = None
        return preview

    async def _prepare(self, backfill: Backfill) -> tuple[Job, Backfill]:
        """The job, and the backfill up to now."""
        job = await self._jobs.existing(backfill.job_id)
        if not job.rule.is_recurring:
            raise InvalidInput("only recurring jobs can be backfilled", field="job", hint="trigger the job instead")
        now = self._env.clock.now()
        if backfill.since > now:
            raise unexpected_value("from", format_instant(backfill.since), "an instant of the past")
        return job, replace(backfill, until=min(backfill.until, now))

    # feeding

    async def step(self, operation: Operation, backfill: Backfill, holder: UUID) -> Operation:
        """Note what has ended, and fill the free places; then let the operation rest. An operation that cannot go on ends as failed."""
        operations = self._store.operations
        if operation.cancel_requested:
            return await operations.finish(operation, holder, OperationState.CANCELLED)
        items = await operations.left(operation.id, MAX_RUNNING)
        results = await self._store.backfills.results(items)
        if results:
            recorded = await operations.record(operation, holder, results)
            if recorded is None:  # paused, or held by another process
                return await self._as_it_is(operation)
            operation = recorded
        unfinished = len(items) - len(results)
        if operation.cursor == backfill.end:
            if unfinished:
                return await operations.rest(operation, holder, FEED_REST)
            return await operations.finish(operation, holder, OperationState.SUCCEEDED)
        places = backfill.max_running - unfinished
        if places <= 0:
            return await operations.rest(operation, holder, FEED_REST)
        try:
            return await self._fill(operation, backfill, holder, places)
        except (Conflict, NotFound, InvalidInput) as error:
            return await operations.finish(operation, holder, OperationState.FAILED, quote_text(str(error), 500))

    async def _fill(self, operation: Operation, backfill: Backfill, holder: UUID, places: int) -> Operation:
        job = await self._jobs.existing(backfill.job_id)
        found = await self._choose(job, backfill, operation.cursor, places)
        author = Actor(operation.actor, author=operation.actor).created_by
        requests = [
            ExecutionRequest(
                id=standing.execution_id(job.id, operation.id),
                job_id=job.id,
                origin=Origin.BACKFILL,
                scheduled_for=standing.at,
                payload=backfill.payload,
                priority=backfill.priority,
                created_by=author,
                bound_secrets_only=backfill.bound_secrets_only,
            )
            for standing in found.chosen
        ]
        in_ranges = {standing.at for standing in found.chosen if standing.is_in_range}
        fed = await self._store.backfills.feed(operation, holder, requests, found.cursor, in_ranges)
        if fed is None:
            return await self._as_it_is(operation)
        are_places_filled = fed.total - operation.total == places
        rest = FEED_REST if are_places_filled or fed.cursor == backfill.end else timedelta(0)
        return await self._store.operations.rest(fed, holder, rest)

    async def _as_it_is(self, operation: Operation) -> Operation:
        return await self._store.operations.find(operation.id) or operation

    async def _choose(self, job: Job, backfill: Backfill, cursor: datetime | None, places: int) -> _FoundPlaces:
        """The next occurrences that are to run, up to *places*; after many others it stops, and the next step goes on there."""
        chosen: list[OccurrenceStanding] = []
        looked_at = 0
        async for page in self._pages(job, backfill, cursor):
            for standing in page:
                if standing.is_chosen(backfill.only):
                    chosen.append(standing)
                    if len(chosen) == places:
                        return _FoundPlaces(chosen, standing.at)
            looked_at += len(page)
            if looked_at >= _MAX_LOOKED_AT:
                return _FoundPlaces(chosen, page[-1].at)
        return _FoundPlaces(chosen, backfill.end)

    async def _pages(
        self, job: Job, backfill: Backfill, cursor: datetime | None
    ) -> AsyncIterator[list[OccurrenceStanding]]:
        """How the occurrences behind the cursor stand, a page at a time."""
        # First what lies ahead, then the records: what moves in between is seen twice, and the record counts.
        outlook, history_from = await self._ledger.outlook(job)
        versions = await self._ledger.versions(job.id)
        is_by_versions = backfill.by is BackfillSource.VERSIONS
        instants = backfill.instants(versions if is_by_versions else [_present_period(job)], cursor)
        while page := list(islice(instants, _PAGE)):
            since, until = min(page[0], page[-1]), max(page[0], page[-1])
            occurrences = Occurrences(
                backfill.by,
                history_from,
                versions[0].after if versions else None,
                outlook.certain(since, until),
                versions,
            )
            occurrences.enter(await self._ledger.all_records(job.id, since, until))
            retries = await self._ledger.retries(job.id, occurrences.ended_badly(page))
            yield [occurrences.standing(at, retries) for at in page]


def _present_period(job: Job) -> VersionPeriod:
    """The present schedule, as if it had been in force at all times."""
    return VersionPeriod(version=job.version, rule=job.rule, after=MIN_INSTANT, until=None)
