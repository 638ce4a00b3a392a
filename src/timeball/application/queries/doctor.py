"""Whether the installation is in order: the doctor's checks, what needs attention, and the short health report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from shlex import quote
from typing import TYPE_CHECKING

from timeball.config.settings import find_unknown_variables
from timeball.domain.explain.diagnosis import Diagnosis, DiagnosisStatus, InstallationFacts, QueueState, diagnose
from timeball.domain.node import NodeKind, NodeStatus, alive_nodes, report_broker
from timeball.domain.rollup import OccurrenceCounts, sum_occurrences
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.scheduling.verdicts import describe_skips
from timeball.domain.values.ids import ExecutionId, format_execution_id, format_job_id
from timeball.domain.values.wording import duration_in_words, listed
from timeball.env import SystemClock
from timeball.errors import StoreError, quote_text
from timeball.store.db.migrate import newest_known

if TYPE_CHECKING:
    from timeball.application.queries.explain import ExplainQueries
    from timeball.config.settings import Settings
    from timeball.domain.explain.explanation import Explanation
    from timeball.store.diagnostics import DoctorStore
    from timeball.store.rollups import MissedOccurrences
    from timeball.store.search.listing import ListingStore
    from timeball.store.store import Store
    from timeball.store.timeline import TimelineStore

_LONG_WAIT = timedelta(minutes=1)
# A run is reported when it takes this many times its 95th percentile, and not within its first minute.
_OVERRUN_FACTOR = 3
_MIN_OVERRUN = timedelta(minutes=1)
_MIN_HISTORY = 3
_MAX_OF_A_KIND = 10
# Missed occurrences are reported for a day, to the hour. More jobs than these are one line together.
_MISSED_FOR = timedelta(hours=24)
_MAX_MISSED_JOBS = 5
# Of more queues, those are checked whose oldest execution waits longest.
_MAX_QUEUES = 1_000
# These concern the setup of the installation, not the person on duty.
_NOT_URGENT = frozenset({"access", "clock", "versions", "tzdata", "embedded", "durability", "settings"})
_SEVERITY = {DiagnosisStatus.FAIL: 0, DiagnosisStatus.WARN: 1, DiagnosisStatus.OK: 2}
_HEALTH_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One line of the health report: `ok`, `warn` or `fail`, and a detail."""

    name: str
    status: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItem:
    """Something a person should deal with: a sentence, advice, a target as (kind, id), an explanation and a command.

    What is over needs to be looked at and no more: it has a *mark*, by which a page knows it again until there is more of it.
    """

    code: str
    status: DiagnosisStatus
    sentence: str
    advice: str | None
    target: tuple[str, str] | None
    why: str | None = None
    command: str | None = None
    mark: str | None = None


class DoctorQueries:
    """Checks the whole installation."""

    def __init__(
        self,
        store: Store,
        listing: ListingStore,
        diagnostics: DoctorStore,
        timelines: TimelineStore,
        explain: ExplainQueries,
        settings: Settings,
    ) -> None:
        self._store = store
        self._listing = listing
        self._diagnostics = diagnostics
        self._timelines = timelines
        self._explain = explain
        self._settings = settings

    async def health(self) -> list[HealthCheck]:
        """Checks the database, its schema, and whether schedulers, workers and owners of all shards are alive."""
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT_SECONDS):
                schema = await self._listing.schema()
                nodes = await self._store.nodes.list()
                unowned = await self._listing.ownerless_shards()
        except (StoreError, TimeoutError) as error:
            detail = str(error) or f"no answer within {_HEALTH_TIMEOUT_SECONDS:g} s"
            return [HealthCheck("database", "fail", quote_text(detail, 200))]
        is_current = schema == newest_known()
        return [
            HealthCheck("database", "ok", "it answers"),
            HealthCheck(
                "schema", "ok" if is_current else "fail", f"it is {schema}, this program needs {newest_known()}"
            ),
            _alive_check(nodes, NodeKind.SCHEDULER),
            _alive_check(nodes, NodeKind.WORKER),
            HealthCheck("shards", "warn" if unowned else "ok", f"{unowned} of {self._store.shards} without an owner"),
            broker_check(nodes),
        ]

    async def diagnose(self) -> list[Diagnosis]:
        """Every line of the doctor; a database that does not answer is a line as well."""
        try:
            return diagnose(await self._facts())
        except StoreError as error:
            advice = "check which database is configured, and why it does not answer: timeball check"
            return [Diagnosis("unreachable", DiagnosisStatus.FAIL, "database", str(error), advice)]

    async def attention(self) -> list[AttentionItem]:
        """What a person should deal with, the most severe first."""
        facts = await self._facts()
        lines = [
            line for line in diagnose(facts) if line.status is not DiagnosisStatus.OK and line.code not in _NOT_URGENT
        ]
        items = [_attention_item(line) for line in lines]
        # A queue that is paused or has no worker is among the lines already.
        listed = {line.target[1] for line in lines if line.target is not None and line.target[0] == "queue"}
        if facts.workers:
            items += await self._late(facts, listed)
        items += await self._overrunning(facts.now)
        items += await self._missed(facts.now)
        return sorted(items, key=lambda item: _SEVERITY[item.status])

    async def _facts(self) -> InstallationFacts:
        reading = await self._store.nodes.read_clock()
        server, installation = await self._diagnostics.server(), await self._diagnostics.installation()
        nodes = alive_nodes(await self._store.nodes.list(), installation["moment"])
        days = await self._store.history.days()
        return InstallationFacts(
            now=installation["moment"],
            postgres=server["version"],
            postgres_major=server["major"],
            round_trip=timedelta(seconds=reading.received - reading.sent),
            schema=await self._listing.schema(),
            schema_needed=newest_known(),
            is_durable=server["is_durable"],
            is_embedded=self._settings.database_url is None,
            is_open=not installation["has_keys"],
            host=self._settings.host,
            clock_apart=self._clock_apart(),
            workers=_of_kind(nodes, NodeKind.WORKER),
            schedulers=_of_kind(nodes, NodeKind.SCHEDULER),
            shards=self._store.shards,
            unowned_shards=await self._listing.ownerless_shards(),
            queues=await self._queues(),
            uses=await self._diagnostics.uses(),
            dead=await self._listing.dead_count(),
            oldest_transaction=server["oldest_transaction"],
            oldest_program=server["oldest_program"],
            last_day=max(days, default=None),
            has_unpartitioned_history=installation["has_unpartitioned_history"],
            tzdata=tzdata_version(),
            newest_tzdata=installation["newest_tzdata"],
            oldest_due=installation["oldest_due"],
            past_deadline=installation["past_deadline"],
            unknown_variables={variable.name: variable.advice for variable in find_unknown_variables()},
        )

    async def _queues(self) -> list[QueueState]:
        rows = await self._listing.queues(limit=_MAX_QUEUES, by_need=True)
        return [
            QueueState(
                row["name"], row["depth"], row["paused_at"], row["oldest_at"], row["pause_reason"], row["paused_until"]
            )
            for row in rows
        ]

    def _clock_apart(self) -> timedelta:
        clock = self._store.env.clock
        return clock.wall_clock_apart() if isinstance(clock, SystemClock) else timedelta(0)

    async def _late(self, facts: InstallationFacts, listed: set[str]) -> list[AttentionItem]:
        """Queues whose oldest execution has waited for more than a minute, with the reason."""
        late = [
            queue.name
            for queue in facts.queues
            if queue.oldest_at is not None and facts.now - queue.oldest_at > _LONG_WAIT and queue.name not in listed
        ]
        oldest = await self._diagnostics.oldest_ready(late[:_MAX_OF_A_KIND]) if late else []
        return [await self._late_item(queue, id_, run_at, facts.now) for queue, id_, run_at in oldest]

    async def _late_item(self, queue: str, id_: ExecutionId, run_at: datetime, now: datetime) -> AttentionItem:
        execution = await self._store.history.find(id_)
        explanation = None if execution is None else await self._explain.of_execution(execution)
        command = f"timeball why {format_execution_id(id_)}"
        return AttentionItem(
            code="late",
            status=DiagnosisStatus.WARN,
            sentence=f"{_name(explanation, id_)} in queue {queue} is {duration_in_words(now - run_at)} late",
            advice=command,
            command=command,
            target=("execution", format_execution_id(id_)),
            why=None if explanation is None else explanation.headline,
        )

    async def _missed(self, now: datetime) -> list[AttentionItem]:
        """Jobs whose occurrences were due in the last day and will not run, because nothing ran them in time."""
        missed = await self._store.rollups.missed(now - _MISSED_FOR)
        if len(missed) > _MAX_MISSED_JOBS:
            return [_missed_together(missed)]
        return [_missed_item(one) for one in missed]

    async def _overrunning(self, now: datetime) -> list[AttentionItem]:
        """Executions that run much longer than their job usually takes."""
        running = await self._timelines.running(None)
        old = [run for run in running if now - run.started_at > _MIN_OVERRUN]
        durations = await self._timelines.durations({run.job_id for run in old})
        items: list[AttentionItem] = []
        for run in old:
            typical = durations.of(run.job_id, run.handler)
            if (
                typical is None
                or typical.count < _MIN_HISTORY
                or now - run.started_at < _OVERRUN_FACTOR * max(typical.p95, _MIN_OVERRUN / _OVERRUN_FACTOR)
            ):
                continue
            age = duration_in_words(now - run.started_at)
            command = f"timeball runs logs {format_execution_id(run.id)}"
            items.append(
                AttentionItem(
                    code="overrunning",
                    status=DiagnosisStatus.WARN,
                    sentence=(
                        f"{format_execution_id(run.id)} ({run.handler}) has run for {age}, "
                        f"it usually takes {duration_in_words(typical.median)}"
                    ),
                    advice=f"look at its log: {command}",
                    command=command,
                    target=("execution", format_execution_id(run.id)),
                )
            )
        return items[:_MAX_OF_A_KIND]


def _missed_item(missed: MissedOccurrences) -> AttentionItem:
    shown = format_job_id(missed.job_id)
    name = missed.name or shown
    command = f"timeball ledger {quote(name)} --since 24h --verdict skipped"
    return AttentionItem(
        code="missed",
        status=DiagnosisStatus.WARN,
        sentence=f"{name}: {describe_skips(missed.counts)}, in the last 24 hours",
        advice=f"see which: {command}",
        command=command,
        target=("ledger", shown),
        mark=_mark([missed]),
    )


def _missed_together(missed: Sequence[MissedOccurrences]) -> AttentionItem:
    """One line for many jobs: an outage touches all of them alike."""
    counts = sum_occurrences(OccurrenceCounts(0, one.counts) for one in missed).skipped
    names = listed([one.name or format_job_id(one.job_id) for one in missed])
    return AttentionItem(
        code="missed",
        status=DiagnosisStatus.WARN,
        sentence=f"{len(missed):,} jobs: {describe_skips(counts)}, in the last 24 hours: {names}",
        advice="see the timeline of that time, or the ledger of each job",
        target=("timeline", ""),
        mark=_mark(missed),
    )


def _mark(missed: Sequence[MissedOccurrences]) -> str:
    text = "; ".join(sorted(f"{one.job_id} {one.mark}" for one in missed))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def broker_check(nodes: Sequence[NodeStatus]) -> HealthCheck:
    """The health line of the broker. It never fails: without a broker work goes on through PostgreSQL."""
    report = report_broker(nodes)
    return HealthCheck("broker", "ok" if report.is_fine else "warn", report.detail)


def _alive_check(nodes: Sequence[NodeStatus], kind: NodeKind) -> HealthCheck:
    number = sum(node.kind is kind for node in nodes)
    return HealthCheck(f"{kind.value}s", "ok" if number else "warn", f"{number} alive")


def _of_kind(nodes: Iterable[NodeStatus], kind: NodeKind) -> Sequence[NodeStatus]:
    return [node for node in nodes if node.kind is kind]


def _attention_item(line: Diagnosis) -> AttentionItem:
    sentence = f"{line.subject}: {line.detail}"
    return AttentionItem(
        code=line.code,
        status=line.status,
        sentence=sentence,
        advice=line.advice,
        target=line.target,
        command=line.command,
    )


def _name(explanation: Explanation | None, id_: ExecutionId) -> str:
    if explanation is None:
        return format_execution_id(id_)
    job = explanation.facts.job
    return f"{(job and job.name) or explanation.facts.handler} ({format_execution_id(id_)})"
