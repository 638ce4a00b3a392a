"""One-offs that are alike: they differ in id, shard and payload, and in nothing else. One, some, or very many.

What they have in common is checked once and encoded once, so that a single one costs little more than its commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from timeball.domain.hints import Hints
from timeball.domain.job import Job
from timeball.store.connections import Connection
from timeball.store.placing import AuditEntry, Placing
from timeball.store.rows import job_columns, json_text

# A hint must not come out later than what it announces, and the two clocks are only nearly the same.
HINT_MARGIN = timedelta(milliseconds=50)
# So many rows go with one statement of a bulk enqueue: each ends well within the patience for one.
_BULK_SLICE = 20_000
_SHARED_COLUMNS = (
    *("description", "handler", "timezone", "queue", "priority", "max_retries", "max_lost", "initial_backoff_ms"),
    *("max_backoff_ms", "timeout_ms", "at_most_once", "tags", "version"),
)
# With these, all that a plain one-off has.
PLAIN_COLUMNS = frozenset({*_SHARED_COLUMNS, "id", "payload", "shard", "kind", "scheduled_at"})

# The id, the shard and the payload of a one-off.
Own = tuple[UUID, int, str]


@dataclass(frozen=True, slots=True)
class Pattern:
    """What plain one-offs have in common. The id, the shard and the payload of *job* mean nothing."""

    job: Job
    columns: Mapping[str, Any]


def pattern_of(job: Job) -> Pattern | None:
    """The pattern of jobs like this one; None if it is not plain."""
    columns = job_columns(job)
    return Pattern(job, {name: columns[name] for name in _SHARED_COLUMNS}) if is_plain(job, columns) else None


def is_plain(job: Job, columns: Mapping[str, Any]) -> bool:
    """Whether this is a one-off that has neither key nor limit, nor anything else that few have."""
    return job.is_enqueued and PLAIN_COLUMNS.issuperset(name for name, value in columns.items() if value is not None)


class Enqueuing(Placing):
    """Writes one-offs that are alike, with their executions."""

    async def enqueue(self, pattern: Pattern, rows: Sequence[Own], connection: Connection | None = None) -> None:
        """Write plain one-offs that are due now, in one statement; inside a caller's own *connection* no hint is sent."""
        hints = Hints()
        hints.add_lane(pattern.job.queue, pattern.job.priority, self._database.env.clock.now() - HINT_MARGIN)
        carried = None if connection is not None else self._hinter.take_along(hints)
        await self._carrying(carried, lambda hint: self._write_alike(pattern, rows, connection, hint))
        if connection is None and carried is None:
            self._hinter.tell(hints)

    async def _write_alike(
        self, pattern: Pattern, rows: Sequence[Own], connection: Connection | None, hint: str | None
    ) -> None:
        if len(rows) == 1:
            ((id_, shard, payload),) = rows
            own: dict[str, Any] = {"id": id_, "shard": shard, "payload": payload}
            await self._database.fetch("enqueue_one", connection, **pattern.columns, **own, hint=hint)
            return
        ids, shards, payloads = map(list, zip(*rows, strict=True))
        each: dict[str, Any] = {"ids": ids, "shards": shards, "payloads": payloads}
        await self._database.fetch("enqueue_alike", connection, **pattern.columns, **each, hint=hint)

    async def create_many(
        self, template: Job, rows: Sequence[Own], run_at: datetime | None, audit: AuditEntry | None = None
    ) -> None:
        """Write many one-off jobs that differ only in (id, shard, payload), all or nothing; *audit* notes them in one row.

        Without *run_at* they are due now, by the database's clock.
        """
        pattern = pattern_of(template) if run_at is None else None
        if pattern is None:
            await self._create_many_at(template, rows, run_at, audit)
        elif audit is None and len(rows) <= _BULK_SLICE:
            await self.enqueue(pattern, rows)
        else:
            await self._enqueue_slices(pattern, rows, audit)

    async def _enqueue_slices(self, pattern: Pattern, rows: Sequence[Own], audit: AuditEntry | None) -> None:
        moment = self._database.env.clock.now() - HINT_MARGIN
        async with self._database.transaction() as connection:
            for part in _slices(rows):
                await self._write_alike(pattern, part, connection, None)
            await self._note_bulk(connection, pattern.job, len(rows), audit)
        self._hint_bulk(pattern.job, (), moment, is_ready=True)

    async def _create_many_at(
        self, template: Job, rows: Sequence[Own], run_at: datetime | None, audit: AuditEntry | None
    ) -> None:
        moment = await self.moment()
        starts_at = run_at or moment
        is_ready = starts_at <= moment + self._hoist_window
        place = "enqueue_ready" if is_ready else "enqueue_due"
        given = json_text(
            [job_columns(template) | {"scheduled_at": starts_at, "created_at": moment, "updated_at": moment}]
        )
        async with self._database.transaction() as connection:
            for part in _slices(rows):
                ids, shards, payloads = map(list, zip(*part, strict=True))
                await self._database.fetch(
                    "enqueue_jobs", connection, template=given, ids=ids, shards=shards, payloads=payloads
                )
                await self._database.fetch(place, connection, template=given, ids=ids, shards=shards)
            await self._note_bulk(connection, template, len(rows), audit)
        self._hint_bulk(template, {shard for _, shard, _ in rows}, starts_at, is_ready=is_ready)

    async def _note_bulk(self, connection: Connection, template: Job, count: int, audit: AuditEntry | None) -> None:
        if audit is not None:
            facts = {"count": count, "handler": template.handler, "queue": template.queue}
            await self.audit(connection, audit, "job.create", f"{count} jobs", None, facts)

    def _hint_bulk(self, template: Job, shards: Iterable[int], starts_at: datetime, *, is_ready: bool) -> None:
        hints = Hints()
        if is_ready:
            hints.add_lane(template.queue, template.priority, starts_at)
        else:
            for shard in shards:
                hints.add_shard(shard, starts_at)
        self._hinter.tell(hints)


def _slices(rows: Sequence[Own]) -> Iterator[Sequence[Own]]:
    for start in range(0, len(rows), _BULK_SLICE):
        yield rows[start : start + _BULK_SLICE]
