"""Millions of rows as the engine writes them: one of each is made through the front door, and the server itself makes the others after it.

All columns are those of the first, but for ids, names, shards and instants; so what a new migration adds is in the copies as well,
and `verify` holds over them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from bench.system import System
from timeball.domain.execution import FinishedAttempt, Succeeded
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ClaimId, Incarnation, JobId, occurrence_id
from timeball.store.types import ClaimRequest

_PORTION = 500_000
_SCHEDULES_PORTION = 50_000
# Ids whose last 32 bits are a number, which makes their shard known to the server: `domain.ids.shard_of`.
_BASE = 0x0190_0000_0000_7000_8000 << 48
_ID = "('01900000-0000-7000-8000-' || lpad(to_hex(made.n), 12, '0'))::uuid"
_SHARD = "made.n % {shards}"
# One execution every 80 ms, back from now: a million a day.
_STEP = timedelta(milliseconds=80)
_AT = "$4::timestamptz - made.n * interval '80 ms'"
_ID_AT = f"""(lpad(to_hex((extract(epoch FROM {_AT}) * 1000)::bigint), 12, '0') || '70008' || lpad(to_hex(made.n), 15, '0'))::uuid"""
_COLUMNS = """
SELECT column_name
FROM information_schema.columns
WHERE table_schema = 'timeball' AND table_name = $1
"""
_NUMBERS = "generate_series($2::bigint, $3::bigint) AS made (n)"
_GIVEN = "unnest($2::uuid[], $3::uuid[], $4::bigint[]) AS made (job_id, execution_id, n)"


async def add_waiting(system: System, first: int, last: int, at: datetime) -> None:
    """One-offs number *first* to *last* that wait for an instant."""
    (model,) = await system.parts.commands.jobs.enqueue_many(
        JobSpec(handler="bench.noop", scheduled_at=at), ['{"number": 1}']
    )
    shard = _SHARD.format(shards=system.parts.store.shards)
    tables = {"job": {"id": _ID, "shard": shard}, "due": {"id": _ID, "job_id": _ID, "shard": shard}}
    await in_two_lines(
        _multiply(system, table, own, _NUMBERS, model, *span)
        for span in portions(first, last, _PORTION)
        for table, own in tables.items()
    )


async def add_history(system: System, first: int, last: int, now: datetime) -> None:
    """Executions number *first* to *last* of a job that was triggered again and again, the latest of them just before *now*."""
    history = system.parts.store.history
    present = set(await history.days())
    for day in {(now - n * _STEP).date() for n in (*range(first, last, 10_000), last)} - present:
        await history.add_day(day)
    model = await _finished_one(system)
    # The copies have the number of its transaction, which is in the rollups already: so the rollup writer skips them.
    while (await system.parts.store.rollups.fold()).has_more:
        pass
    own = {"id": _ID_AT, "claim_id": _ID_AT, "scheduled_for": _AT, "queued_at": _AT}
    own |= {"started_at": f"{_AT} + interval '2 ms'", "finished_at": f"{_AT} + interval '30 ms'"}
    await in_two_lines(
        _multiply(system, "finished", own, _NUMBERS, model, *span, now) for span in portions(first, last, _PORTION)
    )


def portions(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    """From *first* to *last* in portions: where each begins and ends."""
    for start in range(first, last + 1, size):
        yield start, min(start + size - 1, last)


async def in_two_lines(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Two at a time: the server takes a core for each."""
    line = asyncio.Semaphore(2)

    async def in_line(work: Coroutine[Any, Any, None]) -> None:
        async with line:
            await work

    await asyncio.gather(*map(in_line, works))


async def _finished_one(system: System) -> UUID:
    """Trigger a job, claim what comes of it, and finish it."""
    commands, executions, env = system.parts.commands, system.parts.store.executions, system.parts.env
    name = f"triggered-{env.new_id()}"
    made = await commands.jobs.create(JobSpec(name=name, handler="bench.noop", schedule="manual"))
    await commands.executions.trigger(made.job_id)
    lanes = {lane: at for lane, (at, _) in (await executions.lanes()).items()}
    request = ClaimRequest(Incarnation(env.new_id()), ["bench.noop"], 1, 0)
    (claimed,) = (await executions.claim(request, lanes, ClaimId(env.new_id()))).executions
    now = env.clock.now()
    await executions.finish_succeeded(
        [FinishedAttempt(claimed, Succeeded(), max(now, claimed.run_at), max(now, claimed.run_at))]
    )
    return claimed.id


async def add_schedules(system: System, first: int, last: int, seconds: int, at: datetime) -> None:
    """Jobs number *first* to *last*, each with a name, that run every so many seconds from one instant on."""
    (model,) = await system.parts.commands.jobs.create_all(
        [JobSpec(name=f"like-{first}", handler="bench.noop", interval_seconds=seconds, scheduled_at=at)]
    )
    anchor = await system.value("SELECT scheduled_at FROM timeball.job WHERE id = $1", model.job_id)
    for start, end in portions(first, last, _SCHEDULES_PORTION):
        numbers = list(range(start, end + 1))
        jobs = [JobId(UUID(int=_BASE | number)) for number in numbers]
        # The id of an occurrence is a hash that the server cannot compute.
        given = (jobs, [occurrence_id(job, anchor) for job in jobs], numbers)
        await _multiply_schedule(system, model.job_id, given)


async def _multiply_schedule(system: System, model: UUID, given: tuple[Any, ...]) -> None:
    shard = _SHARD.format(shards=system.parts.store.shards)
    name = "'schedule-' || made.n"
    facts = f"jsonb_build_object('id', made.job_id, 'name', {name}, 'shard', {shard})"
    version = {"job_id": "made.job_id", "definition": f"model.definition || {facts}"}
    due = {"id": "made.execution_id", "job_id": "made.job_id", "shard": shard}
    await in_two_lines(
        [
            _multiply(system, "job", {"id": "made.job_id", "name": name, "shard": shard}, _GIVEN, model, *given),
            _multiply(system, "job_version", version, _GIVEN, model, *given, key="job_id"),
            _multiply(system, "due", due, _GIVEN, model, *given, key="job_id"),
        ]
    )


async def _multiply(
    system: System,
    table: str,
    own: Mapping[str, str],
    source: str,
    model: UUID,
    *values: Any,
    key: str = "id",
) -> None:
    """Write rows like the *model*, with columns of their own that are computed from what the *source* gives."""
    connection = await system.parts.store.database.connect(without_timeout=True)
    try:
        columns = [row["column_name"] for row in await connection.fetch(_COLUMNS, table)]
        computed = {name: own.get(name, f"model.{name}") for name in columns}
        await connection.execute(
            f"INSERT INTO timeball.{table} ({', '.join(computed)}) SELECT {', '.join(computed.values())} "
            f"FROM timeball.{table} AS model CROSS JOIN {source} WHERE model.{key} = $1",
            model,
            *values,
        )
    finally:
        await connection.close()
