"""Is everything in order? Each check looks at the facts of the whole house and says what it found.

A line is `ok`, `warn` (somebody should look) or `fail` (work waits, or will), with what was found and what to type. Every
code has its section in docs/reference/doctor.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from shlex import quote
from typing import TypedDict

from timeball.domain.node import NodeStatus, report_broker
from timeball.domain.values.wording import counted, duration_in_words, listed

OLDEST_POSTGRES = 15
_SLOW = timedelta(milliseconds=100)
_CLOCK_APART = timedelta(seconds=1)
_LONG_TRANSACTION, _ENDLESS_TRANSACTION = timedelta(minutes=5), timedelta(hours=1)
_LATE = timedelta(seconds=10)
_RECENT = timedelta(hours=1)
_FEW_DAYS = 2


class DiagnosisStatus(StrEnum):
    """How grave a line is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line: its code, how grave it is, about what, what was found, what to do; where to look, as (kind, id); and what to type.

    The advice holds the command too, if there is one.
    """

    code: str
    status: DiagnosisStatus
    subject: str
    found: str
    advice: str | None = None
    target: tuple[str, str] | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue that is not empty, or not open."""

    name: str
    waiting: int
    paused_at: datetime | None
    oldest_at: datetime | None
    pause_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationFacts:
    """The facts of the whole house. *uses* counts jobs by (queue, handler)."""

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
    ownerless: int = 0
    queues: Sequence[QueueState] = ()
    uses: Mapping[tuple[str, str], int] = field(default_factory=dict)
    dead: int = 0
    oldest_transaction: timedelta | None = None
    oldest_program: str | None = None
    last_day: date | None = None
    has_strays: bool = False
    tzdata: str = ""
    newest_tzdata: str | None = None
    oldest_due: datetime | None = None
    past_deadline: int = 0
    # Variables that look like settings and are none, each with what was probably meant.
    unknown_variables: Mapping[str, str] = field(default_factory=dict)


def diagnose(house: InstallationFacts) -> list[Diagnosis]:
    """Every line, in the order of the checks; of a check that finds several things, one line each."""
    return [line for check in CHECKS for line in check(house)]


def worst_status(lines: Iterable[Diagnosis]) -> DiagnosisStatus:
    """The gravest of all lines."""
    found = {line.status for line in lines}
    return next(
        (status for status in (DiagnosisStatus.FAIL, DiagnosisStatus.WARN) if status in found), DiagnosisStatus.OK
    )


class _Advice(TypedDict, total=False):
    advice: str
    command: str


def _to_type(command: str, words: str = "") -> _Advice:
    return {"advice": f"{words}: {command}" if words else command, "command": command}


# the database


def _database(house: InstallationFacts) -> Iterable[Diagnosis]:
    found = f"PostgreSQL {house.postgres}, {duration_in_words(house.round_trip)}, schema {house.schema}"
    if house.postgres_major < OLDEST_POSTGRES:
        advice = f"move to PostgreSQL {OLDEST_POSTGRES} or later"
        yield Diagnosis("database", DiagnosisStatus.FAIL, "database", f"{found}; too old", advice)
    elif house.round_trip > _SLOW:
        yield Diagnosis(
            "database", DiagnosisStatus.WARN, "database", f"{found}; slow", "bring the nodes closer to the database"
        )
    else:
        yield Diagnosis("database", DiagnosisStatus.OK, "database", found)


def _schema(house: InstallationFacts) -> Iterable[Diagnosis]:
    if house.schema == house.schema_needed:
        yield Diagnosis("schema", DiagnosisStatus.OK, "schema", f"schema {house.schema}, as this program needs it")
    else:
        is_old = house.schema < house.schema_needed
        advice = _to_type("timeball db migrate") if is_old else _Advice(advice="update this program")
        found = f"schema {house.schema}, this program needs {house.schema_needed}"
        yield Diagnosis("schema", DiagnosisStatus.FAIL, "schema", found, **advice)


def _durability(house: InstallationFacts) -> Iterable[Diagnosis]:
    if house.is_durable:
        yield Diagnosis(
            "durability", DiagnosisStatus.OK, "durability", "commits are on disk before they are acknowledged"
        )
    else:
        found = "fsync or synchronous_commit is off: a crash of the server can lose acknowledged work"
        yield Diagnosis("durability", DiagnosisStatus.WARN, "durability", found, "turn both on in postgresql.conf")


def _clock(house: InstallationFacts) -> Iterable[Diagnosis]:
    found = f"{duration_in_words(house.clock_apart)} from the database"
    if house.clock_apart > _CLOCK_APART:
        advice = "let NTP set this machine's clock; the database's clock decides, so nothing runs at a wrong time"
        yield Diagnosis("clock", DiagnosisStatus.WARN, "clock", found, advice)
    else:
        yield Diagnosis("clock", DiagnosisStatus.OK, "clock", found)


def _transactions(house: InstallationFacts) -> Iterable[Diagnosis]:
    oldest = house.oldest_transaction
    if oldest is None or oldest < _LONG_TRANSACTION:
        yield Diagnosis("transactions", DiagnosisStatus.OK, "transactions", "none is old")
        return
    who = f" ({house.oldest_program})" if house.oldest_program else ""
    found = f"one has been open for {duration_in_words(oldest)}{who}: dead rows cannot be removed meanwhile"
    status = DiagnosisStatus.FAIL if oldest > _ENDLESS_TRANSACTION else DiagnosisStatus.WARN
    yield Diagnosis(
        "transactions", status, "transactions", found, "find it in pg_stat_activity by its xact_start, and end it"
    )


def _partitions(house: InstallationFacts) -> Iterable[Diagnosis]:
    ahead = -1 if house.last_day is None else (house.last_day - house.now.date()).days
    if house.has_strays:
        found = "some history lies in the default partition: no day was there for it"
        yield Diagnosis(
            "partitions", DiagnosisStatus.WARN, "partitions", found, "keep a scheduler running: it makes the days"
        )
    if ahead < _FEW_DAYS:
        status = DiagnosisStatus.FAIL if ahead < 0 else DiagnosisStatus.WARN
        found = f"history has partitions for {counted(max(ahead, 0), 'day')} ahead"
        yield Diagnosis("partitions", status, "partitions", found, "keep a scheduler running: it makes the days")
    elif not house.has_strays:
        yield Diagnosis("partitions", DiagnosisStatus.OK, "partitions", f"{counted(ahead, 'day')} ahead")


# the nodes


def _schedulers(house: InstallationFacts) -> Iterable[Diagnosis]:
    if not house.schedulers:
        found = "none is alive: nothing runs when its time comes"
        yield Diagnosis(
            "schedulers", DiagnosisStatus.FAIL, "schedulers", found, **_to_type("timeball scheduler", "start one")
        )
    elif house.ownerless:
        found = f"{len(house.schedulers)} alive, {house.ownerless} of {counted(house.shards, 'shard')} without one"
        yield Diagnosis("schedulers", DiagnosisStatus.WARN, "schedulers", found, "wait some seconds, and look again")
    else:
        yield Diagnosis(
            "schedulers", DiagnosisStatus.OK, "schedulers", f"{len(house.schedulers)} alive, every shard has one"
        )


def _overdue(house: InstallationFacts) -> Iterable[Diagnosis]:
    if house.oldest_due is None or house.now - house.oldest_due <= _LATE:
        yield Diagnosis("overdue", DiagnosisStatus.OK, "schedule", "nothing is overdue")
        return
    found = f"the oldest entry should have been moved {duration_in_words(house.now - house.oldest_due)} ago"
    advice = _to_type("timeball scheduler", "look at the scheduler's log; start another")
    yield Diagnosis("overdue", DiagnosisStatus.FAIL, "schedule", found, **advice)


def _workers(house: InstallationFacts) -> Iterable[Diagnosis]:
    waiting = sum(queue.waiting for queue in house.queues)
    if not house.workers:
        status = DiagnosisStatus.FAIL if waiting else DiagnosisStatus.WARN
        found = f"none is alive, {waiting} waiting"
        yield Diagnosis("workers", status, "workers", found, **_to_type("timeball worker app:tb", "start one"))
        return
    slots, busy = (sum(getattr(worker, name) for worker in house.workers) for name in ("slots", "busy"))
    yield Diagnosis(
        "workers", DiagnosisStatus.OK, "workers", f"{len(house.workers)} alive, {busy} of {slots} slots busy"
    )


def _leases(house: InstallationFacts) -> Iterable[Diagnosis]:
    late = [node for node in (*house.workers, *house.schedulers) if _is_late(node, house.now)]
    for node in late:
        found = f"it last renewed its lease {duration_in_words(house.now - node.renewed_at)} ago"
        advice = "look whether it is frozen, or its network slow"
        target = (node.kind.value, str(node.incarnation))
        yield Diagnosis("leases", DiagnosisStatus.WARN, f"{node.kind} {node.name}", found, advice, target)
    if not late and (house.workers or house.schedulers):
        yield Diagnosis("leases", DiagnosisStatus.OK, "leases", "every node renews in time")


def _troubles(house: InstallationFacts) -> Iterable[Diagnosis]:
    for node in (*house.workers, *house.schedulers):
        if node.trouble is not None and node.trouble_at is not None and house.now - node.trouble_at < _RECENT:
            found = f"{node.trouble}, {duration_in_words(house.now - node.trouble_at)} ago"
            advice = "its log says more; a handler that blocks or ends its process can be run apart, with isolate=True"
            target = (node.kind.value, str(node.incarnation))
            yield Diagnosis("trouble", DiagnosisStatus.WARN, f"{node.kind} {node.name}", found, advice, target)


def _is_late(node: NodeStatus, now: datetime) -> bool:
    """A node renews three times a lease; one that has missed two is in trouble."""
    return now - node.renewed_at > (node.lease_until - node.renewed_at) * (2 / 3) + timedelta(milliseconds=500)


def _broker(house: InstallationFacts) -> Iterable[Diagnosis]:
    report = report_broker([*house.workers, *house.schedulers])
    status = DiagnosisStatus.OK if report.is_fine else DiagnosisStatus.WARN
    yield Diagnosis("broker", status, "broker", report.found, report.advice)


def _versions(house: InstallationFacts) -> Iterable[Diagnosis]:
    versions = sorted({node.version for node in (*house.workers, *house.schedulers) if node.version})
    if len(versions) > 1:
        found = f"nodes of {listed(versions)} run together"
        yield Diagnosis("versions", DiagnosisStatus.WARN, "versions", found, "update the older ones")
    else:
        yield Diagnosis("versions", DiagnosisStatus.OK, "versions", versions[0] if versions else "no node")


def _tzdata(house: InstallationFacts) -> Iterable[Diagnosis]:
    newest = house.newest_tzdata
    if newest is not None and newest > house.tzdata:
        found = f"{house.tzdata} here, but a scheduler has {newest}: they may disagree about clock changes"
        yield Diagnosis("tzdata", DiagnosisStatus.WARN, "time zones", found, **_to_type("pip install --upgrade tzdata"))
    else:
        yield Diagnosis("tzdata", DiagnosisStatus.OK, "time zones", f"tzdata {house.tzdata}")


# the work


def _queues(house: InstallationFacts) -> Iterable[Diagnosis]:
    for queue in house.queues:
        target = ("queue", queue.name)
        if queue.waiting and queue.paused_at is not None:
            because = f" ({queue.pause_reason})" if queue.pause_reason else ""
            found = f"paused for {duration_in_words(house.now - queue.paused_at)}{because}, {queue.waiting} waiting"
            advice = _to_type(f"timeball queues resume {quote(queue.name)}", "let it go on")
            yield Diagnosis("queue_paused", DiagnosisStatus.WARN, f"queue {queue.name}", found, target=target, **advice)
        elif queue.waiting and house.workers and not any(worker.serves(queue.name) for worker in house.workers):
            found = f"{queue.waiting} waiting, no worker serves it"
            advice = _to_type(f"timeball worker app:tb --queue {quote(queue.name)}", "start one")
            yield Diagnosis(
                "queue_unserved", DiagnosisStatus.FAIL, f"queue {queue.name}", found, target=target, **advice
            )


def _handlers(house: InstallationFacts) -> Iterable[Diagnosis]:
    unknown: dict[str, int] = {}
    for (queue, handler), number in house.uses.items():
        serving = [worker for worker in house.workers if worker.serves(queue)]
        if serving and not any(handler in worker.handlers for worker in serving):
            unknown[handler] = unknown.get(handler, 0) + number
    for handler, number in sorted(unknown.items()):
        found = f"used by {counted(number, 'job')}, known to no worker of its queue"
        advice = "start a worker with the program that has it, or mend the name in the job"
        yield Diagnosis(
            "handler_unknown", DiagnosisStatus.WARN, f"handler {handler}", found, advice, ("handler", handler)
        )


def _dead_letters(house: InstallationFacts) -> Iterable[Diagnosis]:
    if house.dead:
        found = f"{counted(house.dead, 'execution is', 'executions are')} dead, and nobody has dealt with them"
        target = ("dead_letters", "")
        yield Diagnosis(
            "dead_letters", DiagnosisStatus.WARN, "dead letters", found, target=target, **_to_type("timeball dead")
        )
    else:
        yield Diagnosis("dead_letters", DiagnosisStatus.OK, "dead letters", "none")


def _deadlines(house: InstallationFacts) -> Iterable[Diagnosis]:
    if house.past_deadline:
        found = f"{counted(house.past_deadline, 'execution runs', 'executions run')} past the deadline"
        yield Diagnosis(
            "deadlines", DiagnosisStatus.WARN, "deadlines", found, "the reaper ends them; if not, look at its log"
        )
    else:
        yield Diagnosis("deadlines", DiagnosisStatus.OK, "deadlines", "kept")


# the door


def _access(house: InstallationFacts) -> Iterable[Diagnosis]:
    if house.is_open:
        found = f"open on {house.host}: every program of the account that runs the API is an administrator"
        advice = _to_type("timeball keys create --role admin", "make a key")
        yield Diagnosis("access", DiagnosisStatus.WARN, "access", found, **advice)
    else:
        yield Diagnosis("access", DiagnosisStatus.OK, "access", "a key is needed")


def _embedded(house: InstallationFacts) -> Iterable[Diagnosis]:
    if house.is_embedded:
        found = "the embedded PostgreSQL: fine for one machine"
        yield Diagnosis("embedded", DiagnosisStatus.OK, "server", found)
    else:
        yield Diagnosis("embedded", DiagnosisStatus.OK, "server", "a PostgreSQL of your own")


def _settings(house: InstallationFacts) -> Iterable[Diagnosis]:
    for name, advice in house.unknown_variables.items():
        yield Diagnosis("settings", DiagnosisStatus.WARN, "settings", f"{name} is set, and nothing reads it", advice)
    if not house.unknown_variables:
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
    _access,
    _settings,
)

# Every code there is; `unreachable` is said by who could not even look, and so may be `settings`.
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
    *("deadlines", "access", "settings", "unreachable"),
)
