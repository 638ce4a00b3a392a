"""What the database says this worker holds, compared with what it knows to hold.

A claim whose reply was lost is read back, and usually that is the end of it. But the network may deliver a claim that its sender has
given up and read back in vain: then rows stand under a holder that lives and does not know of them, and nobody else will touch them.
So the worker counts its stock: often once a reply was lost, else now and then.

A row may look forgotten for a moment, while its claim's reply or its outcome is under way. So only what is unknown at two looks
in a row is taken in: had its outcome been written after the first look, the second one would not see the row any more.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from timeball.domain.events import Emit, StraysTakenIn
from timeball.domain.execution import Stake
from timeball.domain.ids import ClaimId, Incarnation
from timeball.engine.claimer import Claimer
from timeball.engine.executor import Executor
from timeball.engine.service import LONGEST_REST, Service
from timeball.env import Env
from timeball.store.interface import RoomStore

_DOUBTFUL = timedelta(seconds=2)
_CALM = timedelta(minutes=1)


class Stocktaker(Service):
    """Takes in what this worker holds by the database and does not know of."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        rooms: RoomStore,
        incarnation: Incarnation,
        claimer: Claimer,
        executor: Executor,
        unrecorded: Callable[[], set[Stake]],
    ) -> None:
        super().__init__(env, emit)
        self._rooms = rooms
        self._incarnation = incarnation
        self._claimer = claimer
        self._executor = executor
        self._unrecorded = unrecorded
        self._suspects: set[Stake] = set()
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
        return (_DOUBTFUL if is_doubtful else _CALM).total_seconds()

    async def _unknown(self) -> set[Stake]:
        held = await self._rooms.stakes(self._incarnation)
        unknown = held - self._executor.stakes() - self._unrecorded()
        return {(id_, claim_id) for id_, claim_id in unknown if claim_id != self._claimer.in_flight}

    async def _take_in(self, strays: set[Stake]) -> None:
        for claim_id in sorted({claim_id for _, claim_id in strays}):
            await self._take_in_claim(claim_id, strays)
        self.emit(StraysTakenIn(len(strays)))

    async def _take_in_claim(self, claim_id: ClaimId, strays: set[Stake]) -> None:
        claims = await self._rooms.read_back_claim(self._incarnation, claim_id)
        self._executor.accept([claimed for claimed in claims if (claimed.id, claimed.claim_id) in strays])
