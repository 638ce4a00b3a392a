"""One-offs that are alike: they differ in id, shard and payload, and in nothing else. One, some, or very many.

What they have in common is checked once and encoded once, so that a single one costs little more than its commit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.hints import Hints
from timeball.domain.job import Job
from timeball.errors import StoreUnavailable
from timeball.store.connections import Connection
from timeball.store.lost_replies import write_again
from timeball.store.placing import AuditEntry, Placing
from timeball.store.rows import job_columns, json_text

if TYPE_CHECKING:
    from timeball.store.hinter import Hinter
    from timeball.store.lines import LoopLine, ThreadLine

# A hint must not come out later than what it announces, and the two clocks are only nearly the same.
HINT_MARGIN = timedelta(milliseconds=50)
# So many rows go with one statement of a bulk enqueue: few enough to be made while the database writes those before,
# and to end well within the patience for one statement; so many that nobody notices the way there and back.
_BULK_SLICE = 2_500
_SHARED_COLUMNS = (
    *("description", "handler", "timezone", "queue", "priority", "max_retries", "max_lost", "initial_backoff_ms"),
    *("max_backoff_ms", "timeout_ms", "at_most_once", "tags", "version", "created_by"),
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
        if connection is None:
            await self._write_hinted(pattern, rows)
        else:
            await self._write_alike(pattern, rows, connection, None)

    def enqueue_alone(self, pattern: Pattern, own: Own, line: ThreadLine) -> None:
        """Write one of them in a thread that waits by itself."""
        with self._announced(pattern, own) as given:
            line.run("enqueue_one", given)

    async def aenqueue_alone(self, pattern: Pattern, own: Own, line: LoopLine) -> None:
        """Write one of them in an event loop of the caller's."""
        with self._announced(pattern, own) as given:
            await line.run("enqueue_one", given)

    def _announced(self, pattern: Pattern, own: Own) -> _Announced:
        hints = self._hints_of(pattern, 1, own[0])
        return _Announced(self._hinter, hints, pattern, own, self._database.env.clock.statement_now())

    async def _write_hinted(self, pattern: Pattern, rows: Sequence[Own]) -> None:
        hints = self._hints_of(pattern, len(rows), rows[0][0] if len(rows) == 1 else None)
        carried = self._hinter.take_along(hints)
        await self._carrying(carried, lambda hint: self._write_alike(pattern, rows, None, hint))
        if carried is None:
            self._hinter.tell(hints)

    def _hints_of(self, pattern: Pattern, executions: int, alone: UUID | None) -> Hints:
        moment = self._database.env.clock.now() - HINT_MARGIN
        return Hints({(pattern.job.queue, pattern.job.priority): moment}, executions=executions, named=alone)

    async def _write_alike(
        self, pattern: Pattern, rows: Sequence[Own], connection: Connection | None, hint: str | None
    ) -> None:
        if len(rows) == 1:
            ((id_, shard, payload),) = rows
            own: dict[str, Any] = {"id": id_, "shard": shard, "payload": payload}
            await self._database.fetch("enqueue_one", connection, **pattern.columns, **own, hint=hint)
            return
        ids, shards, payloads = zip(*rows, strict=True)
        each: dict[str, Any] = {"ids": ids, "shards": shards, "payloads": payloads}
        await self._database.fetch("enqueue_alike", connection, **pattern.columns, **each, hint=hint)

    async def create_many(
        self, template: Job, rows: Iterable[Own], run_at: datetime | None, audit: AuditEntry | None = None
    ) -> list[UUID]:
        """Write many one-off jobs that differ only in (id, shard, payload), all or nothing; *audit* notes them in one row.

        Without *run_at* they are due now, by the database's clock. Gives their ids back. *rows* are taken as they are written,
        so that making them takes no time of its own.
        """
        rows = iter(rows)
        pattern = pattern_of(template) if run_at is None else None
        if pattern is None:
            return await self._create_many_at(template, rows, run_at, audit)
        first = list(islice(rows, _BULK_SLICE + 1))
        if audit is None and len(first) <= _BULK_SLICE:
            await self._enqueue_whole(pattern, first)
            return [id_ for id_, _, _ in first]
        return await self._enqueue_slices(pattern, chain(first, rows), audit)

    async def _enqueue_whole(self, pattern: Pattern, rows: Sequence[Own]) -> None:
        async def write() -> bool:
            await self.enqueue(pattern, rows)
            return True

        try:
            await write()
        except StoreUnavailable:
            await write_again(self._database.env.clock, lambda: self._is_written(rows[0][0]), write)

    async def _is_written(self, first: UUID) -> bool | None:
        return bool(await self._database.fetch("find_jobs", ids=[first])) or None

    @asynccontextmanager
    async def _whole(self, slices: _Slices) -> AsyncIterator[Connection]:
        """A transaction that is looked up if the reply to its commit is lost.

        It is not repeated: what it wrote was taken as it was made, and has gone.
        """
        is_whole = False
        try:
            async with self._database.transaction() as connection:
                yield connection
                is_whole = True
        except StoreUnavailable as error:
            if not is_whole:
                raise
            unknown = error

            async def refuse() -> bool:
                raise unknown

            await write_again(self._database.env.clock, lambda: self._is_written(slices.ids[0]), refuse)

    async def _enqueue_slices(self, pattern: Pattern, rows: Iterator[Own], audit: AuditEntry | None) -> list[UUID]:
        moment, slices = self._database.env.clock.now() - HINT_MARGIN, _Slices(rows)
        given = {**pattern.columns, "hint": None}
        async with self._whole(slices) as connection:
            await self._database.run_in_turn(connection, (("enqueue_alike", given | own) for own in slices))
            await self._note_bulk(connection, pattern.job, len(slices.ids), audit)
        self._hint_bulk(pattern.job, (), moment, is_ready=True)
        return slices.ids

    async def _create_many_at(
        self, template: Job, rows: Iterator[Own], run_at: datetime | None, audit: AuditEntry | None
    ) -> list[UUID]:
        moment, slices = await self.moment(), _Slices(rows)
        starts_at = run_at or moment
        is_ready = starts_at <= moment + self._hoist_window
        names = "enqueue_jobs", "enqueue_ready" if is_ready else "enqueue_due"
        at = {"scheduled_at": starts_at, "created_at": moment, "updated_at": moment}
        given = {"template": json_text([job_columns(template) | at])}
        async with self._whole(slices) as connection:
            await self._database.run_in_turn(connection, ((name, given | own) for own in slices for name in names))
            await self._note_bulk(connection, template, len(slices.ids), audit)
        self._hint_bulk(template, slices.shards, starts_at, is_ready=is_ready)
        return slices.ids

    async def _note_bulk(self, connection: Connection, template: Job, count: int, audit: AuditEntry | None) -> None:
        if audit is not None:
            facts = {"count": count, "handler": template.handler, "queue": template.queue}
            await self.audit(connection, self._database.env.new_id(), audit, "job.create", f"{count} jobs", None, facts)

    def _hint_bulk(self, template: Job, shards: Iterable[int], starts_at: datetime, *, is_ready: bool) -> None:
        hints = Hints()
        if is_ready:
            hints.add_lane(template.queue, template.priority, starts_at)
        else:
            for shard in shards:
                hints.add_shard(shard, starts_at)
        self._hinter.tell(hints)


class _Announced:
    """One job while it is written outside the pool: gives what `enqueue_one` wants to know, and sees to its hint.

    Not made of a generator: there is one for each enqueue, and it would take longer than what it does.
    """

    __slots__ = ("_carried", "_hinter", "_hints", "_now", "_own", "_pattern")

    def __init__(self, hinter: Hinter, hints: Hints, pattern: Pattern, own: Own, now: datetime | None) -> None:
        self._hinter = hinter
        self._hints = hints
        self._pattern = pattern
        self._own = own
        self._now = now
        self._carried: Hints | None = None

    def __enter__(self) -> Mapping[str, Any]:
        self._carried = self._hinter.take_along(self._hints)
        hint = None if self._carried is None else self._carried.encode()
        id_, shard, payload = self._own
        return {**self._pattern.columns, "id": id_, "shard": shard, "payload": payload, "hint": hint, "now": self._now}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            # It is written now, and may be spoken of.
            if self._carried is None:
                self._hinter.tell(self._hints)
        elif self._carried is not None:
            # They announce the work of others too.
            self._hinter.tell(self._carried)


class _Slices:
    """Rows as statements want them, part by part; and what was taken of them so far."""

    def __init__(self, rows: Iterator[Own]) -> None:
        self._rows = rows
        self.ids: list[UUID] = []
        self.shards: set[int] = set()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while part := list(islice(self._rows, _BULK_SLICE)):
            ids, shards, payloads = zip(*part, strict=True)
            self.ids += ids
            self.shards.update(shards)
            yield {"ids": ids, "shards": shards, "payloads": payloads}
