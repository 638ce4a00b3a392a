"""What the dead held becomes lost outcomes.

First the node whose lease has passed loses its row; only then, in a later statement, is what it held reaped. A renewal
and a burial touch the same row, so one of them wins; a claim that the dead node commits later stands without a node,
and the next sweep finds it. Limits are ignored here: what is reaped frees a place, it never takes one. What was freed
and not handed on, because whoever freed it died, is handed on here; and what was to stop for the next occurrence is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from timeball.domain.events import Emit, NodeBuried, Reaped
from timeball.domain.execution import ErrorInfo, Finding, Lost, TimedOut
from timeball.engine.recorder import record_at_once
from timeball.engine.service import AT_ONCE, Service
from timeball.env import Env
from timeball.settings import HousekeepingSettings
from timeball.store.interface import NodeStore, Orphan, RoomStore

_BATCH = 500


class Reaper(Service):
    """Buries nodes whose lease has passed, and gives what they held an outcome."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        nodes: NodeStore,
        rooms: RoomStore,
        settings: HousekeepingSettings,
        is_housekeeper: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._nodes = nodes
        self._rooms = rooms
        self._interval = timedelta(seconds=settings.reap_seconds)
        self._is_housekeeper = is_housekeeper
        self._next_sweep = float("-inf")
        self._behind_limit = ""

    async def tick(self) -> timedelta:
        if not self._is_housekeeper() or not self.is_time(self._next_sweep):
            return self._interval
        begun = self.env.clock.monotonic()
        for incarnation, kind, name in await self._nodes.bury():
            self.emit(NodeBuried(incarnation, kind.value, name))
        self.env.fault("reaper.buried")
        orphans = await self._rooms.orphans(_BATCH)
        if orphans:
            await self._reap(orphans)
        if len(orphans) == _BATCH:
            return AT_ONCE
        await self._hand_on_places()
        self._next_sweep = begun + self._interval.total_seconds()
        return self._interval

    async def _reap(self, orphans: list[Orphan]) -> None:
        findings = [self._finding(orphan) for orphan in orphans]
        await record_at_once(self.env, self.emit, self._rooms, findings)
        lost = sum(orphan.is_orphan for orphan in orphans)
        self.emit(Reaped(lost=lost, timed_out=len(orphans) - lost))

    def _finding(self, orphan: Orphan) -> Finding:
        now = self.env.clock.now()
        started_at = max(orphan.claimed_at, orphan.claimed.run_at)
        if orphan.is_orphan:
            error = ErrorInfo(
                type="WorkerLost", message=f"its worker {orphan.holder} was lost", fingerprint="worker-lost"
            )
            return Finding(orphan.claimed, Lost(error), started_at, max(now, started_at))
        error = ErrorInfo(
            type="Timeout", message="ran past its deadline, and its worker did not end it", fingerprint="deadline"
        )
        return Finding(orphan.claimed, TimedOut(error), started_at, max(now, started_at))

    async def _hand_on_places(self) -> None:
        keys = await self._rooms.blocked_keys(self._behind_limit, _BATCH)
        # Where there are more limits than a sweep can look at, the next one goes on behind them.
        self._behind_limit = keys[-1] if len(keys) == _BATCH else ""
        if keys:
            await self._rooms.promote(keys)
            await self._rooms.stop_superseded(keys)
        await self._rooms.mark_queue_limited()
