"""Gathers the facts of the installation for the doctor's checks and for the list of what needs attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from timeball.application.queries.explain import Explainer
from timeball.application.queries.views import AttentionItem
from timeball.clock import SystemClock
from timeball.config.settings import Settings, find_unknown_variables
from timeball.domain.explain.diagnosis import Diagnosis, DiagnosisStatus, InstallationFacts, QueueState, diagnose
from timeball.domain.explain.explanation import Explanation
from timeball.domain.node import NodeKind, NodeStatus, alive_nodes
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.values.ids import ExecutionId, format_execution_id
from timeball.domain.values.wording import duration_in_words
from timeball.errors import StoreError
from timeball.store.db.migrate import newest_known
from timeball.store.diagnostics import DoctorStore
from timeball.store.search.listing import ListingStore
from timeball.store.store import Store
from timeball.store.timeline import TimelineStore

# A wait that people ask about, and a run that has surely gone wrong.
_LONG_WAIT = timedelta(minutes=1)
_LEAST_OVERRUN = timedelta(minutes=1)
_OVERRUN = 3
_MAX_OF_A_KIND = 10


# Of more queues, those are looked at whose oldest execution waits longest.
_MAX_QUEUES = 1_000


# These are for whoever sets the facts up, not for whoever is on duty.
_NOT_URGENT = frozenset({"access", "clock", "versions", "tzdata", "embedded", "durability", "settings"})
_SEVERITY = {DiagnosisStatus.FAIL: 0, DiagnosisStatus.WARN: 1, DiagnosisStatus.OK: 2}


class Doctor:
    """Looks at everything."""

    def __init__(
        self, store: Store, listing: ListingStore, explainer: Explainer, outlook: TimelineStore, settings: Settings
    ) -> None:
        self._store = store
        self._listing = listing
        self._explainer = explainer
        self._settings = settings
        self._inspection = DoctorStore(store.database)
        self._outlook = outlook

    async def look(self) -> list[Diagnosis]:
        """Every line; a database that does not answer is a line as well."""
        try:
            return diagnose(await self._house())
        except StoreError as error:
            advice = "look which database is meant, and why it does not answer: timeball check"
            return [Diagnosis("unreachable", DiagnosisStatus.FAIL, "database", str(error), advice)]

    async def attention(self) -> list[AttentionItem]:
        """What needs a human, the gravest first."""
        facts = await self._house()
        lines = [
            line for line in diagnose(facts) if line.status is not DiagnosisStatus.OK and line.code not in _NOT_URGENT
        ]
        found = [_attention_item(line) for line in lines]
        # A queue that is closed, or that nobody serves, has been told of already.
        told = {line.target[1] for line in lines if line.target is not None and line.target[0] == "queue"}
        if facts.workers:
            found += await self._late(facts, told)
        found += await self._overrunning(facts.now)
        return sorted(found, key=lambda concern: _SEVERITY[concern.status])

    async def _house(self) -> InstallationFacts:
        reading = await self._store.nodes.read_clock()
        server, installation = await self._inspection.server(), await self._inspection.installation()
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
            uses=await self._inspection.uses(),
            dead=await self._listing.dead_count(),
            oldest_transaction=server["oldest_transaction"],
            oldest_program=server["oldest_program"],
            last_day=max(days, default=None),
            has_unpartitioned_history=installation["has_unpartitioned_history"],
            tzdata=tzdata_version(),
            newest_tzdata=installation["newest_tzdata"],
            oldest_due=installation["oldest_due"],
            past_deadline=installation["past_deadline"],
            unknown_variables={stranger.name: stranger.advice for stranger in find_unknown_variables()},
        )

    async def _queues(self) -> list[QueueState]:
        rows = await self._listing.queues(limit=_MAX_QUEUES, by_need=True)
        return [
            QueueState(row["name"], row["depth"], row["paused_at"], row["oldest_at"], row["pause_reason"])
            for row in rows
        ]

    def _clock_apart(self) -> timedelta:
        clock = self._store.env.clock
        return clock.wall_clock_apart() if isinstance(clock, SystemClock) else timedelta(0)

    # what needs a human

    async def _late(self, facts: InstallationFacts, told: set[str]) -> list[AttentionItem]:
        """Queues whose oldest execution has waited long, with why."""
        late = [
            queue.name
            for queue in facts.queues
            if queue.oldest_at is not None and facts.now - queue.oldest_at > _LONG_WAIT and queue.name not in told
        ]
        oldest = await self._inspection.oldest_ready(late[:_MAX_OF_A_KIND]) if late else []
        return [await self._late_concern(queue, id_, run_at, facts.now) for queue, id_, run_at in oldest]

    async def _late_concern(self, queue: str, id_: ExecutionId, run_at: datetime, now: datetime) -> AttentionItem:
        execution = await self._store.history.find(id_)
        explanation = None if execution is None else await self._explainer.execution(execution)
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

    async def _overrunning(self, now: datetime) -> list[AttentionItem]:
        """What runs much longer than its like usually do."""
        running = await self._outlook.running(None)
        old = [run for run in running if now - run.started_at > _LEAST_OVERRUN]
        durations = await self._outlook.durations({run.job_id for run in old})
        found: list[AttentionItem] = []
        for run in old:
            typical = durations.of(run.job_id, run.handler)
            if (
                typical is None
                or typical.count < 3
                or now - run.started_at < _OVERRUN * max(typical.p95, _LEAST_OVERRUN / _OVERRUN)
            ):
                continue
            lasts = (
                f"{format_execution_id(run.id)} ({run.handler}) has run for {duration_in_words(now - run.started_at)}"
            )
            command = f"timeball runs logs {format_execution_id(run.id)}"
            found.append(
                AttentionItem(
                    code="overrunning",
                    status=DiagnosisStatus.WARN,
                    sentence=f"{lasts}, its like usually take {duration_in_words(typical.median)}",
                    advice=f"look at its log: {command}",
                    command=command,
                    target=("execution", format_execution_id(run.id)),
                )
            )
        return found[:_MAX_OF_A_KIND]


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
