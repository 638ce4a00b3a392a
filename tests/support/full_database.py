"""A database in which every table that grows is full: what statements for fronts and services are tried on.

Everything is made by the server. Row n of a table has an id that its number can be read from, so that each table has ids of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tests.support.servers import PostgresServer

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
# How many rows there are of what grows with the work, of what grows with people, and of what grows with machines.
MANY, SOME, RUNNING, NODES = 40_000, 10_000, 1_000, 30
WEBHOOKS = 20
RECURRING, RETRIES, DELETED = 2_000, 500, 100
QUEUES, PRIORITIES, HANDLERS = 3, 2, 10
LIMITS, STEPS, DAYS = 5_000, 500, 3
# Recorded by a later transaction than all the rest.
LATEST = 40

JOB, DUE, READY, BLOCKED, RUNS, ENDED, OTHER = (number * 1_000_000 for number in range(17, 24))

_NOW = f"'{NOW.isoformat()}'::timestamptz"
_EACH = "'00000000-0000-0000-0000-000000000000'"
_WHOLE = "'ffffffff-ffff-ffff-ffff-ffffffffffff'"


def id_(number: int) -> UUID:
    """The id of a row. All numbers have seven hexadecimal digits, which makes an id by plain concatenation: that is where the time goes."""
    return UUID(int=number)


def holder(number: int) -> UUID:
    """A node, by its number from 0 on."""
    return id_(OTHER + number)


def _id(number: str) -> str:
    return f"('{'0' * 25}' || to_hex({number}))::uuid"


def _rows(table: str, count: int, columns: dict[str, str], source: str = "") -> str:
    given = source or f"generate_series(1, {count}) AS n"
    return f"INSERT INTO timeball.{table} ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM {given};"


_HANDLED = {
    "queue": f"'q' || n % {QUEUES}",
    "priority": f"50 + n % {PRIORITIES}",
    "handler": f"'handler ' || n % {HANDLERS}",
}
_COMMON = {"origin": "'enqueue'", "version": "1", "scheduled_for": _NOW} | _HANDLED
_QUEUED = {"run_at": f"{_NOW} - n % 1000 * interval '1 second'", "queued_at": _NOW}
_TRIED = {"attempts": "1", "lost": "0", "fence": "1", "claim_id": _id(f"{ENDED} + n")}
# Every other of them was asked for at a recurring job.
_OF_JOB = f"CASE n % 2 WHEN 1 THEN {_id(f'{JOB} + n % {RECURRING} + 1')}"

_JOBS = _HANDLED | {
    "id": _id(f"{JOB} + n"),
    "payload": "'{}'",
    "kind": f"CASE WHEN n <= {RECURRING} THEN 'every' ELSE 'once' END",
    "interval_seconds": f"CASE WHEN n <= {RECURRING} THEN 3600 END",
    "name": f"CASE WHEN n <= {RECURRING} THEN 'job ' || n END",
    "declared_by": f"CASE WHEN n <= {RECURRING} THEN 'module ' || n % 100 END",
    "expect": f"CASE WHEN n <= {RECURRING} AND n % 20 = 0 THEN '{{\"max_dead\": 1}}'::jsonb END",
    "limit_key": f"CASE WHEN n % 7 = 0 THEN 'limit ' || n % {LIMITS} END",
    "deleted_at": f"CASE WHEN n % {MANY // DELETED} = 0 THEN {_NOW} - interval '9 days' END",
    "scheduled_at": _NOW,
    "follows": f"CASE WHEN n > {RECURRING} AND n % 20 = 0 THEN {_id(f'{ENDED} + n')} END",
    "follows_as": f"CASE WHEN n > {RECURRING} AND n % 20 = 0 THEN 'on_success' END",
    "max_retries": "3",
    "max_lost": "3",
    "initial_backoff_ms": "1000",
    "max_backoff_ms": "1000",
    "at_most_once": "false",
    "shard": "n % 64",
    "version": "100",
    "created_at": _NOW,
    "updated_at": _NOW,
}
_DUE = _COMMON | {
    "id": f"CASE WHEN n <= {RECURRING} THEN {_id(f'{DUE} + n')} ELSE {_id(f'{JOB} + n')} END",
    "job_id": _id(f"{JOB} + n"),
    "kind": "'occurrence'",
    "origin": f"CASE WHEN n <= {RECURRING} THEN 'schedule' ELSE 'enqueue' END",
    "tzdata": f"CASE WHEN n <= {RECURRING} THEN '2026a' END",
    "shard": "n % 64",
    "run_at": f"{_NOW} + (n - 100) * interval '1 second'",
    "limit_key": f"CASE WHEN n % 7 = 0 THEN 'limit ' || n % {LIMITS} END",
}
_RETRIES = _DUE | {
    "id": _id(f"{DUE} + {MANY} + n"),
    "kind": "'retry'",
    "origin": "'schedule'",
    "tzdata": "NULL",
    "limit_key": "NULL",
}
_READY = (
    _COMMON
    | _QUEUED
    | {
        "id": _id(f"{READY} + n"),
        "job_id": f"{_OF_JOB} ELSE {_id(f'{READY} + n')} END",
        "limit_key": f"CASE WHEN n % 10 = 0 THEN 'limit ' || n % {LIMITS} END",
    }
)
_BLOCKED = (
    _COMMON
    | _QUEUED
    | {
        "id": _id(f"{BLOCKED} + n"),
        "job_id": _id(f"{JOB} + n"),
        "queue": "'q0'",
        "limit_key": f"'limit ' || n % {LIMITS}",
    }
)
_RUNS = (
    _COMMON
    | _QUEUED
    | _TRIED
    | {
        "id": _id(f"{RUNS} + n"),
        "job_id": f"{_OF_JOB} ELSE {_id(f'{RUNS} + n')} END",
        "claim_id": _id(f"{RUNS} + n"),
        "holder": _id(f"{OTHER} + n % {NODES}"),
        "claimed_at": _NOW,
        "limit_key": f"CASE WHEN n % 10 = 0 THEN 'limit ' || n % {LIMITS} END",
    }
)
# In the order in which they ended, and nearly all of a day in which a partition of its own was made for them.
_ENDED_AT = f"{_NOW} - ({MANY} - n) * interval '{DAYS * 86_400 // MANY} seconds'"
_ENDED = (
    _COMMON
    | _TRIED
    | {
        "id": _id(f"{ENDED} + n"),
        "job_id": f"{_OF_JOB} ELSE {_id(f'{ENDED} + n')} END",
        "state": "CASE n % 10 WHEN 0 THEN 'dead' WHEN 1 THEN 'skipped' ELSE 'succeeded' END",
        "fingerprint": f"CASE n % 10 WHEN 0 THEN 'print ' || n % {HANDLERS} END",
        "started_at": _ENDED_AT,
        "finished_at": _ENDED_AT,
        "worker": _id(f"{OTHER} + n % {NODES}"),
    }
)
_ATTEMPTS = {
    "execution_id": _id(f"{ENDED} + n"),
    "fence": "1",
    "number": "1",
    "started_at": _ENDED_AT,
    "finished_at": _ENDED_AT,
    "outcome": "'failed'",
    "claim_id": _id(f"{ENDED} + n"),
}
_LOG = {
    "execution_id": _id(f"{ENDED} + n"),
    "fence": "1",
    "number": "1",
    "at": _ENDED_AT,
    "level": "'info'",
    "message": "'said'",
}
_AUDIT = {
    "id": _id(f"{OTHER} + n"),
    "at": f"{_NOW} - n * interval '1 minute'",
    "actor": "'actor ' || n % 10",
    "action": "'job.pause'",
    "subject": "'job:' || n",
}
_ROLLUP = {
    "span": "span",
    "at": f"date_trunc(span, {_NOW}) - n * ('1 ' || span)::interval",
    "job_id": "series",
    "queue": "queue",
    "handler": "handler",
    **dict.fromkeys(
        (
            "starts",
            "succeeded",
            "cancelled",
            "dead",
            "skipped",
            "failed",
            "timed_out",
            "lost",
            "expected",
            "expected_tries",
            "ran",
        ),
        "1",
    ),
    "skip_reasons": "'{overlap}'",
    "skip_counts": "'{1}'",
    **dict.fromkeys(("lateness_seconds", "duration_seconds"), "1"),
    **dict.fromkeys(("lateness_buckets", "lateness_counts", "duration_buckets", "duration_counts"), "'{1,2}'"),
}
_SERIES = f"""
(VALUES ('minute'), ('hour')) AS span (span)
CROSS JOIN generate_series(1, {STEPS}) AS n
CROSS JOIN (
    SELECT {_EACH}::uuid, 'q' || n % {QUEUES}, 'handler ' || n FROM generate_series(1, {HANDLERS}) AS n
    UNION ALL
    SELECT {_id(f"{JOB} + n")}, 'q' || n % {QUEUES}, 'handler ' || n % {HANDLERS} FROM generate_series(1, {HANDLERS}) AS n
    UNION ALL
    SELECT md5('queue q' || n % {QUEUES})::uuid, 'q' || n % {QUEUES}, '' FROM generate_series(1, {QUEUES}) AS n
    UNION ALL
    SELECT {_WHOLE}::uuid, '', ''
) AS series (series, queue, handler)
"""

_FILL = [
    *(
        f"CREATE TABLE timeball.{table}_{day:%Y%m%d} PARTITION OF timeball.{table} FOR VALUES FROM ('{day:%Y-%m-%d}Z') "
        f"TO ('{day + timedelta(days=1):%Y-%m-%d}Z');"
        for table in ("finished", "attempt", "log_line")
        for day in (NOW - timedelta(days=ago) for ago in range(DAYS + 1))
    ),
    _rows("job", MANY, _JOBS),
    _rows("due", MANY, _DUE),
    _rows("due", RETRIES, _RETRIES),
    _rows("ready", MANY, _READY),
    _rows("blocked", SOME, _BLOCKED),
    _rows("running", RUNNING, _RUNS),
    _rows("finished", MANY, _ENDED),
    _rows("attempt", MANY, _ATTEMPTS),
    _rows("log_line", SOME, _LOG),
    _rows(
        "settled",
        SOME,
        {"execution_id": _id(f"{ENDED} + n * 20"), "how": "'retried'", "settled_at": _NOW},
        f"generate_series(1, {MANY // 20}) AS n",
    ),
    _rows(
        "job_version",
        SOME,
        {
            "job_id": _id(f"{JOB} + n % {RECURRING} + 1"),
            "version": f"n / {RECURRING} + 1",
            "definition": "'{}'",
            "effective_from": _NOW,
            "effective_until": f"CASE WHEN n < {SOME - RECURRING} THEN {_NOW} END",
            "recorded_at": _NOW,
        },
    ),
    _rows(
        "skip_range",
        SOME,
        {
            "id": _id(f"{OTHER} + n"),
            "job_id": _id(f"{JOB} + n % {RECURRING} + 1"),
            "version": "1",
            "first_at": f"{_NOW} - n * interval '1 minute'",
            "last_at": f"{_NOW} - n * interval '1 minute'",
            "reason": "'misfire'",
            "recorded_at": _NOW,
        },
    ),
    _rows("audit", SOME, _AUDIT),
    _rows(
        "node",
        NODES,
        {
            "incarnation": _id(f"{OTHER} + n - 1"),
            "kind": "CASE n % 2 WHEN 0 THEN 'worker' ELSE 'scheduler' END",
            "name": "'host/' || n",
            "started_at": _NOW,
            "renewed_at": _NOW,
            "lease_until": f"{_NOW} + interval '10 seconds'",
            "lease_seconds": "10",
            "queues": "'{q0}'",
        },
    ),
    f"UPDATE timeball.shard SET owner = {_id(f'{OTHER} + id % {NODES}')}, epoch = 1;",
    _rows("queue", QUEUES, {"name": "'limited ' || n", "max_running": "5"}),
    _rows("running_limit", LIMITS, {"key": "'limit ' || n - 1", "max_running": "2"}),
    _rows("running_limit", LIMITS, {"key": "'unused ' || n", "max_running": "2"}),
    _rows("live_key", SOME, {"key": "'key ' || n", "execution_id": _id(f"{READY} + n")}),
    _rows("fact", 1, {"key": "'history_from'", "value": f"'{NOW.isoformat()}'"}),
    _rows(
        "api_key",
        NODES,
        {
            "id": "'key ' || n",
            "name": "'key ' || n",
            "role": "'admin'",
            "token_hash": "'abc'",
            "created_at": _NOW,
        },
    ),
    _rows(
        "idempotency_key",
        SOME,
        {
            "caller": f"'key ' || n % {NODES}",
            "key": "'request ' || n",
            "request_hash": "'abc'",
            "created_at": f"{_NOW} - n * interval '1 minute'",
            "status": "CASE n % 2 WHEN 0 THEN 200 END",
        },
    ),
    _rows(
        "dashboard_session",
        SOME,
        {
            "token_hash": "sha256(n::text::bytea)",
            "key_id": f"'key ' || n % {NODES} + 1",
            "created_at": _NOW,
            "expires_at": f"{_NOW} + (n - 1000) * interval '1 minute'",
        },
    ),
    _rows(
        "handler",
        SOME,
        {
            "name": "'published ' || n / 4",
            "fingerprint": "'fingerprint ' || n",
            "schema": "'{}'",
            "options": "'{}'",
            "doc": "''",
            "run_style": "'thread'",
            "published_at": _NOW,
            "started_at": f"{_NOW} + n * interval '1 second'",
        },
    ),
    # Four deliveries of each alert; the executions of the first ones are there.
    _rows(
        "alert_delivery",
        SOME,
        {
            "id": _id(f"{ENDED} + n"),
            "channel": "'channel ' || n % 20",
            "alert_id": _id(f"{OTHER} + n / 4"),
            "event": "'opened'",
            "run_at": _NOW,
            "begun_at": _NOW,
            "heard_at": _NOW,
            "created_at": f"{_NOW} - n * interval '1 minute'",
        },
    ),
    _rows(
        "channel",
        SOME,
        {
            "name": "'channel ' || n",
            "kind": "'email'",
            "settings": "'{}'",
            "bound_secrets_only": "false",
            "version": "1",
            "created_at": _NOW,
            "updated_at": _NOW,
        },
    ),
    _rows(
        "calendar",
        SOME,
        {
            "name": "'calendar ' || n",
            "source": "'{}'",
            "version": "3",
            "followed_version": "3",
            "created_at": _NOW,
            "updated_at": _NOW,
        },
    ),
    _rows(
        "calendar_version",
        SOME,
        {"name": "'calendar ' || n", "version": "3", "days": "'{sat}'", "recorded_at": _NOW},
    ),
    # Ten of them are not resolved.
    _rows(
        "alert",
        SOME,
        {
            "id": _id(f"{OTHER} + n"),
            "fact": "'late:' || n",
            "kind": "'late'",
            "severity": "'warning'",
            "sentence": "'it is late'",
            "members": "'[]'",
            "count": "1",
            "first_seen_at": _NOW,
            "opened_at": _NOW,
            "last_seen_at": f"CASE WHEN n > 10 THEN {_NOW} - n * interval '1 minute' END",
            "resolved_at": f"CASE WHEN n > 10 THEN {_NOW} - n * interval '1 minute' END",
        },
    ),
    _rows(
        "webhook",
        WEBHOOKS,
        {
            "id": _id(f"{OTHER} + n"),
            "url": "'https://example.com/'",
            "events": "'{}'",
            "format": "'standard'",
            "secret": "'whsec_'",
            "state": "'active'",
            "since": "pg_current_snapshot()",
            "created_by": "'x'",
            "created_at": _NOW,
            "updated_at": _NOW,
        },
    ),
    # Of the first webhook one in five waits: every other of these for its time, the others for those.
    _rows(
        "webhook_delivery",
        SOME,
        {
            "id": _id(f"{OTHER} + n"),
            "webhook_id": _id(f"{OTHER} + 1 + n % {WEBHOOKS}"),
            "event_id": _id(f"{OTHER} + n"),
            "type": "'execution.dead'",
            "subject": "'subject ' || n / 300",
            "occurred_at": _NOW,
            "body": "'{}'",
            "state": "CASE WHEN n % 100 = 0 THEN 'pending' WHEN n % 10 = 1 THEN 'failed' ELSE 'delivered' END",
            "next_at": f"CASE WHEN n % 200 = 0 THEN {_NOW} - n * interval '1 second' END",
            "created_at": f"{_NOW} - n * interval '1 second'",
            "finished_at": f"CASE WHEN n % 100 <> 0 THEN {_NOW} END",
        },
    ),
    _rows(
        "template",
        SOME,
        {
            "id": _id(f"{OTHER} + n"),
            "name": "'template ' || n",
            "job": "'{}'",
            "version": "1",
            "created_at": _NOW,
            "updated_at": _NOW,
        },
    ),
    _rows(
        "operation",
        SOME,
        {
            "id": _id(f"{OTHER} + n"),
            "action": "'cancel'",
            "state": "'succeeded'",
            "actor": "'actor'",
            "settles": "false",
            "total": "1",
            "created_at": _NOW,
            "finished_at": f"CASE WHEN n < {SOME - 10} THEN {_NOW} - n * interval '1 minute' END",
        },
    ),
    _rows(
        "operation_item",
        MANY,
        {
            "operation_id": _id(f"{OTHER} + {SOME} - n % 10"),
            "number": "n",
            "execution_id": _id(f"{ENDED} + n"),
            "status": "CASE n % 2 WHEN 0 THEN 'done' END",
        },
    ),
    _rows("rollup", 0, _ROLLUP, _SERIES),
    _rows(
        "job_summary",
        RECURRING,
        {
            "job_id": _id(f"{JOB} + n"),
            "succeeded_at": _ENDED_AT,
            "failures_in_a_row": "n % 3",
            "duration_seconds": "n",
            "lateness_seconds": "n",
        },
    ),
]
# Summaries are made by autovacuum, which is kept away here: it would learn what is there.
_SETTLE = """
SELECT brin_summarize_new_values(indexrelid)
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
WHERE amname = 'brin' AND relkind = 'i';
DO $$
DECLARE
    one regclass;
BEGIN
    FOR one IN SELECT oid FROM pg_class WHERE relnamespace = 'timeball'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', one);
    END LOOP;
END
$$;
"""
_LATER = [
    _rows(
        "finished",
        0,
        _ENDED | {"recorded": "pg_current_xact_id()::text::bigint"},
        f"generate_series({MANY} + 1, {MANY} + {LATEST}) AS n",
    ),
    _rows("attempt", 0, _ATTEMPTS, f"generate_series({MANY} + 1, {MANY} + {LATEST}) AS n"),
    _rows("audit", 0, _AUDIT, f"generate_series({SOME} + 1, {SOME} + {LATEST}) AS n"),
]


@dataclass(frozen=True)
class FullDatabase:
    """A full database, and the place in its change stream before the latest rows."""

    server: PostgresServer
    name: str
    position: str

    def position_in(self, given: dict[str, Any]) -> dict[str, Any]:
        """What a statement is given, with the place in the stream where `...` stands for it."""
        return {name: self.position if value is ... else value for name, value in given.items()}


def fill(server: PostgresServer, name: str) -> FullDatabase:
    """Fill a migrated, empty database."""
    # The indexes are made again behind the rows: that takes half the time.
    asked = """
    SELECT indexname, indexdef FROM pg_indexes
    WHERE tablename IN ('due', 'ready', 'blocked', 'job', 'rollup')
      AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = format('%I.%I', schemaname, indexname)::regclass)
    """
    indexes = server.execute(asked, name)
    drops = [f"DROP INDEX timeball.{index};" for index, _ in indexes]
    server.execute("".join([*drops, *_FILL, *(f"{definition};" for _, definition in indexes)]), name)
    server.execute(_SETTLE, name)
    ((position,),) = server.execute("SELECT pg_current_snapshot()::text", name)
    server.execute("".join(_LATER), name)
    return FullDatabase(server, name, position)
