"""Is everything in order, and what needs a human? Gathers the facts of the whole house; the checks are in the domain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from timeball.clock import SystemClock
from timeball.domain.civil_time import tzdata_version
from timeball.domain.diagnosis import Diagnosis, House, QueueState, Status, diagnose
from timeball.domain.explanation import Explanation
from timeball.domain.ids import ExecutionId, show_execution
from timeball.domain.node import NodeKind, NodeStatus
from timeball.domain.wording import span_words
from timeball.errors import StoreError
from timeball.insights.explain import Explainer, living
from timeball.settings import Settings, unknown_variables
from timeball.store.inspection import Inspection
from timeball.store.interface import Store
from timeball.store.listing import Listing
from timeball.store.migrate import newest_known
from timeball.store.outlook import Outlook

# A wait that people ask about, and a run that has surely gone wrong.
_LONG_WAIT = timedelta(minutes=1)
_LEAST_OVERRUN = timedelta(minutes=1)
_OVERRUN = 3
_MOST_OF_A_KIND = 10
# Of more queues, those are looked at whose oldest execution waits longest.
_MOST_QUEUES = 1_000
# These are for whoever sets the house up, not for whoever is on duty.
_NOT_URGENT = frozenset({"access", "clock", "versions", "tzdata", "embedded", "durability", "settings"})
_GRAVITY = {Status.FAIL: 0, Status.WARN: 1, Status.OK: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """What needs a human: one sentence, what to do, where to look as (kind, id), why, and what to type."""

    code: str
    status: Status
    sentence: str
    advice: str | None
    target: tuple[str, str] | None
    why: str | None = None
    command: str | None = None


class Doctor:
    """Looks at everything."""

    def __init__(
        self, store: Store, listing: Listing, explainer: Explainer, outlook: Outlook, settings: Settings
    ) -> None:
        self._store = store
        self._listing = listing
        self._explainer = explainer
        self._settings = settings
        self._inspection = Inspection(store.database)
        self._outlook = outlook

    async def look(self) -> list[Diagnosis]:
        """Every line; a database that does not answer is a line as well."""
        try:
            return diagnose(await self._house())
        except StoreError as error:
            advice = "look which database is meant, and why it does not answer: timeball check"
            return [Diagnosis("unreachable", Status.FAIL, "database", str(error), advice)]

    async def attention(self) -> list[Concern]:
        """What needs a human, the gravest first."""
        house = await self._house()
        lines = [line for line in diagnose(house) if line.status is not Status.OK and line.code not in _NOT_URGENT]
        found = [_concern(line) for line in lines]
        # A queue that is closed, or that nobody serves, has been told of already.
        told = {line.target[1] for line in lines if line.target is not None and line.target[0] == "queue"}
        if house.workers:
            found += await self._late(house, told)
        found += await self._overrunning(house.now)
        return sorted(found, key=lambda concern: _GRAVITY[concern.status])

    async def _house(self) -> House:
        reading = await self._store.nodes.read_clock()
        server, rooms = await self._inspection.server(), await self._inspection.house()
        nodes = living(await self._store.nodes.list(), rooms["moment"])
        days = await self._store.history.days()
        return House(
            now=rooms["moment"],
            postgres=server["version"],
            postgres_major=server["major"],
            round_trip=timedelta(seconds=reading.received - reading.sent),
            schema=await self._listing.schema(),
            schema_needed=newest_known(),
            is_durable=server["is_durable"],
            is_embedded=self._settings.database_url is None,
            is_open=not rooms["has_keys"],
            host=self._settings.host,
            clock_apart=self._clock_apart(),
            workers=_of_kind(nodes, NodeKind.WORKER),
            schedulers=_of_kind(nodes, NodeKind.SCHEDULER),
            shards=self._store.shards,
            ownerless=await self._listing.ownerless_shards(),
            queues=await self._queues(),
            uses=await self._inspection.uses(),
            dead=await self._listing.dead_count(),
            oldest_transaction=server["oldest_transaction"],
            oldest_program=server["oldest_program"],
            last_day=max(days, default=None),
            has_strays=rooms["has_strays"],
            tzdata=tzdata_version(),
            newest_tzdata=rooms["newest_tzdata"],
            oldest_due=rooms["oldest_due"],
            past_deadline=rooms["past_deadline"],
            unknown_variables={stranger.name: stranger.advice for stranger in unknown_variables()},
        )

    async def _queues(self) -> list[QueueState]:
        rows = await self._listing.queues(limit=_MOST_QUEUES, by_need=True)
        return [
            QueueState(row["name"], row["depth"], row["paused_at"], row["oldest_at"], row["pause_reason"])
            for row in rows
        ]

    def _clock_apart(self) -> timedelta:
        clock = self._store.env.clock
        return clock.wall_clock_apart() if isinstance(clock, SystemClock) else timedelta(0)

    # what needs a human

    async def _late(self, house: House, told: set[str]) -> list[Concern]:
        """Queues whose oldest execution has waited long, with why."""
        late = [
            queue.name
            for queue in house.queues
            if queue.oldest_at is not None and house.now - queue.oldest_at > _LONG_WAIT and queue.name not in told
        ]
        oldest = await self._inspection.oldest_ready(late[:_MOST_OF_A_KIND]) if late else []
        return [await self._late_concern(queue, id_, run_at, house.now) for queue, id_, run_at in oldest]

    async def _late_concern(self, queue: str, id_: ExecutionId, run_at: datetime, now: datetime) -> Concern:
        execution = await self._store.history.find(id_)
        explanation = None if execution is None else await self._explainer.execution(execution)
        command = f"timeball why {show_execution(id_)}"
        return Concern(
            code="late",
            status=Status.WARN,
            sentence=f"{_name(explanation, id_)} in queue {queue} is {span_words(now - run_at)} late",
            advice=command,
            command=command,
            target=("execution", show_execution(id_)),
            why=None if explanation is None else explanation.headline,
        )

    async def _overrunning(self, now: datetime) -> list[Concern]:
        """What runs much longer than its like usually do."""
        running = await self._outlook.running(None)
        old = [run for run in running if now - run.started_at > _LEAST_OVERRUN]
        durations = await self._outlook.durations({run.job_id for run in old})
        found: list[Concern] = []
        for run in old:
            usual = durations.of(run.job_id, run.handler)
            if (
                usual is None
                or usual.count < 3
                or now - run.started_at < _OVERRUN * max(usual.p95, _LEAST_OVERRUN / _OVERRUN)
            ):
                continue
            lasts = f"{show_execution(run.id)} ({run.handler}) has run for {span_words(now - run.started_at)}"
            command = f"timeball runs logs {show_execution(run.id)}"
            found.append(
                Concern(
                    code="overrunning",
                    status=Status.WARN,
                    sentence=f"{lasts}, its like usually take {span_words(usual.median)}",
                    advice=f"look at its log: {command}",
                    command=command,
                    target=("execution", show_execution(run.id)),
                )
            )
        return found[:_MOST_OF_A_KIND]


def _of_kind(nodes: Iterable[NodeStatus], kind: NodeKind) -> Sequence[NodeStatus]:
    return [node for node in nodes if node.kind is kind]


def _concern(line: Diagnosis) -> Concern:
    sentence = f"{line.subject}: {line.found}"
    return Concern(
        code=line.code,
        status=line.status,
        sentence=sentence,
        advice=line.advice,
        target=line.target,
        command=line.command,
    )


def _name(explanation: Explanation | None, id_: ExecutionId) -> str:
    if explanation is None:
        return show_execution(id_)
    job = explanation.facts.job
    return f"{(job and job.name) or explanation.facts.handler} ({show_execution(id_)})"
