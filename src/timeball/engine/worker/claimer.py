"""Claims ready executions for the free slots of this worker, and compares the claims in the database with those it knows of.

A claim whose reply was lost is read back, and usually that is the end of it. But the network may deliver a claim that its sender gave up
and read back in vain. Its rows then name a holder that is alive and does not know of them, and no other worker touches them. So each worker
compares: often once a reply was lost, else once a minute (`ClaimReconciler`).

A row may look unknown for a moment, while the reply to its claim or its outcome is under way. So the worker adopts only what is unknown at
two looks in a row: had its outcome been written after the first look, the second one would not find the row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta

from timeball.config.settings import WorkerSettings
from timeball.domain.execution import ClaimKey
from timeball.domain.node import serves_queue
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation
from timeball.domain.wakeup import ELECTED, Lane, LanePosition, Wakeup
from timeball.engine.lease import Peers
from timeball.engine.node import AT_ONCE, LONGEST_REST, Service, Signal
from timeball.engine.worker.admission import ClaimableHandlers
from timeball.engine.worker.claim_state import (
    UNCLAIMED_FOR,
    ClaimInFlight,
    ClaimReasons,
    DeferredWakeups,
    LaneTable,
    PrefetchWindow,
)
from timeball.engine.worker.executor import Executor
from timeball.engine.worker.recorder import Recorder
from timeball.env import Env
from timeball.store.executions import ExecutionStore
from timeball.store.types import ClaimRequest, ClaimResult
from timeball.telemetry.events import Emit, OrphanedClaimsAdopted

_SWEEP_INTERVAL = timedelta(seconds=1)
_CONTENDED_PAUSE = timedelta(milliseconds=2)
# Slots that become free within this time are filled by one claim.
_GATHER_SECONDS = 0.003


class Claimer(Service):
    """Claims as much as the executor can start soon, most urgent first, and only for handlers of this worker.

    `ClaimReasons` says when it claims, `PrefetchWindow` how much, `LaneTable` from where.
    """

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        executor: Executor,
        incarnation: Incarnation,
        handlers: ClaimableHandlers,
        settings: WorkerSettings,
        peers: Peers,
        outcomes_recorded: Signal,
    ) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._executor = executor
        self._incarnation = incarnation
        self._queues = frozenset(settings.queues)
        self.handlers = handlers
        self._lanes = LaneTable()
        self._window = PrefetchWindow(executor, settings.hold_limit)
        self._reasons = ClaimReasons(self._window)
        self._peers = peers
        self.deferred = DeferredWakeups(env.clock)
        self.in_flight = ClaimInFlight()
        # The one execution that a wake-up named, and where to look for it if it cannot be claimed by its id.
        self._named: tuple[ExecutionId, dict[Lane, datetime]] | None = None
        self._gathering: asyncio.TimerHandle | None = None
        executor.slots.freed.subscribe(self._on_slot_free)
        outcomes_recorded.subscribe(self._on_recorded)

    def serves(self, queue: str) -> bool:
        """Whether executions of this queue are for this worker."""
        return serves_queue(self._queues, queue)

    def looks_at(self, lane: Lane, run_at: datetime) -> bool:
        """Whether to look for ready executions in this lane from *run_at* on."""
        return self.serves(lane[0])

    # reasons to claim

    def on_wakeup(self, wakeup: Wakeup) -> None:
        """Something is ready in these lanes, from these instants on."""
        lanes = {lane: run_at for lane, run_at in wakeup.lanes.items() if self.looks_at(lane, run_at)}
        if lanes:
            turn = ELECTED if self._is_limited(lanes) else self._peers.turn_of(wakeup)
            if turn != ELECTED:
                self._defer(lanes, turn)
            elif wakeup.named is not None and self._is_at_rest():
                self._named = ExecutionId(wakeup.named), lanes
                self.wake()
            else:
                self._follow(lanes)
        if wakeup.look_everywhere:
            self.wake()

    def _is_limited(self, lanes: Mapping[Lane, datetime]) -> bool:
        """Every worker has to know of a queue at its limit: when our own executions free a place, no other worker is told."""
        return any(self._lanes.is_limited(queue) for queue, _ in lanes)

    def _is_at_rest(self) -> bool:
        """Whether there is a free slot, and nothing known that may be more urgent."""
        is_claiming = self._named is not None or self.in_flight.claim_id is not None
        return self._executor.free_slots > 0 and not is_claiming and self._reasons.is_at_rest

    def _follow(self, lanes: Mapping[Lane, datetime]) -> None:
        """Claim what was announced."""
        self._reasons.on_wakeup()
        for lane, run_at in lanes.items():
            self.learn(lane, LanePosition(run_at))

    def _defer(self, lanes: Mapping[Lane, datetime], turn: int) -> None:
        """Leave these lanes to peers; the next claim for any other reason reads them too."""
        for lane, run_at in lanes.items():
            self._lanes.note(lane, LanePosition(run_at))
        self._reasons.on_deferred()
        self.deferred.add(lanes, turn)

    def claim_leftovers(self, lanes: Mapping[Lane, datetime]) -> None:
        """The elected workers have left something in these lanes."""
        self._reasons.on_leftovers()
        self._follow(lanes)

    def learn(self, lane: Lane, position: LanePosition) -> None:
        """There is something in this lane: claim from *position* on."""
        self._lanes.note(lane, position)
        self._reasons.on_ready()
        self.wake()

    def learn_all(self, lanes: Mapping[Lane, tuple[LanePosition, bool]]) -> None:
        """A sweep found these lanes, and which of them belong to a limited queue; all other lanes are empty."""
        self._lanes.apply_sweep(lanes)
        for lane, (position, _) in lanes.items():
            if self.looks_at(lane, position.run_at):
                self.learn(lane, position)

    def _on_slot_free(self) -> None:
        """Claim at once if there is room for a good part of a batch, else let a few more slots gather first."""
        if not self._reasons.has_reason or self._gathering is not None:
            return
        if self._window.is_worth_a_claim:
            self._use_slots()
        else:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._on_gathered)

    def _on_gathered(self) -> None:
        self._gathering = None
        self._use_slots()

    def _use_slots(self) -> None:
        # While slots gathered, a claim may have returned that found nothing.
        if self._reasons.has_reason:
            self.wake()

    def _on_recorded(self) -> None:
        """Outcomes were written: a queue that was at its limit may have places again."""
        if self._reasons.is_at_limit:
            self.wake()

    # claiming

    async def tick(self) -> timedelta:
        if not self._executor.lease.is_held:
            return LONGEST_REST
        if self.in_flight.claim_id is not None:
            await self._read_back()
        if self._named is not None and await self._claim_by_id() and self._reasons.is_at_rest:
            return LONGEST_REST
        request = self._request()
        if not self._lanes or (request.slots <= 0 and not (self._reasons.may_hold and request.holds > 0)):
            return LONGEST_REST
        return await self._claim_all()

    async def _claim_all(self) -> timedelta:
        """Claim from all lanes, a group at a time."""
        claim_round = self._reasons.begin_round()
        self.deferred.note_claim()
        for queue, lanes in self._lanes.groups(first=self._reasons.passed_over):
            request = self._request(is_limited=queue is not None)
            claims = await self._claim(request, queue, lanes)
            has_passed_rows = not claims.is_contended and self._lanes.return_to_passed(lanes)
            claim_round.add(queue, request, claims, has_passed_rows=has_passed_rows)
        if claim_round.takes_over and claim_round.claimed:
            self._peers.distrust()
        if self._reasons.end_round(claim_round):
            return AT_ONCE
        return _CONTENDED_PAUSE if claim_round.is_contended else LONGEST_REST

    def _request(self, *, is_limited: bool = False) -> ClaimRequest:
        self._window.adjust()
        # The places of a limited queue are not claimed ahead: another worker may have the slots for them.
        slots = self._executor.free_slots if is_limited else self._window.slots
        return ClaimRequest(
            self._incarnation,
            self.handlers.names,
            slots,
            self._window.holds,
            has_competitors=self._reasons.has_competitors,
        )

    async def _claim(self, request: ClaimRequest, queue: str | None, lanes: dict[Lane, LanePosition]) -> ClaimResult:
        claim_id = self.in_flight.begin(ClaimId(self.env.new_id()))
        asked_at = self.env.clock.now()
        if queue is None:
            claims = await self._executions.claim(request, lanes, claim_id)
        else:
            claims = await self._executions.claim_limited(request, queue, lanes, claim_id)
        self.in_flight.end()
        self._reasons.on_claim(claims)
        if claims.is_contended:
            self._lanes.note_passed(lanes)
        is_full = self._lanes.advance(lanes, claims, request.slots, asked_at)
        if is_full and request.slots > 0:
            self._window.widen(request.slots)
        self._executor.accept(claims.executions)
        return claims

    async def _claim_by_id(self) -> bool:
        """Claim the one execution that was announced by its id; if that fails, whatever the reason, look at its lane."""
        assert self._named is not None
        execution_id, lanes = self._named
        claim_id = self.in_flight.begin(ClaimId(self.env.new_id()))
        executions = await self._executions.claim_by_id(
            self._request(), execution_id, sorted(self._queues) or None, claim_id
        )
        self.in_flight.end()
        self._named = None
        self._executor.accept(executions)
        if not executions:
            self._follow(lanes)
        return bool(executions)

    async def _read_back(self) -> None:
        """The reply to a claim was lost: what it claimed is ours, and no other worker runs it while this one is alive."""
        claims = await self._executions.read_back_claim(self._incarnation, self.in_flight.lose_reply())
        self.in_flight.end()
        self._executor.accept(claims)


class Sweeper(Service):
    """Finds what no wake-up announced: once a second, all lanes that have something ready.

    Runs beside the claimer, so that a slow sweep delays no claim.
    """

    def __init__(self, env: Env, emit: Emit, executions: ExecutionStore, claimer: Claimer) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._claimer = claimer
        # Executions of a handler that this worker has taken up again were passed over so far.
        claimer.handlers.changed.subscribe(self.wake)

    def on_wakeup(self, wakeup: Wakeup) -> None:
        if wakeup.look_everywhere:
            self.wake()

    async def tick(self) -> timedelta:
        self._claimer.learn_all(await self._executions.lanes())
        return _SWEEP_INTERVAL


class WakeupBackstop(Service):
    """Claims executions whose elected worker did not take them in time.

    A wake-up elects one worker or a few (`domain.wakeup`); their peers wait for their turn to check. One cheap statement says whether
    anything has been ready for a while, and only then this worker claims.
    """

    def __init__(self, env: Env, emit: Emit, executions: ExecutionStore, claimer: Claimer) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._claimer = claimer
        claimer.deferred.due.subscribe(self.wake)

    async def tick(self) -> timedelta:
        lanes = self._claimer.deferred.take_due()
        if lanes and await self._executions.has_unclaimed(lanes, self._claimer.handlers.names, UNCLAIMED_FOR):
            self._claimer.claim_leftovers(lanes)
        return LONGEST_REST


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
