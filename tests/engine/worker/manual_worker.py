"""A worker whose claims are made by hand, and can be watched and disturbed on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.engine.support import IMMORTAL, ManualRunner, make_executor, registry, settle, until
from tests.support.factories import HANDLER, make_node
from timeball.config.settings import WorkerSettings
from timeball.domain.execution import ClaimedExecution, FinishedAttempt, Released
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation
from timeball.domain.wakeup import Lane, LanePosition
from timeball.engine.lease import Peers
from timeball.engine.node import Signal
from timeball.engine.worker.admission import ClaimableHandlers, RetryGate
from timeball.engine.worker.claimer import Claimer, Sweeper
from timeball.engine.worker.executor import Executor
from timeball.errors import StoreUnavailable
from timeball.store.executions import ExecutionStore
from timeball.store.store import Store
from timeball.store.types import ClaimRequest, ClaimResult


def cut() -> None:
    raise StoreUnavailable("the connection was cut")


class WatchedExecutions:
    """The real rooms; every claim is noted on its way, and what the test put there happens to it."""

    def __init__(self, executions: ExecutionStore) -> None:
        self._executions = executions
        self.requests: list[ClaimRequest] = []
        self.asked: list[Mapping[Lane, LanePosition]] = []
        self.named: list[ExecutionId] = []
        self.before: list[Any] = []
        self.after: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executions, name)

    async def claim(self, request: ClaimRequest, lanes: Mapping[Lane, LanePosition], claim_id: ClaimId) -> ClaimResult:
        return await self._pass(request, lanes, self._executions.claim(request, lanes, claim_id))

    async def claim_limited(
        self, request: ClaimRequest, queue: str, lanes: Mapping[Lane, LanePosition], claim_id: ClaimId
    ) -> ClaimResult:
        return await self._pass(request, lanes, self._executions.claim_limited(request, queue, lanes, claim_id))

    async def claim_by_id(
        self, request: ClaimRequest, execution_id: ExecutionId, queues: Sequence[str] | None, claim_id: ClaimId
    ) -> list[ClaimedExecution]:
        self.named.append(execution_id)
        for happens in self.before:
            happens()
        executions = await self._executions.claim_by_id(request, execution_id, queues, claim_id)
        for happens in self.after:
            happens()
        return executions

    async def _pass(self, request: ClaimRequest, lanes: Mapping[Lane, LanePosition], claim: Any) -> ClaimResult:
        self.requests.append(request)
        self.asked.append(dict(lanes))
        try:
            for happens in self.before:
                happens()
        except BaseException:
            claim.close()
            raise
        claims: ClaimResult = await claim
        for happens in self.after:
            happens()
        return claims


@dataclass
class ManualWorker:
    """A worker that claims when told to; what it starts goes on until told to end."""

    store: Store
    incarnation: Incarnation
    executions: WatchedExecutions
    runner: ManualRunner
    executor: Executor
    claimer: Claimer
    sweeper: Sweeper
    peers: Peers
    outcomes_recorded: Signal
    findings: list[FinishedAttempt] = field(default_factory=list)

    @property
    def given_back(self) -> list[FinishedAttempt]:
        return [finding for finding in self.findings if isinstance(finding.outcome, Released)]

    async def sweep_and_claim(self) -> None:
        await self.sweeper.tick()
        await settle(self.claimer)
        await self.started()

    async def started(self) -> None:
        """Let what was accepted begin."""
        await until(lambda: len(self.runner.started) >= self.executor.busy)

    async def end_all(self) -> None:
        for context in list(self.runner.started):
            self.runner.end(context.claimed)
        self.runner.started.clear()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def start(
    store: Store,
    slots: int = 20,
    handlers: Sequence[str] = (HANDLER,),
    hand_over: Callable[[FinishedAttempt], None] | None = None,
    retry_gate: RetryGate | None = None,
    **settings: Any,
) -> ManualWorker:
    incarnation = await make_node(store, lease=IMMORTAL)
    executions, runner = WatchedExecutions(store.executions), ManualRunner()
    findings: list[FinishedAttempt] = []
    executor = make_executor(
        store.env, runner, slots, registry(*handlers), hand_over or findings.append, retry_gate=retry_gate
    )
    peers, outcomes_recorded = Peers(store.env.clock, incarnation), Signal()
    claimer = Claimer(
        store.env,
        lambda _: None,
        executions,  # type: ignore[arg-type]
        executor,
        incarnation,
        ClaimableHandlers(handlers),
        WorkerSettings(slots=slots, **settings),
        peers,
        outcomes_recorded,
    )
    sweeper = Sweeper(store.env, lambda _: None, executions, claimer)  # type: ignore[arg-type]
    return ManualWorker(
        store, incarnation, executions, runner, executor, claimer, sweeper, peers, outcomes_recorded, findings
    )
