"""Each check has facts for which it reports a fault and facts for which it does not; each code has its section in the docs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from timeball.domain.alerts import DELIVERY_QUEUE
from timeball.domain.explain.diagnosis import (
    CODES,
    DiagnosisStatus,
    InstallationFacts,
    QueueState,
    alert_facts,
    diagnose,
    unreachable,
    vital_facts,
    worst_status,
)
from timeball.domain.node import BrokerState, BrokerStatus, NodeKind, NodeStatus
from timeball.domain.values.ids import Incarnation

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "doctor.md"


def node(kind: NodeKind = NodeKind.WORKER, **fields: Any) -> NodeStatus:
    given: dict[str, Any] = {
        "incarnation": Incarnation(UUID(int=1)),
        "kind": kind,
        "name": "web-1",
        "started_at": NOW,
        "renewed_at": NOW,
        "lease_until": NOW + timedelta(seconds=15),
        "slots": 8,
        "busy": 3,
        "queues": None,
        "handlers": ("h",),
        "version": "1.0",
        "draining": False,
    }
    return NodeStatus(**given | fields)


HEALTHY = InstallationFacts(
    now=NOW,
    postgres="16.4",
    postgres_major=16,
    round_trip=timedelta(milliseconds=12),
    schema=14,
    schema_needed=14,
    is_durable=True,
    is_embedded=False,
    is_open=False,
    host="127.0.0.1",
    clock_apart=timedelta(milliseconds=3),
    workers=[node()],
    schedulers=[node(NodeKind.SCHEDULER)],
    shards=64,
    queues=[QueueState("default", 5, None, NOW)],
    uses={("default", "h"): 3},
    last_day=NOW.date() + timedelta(days=7),
    tzdata="2026a",
    newest_tzdata="2026a",
)

# What is different, the code that then complains, how gravely, and a part of what it says.
SICK: list[tuple[dict[str, Any], str, DiagnosisStatus, str]] = [
    ({"postgres_major": 14}, "database", DiagnosisStatus.FAIL, "too old"),
    ({"round_trip": timedelta(milliseconds=300)}, "database", DiagnosisStatus.WARN, "300 ms"),
    ({"schema": 13}, "schema", DiagnosisStatus.FAIL, "schema 13, this program needs 14"),
    ({"schema": 15}, "schema", DiagnosisStatus.FAIL, "schema 15, this program needs 14"),
    ({"is_durable": False}, "durability", DiagnosisStatus.WARN, "fsync"),
    ({"clock_apart": timedelta(seconds=9)}, "clock", DiagnosisStatus.WARN, "9 s from the database"),
    ({"oldest_transaction": timedelta(minutes=6)}, "transactions", DiagnosisStatus.WARN, "6 min"),
    (
        {"oldest_transaction": timedelta(hours=2), "oldest_program": "pg_dump"},
        "transactions",
        DiagnosisStatus.FAIL,
        "2 h (pg_dump)",
    ),
    ({"last_day": NOW.date() + timedelta(days=1)}, "partitions", DiagnosisStatus.WARN, "1 day ahead"),
    ({"last_day": None}, "partitions", DiagnosisStatus.FAIL, "0 days ahead"),
    ({"has_unpartitioned_history": True}, "partitions", DiagnosisStatus.WARN, "default partition"),
    (
        {"workers": [node(broker="redis", broker_status=BrokerStatus(BrokerState.DOWN, "refused"))]},
        "broker",
        DiagnosisStatus.WARN,
        "1 of 2 nodes cannot use Redis (refused); work goes on through PostgreSQL",
    ),
    (
        {
            "workers": [node(broker="rabbitmq", broker_status=BrokerStatus(BrokerState.SILENT))],
            "schedulers": [node(NodeKind.SCHEDULER, broker="rabbitmq")],
        },
        "broker",
        DiagnosisStatus.WARN,
        "1 worker got no tickets from RabbitMQ",
    ),
    ({"workers": [node(broker="redis")]}, "broker", DiagnosisStatus.WARN, "PostgreSQL: 1, Redis: 1"),
    ({"schedulers": []}, "schedulers", DiagnosisStatus.FAIL, "none is alive"),
    (
        {
            "schedulers": [node(NodeKind.SCHEDULER, started_at=NOW - timedelta(hours=1))],
            "alerts_evaluated_at": NOW - timedelta(minutes=3),
        },
        "alerts",
        DiagnosisStatus.FAIL,
        "last evaluated 3 min ago",
    ),
    (
        {"schedulers": [node(NodeKind.SCHEDULER, started_at=NOW - timedelta(hours=1))]},
        "alerts",
        DiagnosisStatus.FAIL,
        "never evaluated",
    ),
    (
        {"messages": QueueState(DELIVERY_QUEUE, 2, NOW - timedelta(hours=1), NOW - timedelta(minutes=9))},
        "alerts",
        DiagnosisStatus.FAIL,
        "2 messages wait to be sent, the oldest for 9 min: the queue timeball.alerts is paused",
    ),
    (
        {
            "messages": QueueState(DELIVERY_QUEUE, 1, None, NOW - timedelta(minutes=9)),
            "workers": [node(queues=("default",))],
        },
        "alerts",
        DiagnosisStatus.FAIL,
        "1 message waits to be sent, the oldest for 9 min: no worker serves the queue timeball.alerts",
    ),
    ({"unowned_shards": 3}, "schedulers", DiagnosisStatus.WARN, "3 of 64 shards"),
    ({"oldest_due": NOW - timedelta(minutes=2)}, "overdue", DiagnosisStatus.FAIL, "2 min ago"),
    ({"workers": []}, "workers", DiagnosisStatus.FAIL, "none is alive, 5 waiting"),
    ({"workers": [], "queues": []}, "workers", DiagnosisStatus.WARN, "none is alive, 0 waiting"),
    (
        {"workers": [node(renewed_at=NOW - timedelta(seconds=12), lease_until=NOW + timedelta(seconds=3))]},
        "leases",
        DiagnosisStatus.WARN,
        "12 s ago",
    ),
    (
        {"workers": [node(trouble="its event loop stood still", trouble_at=NOW - timedelta(minutes=3))]},
        "trouble",
        DiagnosisStatus.WARN,
        "its event loop stood still, 3 min ago",
    ),
    ({"workers": [node(version="0.9")]}, "versions", DiagnosisStatus.WARN, "0.9, 1.0"),
    ({"newest_tzdata": "2026b"}, "tzdata", DiagnosisStatus.WARN, "2026b"),
    (
        {"queues": [QueueState("mail", 7, NOW - timedelta(hours=1), NOW, "provider down")]},
        "queue_paused",
        DiagnosisStatus.WARN,
        "paused for 1 h (provider down), 7 waiting",
    ),
    ({"workers": [node(queues=("mail",))]}, "queue_unserved", DiagnosisStatus.FAIL, "5 waiting, no worker serves it"),
    (
        {"uses": {("default", "app.old:sync"): 1}},
        "handler_unknown",
        DiagnosisStatus.WARN,
        "used by 1 job, known to no worker",
    ),
    ({"dead": 17}, "dead_letters", DiagnosisStatus.WARN, "17 executions are dead"),
    ({"past_deadline": 1}, "deadlines", DiagnosisStatus.WARN, "1 execution runs past the deadline"),
    ({"is_open": True}, "access", DiagnosisStatus.WARN, "open on 127.0.0.1"),
    (
        {"unknown_variables": {"TIMEBALL_PROT": "TIMEBALL_PORT?"}},
        "settings",
        DiagnosisStatus.WARN,
        "TIMEBALL_PROT is set",
    ),
]


def test_a_healthy_installation_has_only_ok_lines() -> None:
    lines = diagnose(HEALTHY)

    assert {line.status for line in lines} == {DiagnosisStatus.OK}
    assert worst_status(lines) is DiagnosisStatus.OK


@pytest.mark.parametrize(("change", "code", "status", "words"), SICK)
def test_each_fault_is_reported_alone(change: dict[str, Any], code: str, status: DiagnosisStatus, words: str) -> None:
    lines = diagnose(replace(HEALTHY, **change))

    (bad,) = [line for line in lines if line.status is not DiagnosisStatus.OK]
    assert (bad.code, bad.status) == (code, status)
    assert words in bad.detail
    assert bad.advice
    assert bad.command is None or bad.advice.endswith(bad.command)
    assert (bad.command is not None) == any(word in bad.advice for word in ("timeball ", "pip "))
    assert worst_status(lines) is status


def test_every_code_has_its_section() -> None:
    sections = re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert sections == list(dict.fromkeys(sections))
    assert set(sections) == set(CODES)
    assert {line.code for line in diagnose(HEALTHY)} | {code for _, code, _, _ in SICK} <= set(CODES)


VITAL = (
    ({}, []),
    ({"schedulers": [], "oldest_due": NOW - timedelta(hours=1)}, [("schedulers", "critical")]),
    ({"oldest_due": NOW - timedelta(hours=1)}, [("overdue", "critical")]),
    ({"workers": [], "queues": []}, [("workers", "warning")]),
    ({"unowned_shards": 3, "dead": 7}, []),
    (
        {"messages": QueueState(DELIVERY_QUEUE, 1, None, NOW - timedelta(minutes=9))},
        [("alerts", "critical")],
    ),
)


@pytest.mark.parametrize(("changes", "expected"), VITAL)
def test_vital_facts_are_those_that_the_installation_may_be_unable_to_tell(
    changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    facts = vital_facts(diagnose(replace(HEALTHY, **changes)))

    assert [(fact.kind, fact.severity.value) for fact in facts] == expected
    # A restart of a node, and of the database, is no alert.
    assert all(fact.lasting >= timedelta(seconds=30) for fact in facts)
    assert alert_facts([unreachable("no answer")])[0].lasting >= timedelta(seconds=30)


def test_a_scheduler_that_has_just_started_has_had_no_time_to_evaluate_alerts() -> None:
    facts = replace(HEALTHY, alerts_evaluated_at=NOW - timedelta(hours=3))

    assert not vital_facts(diagnose(facts))
