"""Gathers the facts that explain why an execution or a job does not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from timeball.clock import SystemClock
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
from timeball.domain.job import Job
from timeball.domain.node import NodeKind, alive_nodes
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.store.diagnostics import MAX_AHEAD, ExplainStore, is_parked
from timeball.store.store import Store


class Explainer:
    """Answers "why" for an execution, or for a job that has none."""

    def __init__(self, store: Store, survey: ExplainStore) -> None:
        self._store = store
        self._facts = survey

    async def execution(self, execution: Execution) -> Explanation:
        """Why an execution is where it is."""
        job = (await self._store.jobs.find([execution.job_id])).get(execution.job_id)
        facts = await self._surroundings(job, execution, execution.job_id, execution.id)
        return explain(await self._on_its_way(facts, execution))

    async def job(self, job: Job) -> Explanation:
        """Why a job has nothing that waits or runs."""
        return explain(await self._surroundings(job, job, job.id, None))

    async def _surroundings(
        self, job: Job | None, subject: Job | Execution, job_id: JobId, execution_id: ExecutionId | None
    ) -> ExplainFacts:
        """What holds for whatever runs in this queue, under this limit and this key."""
        doors = await self._facts.read_gates(subject.queue, subject.limit_key, subject.unique_key)
        competitors = await self._facts.competitors(execution_id, job_id, subject.queue, subject.limit_key)
        alive = alive_nodes(await self._store.nodes.list(), doors["moment"])
        holder = doors["key_holder"]
        return ExplainFacts(
            now=doors["moment"],
            job=job,
            queue=_queue_facts(subject.queue, doors, competitors["queue"]),
            limit=_limit_facts(subject.limit_key, doors, competitors["limit"]),
            competitors=competitors["job"],
            key_holder=None if holder is None else ExecutionId(holder),
            workers=[node for node in alive if node.kind is NodeKind.WORKER],
            schedulers=[node for node in alive if node.kind is NodeKind.SCHEDULER],
            clock_error=self._clock_error(),
        )

    async def _on_its_way(self, facts: ExplainFacts, execution: Execution) -> ExplainFacts:
        """What holds for this execution alone: its table, its place in line, how long its like take."""
        where = await self._facts.locate(execution.id)
        facts = replace(
            facts,
            execution=_as_of(execution, where.state_table, facts.now),
            state_table=where.state_table,
            due_kind=where.due_kind,
            stop=where.stop,
            progress=where.progress,
            progress_note=where.progress_note,
            is_parked=is_parked(execution.run_at),
        )
        if where.state_table in (ExecutionTable.DUE, ExecutionTable.READY, ExecutionTable.BLOCKED):
            facts = replace(facts, versions=await self._versions(execution))
        if where.state_table is ExecutionTable.READY:
            ahead = await self._facts.queue_position(execution)
            crowd = await self._facts.running_on([worker.incarnation for worker in facts.able])
            return replace(facts, ahead=ahead, most_ahead=MAX_AHEAD, on_workers=crowd)
        if where.state_table is ExecutionTable.RUNNING:
            return replace(facts, typical=await self._facts.typical_duration(execution.job_id, execution.handler))
        return facts

    async def _versions(self, execution: Execution) -> list[ContractFacts]:
        """What workers have published of its handler, and which of that takes its payload."""
        published = (await self._store.handlers.versions([execution.handler])).get(execution.handler, [])
        if not published:
            return []
        from timeball.handlers.payloads import accepts_payload  # few executions are asked about

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

    def _clock_error(self) -> timedelta:
        clock = self._store.env.clock
        return clock.uncertainty if isinstance(clock, SystemClock) else timedelta(0)


def _as_of(execution: Execution, state_table: ExecutionTable, now: datetime) -> Execution:
    """What a worker holds for its instant has not started, whatever moment it was read at."""
    if state_table is ExecutionTable.RUNNING and execution.run_at is not None and execution.run_at > now:
        return replace(execution, state=ExecutionState.QUEUED, started_at=None)
    return execution


def _queue_facts(name: str, doors: Mapping[str, Any], holders: Sequence[Competitor]) -> QueueFacts:
    return QueueFacts(
        name=name,
        paused_at=doors["paused_at"],
        pause_reason=doors["pause_reason"],
        max_running=doors["queue_limit"],
        taken=doors["queue_taken"],
        holders=holders,
    )


def _limit_facts(key: str | None, doors: Mapping[str, Any], holders: Sequence[Competitor]) -> LimitFacts | None:
    if key is None:
        return None
    return LimitFacts(key=key, max_running=doors["key_limit"], taken=doors["key_taken"], holders=holders)
