"""Compares the claims in the database with those this worker knows of.

A claim whose reply was lost is read back, and usually that is the end of it. But the network may deliver a claim that its sender gave up
and read back in vain. Its rows then name a holder that is alive and does not know of them, and no other worker touches them. So each worker
compares: often once a reply was lost, else once a minute.

A row may look unknown for a moment, while the reply to its claim or its outcome is under way. So the worker adopts only what is unknown at
two looks in a row: had its outcome been written after the first look, the second one would not find the row.
"""

from __future__ import annotations

from datetime import timedelta

from timeball.domain.execution import ClaimKey
from timeball.domain.values.ids import ClaimId, Incarnation
from timeball.engine.service import LONGEST_REST, Service
from timeball.engine.worker.claimer import Claimer
from timeball.engine.worker.executor import Executor
from timeball.engine.worker.recorder import Recorder
from timeball.env import Env
from timeball.store.executions import ExecutionStore
from timeball.telemetry.events import Emit, OrphanedClaimsAdopted

_INTERVAL_IN_DOUBT = timedelta(seconds=2)
_INTERVAL = timedelta(minutes=1)


class ClaimReconciler(Service):
    """Adopts executions that this worker holds by the database and does not know of."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        incarnation: Incarnation,
        claimer: Claimer,
        executor: Executor,
        recorder: Recorder,
    ) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._incarnation = incarnation
        self._claimer = claimer
        self._executor = executor
        self._recorder = recorder
        self._suspects: set[ClaimKey] = set()
        self._compared_at = env.clock.monotonic()

    async def tick(self) -> timedelta:
        if not self._executor.lease.is_held or not self.is_time(self._compared_at + self._pause()):
            return LONGEST_REST
        unknown = await self._unknown()
        orphaned = unknown & self._suspects
        self._suspects = unknown - orphaned
        if orphaned:
            await self._adopt(orphaned)
        self._compared_at = self.env.clock.monotonic()
        return LONGEST_REST

    def _pause(self) -> float:
        is_doubtful = self._suspects or self._claimer.in_flight.has_lost_a_reply
        return (_INTERVAL_IN_DOUBT if is_doubtful else _INTERVAL).total_seconds()

    async def _unknown(self) -> set[ClaimKey]:
        held = await self._executions.claim_keys(self._incarnation)
        unknown = held - self._executor.claim_keys() - self._recorder.unrecorded()
        in_flight = self._claimer.in_flight.claim_id
        return {(id_, claim_id) for id_, claim_id in unknown if claim_id != in_flight}

    async def _adopt(self, orphaned: set[ClaimKey]) -> None:
        for claim_id in sorted({claim_id for _, claim_id in orphaned}):
            await self._adopt_claim(claim_id, orphaned)
        self.emit(OrphanedClaimsAdopted(len(orphaned)))

    async def _adopt_claim(self, claim_id: ClaimId, orphaned: set[ClaimKey]) -> None:
        claims = await self._executions.read_back_claim(self._incarnation, claim_id)
        self._executor.accept([claimed for claimed in claims if (claimed.id, claimed.claim_id) in orphaned])
