"""The facts that a person should act upon: one list, which alerts, the doctor and what needs attention read.

An evaluation only reads, so another process can make one with a role that may not write; `AlertCommands.reconcile` writes what it means
for the alerts. What it costs depends on the queues, the nodes, what runs for long, and the jobs of which something is expected; not on
how many other jobs or executions there are. Of executions that deliver alerts it only says that they are stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from shlex import quote
from typing import TYPE_CHECKING, Any

from timeball.config.settings import find_unknown_variables
from timeball.domain.alerts import (
    DELIVERY_QUEUE,
    Alert,
    AlertEvaluation,
    AlertFact,
    AlertFilter,
    AlertId,
    AlertMember,
    Severity,
    format_alert_id,
    group_facts,
)
from timeball.domain.expectations import ExpectingJob, Obstacle, is_suspect, job_facts, queue_facts
from timeball.domain.explain.diagnosis import (
    Diagnosis,
    DiagnosisStatus,
    InstallationFacts,
    QueueState,
    alert_facts,
    diagnose,
    vital_facts,
)
from timeball.domain.node import NodeKind, NodeStatus, alive_nodes
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.scheduling.verdicts import describe_skips
from timeball.domain.values.ids import ExecutionId, format_execution_id, format_job_id
from timeball.domain.values.wording import duration_in_words, instant_in_words
from timeball.domain.watch import Observation
from timeball.env import SystemClock
from timeball.errors import NotFound
from timeball.store.db.migrate import newest_known
from timeball.store.expectations import ExpectationStore, ExpectingJobState, PauseRecord

if TYPE_CHECKING:
    from timeball.application.queries.explain import ExplainQueries
    from timeball.config.settings import Settings
    from timeball.domain.explain.explanation import Explanation
    from timeball.domain.freeze import FreezeList
    from timeball.domain.search import ResultPage
    from timeball.store.diagnostics import DoctorStore, ExplainStore
    from timeball.store.search.listing import ListingStore
    from timeball.store.store import Store
    from timeball.store.timeline import TimelineStore

_LONG_WAIT = timedelta(minutes=1)
# A run is reported when it takes this many times its 95th percentile, and not within its first minute.
_OVERRUN_FACTOR = 3
_MIN_OVERRUN = timedelta(minutes=1)
_MIN_HISTORY = 3
# Of so many late queues it is said which execution waits and why. Of more, only for how long.
_EXPLAINED = 10
# Missed occurrences are reported for a day, to the hour, and need no confirmation.
_MISSED_FOR = timedelta(hours=24)
# Alerts that were evaluated longer ago are not evaluated any more.
_EVALUATED_WITHIN = timedelta(minutes=2)
# Of more queues, those are checked whose oldest execution waits longest.
_MAX_QUEUES = 1_000
# A watcher reads so many channels.
_MAX_CHANNELS = 1_000
# For so many jobs it is looked up who has paused them.
_MAX_LOOKED_UP = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItem:
    """A fact that a person should act upon, with its alert, if it has one yet."""

    fact: AlertFact
    alert: Alert | None

    @property
    def mark(self) -> str | None:
        return self.fact.mark

    @property
    def status(self) -> DiagnosisStatus:
        return DiagnosisStatus.FAIL if self.fact.severity is Severity.CRITICAL else DiagnosisStatus.WARN

    @property
    def alert_id(self) -> str | None:
        return None if self.alert is None else format_alert_id(self.alert.id)


class AlertQueries:
    """Finds the facts, and reads alerts."""

    def __init__(
        self,
        store: Store,
        listing: ListingStore,
        diagnostics: DoctorStore,
        timelines: TimelineStore,
        explain: ExplainQueries,
        changes: ExplainStore,
        settings: Settings,
    ) -> None:
        self._store = store
        self._listing = listing
        self._diagnostics = diagnostics
        self._timelines = timelines
        self._explain = explain
        self._changes = changes
        self._expectations = ExpectationStore(store.database)
        self._settings = settings

    # what is so now

    async def evaluate(self) -> AlertEvaluation:
        """The facts of now."""
        installation = await self._installation()
        return AlertEvaluation(installation.now, await self._facts(installation, diagnose(installation)))

    async def look(self) -> Observation:
        """What a watcher sees, by a few statements: those facts of now that the installation may be unable to tell by itself, and what
        it needs to tell them."""
        installation = await self._installation()
        channels = await self._store.channels.page(_MAX_CHANNELS, None)
        return Observation(
            evaluation=AlertEvaluation(installation.now, vital_facts(diagnose(installation))),
            alerts={alert.fact.key: alert for alert in await self._store.alerts.unresolved()},
            routes=await self._store.channels.routes(),
            channels={channel.name: channel for channel in channels.items},
        )

    async def attention(self) -> list[AttentionItem]:
        """The facts of now as they are grouped in alerts, the most severe first; each with its alert."""
        evaluation = await self.evaluate()
        alerts = {alert.fact.key: alert for alert in await self._store.alerts.unresolved()}
        return [AttentionItem(fact=fact, alert=alerts.get(fact.key)) for fact in group_facts(evaluation.facts, alerts)]

    async def diagnose(self) -> list[Diagnosis]:
        """Every check of the doctor, and a line for each other fact."""
        installation = await self._installation()
        lines = diagnose(installation)
        told = {(line.code, line.target) for line in lines}
        others = [fact for fact in await self._facts(installation, lines) if (fact.kind, fact.target) not in told]
        return [*lines, *(_diagnosis_of(fact) for fact in group_facts(others, ()))]

    async def _facts(self, installation: InstallationFacts, lines: Sequence[Diagnosis]) -> list[AlertFact]:
        facts = alert_facts(lines)
        # A queue that is paused or has no worker is among the lines already.
        listed = {fact.target[1] for fact in facts if fact.target is not None and fact.target[0] == "queue"}
        facts += await self._expected(installation)
        if installation.workers:
            facts += await self._late(installation, listed)
        facts += await self._overrunning(installation.now)
        facts += await self._missed(installation.now)
        by_key: dict[str, AlertFact] = {}
        for fact in facts:
            present = by_key.get(fact.key)
            if present is None or fact.severity.rank < present.severity.rank:
                by_key[fact.key] = fact
        return list(by_key.values())

    async def _installation(self) -> InstallationFacts:
        reading = await self._store.nodes.read_clock()
        server, installation = await self._diagnostics.server(), await self._diagnostics.installation()
        nodes = alive_nodes(await self._store.nodes.list(), installation["moment"])
        days = await self._store.history.days()
        uses = await self._diagnostics.uses()
        queues = await self._queues()
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
            queues=[queue for queue in queues if queue.name != DELIVERY_QUEUE],
            uses={place: number for place, number in uses.items() if place[0] != DELIVERY_QUEUE},
            dead=await self._listing.dead_count(apart_from=DELIVERY_QUEUE),
            oldest_transaction=server["oldest_transaction"],
            oldest_program=server["oldest_program"],
            last_day=max(days, default=None),
            has_unpartitioned_history=installation["has_unpartitioned_history"],
            tzdata=tzdata_version(),
            newest_tzdata=installation["newest_tzdata"],
            oldest_due=installation["oldest_due"],
            past_deadline=installation["past_deadline"],
            alerts_evaluated_at=await self._store.alerts.evaluated_at(),
            alerts_within=max(_EVALUATED_WITHIN, 3 * timedelta(seconds=self._settings.housekeeping.alert_seconds)),
            messages=next((queue for queue in queues if queue.name == DELIVERY_QUEUE), None),
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

    async def _late(self, facts: InstallationFacts, listed: set[str]) -> list[AlertFact]:
        """Queues whose oldest execution has waited for more than a minute; of the first few, with the reason."""
        late = {
            queue.name: queue.oldest_at
            for queue in facts.queues
            if queue.oldest_at is not None and facts.now - queue.oldest_at > _LONG_WAIT and queue.name not in listed
        }
        known = [] if not late else await self._diagnostics.oldest_ready(list(late)[:_EXPLAINED])
        explained = [await self._late_fact(queue, id_, run_at, facts.now) for queue, id_, run_at in known]
        told = {queue for queue, _, _ in known}
        return explained + [
            _fact_of_queue(queue, f"queue {queue}: its oldest execution is {duration_in_words(facts.now - at)} late")
            for queue, at in late.items()
            if queue not in told
        ]

    async def _late_fact(self, queue: str, id_: ExecutionId, run_at: datetime, now: datetime) -> AlertFact:
        execution = await self._store.history.find(id_)
        explanation = None if execution is None else await self._explain.of_execution(execution)
        late = duration_in_words(now - run_at)
        return _fact_of_queue(
            queue,
            f"{_name(explanation, id_)} in queue {queue} is {late} late",
            command=f"timeball why {format_execution_id(id_)}",
            target=("execution", format_execution_id(id_)),
            why=None if explanation is None else explanation.headline,
        )

    async def _missed(self, now: datetime) -> list[AlertFact]:
        """Jobs whose occurrences were due in the last day and will not run, because nothing ran them in time."""
        missed = await self._store.rollups.missed(now - _MISSED_FOR)
        members = await self._expectations.members([one.job_id for one in missed])
        facts: list[AlertFact] = []
        for one in missed:
            shown = format_job_id(one.job_id)
            name = one.name or shown
            command = f"timeball ledger {quote(name)} --since 24h --verdict skipped"
            facts.append(
                AlertFact(
                    kind="missed",
                    key=f"missed:{one.job_id}",
                    severity=Severity.WARNING,
                    sentence=f"{name}: {describe_skips(one.counts)}, in the last 24 hours",
                    advice=f"see which: {command}",
                    command=command,
                    target=("ledger", shown),
                    members=(members.get(one.job_id, AlertMember(name=name, job_id=one.job_id)),),
                    plural="{} jobs have missed occurrences in the last 24 hours",
                    mark=blake2b(f"{one.job_id} {one.mark}".encode(), digest_size=8).hexdigest(),
                )
            )
        return facts

    async def _overrunning(self, now: datetime) -> list[AlertFact]:
        """Executions that run much longer than their job usually takes."""
        running = await self._timelines.running(None)
        old = [run for run in running if now - run.started_at > _MIN_OVERRUN and run.queue != DELIVERY_QUEUE]
        durations = await self._timelines.durations({run.job_id for run in old})
        overruns: list[tuple[Any, Any]] = []
        for run in old:
            typical = durations.of(run.job_id, run.handler)
            if typical is None or typical.count < _MIN_HISTORY:
                continue
            if now - run.started_at >= _OVERRUN_FACTOR * max(typical.p95, _MIN_OVERRUN / _OVERRUN_FACTOR):
                overruns.append((run, typical))
        members = await self._expectations.members([run.job_id for run, _ in overruns])
        return [_overrun_fact(run, typical, members.get(run.job_id), now) for run, typical in overruns]

    # what is expected

    async def _expected(self, installation: InstallationFacts) -> list[AlertFact]:
        """Jobs and queues that are not as it is expected of them, each with what keeps it from running."""
        now = installation.now
        suspects: list[ExpectingJobState] = []
        async for states in self._expectations.jobs(now):
            suspects += [state for state in states if is_suspect(state.job, state.record, now)]
        queues = await self._expectations.queues(lambda name: _is_served(installation, name))
        queues = [queue for queue in queues if queue_facts(queue, None, now)]
        if not suspects and not queues:
            return []
        freezes = await self._store.freezes.list()
        pauses = await self._expectations.pauses(
            {*(state.job.queue for state in suspects), *(queue.name for queue in queues)}
        )
        facts: list[AlertFact] = []
        for number, state in enumerate(suspects):
            pause = await self._named_pause(state, now) if number < _MAX_LOOKED_UP else state.pause
            obstacle = _obstacle_of_job(state.job, pause, pauses, freezes, installation)
            facts += job_facts(state.job, state.record, obstacle, now)
        for queue in queues:
            facts += queue_facts(queue, _obstacle_of_queue(queue.name, "it", pauses, freezes, installation), now)
        return facts

    async def _named_pause(self, state: ExpectingJobState, now: datetime) -> PauseRecord | None:
        """The pause of a job, with who made it, as the audit knows."""
        pause = state.pause
        if pause is None:
            return None
        change = await self._changes.last_change(
            f"job:{state.job.id}", ["job.pause"], pause.since - timedelta(minutes=1), now
        )
        return pause if change is None else PauseRecord(pause.since, change.actor, pause.reason, pause.until)

    # alerts

    async def find(self, alert_id: AlertId) -> Alert:
        """One alert; NotFound if there is none."""
        alert = await self._store.alerts.find(alert_id)
        if alert is None:
            raise NotFound("alert", format_alert_id(alert_id))
        return alert

    async def page(self, chosen: AlertFilter, limit: int, cursor: str | None = None) -> ResultPage[Alert]:
        """A page of alerts: those that are not resolved first, the latest first."""
        return await self._store.alerts.page(chosen, limit, cursor)

    async def count_open(self) -> Mapping[Severity, int]:
        """How many alerts wait for a person, by severity."""
        return await self._store.alerts.count_open()

    async def evaluated_at(self) -> datetime | None:
        """When alerts were last evaluated; None if they never were."""
        return await self._store.alerts.evaluated_at()


def _obstacle_of_job(
    job: ExpectingJob,
    pause: PauseRecord | None,
    pauses: Mapping[str, PauseRecord],
    freezes: FreezeList,
    installation: InstallationFacts,
) -> Obstacle | None:
    """What keeps a job from running: its own pause, a freeze, its queue, the nodes."""
    now = installation.now
    if pause is not None:
        return Obstacle(f"it is paused{_by_whom(pause, now)}", f"timeball jobs resume {quote(job.name)}")
    holding = [one for one in freezes.freezes if one.covers(now) and one.holds(job.queue, job.id, job.tags)]
    if holding:
        freeze = max(holding, key=lambda one: one.until_at)
        frozen = PauseRecord(freeze.from_at, freeze.actor, freeze.reason, freeze.until_at)
        return Obstacle(f"it is frozen ({freeze.what}){_by_whom(frozen, now)}", "timeball freezes list")
    obstacle = _obstacle_of_queue(job.queue, f"its queue {job.queue}", pauses, freezes, installation)
    if obstacle is not None:
        return obstacle
    if not installation.schedulers:
        return Obstacle("no scheduler is alive", "timeball scheduler")
    serving = [worker for worker in installation.workers if worker.serves(job.queue)]
    if not any(job.handler in worker.handlers for worker in serving):
        return Obstacle(f"no worker of its queue knows the handler {job.handler}")
    return None


def _obstacle_of_queue(
    queue: str, called: str, pauses: Mapping[str, PauseRecord], freezes: FreezeList, installation: InstallationFacts
) -> Obstacle | None:
    now = installation.now
    if queue in pauses:
        return Obstacle(f"{called} is paused{_by_whom(pauses[queue], now)}", f"timeball queues resume {quote(queue)}")
    holding = [one for one in freezes.freezes if one.covers(now) and one.holds(queue, None, ())]
    if holding:
        freeze = max(holding, key=lambda one: one.until_at)
        frozen = PauseRecord(freeze.from_at, freeze.actor, freeze.reason, freeze.until_at)
        return Obstacle(f"{called} is frozen ({freeze.what}){_by_whom(frozen, now)}", "timeball freezes list")
    if not _is_served(installation, queue):
        return Obstacle(f"no worker serves {called}", f"timeball worker app:tb --queue {quote(queue)}")
    return None


def _by_whom(pause: PauseRecord, now: datetime) -> str:
    """Who made a pause or freeze, since when, until when, and why: ` by ana since 02:00:00 UTC (release)`."""
    who = "" if pause.actor is None else f" by {pause.actor}"
    until = "" if pause.until is None else f" until {instant_in_words(pause.until, now)}"
    because = "" if pause.reason is None else f" ({pause.reason})"
    return f"{who} since {instant_in_words(pause.since, now)}{until}{because}"


def _is_served(installation: InstallationFacts, queue: str) -> bool:
    return any(worker.serves(queue) for worker in installation.workers)


def _of_kind(nodes: Iterable[NodeStatus], kind: NodeKind) -> Sequence[NodeStatus]:
    return [node for node in nodes if node.kind is kind]


def _fact_of_queue(queue: str, sentence: str, **fields: Any) -> AlertFact:
    values: dict[str, Any] = {"target": ("queue", queue)} | fields
    return AlertFact(
        kind="late",
        key=f"late:{queue}",
        severity=Severity.WARNING,
        sentence=sentence,
        advice=values.get("command"),
        members=(AlertMember(name=queue, queue=queue),),
        plural="{} queues are late",
        **values,
    )


def _overrun_fact(run: Any, typical: Any, member: AlertMember | None, now: datetime) -> AlertFact:
    shown = format_execution_id(run.id)
    command = f"timeball runs logs {shown}"
    age, usual = duration_in_words(now - run.started_at), duration_in_words(typical.median)
    return AlertFact(
        kind="overrunning",
        key=f"overrunning:{run.id}",
        severity=Severity.WARNING,
        sentence=f"{shown} ({run.handler}) has run for {age}, it usually takes {usual}",
        advice=f"look at its log: {command}",
        command=command,
        target=("execution", shown),
        members=(member or AlertMember(name=run.handler, queue=run.queue),),
        plural="{} executions run much longer than usual",
    )


def _diagnosis_of(fact: AlertFact) -> Diagnosis:
    status = DiagnosisStatus.FAIL if fact.severity is Severity.CRITICAL else DiagnosisStatus.WARN
    return Diagnosis(
        fact.kind, status, fact.kind.replace("_", " "), fact.sentence, fact.advice, fact.target, fact.command
    )


def _name(explanation: Explanation | None, id_: ExecutionId) -> str:
    if explanation is None:
        return format_execution_id(id_)
    job = explanation.facts.job
    return f"{(job and job.name) or explanation.facts.handler} ({format_execution_id(id_)})"
