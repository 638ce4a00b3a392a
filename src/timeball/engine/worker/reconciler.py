"""Finds what a lost wake-up or reply left behind: ready work not taken, and claims this worker does not know of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from timeball.domain.execution import ClaimKey
from timeball.domain.values.ids import ClaimId, Incarnation
from timeball.domain.wakeup import Lane
from timeball.engine.service import LONGEST_REST, Service
from timeball.engine.worker.claimer import Claimer
from timeball.engine.worker.executor import Executor
from timeball.env import Env
from timeball.store.executions import ExecutionStore
from timeball.telemetry.events import Emit, OrphanedClaimsAdopted

# Looks whether something was left that was announced to others.
#
# A hint calls upon one worker, or a few; the others wait for their turn (`domain/turns`). Then one cheap statement says
# whether anything has been ready for a while, and only if so there is a claim. However many hints come meanwhile, one look
# serves them all.

# How long the first in line waits, the second, and all others. A claim takes two milliseconds on a quiet machine: who was called
# upon should have been there.
_BACKSTOP_DELAYS = (0.025, 0.1, 0.4)


# What came into its room later than this may be on its way to whom it was announced.
_UNCLAIMED_FOR = timedelta(milliseconds=10)


# Timers of an event loop fire that early.
_EARLY_SECONDS = 0.002


class _PendingWakeup(NamedTuple):
    """What was announced to others in a lane: when, and when to look whether they have left it."""

    at: float
    looks_at: float
    lane: Lane
    run_at: datetime


class WakeupBackstop(Service):
    """Has the claimer take over what those who were called upon have left."""

    def __init__(self, env: Env, emit: Emit, executions: ExecutionStore, claimer: Claimer) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._claimer = claimer
        self._heard: list[_PendingWakeup] = []
        self._looks_at = float("inf")

    def expect(self, lanes: Mapping[Lane, datetime], turn: int) -> None:
        """These are for others: look at them when it is our turn."""
        now = self.env.clock.monotonic()
        looks_at = now + _BACKSTOP_DELAYS[min(turn, len(_BACKSTOP_DELAYS)) - 1]
        self._heard.extend(_PendingWakeup(now, looks_at, lane, run_at) for lane, run_at in lanes.items())
        self._plan(now, looks_at)

    def _plan(self, now: float, looks_at: float) -> None:
        if looks_at < self._looks_at:
            self._looks_at = looks_at
            # A later one that was planned before wakes us for nothing, and that is cheaper than to keep and cancel it.
            asyncio.get_running_loop().call_later(looks_at - now, self.wake)

    async def tick(self) -> timedelta:
        now = self.env.clock.monotonic()
        if now >= self._looks_at - _EARLY_SECONDS:
            self._looks_at = float("inf")
            await self._look(now)
        return LONGEST_REST

    async def _look(self, now: float) -> None:
        # What the claimer has looked for since is no longer in question.
        in_question = [heard for heard in self._heard if heard.at >= self._claimer.asked_at]
        self._heard = [heard for heard in in_question if heard.at > now - _UNCLAIMED_FOR.total_seconds()]
        for heard in self._heard:
            self._plan(now, heard.looks_at)
        lanes: dict[Lane, datetime] = {}
        for heard in in_question:
            lanes[heard.lane] = min(lanes.get(heard.lane, heard.run_at), heard.run_at)
        if lanes and await self._executions.has_unclaimed(lanes, self._claimer.handlers, _UNCLAIMED_FOR):
            self._claimer.claim_leftovers(lanes)


# What the database says this worker holds, compared with what it knows to hold.
#
# A claim whose reply was lost is read back, and usually that is the end of it. But the network may deliver a claim that its sender has
# given up and read back in vain: then rows stand under a holder that lives and does not know of them, and nobody else will touch them.
# So the worker counts its stock: often once a reply was lost, else now and then.
#
# A row may look forgotten for a moment, while its claim's reply or its outcome is under way. So only what is unknown at two looks
# in a row is taken in: had its outcome been written after the first look, the second one would not see the row any more.

_INTERVAL_IN_DOUBT = timedelta(seconds=2)
_INTERVAL = timedelta(minutes=1)


class ClaimReconciler(Service):
    """Takes in what this worker holds by the database and does not know of."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        incarnation: Incarnation,
        claimer: Claimer,
        executor: Executor,
        unrecorded: Callable[[], set[ClaimKey]],
    ) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._incarnation = incarnation
        self._claimer = claimer
        self._executor = executor
        self._unrecorded = unrecorded
        self._suspects: set[ClaimKey] = set()
        self._looked_at = env.clock.monotonic()

    async def tick(self) -> timedelta:
        if not self._executor.may_begin() or not self.is_time(self._looked_at + self._pause()):
            return LONGEST_REST
        unknown = await self._unknown()
        strays = unknown & self._suspects
        self._suspects = unknown - strays
        if strays:
            await self._take_in(strays)
        self._looked_at = self.env.clock.monotonic()
        return LONGEST_REST

    def _pause(self) -> float:
        is_doubtful = self._suspects or self._claimer.has_lost_a_reply
        return (_INTERVAL_IN_DOUBT if is_doubtful else _INTERVAL).total_seconds()

    async def _unknown(self) -> set[ClaimKey]:
        held = await self._executions.claim_keys(self._incarnation)
        unknown = held - self._executor.claim_keys() - self._unrecorded()
        return {(id_, claim_id) for id_, claim_id in unknown if claim_id != self._claimer.in_flight}

    async def _take_in(self, strays: set[ClaimKey]) -> None:
        for claim_id in sorted({claim_id for _, claim_id in strays}):
            await self._take_in_claim(claim_id, strays)
        self.emit(OrphanedClaimsAdopted(len(strays)))

    async def _take_in_claim(self, claim_id: ClaimId, strays: set[ClaimKey]) -> None:
        claims = await self._executions.read_back_claim(self._incarnation, claim_id)
        self._executor.accept([claimed for claimed in claims if (claimed.id, claimed.claim_id) in strays])
