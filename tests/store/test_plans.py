"""The hot statements still use their index: with a million rows, and whatever the planner believes about them.

Plans are compared by what they read, not by their shape: each statement is run, and the rows and pages that its scans read are counted. A
statement that needs a hundred rows of a million and reads thousands does not use its index. One that reads few rows but many pages reads a
wrong index from one end to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import orjson
import psycopg
import pytest

from tests.support import query_plans
from tests.support.factories import ALWAYS, WHOLE_CALL, claim_all
from tests.support.query_plans import ALL_MODES, EMPTIED, EMPTY, FORGET, nodes_of, rows_touched
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from timeball.env import Env
from timeball.store.store import Store
from timeball.store.types import PARKED_AT
from timeball.testing import VirtualClock

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
MILLION = 1_000_000
SOME = 100_000
BATCH = 100
QUEUES, PRIORITIES = 3, 2
LANES = [(f"q{queue}", 50 + priority) for queue in range(QUEUES) for priority in range(PRIORITIES)]
HALF = MILLION // 2
LIMITS = 10
# How many rows of each table of waiting executions expire.
EXPIRING = 20

# Row n has the id n, so that each table has ids of its own; every other row belongs to a job of its own.
# All n have seven hexadecimal digits, so that an id is a plain concatenation, which saves most of the time.
_DUE, _READY, _RUNNING, _FINISHED, _BLOCKED = (number * MILLION for number in range(17, 22))
_ID = f"('{'0' * 25}' || to_hex(n))::uuid"
_JOB = f"(CASE WHEN n % 2 = 0 THEN '{'0' * 25}' ELSE 'f{'0' * 24}' END || to_hex(n))::uuid"
_AT = f"'{NOW.isoformat()}'::timestamptz + (n % {MILLION} - {HALF}) * interval '1 second'"
_COMMON = {
    "id": _ID,
    "job_id": _JOB,
    "origin": "'schedule'",
    "version": "1",
    "queue": f"'q' || n % {QUEUES}",
    "priority": f"50 + n / {QUEUES} % {PRIORITIES}",
    "handler": "'tests:noop'",
    "scheduled_for": f"'{NOW.isoformat()}'",
}
_TRIED = {"attempts": "1", "lost": "0", "fence": "1", "claim_id": _ID}
_QUEUED = {"run_at": _AT, "queued_at": f"'{NOW.isoformat()}'"}


def _rows(table: str, first: int, number: int, columns: dict[str, str]) -> str:
    columns = _COMMON | columns
    return (
        f"INSERT INTO timeball.{table} ({', '.join(columns)}) SELECT {', '.join(columns.values())} "
        f"FROM generate_series({first + 1}, {first + number}) AS n;"
    )


_FILL = "".join(
    [
        _rows("due", _DUE, MILLION, {"kind": "'occurrence'", "shard": "n % 64", "run_at": _AT}),
        _rows("ready", _READY, MILLION, _QUEUED),
        _rows("running", _RUNNING, SOME, _QUEUED | _TRIED | {"holder": _ID, "claimed_at": f"'{NOW.isoformat()}'"}),
        _rows("finished", _FINISHED, SOME, _TRIED | {"state": "'succeeded'", "finished_at": _AT}),
        _rows("blocked", _BLOCKED, SOME, _QUEUED | {"limit_key": f"'limit ' || n % {LIMITS}"}),
        f"INSERT INTO timeball.running_limit SELECT 'limit ' || n, {BATCH} FROM generate_series(0, {LIMITS - 1}) AS n;",
        *(
            f"UPDATE timeball.{state_table} SET expires_at = '{NOW.isoformat()}', origin = 'enqueue' "
            f"WHERE id IN (SELECT {_ID} FROM generate_series({first + 1}, {first + EXPIRING}) AS n);"
            for state_table, first in (("due", _DUE), ("ready", _READY), ("blocked", _BLOCKED))
        ),
        f"UPDATE timeball.shard SET owner = '{UUID(int=1)}', epoch = 1;",
        *(
            f"ALTER TABLE timeball.{state_table} SET (autovacuum_enabled = off);"
            for state_table in ("due", "ready", "blocked", "running")
        ),
    ]
)

_LOOK_UPS = ("Index Scan", "Bitmap Heap Scan", "Bitmap Index Scan")

_LEARN = "ANALYZE timeball.due, timeball.ready, timeball.blocked, timeball.running, timeball.finished"


@pytest.fixture(scope="module")
def server(servers: Servers) -> PostgresServer:
    try:
        return servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise


@pytest.fixture(scope="module")
def crowded(server: PostgresServer, template_of: Callable[[PostgresServer], str]) -> Iterator[str]:
    """A database with a million rows in due and in ready, half of them due; its name."""
    name = server.create_database(template_of(server))
    # The indexes are created after the rows, which takes half the time.
    asked = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename IN ('due', 'ready') AND indexname !~ 'pkey$'"
    indexes = server.execute(asked, name)
    drops = [f"DROP INDEX timeball.{index}" for index, _ in indexes]
    server.execute(";".join([*drops, _FILL, *(definition for _, definition in indexes)]), name)
    yield name
    server.drop_database(name)


_BELIEFS = {
    "fresh statistics": _LEARN,
    "emptied tables": EMPTIED,
    "no statistics": FORGET,
    "empty tables": FORGET + EMPTY,
}


@pytest.fixture(scope="module", params=list(_BELIEFS))
def belief(request: pytest.FixtureRequest, server: PostgresServer, crowded: str) -> str:
    """What the planner believes about the tables."""
    server.execute(_BELIEFS[request.param], crowded)
    return str(request.param)


def session(server: PostgresServer, database: str, belief: str) -> AbstractContextManager[psycopg.Connection[Any]]:
    joins_off = "SET enable_hashjoin = off; SET enable_mergejoin = off"
    return query_plans.session(server, database, joins_off if belief == "no statistics" else "")


def id_(number: int) -> UUID:
    return UUID(int=number)


def job(number: int) -> UUID:
    return UUID(int=0xF << 124 | number)


def at(number: int) -> datetime:
    return NOW + timedelta(seconds=number % MILLION - HALF)


def odd(state_table: int) -> list[int]:
    """A batch of rows of a table that have just become due, each of a job of its own."""
    return list(range(state_table + HALF - 2 * BATCH + 1, state_table + HALF, 2))


_NOTHING: dict[str, list[Any]] = {
    name: []
    for name in (
        *("run_due_ids", "run_ids", "run_fors", "run_run_ats", "run_targets"),
        *("skip_due_ids", "skip_ids", "skip_fors", "skip_reasons"),
        *("range_due_ids", "range_ids", "range_firsts", "range_lasts", "range_counts", "range_reasons"),
        *("replacing_due_ids", "replacing_job_ids"),
    )
}
_CLAIM = {
    "queues": [queue for queue, _ in LANES],
    "priorities": [priority for _, priority in LANES],
    "bounds": [ALWAYS] * len(LANES),
    "first_ids": [UUID(int=0)] * len(LANES),
    "is_limited": False,
    "unclaimed_for": timedelta(0),
    "handlers": ["tests:noop"],
    "slots": BATCH,
    "lane_limit": 2 * BATCH,
    "holds": BATCH,
    "limit": 2 * BATCH,
    "incarnation": id_(1),
    "claim_id": id_(2),
}
_HELD = [id_(_RUNNING + number) for number in range(1, BATCH + 1)]
_ENDED = {
    "ids": _HELD,
    "fences": [1] * BATCH,
    "claim_ids": _HELD,
    "started": [NOW] * BATCH,
    "finished": [NOW] * BATCH,
    "results": [None] * BATCH,
}
_CHANGED_JOBS = {"job_ids": [job(number) for number in odd(_DUE)], "parked_at": PARKED_AT, "reason": "test"}

_PAST = {"start": NOW - timedelta(days=400), "first_id": UUID(int=0), "last_id": UUID(int=2**128 - 1)}

# Statements with tests of their own below.
TRIED_APART = ("has_unclaimed",)

# Statement, parameters, and the most rows of all tables that it may read.
HOT: dict[str, tuple[dict[str, Any], int]] = {
    # Two batches of each lane are read, and each claimed row is locked and deleted once.
    "claim": (_CLAIM, 2 * len(LANES) * 3 * BATCH + 4 * BATCH),
    # Each row is looked up, locked and deleted once; and its queue is read.
    "claim_tickets": (
        {
            "ids": [id_(number) for number in odd(_READY)],
            "handlers": ["tests:noop"],
            "queues": None,
            "slots": BATCH,
            "holds": BATCH,
            "is_limited": False,
            "incarnation": id_(1),
            "claim_id": id_(2),
        },
        5 * BATCH,
    ),
    # One row, its queue and its job.
    "claim_by_id": (
        {
            "id": id_(odd(_READY)[0]),
            "handlers": ["tests:noop"],
            "queues": None,
            "is_limited": False,
            "incarnation": id_(1),
            "claim_id": id_(2),
        },
        5,
    ),
    "read_tickets": (
        {name: _CLAIM[name] for name in ("queues", "priorities", "bounds", "handlers")} | {"limit": BATCH},
        2 * len(LANES) * BATCH,
    ),
    "lanes": ({}, 3 * len(LANES)),
    "look_ahead": (
        {"shards": list(range(64)), "bounds": [ALWAYS] * 64, "horizon": timedelta(days=1), "limit": 10},
        64 * 10 + 64,
    ),
    "due_rows": ({"ids": [id_(number) for number in odd(_DUE)]}, BATCH),
    "timetables": ({"ids": [job(number) for number in odd(_DUE)]}, BATCH),
    "promote": (
        _NOTHING
        | {
            "ids": [id_(number) for number in odd(_DUE)],
            "run_ats": [at(number) for number in odd(_DUE)],
            "versions": [1] * BATCH,
            "next_ids": [id_(10 * MILLION + number) for number in odd(_DUE)],
            "next_run_ats": [NOW] * BATCH,
            "next_fors": [NOW] * BATCH,
            "watermarks": [NOW] * BATCH,
            "lefts": [None] * BATCH,
            "shards": list(range(64)),
            "epochs": [1] * 64,
            "incarnation": id_(1),
            "promotion_window": timedelta(milliseconds=500),
            "tzdata": "2026a",
            "freeze_epoch": 0,
        },
        3 * BATCH,
    ),
    # Of a million rows a few expire: each is read, locked and deleted once.
    "expire_waiting": ({"limit": BATCH, "reason": "expired"}, 4 * 3 * EXPIRING),
    "busy_jobs": ({"job_ids": [job(number) for number in odd(_DUE)]}, 5 * BATCH),
    "finish_succeeded": (_ENDED, 3 * BATCH),
    "attempt_facts": ({"ids": _HELD, "fences": [1] * BATCH, "claim_ids": _HELD}, 2 * BATCH),
    "already_recorded": ({"ids": _HELD, "claim_ids": _HELD}, 3 * BATCH),
    "find_execution": ({"id": id_(_FINISHED + 77)}, 10),
    # For a page of jobs, and the answer to every POST of one: eight look-ups in state tables for each job, and two in the history.
    "job_situations": ({"ids": [id_(number) for number in (*odd(_DUE), *odd(_READY))]}, 12 * 2 * BATCH),
    "recent_runs_of_jobs": ({"ids": [job(number) for number in odd(_DUE)], "count": 20}, 21 * BATCH),
    # As many executions of each limit as it has places, the most urgent first.
    "unblock": ({"keys": ["limit 3", "limit 4"]}, 2 * 3 * BATCH),
    "blocked_keys": ({"after": "", "limit": 500}, 2 * LIMITS),
    "request_stop_of_superseded": ({"keys": ["limit 3", "limit 4"], "reason": "test"}, 10),
    # The statements of every change of jobs.
    "take_occurrences": (_CHANGED_JOBS, 5 * BATCH),
    "promoted_until": (_CHANGED_JOBS | {"first_ahead": id_(_FINISHED)}, 10 * BATCH),
    "drop_resumptions": (_CHANGED_JOBS, 5 * BATCH),
    "park_waiting": (_CHANGED_JOBS, 5 * BATCH),
    "unpark": (_CHANGED_JOBS, 5 * BATCH),
    "is_queued": (_CHANGED_JOBS, 5 * BATCH),
    "withdraw_waiting": (_CHANGED_JOBS, 10 * BATCH),
    "stop_held": (_CHANGED_JOBS, 5 * BATCH),
    "waiting_of_jobs": (_CHANGED_JOBS, 10 * BATCH),
    "cancel_waiting": ({"ids": [id_(number) for number in odd(_DUE)], "reason": "test"}, 4 * BATCH),
    "cancellable": ({"ids": [id_(number) for number in odd(_DUE)]}, 4 * BATCH),
    # A little more than it needs, for dead entries in its indexes.
    "request_stop": ({"ids": _HELD, "reason": "test"}, 2 * BATCH + 20),
    "request_stop_of_jobs": ({"job_ids": [job(number) for number in odd(_RUNNING)], "reason": "test"}, 2 * BATCH),
    "stops": ({"incarnation": _HELD[0]}, 5),
    "count_running_of_queue": ({"queue": "q1"}, 5),
    # The facts of one explanation.
    "locate_execution": ({"id": id_(odd(_READY)[0])}, 5),
    "gate_facts": ({"queue": "q1", "limit_key": "k", "unique_key": "u"}, 5),
    "competitors": (
        {"id": id_(odd(_READY)[0]), "job_id": job(odd(_READY)[0]), "queue": "q1", "limit_key": "k", "limit": 20},
        20,
    ),
    "queue_position": ({"queue": "q1", "priority": 50, "run_at": NOW, "limit": 100}, 102 * PRIORITIES),
    "typical_durations_of_jobs": ({"ids": [job(number) for number in odd(_FINISHED)], "limit": 50}, 2 * BATCH),
    "typical_durations_of_handlers": ({"limit": BATCH}, 2 * BATCH),
    # Timelines and forecasts.
    "futures": ({"limit": BATCH}, BATCH),
    "future_of_job": ({"job_id": job(odd(_DUE)[0])}, 5),
    "one_offs": ({"start": NOW, "until": NOW + timedelta(days=9), "queue": None, "each": 10}, 64 * 10 + 2 * 64),
    "past_of_jobs": (_PAST | {"ids": [job(number) for number in odd(_FINISHED)], "each": 5}, 2 * BATCH),
}


def run_explained(connection: psycopg.Connection[Any], name: str, given: dict[str, Any]) -> dict[str, Any]:
    return query_plans.run_explained(connection, name, given, NOW)


def check_touched(connection: psycopg.Connection[Any], name: str, given: dict[str, Any], most: int) -> None:
    query_plans.check_touched(connection, name, given, most, NOW)


@pytest.mark.parametrize("name", list(HOT))
def test_a_hot_statement_touches_little(server: PostgresServer, crowded: str, belief: str, name: str) -> None:
    """Fault 30."""
    for plan_cache_mode in ALL_MODES:
        with session(server, crowded, belief) as connection:
            connection.execute(f"SET plan_cache_mode = {plan_cache_mode}")

            check_touched(connection, name, *HOT[name])


def test_a_promotion_looks_only_at_what_waits_for_its_own_job(
    server: PostgresServer, crowded: str, belief: str
) -> None:
    given, most = HOT["promote"]
    replacing = {
        "replacing_due_ids": [id_(number) for number in odd(_DUE)],
        "replacing_job_ids": [job(number) for number in odd(_BLOCKED)],
    }
    for plan_cache_mode in ALL_MODES:
        with session(server, crowded, belief) as connection:
            connection.execute(f"SET plan_cache_mode = {plan_cache_mode}")

            check_touched(connection, "promote", given | replacing, most + 3 * BATCH)


@pytest.mark.parametrize("belief", list(_BELIEFS), indirect=True)
def test_a_promotion_deletes_its_rows_by_ctid(server: PostgresServer, crowded: str, belief: str) -> None:
    """Comparing each row with the whole list would read no more rows, but cost the square of the batch."""
    with session(server, crowded, belief) as connection:
        scans = rows_touched(run_explained(connection, "promote", HOT["promote"][0]))

    assert [rows for scan, rows in scans if scan.startswith("Tid Scan on due")] == [BATCH]


@pytest.mark.parametrize("belief", list(_BELIEFS), indirect=True)
def test_successes_are_looked_up_one_by_one(server: PostgresServer, crowded: str, belief: str) -> None:
    """In the order in which they are given: all at once, they could be locked in the order of the pages."""
    for plan_cache_mode in ("force_custom_plan", "force_generic_plan"):
        with session(server, crowded, belief) as connection:
            connection.execute(f"SET plan_cache_mode = {plan_cache_mode}")

            plan = run_explained(connection, "finish_succeeded", _ENDED)

            (deletion,) = [
                each for each in nodes_of(plan) if each.get("Operation") == "Delete" and "running" in each["Alias"]
            ]
            _, *parts = nodes_of(deletion)
            (lookup,) = [each for each in parts if each.get("Relation Name") == "running"]
            assert {each["Node Type"] for each in parts} <= {"Nested Loop", "CTE Scan", "Function Scan", *_LOOK_UPS}
            assert lookup["Actual Loops"] == BATCH


# A group of which a batch of parts runs, and many others have not begun.
_RUNNING_PARTS = f"""
SELECT timeball.begin_work(%s::jsonb, '{UUID(int=1)}', NULL, 'group', '{NOW.isoformat()}', NULL, 'me', NULL, NULL);
INSERT INTO timeball.group_part (group_id, number)
SELECT id, number FROM timeball.execution_group, generate_series({BATCH + 1}, {SOME}) AS number;
INSERT INTO timeball.running (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                              attempts, lost, fence, claim_id, holder, claimed_at, has_follow_ups)
SELECT ready.id, job_id, origin, ready.version, ready.queue, ready.priority, ready.handler, scheduled_for, run_at, queued_at,
       1, 0, 1, ready.id, ready.id, run_at, ready.has_follow_ups
FROM timeball.job JOIN timeball.ready ON ready.id = job.id
WHERE job.group_id IS NOT NULL
RETURNING id
"""


@pytest.mark.parametrize("belief", list(_BELIEFS), indirect=True)
def test_parts_of_a_large_group_are_looked_up_one_by_one(server: PostgresServer, crowded: str, belief: str) -> None:
    """A function looks them up, and plans do not show that."""
    for plan_cache_mode in ALL_MODES:
        with session(server, crowded, belief) as connection:
            connection.execute(f"SET plan_cache_mode = {plan_cache_mode}")
            call = WHOLE_CALL | {"limit_key": None, "max_running": None}
            group = orjson.dumps({"group": [call] * BATCH}).decode()
            with psycopg.ClientCursor(connection) as cursor:
                cursor.execute(_RUNNING_PARTS, [group])
                while cursor.nextset():
                    pass
                held = sorted(id_ for (id_,) in cursor.fetchall())
            before = {table: rows_read(connection, table) for table in ("job", "group_part")}

            run_explained(connection, "finish_succeeded", _ENDED | {"ids": held, "claim_ids": held})

            for table, rows in before.items():
                assert rows_read(connection, table) - rows <= 2 * BATCH
            ended = connection.execute("SELECT count(*) FROM timeball.group_part WHERE state = 'succeeded'").fetchone()
            assert ended == (BATCH,)


@pytest.mark.parametrize("belief", list(_BELIEFS), indirect=True)
@pytest.mark.parametrize("lanes", [1, len(LANES)])
def test_a_claim_reads_the_heads_of_its_lanes(server: PostgresServer, crowded: str, belief: str, lanes: int) -> None:
    """A function reads them, and plans do not show that."""
    given = _CLAIM | {name: _CLAIM[name][:lanes] for name in ("queues", "priorities", "bounds", "first_ids")}
    for plan_cache_mode in ALL_MODES:
        with session(server, crowded, belief) as connection:
            connection.execute(f"SET plan_cache_mode = {plan_cache_mode}")

            run_explained(connection, "claim", given)

            assert rows_read(connection, "ready") <= 2 * lanes * 3 * BATCH + 4 * BATCH


@pytest.mark.parametrize("belief", list(_BELIEFS), indirect=True)
def test_has_unclaimed_reads_the_first_of_each_lane(server: PostgresServer, crowded: str, belief: str) -> None:
    for plan_cache_mode in ALL_MODES:
        with session(server, crowded, belief) as connection:
            connection.execute(f"SET plan_cache_mode = {plan_cache_mode}")

            run_explained(connection, "has_unclaimed", _CLAIM | {"age": timedelta(0)})

            assert rows_read(connection, "ready") <= 2 * len(LANES)


def rows_read(connection: psycopg.Connection[Any], table: str) -> int:
    """How many rows of a table this transaction has read."""
    asked = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = %s::regclass"
    read = connection.execute(asked, [f"timeball.{table}"]).fetchone()
    assert read is not None
    return int(read[0])


@pytest.mark.parametrize("belief", ["fresh statistics"], indirect=True)
def test_the_history_of_a_job_is_read_by_its_job(server: PostgresServer, crowded: str, belief: str) -> None:
    with session(server, crowded, belief) as connection:
        given = {"job_id": job(_FINISHED + 77), "before": UUID(int=2**128 - 1), "limit": 50}

        check_touched(connection, "executions_of_job", given, 20)


@pytest.mark.parametrize("belief", ["fresh statistics"], indirect=True)
def test_the_latest_of_a_span_are_read_by_their_ids(server: PostgresServer, crowded: str, belief: str) -> None:
    with session(server, crowded, belief) as connection:
        check_touched(connection, "past", _PAST | {"limit": BATCH}, 2 * BATCH)


async def test_a_claim_keeps_its_limit_with_any_plan(server: PostgresServer, crowded: str, belief: str) -> None:
    """Fault 30."""
    store = Store(server.dsn(crowded), Env(VirtualClock(NOW), Random(belief)))
    await store.open(migrates=False)
    async with store.database.connection() as connection:
        if belief == "no statistics":
            await connection.execute("SET enable_hashjoin = off; SET enable_mergejoin = off")

    claimed = await claim_all(store, slots=7, holds=3)

    await store.close()
    assert len(claimed) == 10
    assert len([each for each in claimed if each.run_at <= NOW]) == 7
