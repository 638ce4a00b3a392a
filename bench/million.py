"""A database as it is after a busy day: many one-offs and their history, a hundred recurring jobs, ten thousand dead, written in bulk.

The rows are those that the engine would have left behind (`verify` holds over them), made by the server itself. A million of each
takes it some twenty seconds, and a minute and a half more to fold them into rollups, which pages read and lists do not.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from bench.multiply import in_two_lines, portions
from bench.system import System
from timeball.domain.job_fields import JobSpec

MILLION = 1_000_000
QUEUES, HANDLERS, FINGERPRINTS = 300, 1_000, 200
RECURRING = 100
_PORTION = 25_000

# Execution n was due n times 80 ms ago. Few handlers have most of the work, as it is everywhere; each belongs to one queue.
_MADE = """
CREATE TEMPORARY VIEW made AS
SELECT n, at, (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0') || '8'
               || lpad(to_hex(n), 15, '0'))::uuid AS id,
       kind, 'queue-' || kind % {queues} AS queue, 'bench.handler_' || kind AS handler, n % 100 = 0 AS is_dead
FROM (
    SELECT n, current_setting('bench.now')::timestamptz - n * interval '80 ms' AS at,
           floor({handlers} * power(n * 7919 % 100003 / 100003.0, 4))::integer AS kind
    FROM generate_series(current_setting('bench.first')::bigint, current_setting('bench.last')::bigint) AS n
) AS drawn
"""
_JOBS = """
INSERT INTO timeball.job (id, handler, payload, kind, scheduled_at, queue, priority, max_retries, max_lost,
                          initial_backoff_ms, max_backoff_ms, timeout_ms, at_most_once, tags, shard, version, created_at, updated_at)
SELECT id, handler, jsonb_build_object('number', n, 'to', 'ana@example.com'), 'once', at, queue, 50, 3, 3, 1000, 3600000,
       3600000, false, CASE WHEN n % 50000 = 0 THEN ARRAY['rare'] WHEN n % 10 = 0 THEN ARRAY['some'] END, n % 64, 1, at, at
FROM made
"""
# One in ten was asked for of a recurring job; the others are one-offs, and bear their job's id.
_HISTORY = """
INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, started_at,
                               finished_at, attempts, lost, fence, claim_id, worker, error_type, error, fingerprint)
SELECT made.id, coalesce(job.id, made.id), CASE WHEN is_dead THEN 'dead' ELSE 'succeeded' END,
       CASE WHEN job.id IS NULL THEN 'enqueue' ELSE 'trigger' END, 1, made.queue, 50, made.handler, at, at,
       at + interval '2 ms', at + (30 + n % 70) * interval '1 ms', 1, 0, 1, made.id, '{worker}',
       CASE WHEN is_dead THEN 'ValueError' END, CASE WHEN is_dead THEN 'cause ' || n / 100 % {fingerprints} END,
       CASE WHEN is_dead THEN md5((n / 100 % {fingerprints})::text) END
FROM made
LEFT JOIN (SELECT id, row_number() OVER () AS number FROM timeball.job WHERE name IS NOT NULL) AS job
       ON n % 10 = 3 AND job.number = 1 + n / 10 % {recurring}
"""


async def furnish(system: System, number: int, *, is_folded: bool = True) -> None:
    """A hundred recurring jobs, so many one-offs with their history, folded into rollups or not; statistics as autovacuum keeps them."""
    specs = [
        JobSpec(name=f"job-{place}", handler="bench.noop", interval_seconds=86_400, tags=("nightly",))
        for place in range(RECURRING)
    ]
    await system.parts.commands.jobs.create_all(specs)
    now = system.parts.env.clock.now()
    for day in {(now - timedelta(milliseconds=80 * n)).date() for n in range(0, number + 1, 10_000)}:
        if day not in await system.parts.store.history.days():
            await system.parts.store.history.add_day(day)
    if is_folded:
        for first, last in portions(1, number, _PORTION):
            await _add(system, now.isoformat(), first, last)
            while (await system.parts.store.rollups.fold()).has_more:
                pass
    else:
        await in_two_lines(_add(system, now.isoformat(), *span) for span in portions(1, number, _PORTION))
    connection = await system.parts.store.database.connect(without_timeout=True)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


async def _add(system: System, now: str, first: int, last: int) -> None:
    connection = await system.parts.store.database.connect(without_timeout=True)
    try:
        async with connection.transaction():
            for name, value in (("now", now), ("first", str(first)), ("last", str(last))):
                await connection.execute("SELECT set_config('bench.' || $1, $2, true)", name, value)
            await connection.execute(_MADE.format(queues=QUEUES, handlers=HANDLERS))
            await connection.execute(_JOBS)
            await connection.execute(
                _HISTORY.format(fingerprints=FINGERPRINTS, recurring=RECURRING, worker=UUID(int=1))
            )
    finally:
        await connection.close()
