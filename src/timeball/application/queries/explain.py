"""Why an execution or a job does or does not run: collects the facts and asks every gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.explain.explanation import Explanation, explain
from timeball.domain.explain.facts import (
    Competitor,
    ContractFacts,
    ExecutionTable,
    ExplainFacts,
    LimitFacts,
    QueueFacts,
)
from timeball.domain.explain.groups import MOST_NAMED, GroupExplanation, GroupWait, explain_group, waiting_words
from timeball.domain.explain.instants import foresee
from timeball.domain.follow_ups import GroupPart, GroupState
from timeball.domain.job import Job
from timeball.domain.node import NodeKind, alive_nodes
from timeball.domain.values.ids import ExecutionId, JobId, format_id, occurrence_id
from timeball.env import SystemClock
from timeball.store.diagnostics import MAX_AHEAD, is_parked

# So many parts of a group are explained one by one.
_MOST_EXPLAINED = 10

if TYPE_CHECKING:
    from timeball.application.queries.executions import ExecutionQueries
    from timeball.application.queries.groups import GroupQueries
    from timeball.application.queries.jobs import JobQueries
    from timeball.domain.freeze import Freeze
    from timeball.store.diagnostics import ExplainStore
    from timeball.store.store import Store


class ExplainQueries:
    """Answers "why" for an execution, or for a job that has none."""

    def __init__(
        self,
        store: Store,
        surroundings: ExplainStore,
        jobs: JobQueries,
        executions: ExecutionQueries,
        groups: GroupQueries,
    ) -> None:
        self._store = store
        self._surroundings = surroundings
        self._jobs = jobs
        self._executions = executions
        self._groups = groups

    async def execution(self, reference: str) -> Explanation:
        """Why an execution is in its state; and of one that has ended, what its group still waits for."""
        execution = await self._executions.find(reference)
        explanation = await self.of_execution(execution)
        waiting = await self._open_group_of(execution) if execution.state.is_final else None
        return explanation if waiting is None else replace(explanation, headline=f"{explanation.headline} {waiting}")

    async def job(self, reference: str) -> Explanation:
        """Why a job does not run: explains its running or waiting execution, or else the job itself."""
        job = await self._jobs.find(reference)
        current = await self._executions.current_of(job.id)
        if current is not None:
            return await self.of_execution(current)
        return explain(await self._shared_facts(job, job, job.id, None))

    async def ahead(self, job: Job, at: datetime) -> Explanation:
        """What will stand in the way of an occurrence that lies ahead, if nothing is changed before."""
        facts = await self._shared_facts(job, job, job.id, occurrence_id(job.id, at))
        freeze = await self._freeze(job, job.queue, job.id, at + job.jitter)
        return foresee(replace(facts, freeze=freeze), job, at)

    async def of_execution(self, execution: Execution) -> Explanation:
        """Why this execution is in its state."""
        job = (await self._store.jobs.find([execution.job_id])).get(execution.job_id)
        facts = await self._shared_facts(job, execution, execution.job_id, execution.id)
        return explain(await self._with_own_facts(facts, execution))

    async def _open_group_of(self, execution: Execution) -> str | None:
        """What the innermost open group of an execution waits for."""
        group_id, _ = await self._store.follow_ups.part_of(execution.id, execution.job_id)
        while group_id is not None:
            tree = await self._groups.tree(str(group_id), 0, MOST_NAMED, is_open=True)
            if tree.status.state is GroupState.OPEN:
                waits = [GroupWait(part=part.number, headline="", **_names(part)) for part in tree.parts]
                return f"Its group {format_id('grp', group_id)} {waiting_words(tree.status, waits)}."
            group_id = tree.status.outer
        return None

    async def group(self, reference: str) -> GroupExplanation:
        """Which parts a group waits for, and why those have not ended."""
        tree = await self._groups.tree(reference, 0, _MOST_EXPLAINED, is_open=True)
        waits = [await self._wait(part) for part in tree.parts] if tree.status.state is GroupState.OPEN else []
        return explain_group(tree.status, waits, self._store.env.clock.now())

    async def _wait(self, part: GroupPart) -> GroupWait:
        """Why a part has not ended: its chain is at its last step."""
        step = part.steps[-1] if part.steps else None
        if step is None:
            return GroupWait(part=part.number, headline="nothing of it is recorded")
        if step.group is not None:
            waits = [
                GroupWait(part=inner.number, headline="", **_names(inner))
                for inner in step.parts
                if inner.state is GroupState.OPEN
            ]
            words = f"{'OPEN' if step.group.state is GroupState.OPEN else step.group.state}: {waiting_words(step.group, waits)}."
            return GroupWait(part=part.number, headline=words, group_id=step.group.id, state=step.group.state)
        execution = await self._store.history.find(ExecutionId(step.id))
        if execution is None:
            return GroupWait(part=part.number, headline="its record is gone", **_names(part))
        explanation = await self.of_execution(execution)
        stopping = explanation.stopped_by
        return GroupWait(
            part=part.number,
            headline=explanation.headline,
            execution_id=execution.id,
            handler=execution.handler,
            state=execution.state,
            stopped_by=None if stopping is None else stopping.name,
        )

    async def _shared_facts(
        self, job: Job | None, subject: Job | Execution, job_id: JobId, execution_id: ExecutionId | None
    ) -> ExplainFacts:
        """The facts that hold for everything in this queue, under this limit and this key."""
        gates = await self._surroundings.read_gates(subject.queue, subject.limit_key, subject.unique_key)
        competitors = await self._surroundings.competitors(execution_id, job_id, subject.queue, subject.limit_key)
        alive = alive_nodes(await self._store.nodes.list(), gates["moment"])
        holder = gates["key_holder"]
        return ExplainFacts(
            now=gates["moment"],
            job=job,
            freeze=await self._freeze(job, subject.queue, job_id, gates["moment"]),
            queue=_queue_facts(subject.queue, gates, competitors["queue"]),
            limit=_limit_facts(subject.limit_key, gates, competitors["limit"]),
            competitors=competitors["job"],
            key_holder=None if holder is None else ExecutionId(holder),
            workers=[node for node in alive if node.kind is NodeKind.WORKER],
            schedulers=[node for node in alive if node.kind is NodeKind.SCHEDULER],
            clock_error=self._clock_error(),
        )

    async def _with_own_facts(self, facts: ExplainFacts, execution: Execution) -> ExplainFacts:
        """Adds the facts of this execution alone: its state table, its place in line, its typical duration."""
        location = await self._surroundings.locate(execution.id)
        facts = replace(
            facts,
            execution=_as_of(execution, location.state_table, facts.now),
            state_table=location.state_table,
            due_kind=location.due_kind,
            stop=location.stop,
            progress=location.progress,
            progress_note=location.progress_note,
            is_parked=is_parked(execution.run_at),
        )
        if location.state_table in (ExecutionTable.DUE, ExecutionTable.READY, ExecutionTable.BLOCKED):
            facts = replace(facts, versions=await self._versions(execution))
        if location.state_table is ExecutionTable.READY:
            ahead = await self._surroundings.queue_position(execution)
            running = await self._surroundings.running_on([worker.incarnation for worker in facts.able])
            return replace(facts, ahead=ahead, most_ahead=MAX_AHEAD, on_workers=running)
        if location.state_table is ExecutionTable.RUNNING:
            return replace(
                facts, typical=await self._surroundings.typical_duration(execution.job_id, execution.handler)
            )
        return facts

    async def _versions(self, execution: Execution) -> list[ContractFacts]:
        """The published contracts of its handler, and which of them accept its payload."""
        published = (await self._store.handlers.versions([execution.handler])).get(execution.handler, [])
        if not published:
            return []
        from timeball.handlers.payloads import accepts_payload  # slow to import, and rarely needed

        schemas = await self._store.handlers.schemas(published)
        payload = await self._store.history.payload(execution.id) or "null"
        return [
            ContractFacts(
                fingerprint=version.fingerprint,
                is_newest=version.is_newest,
                takes_payload=accepts_payload(schemas.get(version.fingerprint, {}), payload),
            )
            for version in published
        ]

    async def _freeze(self, job: Job | None, queue: str, job_id: JobId, now: datetime) -> Freeze | None:
        """The freeze that lets nothing of this queue and job start now; of several, the one that ends last."""
        tags = () if job is None else job.tags
        holding = [
            freeze
            for freeze in (await self._store.freezes.list()).freezes
            if freeze.covers(now) and freeze.holds(queue, job_id, tags)
        ]
        return max(holding, key=lambda freeze: freeze.until_at, default=None)

    def _clock_error(self) -> timedelta:
        clock = self._store.env.clock
        return clock.uncertainty if isinstance(clock, SystemClock) else timedelta(0)


def _names(part: GroupPart) -> dict[str, Any]:
    """What a part is at, as a wait names it."""
    step = part.steps[-1] if part.steps else None
    if step is None or step.group is not None:
        return {"group_id": None if step is None else step.id}
    return {"execution_id": ExecutionId(step.id), "handler": step.handler, "state": step.state}


def _as_of(execution: Execution, state_table: ExecutionTable, now: datetime) -> Execution:
    """A running row whose instant lies ahead is held by its worker and has not started."""
    if state_table is ExecutionTable.RUNNING and execution.run_at is not None and execution.run_at > now:
        return replace(execution, state=ExecutionState.QUEUED, started_at=None)
    return execution


def _queue_facts(name: str, gates: Mapping[str, Any], holders: Sequence[Competitor]) -> QueueFacts:
    return QueueFacts(
        name=name,
        paused_at=gates["paused_at"],
        paused_until=gates["paused_until"],
        pause_reason=gates["pause_reason"],
        max_running=gates["queue_limit"],
        taken=gates["queue_taken"],
        holders=holders,
    )


def _limit_facts(key: str | None, gates: Mapping[str, Any], holders: Sequence[Competitor]) -> LimitFacts | None:
    if key is None:
        return None
    return LimitFacts(key=key, max_running=gates["key_limit"], taken=gates["key_taken"], holders=holders)
