"""The doctor's checks: each reads the facts of the installation and reports lines with a status, a detail and advice.

A line is `ok`, `warn` (a person should look) or `fail` (work waits, or will). Every code has its section in
docs/reference/doctor.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from enum import StrEnum
from shlex import quote
from typing import TypedDict

from timeball.domain.alerts import DELIVERY_QUEUE, AlertFact, AlertMember, Severity
from timeball.domain.expectations import EXPECTATION_KINDS
from timeball.domain.node import NodeStatus, report_broker
from timeball.domain.values.wording import counted, duration_in_words, instant_in_words, listed

OLDEST_POSTGRES = 15
_SLOW = timedelta(milliseconds=100)
_CLOCK_APART = timedelta(seconds=1)
_LONG_TRANSACTION, _ENDLESS_TRANSACTION = timedelta(minutes=5), timedelta(hours=1)
_LATE = timedelta(seconds=10)
_RECENT = timedelta(hours=1)
_FEW_DAYS = 2
# A message to a channel that has waited for so long is stuck.
_STUCK = timedelta(minutes=2)


class DiagnosisStatus(StrEnum):
    """The severity of a line."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the doctor; *target* is where to look, as (kind, id). The advice includes the command, if there is one."""

    code: str
    status: DiagnosisStatus
    subject: str
    detail: str
    advice: str | None = None
    target: tuple[str, str] | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue that is not empty or is paused."""

    name: str
    waiting: int
    paused_at: datetime | None
    oldest_at: datetime | None
    pause_reason: str | None = None
    paused_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationFacts:
    """The facts of the installation. *uses* counts jobs by (queue, handler)."""

    now: datetime
    postgres: str
    postgres_major: int
    round_trip: timedelta
    schema: int
    schema_needed: int
    is_durable: bool
    is_embedded: bool
    is_open: bool
    host: str
    clock_apart: timedelta
    workers: Sequence[NodeStatus] = ()
    schedulers: Sequence[NodeStatus] = ()
    shards: int = 0
    unowned_shards: int = 0
    queues: Sequence[QueueState] = ()
    uses: Mapping[tuple[str, str], int] = field(default_factory=dict)
    dead: int = 0
    oldest_transaction: timedelta | None = None
    oldest_program: str | None = None
    last_day: date | None = None
    has_unpartitioned_history: bool = False
    tzdata: str = ""
    newest_tzdata: str | None = None
    oldest_due: datetime | None = None
    past_deadline: int = 0
    # None if they never were. Evaluations that are further apart than *alerts_within* have stopped.
    alerts_evaluated_at: datetime | None = None
    alerts_within: timedelta = timedelta(minutes=2)
    # The queue of messages to channels; None if it is empty.
    messages: QueueState | None = None
    # Environment variables that look like settings but are not, each with a suggestion.
    unknown_variables: Mapping[str, str] = field(default_factory=dict)


def diagnose(facts: InstallationFacts) -> list[Diagnosis]:
    """Every line, in the order of the checks; a check may report several lines."""
    return [line for check in CHECKS for line in check(facts)]


def worst_status(lines: Iterable[Diagnosis]) -> DiagnosisStatus:
    """The most severe status of all lines."""
    statuses = {line.status for line in lines}
    return next(
        (status for status in (DiagnosisStatus.FAIL, DiagnosisStatus.WARN) if status in statuses), DiagnosisStatus.OK
    )


# Lines as facts that a person should act upon. These concern the setup of the installation, and whoever set it up reads the doctor.
_OF_SETUP = frozenset({"access", "clock", "versions", "tzdata", "embedded", "durability", "settings"})
_AT_ONCE, _A_RESTART, _A_PAUSE = timedelta(0), timedelta(seconds=30), timedelta(minutes=10)
# How long a line has to last until it is an alert: a restart of a node is none, nor is a short pause.
_LASTING = {
    **dict.fromkeys(
        (
            "unreachable",
            "schedulers",
            "overdue",
            "workers",
            "leases",
            "broker",
            "queue_unserved",
            "deadlines",
            "alerts",
        ),
        _A_RESTART,
    ),
    **dict.fromkeys(("handler_unknown", "partitions"), 2 * _A_RESTART),
    "queue_paused": _A_PAUSE,
}
_PLURAL = {
    "leases": "{} nodes have not renewed their leases",
    "trouble": "{} nodes had trouble",
    "queue_paused": "{} queues are paused, with work waiting",
    "queue_unserved": "{} queues have no worker",
    "handler_unknown": "{} handlers are known to no worker of their queues",
}


def alert_facts(lines: Iterable[Diagnosis]) -> list[AlertFact]:
    """The lines that a person should act upon."""
    return [_alert_fact(line) for line in lines if line.status is not DiagnosisStatus.OK and line.code not in _OF_SETUP]


def _alert_fact(line: Diagnosis) -> AlertFact:
    name = line.subject if line.target is None else line.target[1] or line.subject
    is_about_queue = line.target is not None and line.target[0] == "queue"
    return AlertFact(
        kind=line.code,
        key=f"{line.code}:{name}" if line.code in _PLURAL else line.code,
        severity=Severity.CRITICAL if line.status is DiagnosisStatus.FAIL else Severity.WARNING,
        sentence=f"{line.subject}: {line.detail}",
        advice=line.advice,
        command=line.command,
        target=line.target,
        members=(
            AlertMember(
                name=name if is_about_queue else line.subject.partition(" ")[2] or line.subject,
                queue=name if is_about_queue else None,
            ),
        ),
        plural=_PLURAL.get(line.code),
        lasting=_LASTING.get(line.code, _AT_ONCE),
    )


# Who tells these, if the nodes that evaluate and deliver alerts are dead? The watcher does.
_VITAL = ("unreachable", "schedulers", "workers", "overdue", "alerts")
# Without a living installation there is no one to tell them but the watcher.
MUTE_KINDS = frozenset(_VITAL) - {"overdue"}
# Rows that nothing promotes are told by the installation, as long as it can: it has the first minutes.
_FIRST_TOLD_BY_US = timedelta(minutes=2)


def vital_facts(lines: Iterable[Diagnosis]) -> list[AlertFact]:
    """The facts that the installation may be unable to tell by itself."""
    facts = {fact.kind: fact for fact in alert_facts(lines) if fact.kind in _VITAL and _is_vital(fact)}
    overdue = facts.pop("overdue", None)
    # Without a scheduler rows are overdue: that is one fact, and not two.
    if overdue is not None and "schedulers" not in facts:
        facts["overdue"] = replace(overdue, lasting=_FIRST_TOLD_BY_US)
    return list(facts.values())


def _is_vital(fact: AlertFact) -> bool:
    """A shard that has no owner for a moment is no outage; without a worker, even if nothing waits, no alert is delivered."""
    return fact.severity is Severity.CRITICAL or fact.kind == "workers"


def unreachable(reason: str) -> Diagnosis:
    """The line of a database that does not answer, or not as it should."""
    advice = "check which database is configured, and why it does not answer: timeball check"
    return Diagnosis("unreachable", DiagnosisStatus.FAIL, "database", reason, advice)


class _Advice(TypedDict, total=False):
    advice: str
    command: str


def _to_type(command: str, words: str = "") -> _Advice:
    return {"advice": f"{words}: {command}" if words else command, "command": command}


# the database


def _database(facts: InstallationFacts) -> Iterable[Diagnosis]:
    detail = f"PostgreSQL {facts.postgres}, {duration_in_words(facts.round_trip)}, schema {facts.schema}"
    if facts.postgres_major < OLDEST_POSTGRES:
        advice = f"move to PostgreSQL {OLDEST_POSTGRES} or later"
        yield Diagnosis("database", DiagnosisStatus.FAIL, "database", f"{detail}; too old", advice)
    elif facts.round_trip > _SLOW:
        yield Diagnosis(
            "database", DiagnosisStatus.WARN, "database", f"{detail}; slow", "bring the nodes closer to the database"
        )
    else:
        yield Diagnosis("database", DiagnosisStatus.OK, "database", detail)


def _schema(facts: InstallationFacts) -> Iterable[Diagnosis]:
    if facts.schema == facts.schema_needed:
        yield Diagnosis("schema", DiagnosisStatus.OK, "schema", f"schema {facts.schema}, as this program needs it")
    else:
        is_old = facts.schema < facts.schema_needed
        advice = _to_type("timeball db migrate") if is_old else _Advice(advice="update this program")
        detail = f"schema {facts.schema}, this program needs {facts.schema_needed}"
        yield Diagnosis("schema", DiagnosisStatus.FAIL, "schema", detail, **advice)


def _durability(facts: InstallationFacts) -> Iterable[Diagnosis]:
    if facts.is_durable:
        yield Diagnosis(
            "durability", DiagnosisStatus.OK, "durability", "commits are on disk before they are acknowledged"
        )
    else:
        detail = "fsync or synchronous_commit is off: a crash of the server can lose acknowledged work"
        yield Diagnosis("durability", DiagnosisStatus.WARN, "durability", detail, "turn both on in postgresql.conf")


def _clock(facts: InstallationFacts) -> Iterable[Diagnosis]:
    detail = f"{duration_in_words(facts.clock_apart)} from the database"
    if facts.clock_apart > _CLOCK_APART:
        advice = "let NTP set this machine's clock; the database's clock decides, so nothing runs at a wrong time"
        yield Diagnosis("clock", DiagnosisStatus.WARN, "clock", detail, advice)
    else:
        yield Diagnosis("clock", DiagnosisStatus.OK, "clock", detail)


def _transactions(facts: InstallationFacts) -> Iterable[Diagnosis]:
    oldest = facts.oldest_transaction
    if oldest is None or oldest < _LONG_TRANSACTION:
        yield Diagnosis("transactions", DiagnosisStatus.OK, "transactions", "none is old")
        return
    who = f" ({facts.oldest_program})" if facts.oldest_program else ""
    detail = f"one has been open for {duration_in_words(oldest)}{who}: dead rows cannot be removed meanwhile"
    status = DiagnosisStatus.FAIL if oldest > _ENDLESS_TRANSACTION else DiagnosisStatus.WARN
    yield Diagnosis(
        "transactions", status, "transactions", detail, "find it in pg_stat_activity by its xact_start, and end it"
    )


def _partitions(facts: InstallationFacts) -> Iterable[Diagnosis]:
    ahead = -1 if facts.last_day is None else (facts.last_day - facts.now.date()).days
    if facts.has_unpartitioned_history:
        detail = "some history is in the default partition: its day had no partition"
        yield Diagnosis(
            "partitions",
            DiagnosisStatus.WARN,
            "partitions",
            detail,
            "keep a scheduler running: it creates the partitions",
        )
    if ahead < _FEW_DAYS:
        status = DiagnosisStatus.FAIL if ahead < 0 else DiagnosisStatus.WARN
        detail = f"history has partitions for {counted(max(ahead, 0), 'day')} ahead"
        yield Diagnosis(
            "partitions", status, "partitions", detail, "keep a scheduler running: it creates the partitions"
        )
    elif not facts.has_unpartitioned_history:
        yield Diagnosis("partitions", DiagnosisStatus.OK, "partitions", f"{counted(ahead, 'day')} ahead")


# the nodes


def _schedulers(facts: InstallationFacts) -> Iterable[Diagnosis]:
    if not facts.schedulers:
        detail = "none is alive: nothing is promoted when its time comes"
        yield Diagnosis(
            "schedulers", DiagnosisStatus.FAIL, "schedulers", detail, **_to_type("timeball scheduler", "start one")
        )
    elif facts.unowned_shards:
        detail = (
            f"{len(facts.schedulers)} alive, {facts.unowned_shards} of {counted(facts.shards, 'shard')} without one"
        )
        yield Diagnosis("schedulers", DiagnosisStatus.WARN, "schedulers", detail, "wait a few seconds and check again")
    else:
        yield Diagnosis(
            "schedulers", DiagnosisStatus.OK, "schedulers", f"{len(facts.schedulers)} alive, every shard has one"
        )


def _overdue(facts: InstallationFacts) -> Iterable[Diagnosis]:
    if facts.oldest_due is None or facts.now - facts.oldest_due <= _LATE:
        yield Diagnosis("overdue", DiagnosisStatus.OK, "schedule", "nothing is overdue")
        return
    detail = f"the oldest entry should have been promoted {duration_in_words(facts.now - facts.oldest_due)} ago"
    advice = _to_type("timeball scheduler", "look at the scheduler's log; start another")
    yield Diagnosis("overdue", DiagnosisStatus.FAIL, "schedule", detail, **advice)


def _workers(facts: InstallationFacts) -> Iterable[Diagnosis]:
    waiting = sum(queue.waiting for queue in facts.queues)
    if not facts.workers:
        status = DiagnosisStatus.FAIL if waiting else DiagnosisStatus.WARN
        detail = f"none is alive, {waiting} waiting"
        yield Diagnosis("workers", status, "workers", detail, **_to_type("timeball worker app:tb", "start one"))
        return
    slots, busy = (sum(getattr(worker, name) for worker in facts.workers) for name in ("slots", "busy"))
    yield Diagnosis(
        "workers", DiagnosisStatus.OK, "workers", f"{len(facts.workers)} alive, {busy} of {slots} slots busy"
    )


def _leases(facts: InstallationFacts) -> Iterable[Diagnosis]:
    late = [node for node in (*facts.workers, *facts.schedulers) if _is_late(node, facts.now)]
    for node in late:
        detail = f"it last renewed its lease {duration_in_words(facts.now - node.renewed_at)} ago"
        advice = "check whether it is frozen or its network is slow"
        target = (node.kind.value, str(node.incarnation))
        yield Diagnosis("leases", DiagnosisStatus.WARN, f"{node.kind} {node.name}", detail, advice, target)
    if not late and (facts.workers or facts.schedulers):
        yield Diagnosis("leases", DiagnosisStatus.OK, "leases", "every node renews in time")


def _troubles(facts: InstallationFacts) -> Iterable[Diagnosis]:
    for node in (*facts.workers, *facts.schedulers):
        if node.trouble is not None and node.trouble_at is not None and facts.now - node.trouble_at < _RECENT:
            detail = f"{node.trouble}, {duration_in_words(facts.now - node.trouble_at)} ago"
            advice = "its log says more; a handler that blocks or ends its process can run in a process of its own, with isolate=True"
            target = (node.kind.value, str(node.incarnation))
            yield Diagnosis("trouble", DiagnosisStatus.WARN, f"{node.kind} {node.name}", detail, advice, target)


def _is_late(node: NodeStatus, now: datetime) -> bool:
    """A node renews its lease three times before it expires; one that has missed two renewals is late."""
    return now - node.renewed_at > (node.lease_until - node.renewed_at) * (2 / 3) + timedelta(milliseconds=500)


def _broker(facts: InstallationFacts) -> Iterable[Diagnosis]:
    report = report_broker([*facts.workers, *facts.schedulers])
    status = DiagnosisStatus.OK if report.is_fine else DiagnosisStatus.WARN
    yield Diagnosis("broker", status, "broker", report.detail, report.advice)


def _versions(facts: InstallationFacts) -> Iterable[Diagnosis]:
    versions = sorted({node.version for node in (*facts.workers, *facts.schedulers) if node.version})
    if len(versions) > 1:
        detail = f"nodes of {listed(versions)} run together"
        yield Diagnosis("versions", DiagnosisStatus.WARN, "versions", detail, "update the older ones")
    else:
        yield Diagnosis("versions", DiagnosisStatus.OK, "versions", versions[0] if versions else "no node")


def _tzdata(facts: InstallationFacts) -> Iterable[Diagnosis]:
    newest = facts.newest_tzdata
    if newest is not None and newest > facts.tzdata:
        detail = f"{facts.tzdata} here, but a scheduler has {newest}: they may disagree about clock changes"
        yield Diagnosis(
            "tzdata", DiagnosisStatus.WARN, "time zones", detail, **_to_type("pip install --upgrade tzdata")
        )
    else:
        yield Diagnosis("tzdata", DiagnosisStatus.OK, "time zones", f"tzdata {facts.tzdata}")


# the work


def _queues(facts: InstallationFacts) -> Iterable[Diagnosis]:
    for queue in facts.queues:
        target = ("queue", queue.name)
        if queue.waiting and queue.paused_at is not None:
            because = f" ({queue.pause_reason})" if queue.pause_reason else ""
            until = "" if queue.paused_until is None else f" until {instant_in_words(queue.paused_until, facts.now)}"
            lasting = duration_in_words(facts.now - queue.paused_at)
            detail = f"paused for {lasting}{until}{because}, {queue.waiting} waiting"
            advice = _to_type(f"timeball queues resume {quote(queue.name)}", "resume it")
            yield Diagnosis(
                "queue_paused", DiagnosisStatus.WARN, f"queue {queue.name}", detail, target=target, **advice
            )
        elif queue.waiting and facts.workers and not any(worker.serves(queue.name) for worker in facts.workers):
            detail = f"{queue.waiting} waiting, no worker serves it"
            advice = _to_type(f"timeball worker app:tb --queue {quote(queue.name)}", "start one")
            yield Diagnosis(
                "queue_unserved", DiagnosisStatus.FAIL, f"queue {queue.name}", detail, target=target, **advice
            )


def _handlers(facts: InstallationFacts) -> Iterable[Diagnosis]:
    unknown: dict[str, int] = {}
    for (queue, handler), number in facts.uses.items():
        serving = [worker for worker in facts.workers if worker.serves(queue)]
        if serving and not any(handler in worker.handlers for worker in serving):
            unknown[handler] = unknown.get(handler, 0) + number
    for handler, number in sorted(unknown.items()):
        detail = f"used by {counted(number, 'job')}, known to no worker of its queue"
        advice = "start a worker with the program that has it, or correct the name in the job"
        yield Diagnosis(
            "handler_unknown", DiagnosisStatus.WARN, f"handler {handler}", detail, advice, ("handler", handler)
        )


def _dead_letters(facts: InstallationFacts) -> Iterable[Diagnosis]:
    if facts.dead:
        detail = f"{counted(facts.dead, 'execution is', 'executions are')} dead and not settled"
        target = ("dead_letters", "")
        yield Diagnosis(
            "dead_letters", DiagnosisStatus.WARN, "dead letters", detail, target=target, **_to_type("timeball dead")
        )
    else:
        yield Diagnosis("dead_letters", DiagnosisStatus.OK, "dead letters", "none")


def _deadlines(facts: InstallationFacts) -> Iterable[Diagnosis]:
    if facts.past_deadline:
        detail = f"{counted(facts.past_deadline, 'execution runs', 'executions run')} past the deadline"
        yield Diagnosis(
            "deadlines", DiagnosisStatus.WARN, "deadlines", detail, "the reaper ends them; if not, look at its log"
        )
    else:
        yield Diagnosis("deadlines", DiagnosisStatus.OK, "deadlines", "kept")


def _alerting(facts: InstallationFacts) -> Iterable[Diagnosis]:
    evaluated_at, messages = facts.alerts_evaluated_at, facts.messages
    # A scheduler that has just started has had no time for it. Without a scheduler there is a line about that.
    started_at = min((scheduler.started_at for scheduler in facts.schedulers), default=facts.now)
    if facts.now - max(evaluated_at or started_at, started_at) > facts.alerts_within:
        how_long = "" if evaluated_at is None else f" {duration_in_words(facts.now - evaluated_at)} ago"
        advice = _to_type("timeball scheduler", "look at the scheduler's log; start another")
        detail = f"{'never' if evaluated_at is None else 'last'} evaluated{how_long}: no alert opens or is resolved"
        yield Diagnosis("alerts", DiagnosisStatus.FAIL, "alerts", detail, **advice)
    elif (
        facts.workers
        and messages is not None
        and messages.oldest_at is not None
        and facts.now - messages.oldest_at > _STUCK
    ):
        waiting = counted(messages.waiting, "message waits", "messages wait")
        detail = f"{waiting} to be sent, the oldest for {duration_in_words(facts.now - messages.oldest_at)}"
        yield Diagnosis(
            "alerts", DiagnosisStatus.FAIL, "alerts", detail + _what_holds(messages, facts), **_way_out(messages)
        )
    else:
        when = (
            "not evaluated yet"
            if evaluated_at is None
            else f"evaluated {duration_in_words(facts.now - evaluated_at)} ago"
        )
        yield Diagnosis("alerts", DiagnosisStatus.OK, "alerts", when)


def _what_holds(messages: QueueState, facts: InstallationFacts) -> str:
    if messages.paused_at is not None:
        return f": the queue {messages.name} is paused"
    is_served = any(worker.serves(messages.name) for worker in facts.workers)
    return "" if is_served else f": no worker serves the queue {messages.name}"


def _way_out(messages: QueueState) -> _Advice:
    if messages.paused_at is not None:
        return _to_type(f"timeball queues resume {DELIVERY_QUEUE}", "resume it")
    return _to_type(f"timeball worker --queue {DELIVERY_QUEUE}", "start a worker for them")


# access and settings


def _access(facts: InstallationFacts) -> Iterable[Diagnosis]:
    if facts.is_open:
        detail = f"open on {facts.host}: every program of the account that runs the API is an administrator"
        advice = _to_type("timeball keys create --role admin", "create a key")
        yield Diagnosis("access", DiagnosisStatus.WARN, "access", detail, **advice)
    else:
        yield Diagnosis("access", DiagnosisStatus.OK, "access", "a key is required")


def _embedded(facts: InstallationFacts) -> Iterable[Diagnosis]:
    if facts.is_embedded:
        detail = "the embedded PostgreSQL: fine for one machine"
        yield Diagnosis("embedded", DiagnosisStatus.OK, "server", detail)
    else:
        yield Diagnosis("embedded", DiagnosisStatus.OK, "server", "your own PostgreSQL")


def _settings(facts: InstallationFacts) -> Iterable[Diagnosis]:
    for name, advice in facts.unknown_variables.items():
        yield Diagnosis("settings", DiagnosisStatus.WARN, "settings", f"{name} is set, and nothing reads it", advice)
    if not facts.unknown_variables:
        yield Diagnosis("settings", DiagnosisStatus.OK, "settings", "every variable is known")


CHECKS: tuple[Callable[[InstallationFacts], Iterable[Diagnosis]], ...] = (
    _database,
    _schema,
    _embedded,
    _durability,
    _clock,
    _transactions,
    _partitions,
    _schedulers,
    _overdue,
    _workers,
    _leases,
    _troubles,
    _broker,
    _versions,
    _tzdata,
    _queues,
    _handlers,
    _dead_letters,
    _deadlines,
    _alerting,
    _access,
    _settings,
)

# Every code. `unreachable`, and at times `settings`, are reported before any fact could be read.
CODES = (
    *("database", "schema", "embedded", "durability", "clock", "transactions", "partitions", "schedulers", "overdue"),
    *(
        "workers",
        "leases",
        "trouble",
        "broker",
        "versions",
        "tzdata",
        "queue_paused",
        "queue_unserved",
        "handler_unknown",
        "dead_letters",
    ),
    *("deadlines", "alerts", "access", "settings", "unreachable"),
    *("late", "overrunning", "missed"),
    *EXPECTATION_KINDS,
)
