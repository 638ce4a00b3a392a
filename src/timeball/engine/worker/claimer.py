"""Claims ready executions for the free slots of this worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from timeball.config.settings import WorkerSettings
from timeball.domain.node import serves_queue
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation
from timeball.domain.wakeup import ELECTED, Lane, LanePosition, Wakeup
from timeball.engine.service import AT_ONCE, LONGEST_REST, Service
from timeball.engine.worker.executor import Executor
from timeball.env import Env
from timeball.store.executions import ExecutionStore
from timeball.store.types import ClaimRequest, ClaimResult
from timeball.telemetry.events import Emit

_SWEEP = timedelta(seconds=1)
# Rows become visible a moment after the instant they bear; a mark stays that far behind.
_SLACK = timedelta(milliseconds=50)
_CONTENDED = timedelta(milliseconds=2)
# No more than is started within an acceptable wait is ever asked for; with half of that, the worker ran dry while the database was writing.
_LARGEST_WINDOW = 2_000
_ACCEPTABLE_WAIT = 0.08
# Slots that become free within this time are filled by one claim.
_GATHER_SECONDS = 0.003
# Who was called upon and did not come is hardly the next moment's choice either: so long every hint is ours.
_DISTRUST_SECONDS = 2.0


class Claimer(Service):
    """Claims what the executor has room for, most urgent first, and only for handlers known here."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        executor: Executor,
        incarnation: Incarnation,
        handlers: Iterable[str],
        settings: WorkerSettings,
    ) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._executor = executor
        self._incarnation = incarnation
        self._known = frozenset(handlers)
        # Those of them that are claimed: all, but for those left to newer workers.
        self.handlers = sorted(self._known)
        self._queues = frozenset(settings.queues)
        self._hold_limit = settings.hold_limit
        self._lanes: dict[Lane, LanePosition] = {}
        self._limited: set[str] = set()
        self._fresh: set[Lane] = set()
        # Where claims began that passed over rows which others were just taking.
        self._passed: dict[Lane, LanePosition] = {}
        self._prefetch = 0
        self._widened_at = 0
        self._expects_more = False
        # Whether more could not be held when it was asked last: that was announced, and will not be again at its instant.
        self._held_all_it_may = False
        # Whether a queue had no place left when it was asked last; and the queues for which no slot was left.
        self._is_at_limit = False
        self._passed_over: set[str | None] = set()
        # Whether the last claim found rows that somebody else was just taking.
        self._has_rivals = False
        # Whether something may have been promoted since the last claim: worth asking for even without a free slot.
        self._may_hold = False
        # Whether a hint brought us here. Behind what was found without one, from a program's own transaction, none comes either.
        self._was_told = False
        # The claim whose reply is under way, or was lost and has not been read back.
        self.in_flight: ClaimId | None = None
        self.has_lost_a_reply = False
        self._gathering: asyncio.TimerHandle | None = None
        # The one execution that is to be taken by its name, and where to look for it if that fails.
        self._named: tuple[ExecutionId, dict[Lane, datetime]] | None = None
        # Whose turn a hint is, and whom to tell of those that are for others; alone, every one is ours.
        self.turn_of: Callable[[Wakeup], int] = lambda _hints: ELECTED
        self.on_deferred: Callable[[Mapping[Lane, datetime], int], None] = lambda _lanes, _turn: None
        # When the lanes were last asked for; whether something is claimed that others left; and how long they are not relied upon.
        self.asked_at = float("-inf")
        self._takes_over = False
        self._distrusts_until = float("-inf")
        executor.on_room = self._on_room

    def hold_back(self, handlers: frozenset[str]) -> None:
        """Claim nothing of these handlers, and everything of the others that are known here."""
        self.handlers = sorted(self._known - handlers)

    def serves(self, queue: str) -> bool:
        """Whether executions of this queue are for this worker."""
        return serves_queue(self._queues, queue)

    def looks_at(self, lane: Lane, run_at: datetime) -> bool:
        """Whether to look for what is ready in this lane from *run_at* on."""
        return self.serves(lane[0])

    def on_wakeup(self, wakeup: Wakeup) -> None:
        """Something is ready in these lanes, from these instants on."""
        lanes = {lane: run_at for lane, run_at in wakeup.lanes.items() if self.looks_at(lane, run_at)}
        if lanes:
            turn = ELECTED if self._distrusts_others(lanes) else self.turn_of(wakeup)
            if turn != ELECTED:
                self._leave_to_others(lanes, turn)
            elif wakeup.named is not None and self._is_at_rest():
                self._named = ExecutionId(wakeup.named), lanes
                self.wake()
            else:
                self._follow(lanes)
        if wakeup.look_everywhere:
            self.wake()

    def _distrusts_others(self, lanes: Mapping[Lane, datetime]) -> bool:
        """A queue at its limit has to be known to everybody: nobody else is told when our own executions free a place."""
        is_limited = any(queue in self._limited for queue, _ in lanes)
        return is_limited or self.env.clock.monotonic() < self._distrusts_until

    def _is_at_rest(self) -> bool:
        """Whether there is a free slot, and nothing known that may be more urgent."""
        is_asking = self._named is not None or self.in_flight is not None
        return self._executor.free_slots > 0 and not is_asking and self._has_nothing_else()

    def _has_nothing_else(self) -> bool:
        return not self._may_hold and not self._has_reason_to_look()

    def _follow(self, lanes: Mapping[Lane, datetime]) -> None:
        """Look at what was announced."""
        self._was_told = True
        for lane, run_at in lanes.items():
            self.learn(lane, LanePosition(run_at))

    def _leave_to_others(self, lanes: Mapping[Lane, datetime], turn: int) -> None:
        """Whatever else brings us to these lanes will look from here on; without a slot, that is the next one to come free."""
        for lane, run_at in lanes.items():
            self._note(lane, LanePosition(run_at))
        self._was_told = True
        self._expects_more |= self._slots() <= 0
        self.on_deferred(lanes, turn)

    def claim_leftovers(self, lanes: Mapping[Lane, datetime]) -> None:
        """Those who were called upon have left something in these lanes."""
        self._takes_over = True
        self._follow(lanes)

    def learn(self, lane: Lane, mark: LanePosition) -> None:
        """There is something in this lane: look at it from *mark* on."""
        self._note(lane, mark)
        self._expects_more = True
        self._may_hold = True
        self.wake()

    def _note(self, lane: Lane, mark: LanePosition) -> None:
        self._fresh.add(lane)
        known = self._lanes.get(lane)
        self._lanes[lane] = mark if known is None else min(known, mark)

    def learn_all(self, lanes: dict[Lane, tuple[LanePosition, bool]]) -> None:
        """What a sweep found: all lanes there are. Others are forgotten, unless a hint named them while the sweep went on."""
        self._limited = {queue for (queue, _), (_, is_limited) in lanes.items() if is_limited}
        self._lanes = {lane: mark for lane, mark in self._lanes.items() if lane in lanes or lane in self._fresh}
        self._passed = {lane: mark for lane, mark in self._passed.items() if lane in self._lanes}
        self._fresh.clear()
        for lane, (mark, _) in lanes.items():
            if self.looks_at(lane, mark.run_at):
                self.learn(lane, mark)

    async def tick(self) -> timedelta:
        if not self._executor.may_begin():
            return LONGEST_REST
        if self.in_flight is not None:
            await self._read_back()
        if self._named is not None and await self._claim_by_id() and self._has_nothing_else():
            return LONGEST_REST
        request = self._wish()
        if not self._lanes or (request.slots <= 0 and not (self._may_hold and request.holds > 0)):
            return LONGEST_REST
        self._may_hold = False
        was_told, self._was_told = self._was_told, False
        takes_over, self._takes_over = self._takes_over, False
        self.asked_at = self.env.clock.monotonic()
        claimed = 0
        is_full = is_contended = self._is_at_limit = False
        passed_over: set[str | None] = set()
        for queue, lanes in self._grouped():
            request = self._wish(is_limited=queue is not None)
            claims = await self._claim(request, queue, lanes)
            claimed += len(claims.executions)
            is_contended |= claims.is_contended or self._looks_back(lanes)
            self._is_at_limit |= claims.is_at_limit
            is_full |= len(claims.executions) >= request.slots
            if request.slots <= 0:
                passed_over.add(queue)
        self._passed_over = passed_over
        if takes_over and claimed:
            self._distrusts_until = self.env.clock.monotonic() + _DISTRUST_SECONDS
        # What another worker did not take of what comes is ours to hold.
        self._may_hold |= is_contended
        # Without a free slot nothing that is due was asked for: it may be there all the same.
        # And who got less than it asked for has got all there was; what comes next is announced, if this was.
        may_be_more = claimed > 0 and (is_full or is_contended or self._is_at_limit or not was_told)
        self._expects_more = may_be_more or bool(passed_over)
        self._held_all_it_may = self._hold_limit <= self._executor.held
        if may_be_more:
            return AT_ONCE
        return _CONTENDED if is_contended else LONGEST_REST

    def _wish(self, *, is_limited: bool = False) -> ClaimRequest:
        self._resize_window()
        holds = max(self._hold_limit - self._executor.held, 0)
        slots = self._executor.free_slots if is_limited else self._slots()
        return ClaimRequest(self._incarnation, self.handlers, slots, holds, has_competitors=self._has_rivals)

    def _slots(self) -> int:
        executor = self._executor
        return executor.free_slots + max(self._prefetch - executor.waiting, 0)

    def _resize_window(self) -> None:
        """Ask for less when something had to wait for its slot: another worker might have had one."""
        if self._executor.take_longest_wait() > _ACCEPTABLE_WAIT:
            self._prefetch //= 2

    def _grouped(self) -> list[tuple[str | None, dict[Lane, LanePosition]]]:
        """The lanes to claim from: those of limited queues one queue at a time, all others together.

        Those for which no slot was left the last time come first, so that nobody starves.
        """
        if not self._limited:
            return [(None, dict(self._lanes))]
        free = {lane: mark for lane, mark in self._lanes.items() if lane[0] not in self._limited}
        groups: list[tuple[str | None, dict[Lane, LanePosition]]] = [(None, free)] if free else []
        for queue in sorted(self._limited):
            own = {lane: mark for lane, mark in self._lanes.items() if lane[0] == queue}
            if own:
                groups.append((queue, own))
        return sorted(groups, key=lambda group: group[0] not in self._passed_over)

    async def _claim(self, request: ClaimRequest, queue: str | None, lanes: dict[Lane, LanePosition]) -> ClaimResult:
        claim_id = ClaimId(self.env.new_id())
        asked_at = self.env.clock.now()
        self.in_flight = claim_id
        if queue is None:
            claims = await self._executions.claim(request, lanes, claim_id)
        else:
            claims = await self._executions.claim_limited(request, queue, lanes, claim_id)
        self.in_flight = None
        self._has_rivals = claims.is_contended
        if claims.is_contended:
            self._note_passed(lanes)
        self._advance(lanes, claims, request, asked_at)
        self._executor.accept(claims.executions)
        return claims

    async def _claim_by_id(self) -> bool:
        """Take the one execution that was announced, if it is to be had; else, whatever the reason, look at its lane."""
        assert self._named is not None
        execution_id, lanes = self._named
        claim_id = self.in_flight = ClaimId(self.env.new_id())
        executions = await self._executions.claim_by_id(
            self._wish(), execution_id, sorted(self._queues) or None, claim_id
        )
        self.in_flight = self._named = None
        self._executor.accept(executions)
        if not executions:
            self._follow(lanes)
        return bool(executions)

    async def _read_back(self) -> None:
        """The reply to a claim was lost: whatever it gave us is ours, and nobody else will run it while we live."""
        claim_id = self.in_flight
        assert claim_id is not None
        self.has_lost_a_reply = True
        claims = await self._executions.read_back_claim(self._incarnation, claim_id)
        self.in_flight = None
        self._executor.accept(claims)

    def _advance(
        self, lanes: dict[Lane, LanePosition], claims: ClaimResult, request: ClaimRequest, asked_at: datetime
    ) -> None:
        """Move each lane's mark to where this claim ended."""
        due = [claimed for claimed in claims.executions if claimed.run_at <= asked_at]
        is_full = len(due) >= request.slots
        if is_full and request.slots > 0:
            self._widen_window(request)
        elif not is_full and not claims.is_contended and not claims.is_at_limit:
            for lane, asked_from in lanes.items():
                self._move_mark(lane, asked_from, LanePosition(asked_at - _SLACK))
        # Those of a lane come in its order: the last one is where the claim ended.
        ends = {(claimed.queue, claimed.priority): claimed for claimed in due}
        for lane, last in ends.items():
            end = LanePosition(last.run_at, last.id)
            self._move_mark(lane, lanes.get(lane, end), end)

    def _note_passed(self, lanes: dict[Lane, LanePosition]) -> None:
        for lane, asked_from in lanes.items():
            self._passed[lane] = min(self._passed.get(lane, asked_from), asked_from)

    def _looks_back(self, lanes: Iterable[Lane]) -> bool:
        """Go back to what was passed over, once nobody is in the way: whoever was taking it may have given it back."""
        passed = {lane: self._passed.pop(lane) for lane in lanes if lane in self._passed}
        for lane, mark in passed.items():
            if lane in self._lanes:
                self._lanes[lane] = min(self._lanes[lane], mark)
        return bool(passed)

    def _widen_window(self, request: ClaimRequest) -> None:
        """Ask for more, if what was asked for before has been started: where handlers take long, it would only be given back."""
        started = self._executor.started
        if 2 * (started - self._widened_at) >= self._prefetch:
            self._prefetch = min(max(2 * self._prefetch, request.slots), _LARGEST_WINDOW)
            self._widened_at = started

    def _move_mark(self, lane: Lane, asked_from: LanePosition, mark: LanePosition) -> None:
        """Not if a hint has moved it back while the claim was under way."""
        known = self._lanes.get(lane)
        if known is not None and known >= asked_from:
            self._lanes[lane] = max(known, mark)

    def _on_room(self) -> None:
        """A slot is free: claim at once if there is room for a good part of a batch, else gather a few more first."""
        if not self._has_reason_to_look() or self._gathering is not None:
            return
        if self._executor.waiting <= self._prefetch // 2 and self._prefetch > 0:
            self._use_room()
        else:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._gathered)

    def on_recorded(self, _number: int) -> None:
        """Outcomes were written: a queue that was full has places again, perhaps."""
        if self._is_at_limit:
            self.wake()

    def _gathered(self) -> None:
        self._gathering = None
        self._use_room()

    def _use_room(self) -> None:
        # While slots gathered, a claim may have come back that found nothing.
        if self._has_reason_to_look():
            self.wake()

    def _has_reason_to_look(self) -> bool:
        return self._expects_more or (self._held_all_it_may and self._executor.held < self._hold_limit)


class Sweeper(Service):
    """Finds what no hint announced: every second, all lanes that have something ready.

    Runs beside the claims, so that a slow sweep delays none.
    """

    def __init__(self, env: Env, emit: Emit, executions: ExecutionStore, claimer: Claimer) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._claimer = claimer

    async def tick(self) -> timedelta:
        self._claimer.learn_all(await self._executions.lanes())
        return _SWEEP
