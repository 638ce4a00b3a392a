"""Statements of APIs and services read only what they return, however full the database is and whatever the planner believes about it.

As in `test_plans`, which has the hot path, each statement is run, and the rows that its scans read are counted. Every statement
is tried there or here, or is excused: a new one that is neither makes the last test fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from random import Random
from typing import Any
from uuid import UUID

import orjson
import psycopg
import pytest

from tests.store import test_plans
from tests.support import full_database, query_plans
from tests.support.factories import WHOLE_CALL
from tests.support.full_database import (
    DAYS,
    DELETED,
    DUE,
    ENDED,
    HANDLERS,
    JOB,
    LATEST,
    LIMITS,
    MANY,
    NODES,
    NOW,
    OTHER,
    PRIORITIES,
    QUEUES,
    READY,
    RECURRING,
    RUNNING,
    RUNS,
    SOME,
    WEBHOOKS,
    FullDatabase,
    holder,
    id_,
)
from tests.support.query_plans import ALL_MODES, EMPTIED, FORGET
from tests.support.servers import VERSIONS, PostgresServer, Servers, ServiceMissing, give_up_on
from timeball.domain.execution import ExecutionState
from timeball.domain.search import ExecutionFilter, PageRequest, where
from timeball.env import Env
from timeball.store.db.statements import all_statements
from timeball.store.rollups import INSTALLATION_SERIES, series_of_queue
from timeball.store.search.listing import ListingStore
from timeball.store.store import Store
from timeball.store.types import PARKED_AT
from timeball.testing import VirtualClock

PAGE = 50
SHARDS = 64
PARTITIONS = DAYS + 2
# A summary is of sixteen pages. All rows of them are read if one matches.
SUMMARY = 16 * 100


def ids(base: int, count: int = PAGE) -> list[UUID]:
    return [id_(base + number) for number in range(1, count + 1)]


def json(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()


_ALERT = {
    "id": id_(OTHER + 77),
    "fact": "late:77",
    "kind": "late",
    "severity": "warning",
    "sentence": "it is late",
    "members": [],
    "count": 1,
    "first_seen_at": NOW,
    "opened_at": NOW,
}
_UNFINISHED = {
    "ids": ids(JOB),
    "begin_bys": [NOW] * PAGE,
    "end_bys": [NOW] * PAGE,
    "looked_at": 10,
    "parked_at": PARKED_AT,
}
_JOB = {"job_id": id_(JOB + 77)}
_GROUP = {"id": id_(OTHER + 77)}
_LIMITED_JOBS = {
    "jobs": json(
        [
            {
                "id": str(id_(OTHER + 1_000_000 + number)),
                "kind": "once",
                "handler": "h",
                "payload": {},
                "scheduled_at": NOW.isoformat(),
                "queue": "q",
                "priority": 50,
                "max_retries": 3,
                "max_lost": 3,
                "initial_backoff_ms": 1_000,
                "max_backoff_ms": 1_000,
                "timeout_ms": 1_000,
                "at_most_once": False,
                "limit_key": f"limit {number}",
                "max_running": 7,
                "shard": 1,
                "version": 1,
            }
            for number in range(PAGE)
        ]
    ),
    "firsts": "[]",
    "promotion_window": timedelta(seconds=5),
    "wakeup": None,
}
# A one-off that follows an execution.
_FOLLOWING = {"job_id": id_(JOB + RECURRING + 20)}
# A job has few records here, so the page is a small one.
_WAITING_OF_JOB = MANY // RECURRING
_LEDGER = _JOB | {
    "low": UUID(int=0),
    "high": UUID(int=2**128 - 1),
    "since": NOW - timedelta(days=DAYS + 1),
    "until": NOW + timedelta(days=1),
    "limit": 2,
}
_HOOK = {"id": id_(OTHER + 1), "webhook_id": id_(OTHER + 1)}
# Its deliveries that wait: see full_database.
_WAITING = SOME // 100
_LEDGER_PAGE = 3 * _WAITING_OF_JOB + 4 * 3 + PARTITIONS
_WINDOW = {
    "span": "minute",
    "since": NOW - timedelta(minutes=60),
    "until": NOW,
    "step": timedelta(minutes=1),
    "queue": None,
    "handler": None,
    "all_of_handler": None,
    "series": INSTALLATION_SERIES,
    "with_sketches": True,
}
_GROUPS = {
    "span": "minute",
    "since": NOW - timedelta(minutes=90),
    "first_hour": NOW - timedelta(hours=1),
    "last_hour": NOW,
    "until": NOW,
    "series": UUID(int=0),
    "queue": None,
    "handler": None,
    "limit": 100,
}
_CLAIM = {"holder": holder(1), "lease": timedelta(seconds=10)}
_OPERATION = _CLAIM | {
    "id": id_(OTHER + SOME),
    "operation_id": id_(OTHER + SOME),
    "done": 1,
    "failed": 0,
    "state": "succeeded",
    "error": None,
}
_REQUEST = {
    "caller": "key 1",
    "key": "request 1",
    "request_hash": b"abc",
    "seed": "abc",
    "keep": timedelta(days=1),
    "patience": timedelta(minutes=1),
    "status": 200,
    "headers": "{}",
    "body": b"",
}
_NODE = {
    "incarnation": holder(1),
    "busy": 1,
    "broker_state": "works",
    "broker_error": None,
    "broker": "postgresql",
    "trouble": None,
}
_CALENDAR = {"name": "calendar 77", "description": None, "source": "{}", "version": 4}
_TEMPLATE = {"id": id_(OTHER + 77), "name": "template 77", "description": None, "job": "{}"}
_DEAD = {"by": "error", "no_fingerprint": "none", "limit": PAGE, "groups": 10, "parts": 24}
_SPAN = {"since": NOW - timedelta(minutes=5), "until": NOW}
_LAST_DAY = {"day_start": NOW - timedelta(hours=36), "day_end": NOW - timedelta(hours=12), "batch": PAGE}
_TRANSITIONS = [
    {
        "id": id_(RUNS + n),
        "job_id": id_(JOB + n),
        "fence": 1,
        "claim_id": id_(RUNS + n),
        "is_paused": False,
        "is_deleted": False,
        "target": "due" if n % 2 else "finished",
        "state": "dead",
        "due_kind": "retry",
        "run_at": NOW,
        "shard": 1,
        "started_at": NOW,
        "finished_at": NOW,
        "attempts": 1,
        "lost": 0,
        "outcome": "failed",
    }
    for n in range(1, PAGE + 1)
]
_EXECUTIONS = [{"id": id_(OTHER + n), "job_id": id_(JOB + n), "origin": "trigger"} for n in range(1, PAGE + 1)]

_WAITING_FOR_KEY = {
    "id": id_(77),
    "job_id": id_(77),
    "origin": "enqueue",
    "shard": 1,
    "run_at": NOW,
    "scheduled_for": NOW,
    "version": 1,
    "queue": "q",
    "priority": 50,
    "handler": "h",
    "unique_key": "key 7",
}
_DEFINITION = {
    "id": id_(JOB + 77),
    "name": "job 77",
    "handler": "handler 7",
    "payload": {},
    "kind": "manual",
    "queue": "q1",
    "priority": 50,
    "max_retries": 3,
    "max_lost": 3,
    "initial_backoff_ms": 1_000,
    "max_backoff_ms": 1_000,
    "at_most_once": False,
    "version": 101,
}

# A statement and its case, its parameters, and the most rows of all tables that it may read.
_NEWEST = {
    "id": id_(READY + 7),
    "key": "key 7",
    "handler": "handler 7",
    "payload": "{}",
    "meta": None,
    "created_by": None,
    "bound_secrets_only": None,
    "run_at": NOW,
}

TABLE: dict[str, tuple[dict[str, Any], int]] = {
    # The change stream: new rows, and those of each table that share a summary with them.
    "changes": ({"position": ..., "limit": 1_000, "transactions": None}, 4 * LATEST + 2 * SUMMARY),
    "started_executions": ({"limit": PAGE}, RUNNING),
    # Claims and outcomes beside the hot path. `running` has no more rows than there are slots:
    # rare statements read all of it.
    "lock_queue": ({"queue": "limited 1"}, 1),
    "mark_queue_limited": ({}, RUNNING + QUEUES * RUNNING),
    "tend_queues": ({}, RUNNING + QUEUES * RUNNING + QUEUES),
    "read_back_claim": ({"incarnation": holder(1), "claim_id": id_(RUNS + 1)}, RUNNING + 1),
    "claim_keys": ({"incarnation": holder(1)}, RUNNING),
    "record_transitions": ({"transitions": json(_TRANSITIONS)}, 4 * PAGE),
    "use_secrets": (
        {"id": id_(RUNS + 1), "claim_id": id_(RUNS + 1), "names": ["A"], "notes": [id_(1)], "is_bound": False},
        5,
    ),
    "report_progress": ({"progress": 0.5, "note": None, "id": id_(RUNS + 1), "fence": 1, "claim_id": id_(RUNS + 1)}, 1),
    "write_traces": (
        {"ids": [id_(RUNS + 1)], "fences": [1], "claim_ids": [id_(RUNS + 1)], "traces": ["{}"]},
        1,
    ),
    "extend_deadline": ({"span": timedelta(seconds=20), "id": id_(RUNS + 1), "fence": 1, "claim_id": id_(RUNS + 1)}, 1),
    "orphaned_claims": ({"limit": PAGE}, RUNNING + NODES * 2 + RUNNING),
    # One execution, and its neighbours.
    "own_words": ({"id": id_(ENDED + 77)}, 1),
    "cause_of": (_FOLLOWING, 2),
    "links_of_execution": (_FOLLOWING | {"id": id_(ENDED + 80)}, 1),
    "close_ended_groups": ({"causes": ids(ENDED)}, PAGE),
    "close_group": (_GROUP, 1),
    "read_groups": ({"ids": ids(OTHER)}, PAGE),
    "parts_of_groups": ({"ids": ids(OTHER), "after": 0, "is_open": False, "limit": PAGE}, PAGE),
    "steps_of_parts": ({"ids": ids(OTHER), "numbers": [*range(200)]}, PAGE),
    "states_of_executions": ({"ids": ids(ENDED)}, 2 * PAGE),
    "followers_of_group": (_GROUP | {"limit": PAGE}, 1),
    "group_of_execution": (_FOLLOWING, 1),
    "unfinished_of_group": (_GROUP, 1),
    "cancel_group": (_GROUP, 1),
    "size_of_results": (_GROUP, 1),
    "ends_of_group": (_GROUP, 1),
    "trim_group": ({"before": NOW, "limit": PAGE}, PAGE),
    # Its functions are compiled, for which the session reads a thousand pages of the catalogs.
    "begin_group": (
        {"work": json({"group": [WHOLE_CALL]}), "root": id_(OTHER), "at": NOW, "created_by": "me", "meta": None},
        3 * PAGE,
    ),
    # A job that comes after another. None of the full database does.
    "lock_causes": ({"names": ["job 7"]}, 1),
    "chain_of_causes": ({"id": id_(7)}, 1),
    "mark_followed": ({"id": id_(7)}, 1),
    "mark_occurrence_followed": ({"id": id_(7)}, 1),
    "is_occurrence_unmarked": ({"id": id_(7)}, 1),
    "rename_cause": ({"id": id_(7), "name": "another"}, 1),
    "forget_causes": ({"ids": [id_(7)]}, 1),
    "trim_followed_successes": ({"before": NOW, "limit": PAGE}, PAGE),
    "placed_follow_ups": ({"causes": ids(ENDED)}, PAGE),
    "put_follow_up": ({"execution_id": id_(ENDED + 77), "on_success": "{}", "on_failure": None}, 1),
    "execution_extras": ({"id": id_(ENDED + 77)}, 3),
    "attempts_of": ({"id": id_(ENDED + 77)}, 1),
    "attempts_of_some": ({"ids": ids(ENDED)}, PAGE),
    "log_lines_of": ({"id": id_(ENDED + 77), "fence": 0, "number": 0, "limit": PAGE}, 1),
    "current_execution_of_job": (_JOB, 3 * MANY // RECURRING),
    "last_ended_of_job": (_JOB, PARTITIONS + 1),
    "last_ended_of_job, which was enqueued": ({"job_id": id_(ENDED + 78)}, PARTITIONS + 1),
    "executions_of_job": (_JOB | {"before": UUID(int=2**128 - 1), "limit": PAGE}, 12 * PAGE),
    "past": (
        {"start": NOW - timedelta(days=1), "first_id": UUID(int=0), "last_id": UUID(int=2**128 - 1), "limit": PAGE},
        PARTITIONS * PAGE,
    ),
    # The ledger of a job: a page of each kind of record. Each day of the history gives one row before the page is full.
    "ledger_outlook": (_JOB, 3),
    # The first call of its function plans that.
    "ledger_records": (_LEDGER, _LEDGER_PAGE + 50),
    "ledger_records_back": (_LEDGER, _LEDGER_PAGE + 50),
    "ledger_skips": (_LEDGER, _LEDGER_PAGE),
    "ledger_skips_back": (_LEDGER, _LEDGER_PAGE),
    "ledger_unfinished": (_LEDGER, 3 * _WAITING_OF_JOB),
    "ledger_unfinished_back": (_LEDGER, 3 * _WAITING_OF_JOB),
    "ledger_one_off": ({"job_id": id_(ENDED + 78)}, 1),
    "ledger_versions": (_JOB, SOME // RECURRING),
    "ledger_versions_leaving_out": (_JOB | {"since": NOW, "until": NOW}, SOME // RECURRING),
    "ledger_version_at": (_JOB | {"at": NOW}, SOME // RECURRING),
    "unfinished_at": (
        _JOB
        | {
            "at": NOW - timedelta(hours=1),
            "before": UUID(int=2**128 - 1),
            "day": NOW - timedelta(days=1),
            "looked_at": PAGE,
            "limit": 20,
            "with_backfills": False,
        },
        3 * _WAITING_OF_JOB + PAGE + PARTITIONS,
    ),
    "last_change": (
        {
            "subject": "job:7",
            "actions": ["job.pause"],
            "low": UUID(int=0),
            "high": UUID(int=2**128 - 1),
            "looked_at": PAGE,
        },
        2,
    ),
    "ledger_ranges": (_JOB | {"until": NOW + timedelta(days=1), "limit": 2}, 2),
    "skips": (
        {
            "start": NOW - timedelta(hours=1),
            "until": NOW,
            "first_id": UUID(int=0),
            "last_id": UUID(int=2**128 - 1),
            "limit": PAGE,
        },
        (3 + PARTITIONS) * PAGE,
    ),
    # Jobs.
    "enqueued_with_key": ({"key": "key 7", "limit": PAGE}, PAGE),
    "free_keys": ({"keys": [f"key {n}" for n in range(1, PAGE + 1)]}, PAGE),
    "key_facts": ({"key": "key 7"}, 1),
    "standing_of_waiting": ({"id": id_(READY + 7)}, 1),
    "replace_waiting": (_NEWEST, 3),
    "extend_waiting": (_NEWEST | {"parked_at": PARKED_AT}, 3),
    "create_successor": ({"jobs": "[]", "run_at": NOW}, 0),
    # They look at the limits that they name.
    "create_jobs": (_LIMITED_JOBS, PAGE),
    "create_and_show_jobs": (_LIMITED_JOBS, PAGE),
    "set_limits": ({"limits": json([{"key": f"limit {n}", "max_running": 1} for n in range(PAGE)])}, 2 * PAGE),
    "put_occurrences": ({"occurrences": json([_WAITING_FOR_KEY])}, 1),
    "live_keys": ({"keys": [f"key {n}" for n in range(1, PAGE + 1)]}, PAGE),
    "find_jobs": ({"ids": ids(JOB)}, PAGE),
    "names_of_jobs": ({"ids": ids(JOB)}, PAGE),
    "named_jobs": ({"ids": ids(JOB)}, PAGE),
    "find_job_by_name": ({"name": "job 77"}, 1),
    "find_jobs_by_name": ({"names": [f"job {n}" for n in range(1, 6)]}, 5),
    "jobs_of_owner": ({"owner": "query:17", "with_ended": False}, PAGE),
    "undeclared_jobs": ({"modules": ["module 7"], "names": ["job 7"]}, RECURRING // 100),
    "jobs_declared_by": ({"declared_by": "module 7"}, RECURRING // 100),
    "jobs_to_change": ({"job_ids": ids(JOB)}, PAGE),
    "jobs_with_occurrence": ({"job_ids": ids(JOB)}, PAGE),
    "write_jobs": ({"jobs": json([_DEFINITION])}, 1),
    "keep_versions": ({"job_ids": [id_(ENDED + 77)]}, 1),
    "open_versions": ({"versions": json([_JOB | {"effective_from": NOW}])}, 1 + SOME // RECURRING),
    "close_versions": ({"versions": json([_JOB | {"closes_at": NOW}])}, SOME // RECURRING),
    "versions_of_job": (_JOB, SOME // RECURRING),
    "schedule_of_version": (_JOB | {"version": 2}, 2),
    "unlimited_jobs": ({"job_ids": [id_(JOB + 77)]}, 3 * MANY // RECURRING),
    "put_under_limit": (_JOB | {"limit_key": "limit 77"}, 3 * MANY // RECURRING),
    "add_executions": ({"executions": json(_EXECUTIONS), "promotion_window": timedelta(0)}, PAGE),
    "find_note": ({"id": id_(OTHER + 77)}, 1),
    # Schedules.
    "hold_frozen": (
        {
            "ids": ids(DUE + MANY),
            "run_ats": [NOW] * PAGE,
            "versions": [1] * PAGE,
            "untils": [PARKED_AT] * PAGE,
            "freeze_epoch": 0,
        },
        4 * PAGE,
    ),
    "failures_in_a_row": (_JOB, 2),
    "thaw": ({"until": NOW}, 1),
    "tags_of_jobs": ({"job_ids": ids(JOB), "tags": ["t"]}, 4 * PAGE),
    "park": ({"job_ids": ids(JOB), "ids": ids(DUE + MANY), "run_ats": [NOW] * PAGE, "parked_at": PARKED_AT}, 4 * PAGE),
    "occurrences_of_other_tzdata": ({"tzdata": "2026b", "shards": list(range(SHARDS)), "limit": PAGE}, RECURRING),
    "occurrences_of_other_tzdata, but there are none": (
        {"tzdata": "2026a", "shards": list(range(SHARDS)), "limit": PAGE},
        0,
    ),
    "end_occurrence": (
        {
            "id": id_(DUE + 77),
            "run_at": NOW - timedelta(seconds=23),
            "version": 1,
            "reason": "ended",
            "tzdata": "2026b",
        },
        2,
    ),
    "move_occurrence": (
        {
            "id": id_(DUE + 77),
            "run_at": NOW - timedelta(seconds=23),
            "version": 1,
            "next_id": id_(OTHER),
            "next_run_at": NOW,
            "next_for": NOW,
            "tzdata": "2026b",
        },
        1,
    ),
    "next_due": ({"limit": 10}, SHARDS + 2 * SHARDS * 10),
    "lock_limits": ({"keys": [f"limit {n}" for n in range(PAGE)]}, PAGE),
    # Queues.
    "queue_to_set": ({"name": "limited 1"}, 1),
    "find_queue": ({"name": "limited 1"}, 1),
    "queue_limits": ({}, QUEUES),
    "waiting_in_queue": ({"queue": "q1", "limit": PAGE}, 5 * PAGE),
    "queue_overview": (
        {"name": None, "after": None, "rows": PAGE, "by_need": True, "limit": PAGE},
        RUNNING + 50 * PAGE,
    ),
    "queue_overview, of one": (
        {"name": "q1", "after": None, "rows": PAGE, "by_need": False, "limit": PAGE},
        RUNNING + 50 * PAGE,
    ),
    "oldest_ready": ({"queues": ["q0", "q1", "q2"]}, QUEUES * 101),
    "uses_of_handlers": ({"limit": PAGE}, RECURRING + PAGE),
    # Overviews.
    "waiting_counts": ({"limit": PAGE}, 5 * (PAGE + 1)),
    "present_numbers": ({"limit": PAGE, "late_after": timedelta(minutes=5)}, RUNNING + 20 * PAGE),
    "present_numbers, and nothing is late": ({"limit": PAGE, "late_after": timedelta(days=5)}, RUNNING + 20 * PAGE),
    "installation_facts": ({}, RECURRING + RUNNING + 3 * SHARDS + NODES),
    "running_now": ({"queue": None, "limit": PAGE}, RUNNING),
    "running_on_workers": ({"holders": [holder(1), holder(2)], "limit": PAGE}, RUNNING),
    "unsuccessful_tries": (_SPAN | {"limit": PAGE}, 2 * SUMMARY + 2 * PAGE),
    "count_dead": ({"limit": PAGE, "apart_from": "timeball.alerts"}, 5 * PAGE),
    # Alerts, of which few are not resolved; the row of the evaluation is read with them.
    "lock_alerts": ({}, 20),
    "unresolved_alerts": ({}, 20),
    "count_open_alerts": ({}, 11),
    "find_alert": ({"id": id_(OTHER + 77)}, 2),
    "lock_alert": ({"id": id_(OTHER + 77)}, 2),
    "resolved_alerts": ({"before": NOW, "before_id": id_(0), "limit": PAGE}, PAGE + 1),
    "write_alerts": ({"alerts": json([_ALERT])}, 1),
    "forget_alerts": ({"ids": ids(OTHER)}, PAGE),
    "trim_alert": ({"before": NOW, "limit": PAGE}, 2 * PAGE),
    # What is expected of jobs and queues.
    "expecting_jobs": ({"after": id_(0), "limit": PAGE}, PAGE),
    "recent_ends_of_jobs": ({"ids": ids(JOB), "numbers": [20] * PAGE}, 2 * 20 * PAGE),
    "latest_success_hours": ({"ids": ids(JOB), "limit": 100}, 100 * PAGE),
    "dead_of_jobs": ({"ids": ids(JOB), "numbers": [10] * PAGE}, 2 * 10 * PAGE),
    "unfinished_of_jobs": (_UNFINISHED, PAGE * (1 + 4 * 10)),
    "missed_ranges_of_jobs": ({"ids": ids(JOB), "looked_at": 10}, 10 * PAGE),
    "expecting_queues": ({"limit": PAGE}, QUEUES),
    "members_of_jobs": ({"ids": ids(JOB)}, PAGE),
    "dead_groups": (_DEAD, 5 * PAGE + 40),
    "dead_groups, by handler": (_DEAD | {"by": "handler"}, 5 * PAGE + 40),
    "settle": ({"how": "retried", "ids": ids(ENDED)}, PAGE),
    "applied_schema": ({}, 50),
    # Nodes.
    "renew_lease": (_NODE, 1 + NODES),
    "remove_node": (_NODE, 1 + SHARDS),
    "remove_expired_nodes": ({}, NODES),
    "drain_node": (_NODE, 1),
    "list_nodes": ({}, NODES + (NODES + 1) * SHARDS),
    "read_holdings": ({}, SHARDS + NODES),
    "read_inboxes": ({"broker": "postgresql"}, NODES),
    "take_shards": ({"ids": list(range(SHARDS)), "incarnation": holder(1)}, 2 * SHARDS + NODES * SHARDS),
    "release_shards": ({"ids": list(range(SHARDS)), "incarnation": holder(1)}, SHARDS),
    "ownerless_shards": ({}, SHARDS + NODES * SHARDS),
    # Operations.
    "find_operation": (_OPERATION, 1),
    "list_operations": ({"before": UUID(int=2**128 - 1), "limit": PAGE}, PAGE),
    "take_operation": (_OPERATION, 30),
    "housekeeping_work": ({}, 30),
    "items_left": (_OPERATION | {"limit": PAGE}, PAGE),
    "operation_items": (_OPERATION | {"after": 100, "status": None, "limit": PAGE}, PAGE),
    "operation_items, of one status": (_OPERATION | {"after": 100, "status": "done", "limit": PAGE}, 2 * PAGE),
    "advance_operation": (_OPERATION, 1),
    "record_items": (
        _OPERATION
        | {
            "numbers": [10 * n for n in range(1, PAGE + 1)],
            "statuses": ["done"] * PAGE,
            "made": [None] * PAGE,
            "errors": [None] * PAGE,
        },
        2 * PAGE,
    ),
    "finish_operation": (_OPERATION, 1),
    "cancel_operation": (_OPERATION, 1),
    "pause_operation": (_OPERATION, 1),
    "resume_operation": (_OPERATION, 1),
    "rest_operation": (_OPERATION | {"rest": timedelta(seconds=1)}, 1),
    "feed_operation": (_OPERATION | {"cursor": NOW, "previous": None}, 1),
    "count_fed": (_OPERATION | {"ids": ids(ENDED)[:5]}, 2),
    "lock_to_fill": (_JOB, 1),
    "existing_executions": ({"ids": ids(ENDED)}, 2 * PAGE),
    "count_filled": (_JOB | {"instants": [NOW - timedelta(hours=1)] * PAGE}, 2 * PAGE),
    "retries_of": (_JOB | {"ids": ids(ENDED)}, 3 * PAGE),
    # Keys, sessions, idempotency.
    "find_api_key": ({"id": "key 7"}, 1),
    "note_api_key_use": ({"id": "key 7"}, 1),
    "list_api_keys": ({}, NODES),
    "revoke_api_key": ({"id": "key 7"}, 1),
    "has_api_keys": ({}, 1),
    "has_usable_api_key": ({}, NODES),
    "begin_request": (_REQUEST, 1),
    "find_request": (_REQUEST, 1),
    "finish_request": (_REQUEST, 1),
    "forget_request": (_REQUEST, 1),
    "leave_request_open": (_REQUEST, 1),
    "forget_old_requests": ({"keep": timedelta(minutes=SOME - PAGE)}, 4 * PAGE),
    "forget_old_requests, but none is old": ({"keep": timedelta(days=99)}, 0),
    "find_session": ({"token_hash": sha256(b"2000").digest(), "idle": timedelta(days=99)}, 1 + NODES),
    "note_session_use": ({"token_hash": sha256(b"2000").digest()}, 1),
    "end_session": ({"token_hash": sha256(b"2000").digest()}, 1),
    "forget_old_sessions": ({}, 2 * 100),
    # Deliveries: a few of many are of one webhook, and wait.
    "enable_webhook": (_HOOK, WEBHOOKS + 5 * _WAITING),
    "disable_webhook": (_HOOK | {"reason": "gone"}, WEBHOOKS + 2 * _WAITING),
    "add_webhook_deliveries": (
        {
            "ids": [id_(DUE + n) for n in range(PAGE)],
            "webhook_ids": [id_(OTHER + 1)] * PAGE,
            "event_ids": [id_(DUE + n) for n in range(PAGE)],
            "types": ["execution.dead"] * PAGE,
            "subjects": [f"subject {n}" for n in range(PAGE)],
            "ats": [NOW] * PAGE,
            "bodies": ["{}"] * PAGE,
        },
        2 * WEBHOOKS + 2 * _WAITING,
    ),
    "claim_webhook_deliveries": (
        {"each": 8, "busy_ids": [], "busy_numbers": [], "patience": timedelta(seconds=30)},
        4 * WEBHOOKS + 6 * 8,
    ),
    "record_delivery_attempts": (
        {
            "attempts": json(
                [
                    {"id": id_(OTHER + 200 * n), "attempt": 0, "state": "pending", "pause_ms": 5, "trial": {}}
                    for n in range(1, 9)
                ]
            ),
            "kept": 20,
        },
        4 * 8 + 10 * WEBHOOKS,
    ),
    "release_webhook_deliveries": (
        {"webhook_ids": [id_(OTHER + 1)] * 2, "subjects": ["subject 3", "subject 7"]},
        2 * WEBHOOKS + 8,
    ),
    "webhook_deliveries": (_HOOK | {"before": 2**62, "limit": PAGE}, PAGE),
    "webhook_deliveries_in_state": (_HOOK | {"before": 2**62, "limit": 20, "state": "failed"}, 20),
    "webhook_deliveries_in_state, waiting": (_HOOK | {"before": 2**62, "limit": 20, "state": "pending"}, 20),
    "find_webhook_delivery": ({"id": id_(OTHER + 77)}, 1),
    "send_webhook_delivery_now": ({"id": id_(OTHER + 77)}, 1),
    "trim_webhook_deliveries": (
        {"before": NOW - timedelta(seconds=SOME - 2 * PAGE), "limit": PAGE},
        8 * PAGE + 10 * WEBHOOKS,
    ),
    # Templates.
    "find_calendar": ({"name": "calendar 77", "version": None}, 2),
    "find_calendar, in a version": ({"name": "calendar 77", "version": 3}, 2),
    "lock_calendar": (_CALENDAR, 1),
    "write_calendar": (_CALENDAR, 1),
    "delete_calendar": (_CALENDAR, 1),
    "present_calendars": ({"names": ["calendar 7", "calendar 77"]}, 4),
    "hold_calendars": ({"names": ["calendar 7", "calendar 77"]}, 2),
    "calendar_versions": ({"names": ["calendar 7"], "versions": [3]}, 1),
    "calendar_followed": (_CALENDAR, 1),
    "jobs_of_calendar": ({"name": "calendar 7", "after": id_(0), "version": None, "limit": PAGE}, PAGE),
    "count_jobs_of_calendar": ({"name": "calendar 7", "limit": PAGE}, PAGE),
    "find_template": (_TEMPLATE, 1),
    "find_template_by_name": (_TEMPLATE, 1),
    "lock_template": (_TEMPLATE, 1),
    "write_template": (_TEMPLATE, 1),
    "delete_template": (_TEMPLATE, 1),
    "list_templates": ({"after": "template 5", "limit": PAGE}, PAGE),
    # Published handlers: a few contracts of each, with the workers that have them.
    "contract_versions": ({"names": ["published 77", "published 78"]}, 2 * 4 + 2 * 4 * NODES),
    "contract_schemas": ({"names": ["published 77"], "fingerprints": ["fingerprint 308", "fingerprint 309"]}, 4),
    "handler_names": ({"after": "published 5", "limit": PAGE}, 2 * PAGE),
    "forget_old_contracts": ({"names": ["published 77"], "limit": 20}, 3 * 4),
    "payloads_of_jobs": ({"handlers": ["handler 7"], "after": id_(JOB + 777), "limit": PAGE}, PAGE + DELETED),
    "payloads_of_jobs, from the first": (
        {"handlers": ["handler 7"], "after": UUID(int=0), "limit": PAGE},
        PAGE + DELETED,
    ),
    "payloads_of_jobs, behind the last": ({"handlers": [], "after": id_(JOB + RECURRING), "limit": PAGE}, 0),
    # A page of each table, and the job of each row.
    "waiting_payloads": ({"handlers": ["handler 7"], "after": id_(DUE + 777), "limit": PAGE}, 5 * PAGE),
    "waiting_payloads, from the first": ({"handlers": ["handler 7"], "after": UUID(int=0), "limit": PAGE}, 5 * PAGE),
    "waiting_payloads, behind the last": ({"handlers": ["handler 7"], "after": UUID(int=2**128 - 1), "limit": PAGE}, 0),
    "publish_handlers": (
        {
            "names": ["published 77", "published 78"],
            "fingerprints": ["fingerprint 308", "another"],
            "schemas": ["{}"] * 2,
            "options": ["{}"] * 2,
            "docs": [""] * 2,
            "run_styles": ["thread"] * 2,
            "is_start": True,
        },
        3 * 2 * 4,
    ),
    "get_fact": ({"key": "history_from"}, 1),
    "read_namespace": ({}, 100),
    # Rollups.
    "lock_fold": ({}, 1),
    "fold": ({"seen": ..., "limit": 2_000}, 4 * LATEST + 2 * SUMMARY + 20 * LATEST),
    "trim_rollups": (
        {"minutes_kept": timedelta(minutes=100), "hours_kept": timedelta(hours=100), "limit": PAGE},
        5 * PAGE,
    ),
    "trim_rollups, but none is old": (
        {"minutes_kept": timedelta(days=999), "hours_kept": timedelta(days=999), "limit": PAGE},
        0,
    ),
    "rollup_series": (_WINDOW, 60),
    "rollup_series, of a queue": (_WINDOW | {"queue": "q1", "series": series_of_queue("q1")}, 60),
    "rollup_series, of a job": (_WINDOW | {"series": id_(JOB + 1)}, 60),
    "rollup_series, of a handler": (_WINDOW | {"handler": "handler 1", "all_of_handler": "handler 1"}, 60),
    "rollup_series, without sketches": (_WINDOW | {"with_sketches": False}, 60),
    # A summary of each named job, and some of the other summaries.
    "job_summaries": ({"limit": PAGE, "others": 4 * PAGE}, PAGE + 4 * PAGE),
    "job_summaries, without names": ({"limit": 0, "others": 4 * PAGE}, 4 * PAGE),
    "forget_summaries": ({"job_ids": ids(JOB)}, PAGE),
    "latest_ended": (
        {"since": NOW - timedelta(hours=1), "first_id": id_(ENDED), "limit": PAGE},
        # The first call of its function plans that, for each day.
        PAGE + 4 * PAGE,
    ),
    "rollup_groups": (_GROUPS, 40 * HANDLERS),
    "rollup_groups, of a job": (_GROUPS | {"series": id_(JOB + 1)}, 40),
    "missed_of_jobs": ({"since": NOW - timedelta(hours=24), "limit": PAGE}, 2 * PAGE),
    "rollup_days": (
        {
            "job_id": id_(JOB + 1),
            "edges": [NOW - timedelta(days=day) for day in range(7, -1, -1)],
            "since": NOW - timedelta(days=7),
            "until": NOW,
            "late_bucket": 5,
        },
        7 * 24,
    ),
    "rollup_tallies": (
        _WINDOW | {"series": ids(JOB, HANDLERS), "untils": [NOW] * HANDLERS},
        60 * HANDLERS,
    ),
    # Retention, in steps.
    "trim_idempotency_key": ({"before": NOW - timedelta(minutes=SOME - PAGE), "limit": PAGE}, 4 * PAGE),
    "trim_idempotency_key, but none is old": ({"before": NOW - timedelta(days=99), "limit": PAGE}, 0),
    "unused_limits": ({"after": "unused 1", "limit": PAGE}, LIMITS),
    "lock_unused_limits": ({"keys": [f"limit {n}" for n in range(PAGE)]}, PAGE),
    "trim_limits": ({"keys": [f"unused {n}" for n in range(1, PAGE + 1)]}, PAGE),
    "trim_limits, but all are in use": ({"keys": [f"limit {n}" for n in range(PAGE)]}, 5 * PAGE),
    "deleted_jobs": ({"before": NOW, "after": UUID(int=0), "limit": PAGE}, DELETED),
    "deleted_jobs, but none long ago": (
        {"before": NOW - timedelta(days=30), "after": UUID(int=0), "limit": PAGE},
        DELETED,
    ),
    "lock_jobs": ({"ids": ids(JOB), "before": NOW}, PAGE),
    "delete_spent_jobs": ({"ids": ids(JOB + RECURRING), "partition": 0, "own_is_there": False}, 3 * PAGE),
    "delete_spent_jobs, of a day": ({"ids": ids(ENDED + 1), "partition": 0, "own_is_there": True}, 3 * PAGE),
    # Channels, and deliveries of alerts.
    "find_channel": ({"name": "channel 7"}, 1),
    "lock_channel": ({"name": "channel 7"}, 1),
    "hold_channels": ({"names": ["channel 7", "channel 8"]}, 2),
    "write_channel": (
        {
            "name": "channel 7",
            "description": None,
            "kind": "email",
            "settings": "{}",
            "bound_secrets_only": False,
        },
        1,
    ),
    "delete_channel": ({"name": "channel 7"}, 1),
    "deliveries_of_alerts": ({"alert_ids": [id_(OTHER + 7), id_(OTHER + 8)]}, 8),
    "lock_line_of_delivery": ({"id": id_(ENDED + 7)}, 1 + 2 * 4),
    "line_of_delivery": ({"id": id_(ENDED + 7)}, 1 + 3 * 4),
    "begin_delivery": ({"id": id_(ENDED + 7), "channel_version": 1}, 1),
    "note_unheard_delivery": ({"id": id_(ENDED + 7)}, 1),
    "note_sent_delivery": ({"id": id_(ENDED + 7)}, 1),
    "leave_out_delivery": ({"id": id_(ENDED + 7), "reason": "r"}, 1),
    "find_delivery": ({"id": id_(ENDED + 7)}, 1 + 5 + 2 * PARTITIONS),
    "page_deliveries": ({"channel": "channel 7", "before": 2**62, "limit": PAGE}, PAGE * (1 + 5 + 2 * PARTITIONS)),
    "use_secrets_of_channel": (
        {"id": id_(RUNS + 7), "claim_id": None, "names": ["A"], "notes": [id_(OTHER)], "is_bound": True},
        4,
    ),
    "trim_alert_delivery": ({"before": NOW - timedelta(minutes=SOME - PAGE), "limit": PAGE}, 4 * PAGE),
    "trim_alert_delivery, but none is old": ({"before": NOW - timedelta(days=99), "limit": PAGE}, 0),
    # How many rows of a day are read depends on the share that matches; here every tenth does.
    "delete_finished": (_LAST_DAY | {"states": ["dead"]}, 20 * PAGE + 10 * PAGE),
}

# Statements that read no table: they insert their parameters, or ask the server itself.
READS_NO_TABLE = (
    *("lock_out_other_causes", "position", "moment", "read_clock", "read_identity", "server_facts", "database_numbers"),
    *(
        "create_plain_jobs",
        "enqueue_one",
        "enqueue_alike",
        "enqueue_jobs",
        "enqueue_ready",
    ),
    *("enqueue_due", "put_resumptions", "record_skip_ranges", "record_skipped"),
    *("set_queue", "set_queue_expectation"),
    *("write_audit", "write_log_lines", "set_fact", "add_api_key", "register_node", "add_webhook"),
    *("add_operation", "add_operation_items", "add_session", "add_template", "days_kept"),
    *("add_calendar", "add_calendar_version"),
    *("add_channel", "add_alert_route", "add_deliveries"),
)

_PROOF = "a proof looks at everything there is"
_ONCE_A_DAY = (
    "has no index, which every write would have to keep up: once a day the janitor reads the table from end to end"
)
_REHEARSAL = "asked by a test of its own small database"
# Statements that read a whole table, or have no plan, and why.
_FEW_FREEZES = "freezes are few: people make them, and every claim and promotion reads all of them"
_FEW_INTERVALS = "pauses and limits of queues are few: people make them"
_FEW_ROUTES = "routes of alerts are few: people make them, and every announcement reads all of them"
READS_ALL = {
    "failing_job": "jobs that fail are few, and wait there for two seconds",
    "forget_failing_job": "jobs that fail are few, and wait there for two seconds",
    "lock_out_promotions": "a lock, which has no plan",
    "add_freeze": _FEW_FREEZES,
    "find_freeze": _FEW_FREEZES,
    "end_freeze": _FEW_FREEZES,
    "note_ended_freeze": _FEW_FREEZES,
    "all_freezes": _FEW_FREEZES,
    "trim_freeze": _FEW_FREEZES,
    "queue_to_resume": _FEW_INTERVALS,
    "close_queue_interval": _FEW_INTERVALS,
    "open_queue_interval": _FEW_INTERVALS,
    "queue_intervals": _FEW_INTERVALS,
    "trim_queue_interval": _FEW_INTERVALS,
    "lock_out_claims": "a lock, which has no plan",
    "days_outside": "the default partitions, which are empty unless days were not made in time",
    "summarize_anew": "makes summaries of a whole day, once, when it is over",
    "read_dashboard_secret": "a table of one row",
    **dict.fromkeys(("lock_alert_evaluation", "alert_evaluated_at", "note_alert_evaluation"), "a table of one row"),
    "open_pauses_of_queues": _FEW_INTERVALS,
    **dict.fromkeys(
        ("find_alert_route", "lock_alert_route", "write_alert_route", "delete_alert_route", "all_alert_routes"),
        _FEW_ROUTES,
    ),
    "list_channels": "without statistics it sorts all names, and channels are few",
    "calendars_to_follow": "calendars are few: people make them",
    "list_calendars": "without statistics it sorts all names, and calendars are few",
    "forget_numbers": "asked once, when a database was restored elsewhere",
    **dict.fromkeys(
        (
            *("list_webhooks", "find_webhook", "lock_webhook", "lock_webhooks", "lock_active_webhooks", "any_webhook"),
            *("count_webhooks", "write_webhook", "rotate_webhook_secret", "begin_webhooks_anew", "delete_webhook"),
            *("count_waiting_delivery", "begin_webhook_position", "lock_webhook_position", "move_webhook_position"),
        ),
        "there are 50 webhooks at most, and one position",
    ),
    "forget_operations": "operations are few: people ask for them",
    "trim_settled": _ONCE_A_DAY,
    "trim_live_key": "keys that outlive their executions are few; they have an index of their own",
    "trim_skip_range": _ONCE_A_DAY,
    "trim_audit": _ONCE_A_DAY,
    "next_instant": _REHEARSAL,
    "recorded_executions": _REHEARSAL,
    **dict.fromkeys((name for name in all_statements() if name.startswith("verify_")), _PROOF),
}

_BELIEFS = {"fresh statistics": "ANALYZE", "emptied tables": EMPTIED, "no statistics": FORGET}


@pytest.fixture(scope="module")
def full_database_on(
    servers: Servers, template_of: Callable[[PostgresServer], str]
) -> Iterator[Callable[[str], FullDatabase]]:
    """The full database on a kind of server, filled at its first use."""
    houses: dict[str, FullDatabase] = {}

    def database(kind: str) -> FullDatabase:
        if kind not in houses:
            server = servers.postgres(kind)
            houses[kind] = full_database.fill(server, server.create_database(template_of(server)))
        return houses[kind]

    yield database
    for full in houses.values():
        full.server.drop_database(full.name)


@dataclass(frozen=True)
class Planner:
    """A session in a full database, with a belief of its planner."""

    database: FullDatabase
    connection: psycopg.Connection[Any]

    def begin(self, plan_cache_mode: str) -> psycopg.Connection[Any]:
        """A new transaction, in which nothing is prepared."""
        self.connection.rollback()
        self.connection.execute("DEALLOCATE ALL")
        self.connection.execute(f"SET LOCAL plan_cache_mode = {plan_cache_mode}")
        return self.connection


@pytest.fixture(scope="module", params=[(kind, belief) for kind in VERSIONS for belief in _BELIEFS], ids=", ".join)
def planner(request: pytest.FixtureRequest, full_database_on: Callable[[str], FullDatabase]) -> Iterator[Planner]:
    kind, belief = request.param
    try:
        database = full_database_on(kind)
    except ServiceMissing as error:
        give_up_on(error)
        raise
    database.server.execute(_BELIEFS[belief], database.name)
    # It may be idle for long while others use the machine.
    with query_plans.session(
        database.server, database.name, "SET idle_in_transaction_session_timeout = 0"
    ) as connection:
        yield Planner(database, connection)


@pytest.mark.parametrize("case", list(TABLE))
def test_a_statement_reads_what_it_returns(planner: Planner, case: str) -> None:
    """Fault 30."""
    given, most = TABLE[case]
    for plan_cache_mode in ALL_MODES:
        connection = planner.begin(plan_cache_mode)

        query_plans.check_touched(connection, statement_of(case), planner.database.position_in(given), most, NOW)


def statement_of(case: str) -> str:
    return case.partition(",")[0]


def test_late_executions_are_searched_from_the_first_of_each_lane(planner: Planner) -> None:
    """Where nothing is late: reading an index from one end to the other returns no row that shows it."""
    given, _ = TABLE["present_numbers, and nothing is late"]
    for plan_cache_mode in ALL_MODES:
        plan = query_plans.run_explained(planner.begin(plan_cache_mode), "present_numbers", given, NOW)

        by_time = [
            scan for scan in query_plans.scans_of(plan) if scan["Relation Name"] == "ready" and "run_at" in str(scan)
        ]
        pages = sum(scan["Shared Hit Blocks"] + scan["Shared Read Blocks"] for scan in by_time)
        assert pages <= 10 * QUEUES * PRIORITIES


async def test_the_first_page_of_executions_is_read_in_the_order_of_an_index(planner: Planner) -> None:
    """It is a composed query without a name."""
    store = Store(planner.database.server.dsn(planner.database.name), Env(VirtualClock(NOW), Random(1)))
    await store.open(migrates=False)
    listing = ListingStore(store.database)

    states = [(), *((state,) for state in ExecutionState)]
    told = [
        await listing.explain_executions(ExecutionFilter(where(status=each)), PageRequest(limit=PAGE))
        for each in states
    ]

    await store.close()
    for plan in told:
        read = plan.partition("Planning")[0]
        pages = max(sum(map(int, re.findall(r"(?:hit|read)=(\d+)", line))) for line in read.splitlines())
        assert pages <= 8 * PAGE, plan


@pytest.mark.parametrize("name", READS_NO_TABLE)
def test_a_statement_reads_no_table(full_database_on: Callable[[str], FullDatabase], name: str) -> None:
    database = full_database_on(VERSIONS[0])
    with query_plans.session(database.server, database.name, "SET plan_cache_mode = force_generic_plan") as connection:
        given = dict.fromkeys(all_statements()[name].parameters)

        plan = query_plans.explained(connection, name, given, NOW, "VERBOSE")

    assert [scan["Relation Name"] for scan in query_plans.scans_of(plan) if scan["Schema"] == "timeball"] == []


def test_every_statement_is_tried_or_excused() -> None:
    tried = [*test_plans.HOT, *test_plans.TRIED_APART, *dict.fromkeys(map(statement_of, TABLE))]
    told = [*tried, *READS_NO_TABLE, *READS_ALL]

    assert set(all_statements()) - set(told) == set(), (
        "add it to TABLE, or say in READS_ALL why it may read all there is"
    )
    assert set(told) - set(all_statements()) == set(), "it is gone"
    assert len(told) == len(set(told)), "said twice"
