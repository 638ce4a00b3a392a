"""What the claimer remembers between two claims: lanes, the size of a claim, reasons to claim again, and wake-ups left to peers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from timeball.domain.values.ids import ClaimId
from timeball.domain.wakeup import Lane, LanePosition
from timeball.engine.node import Signal
from timeball.engine.worker.executor import Executor
from timeball.env import Clock
from timeball.store.types import ClaimRequest, ClaimResult

# A row becomes visible a moment after the instant it carries; the position in a lane stays that far behind.
_VISIBILITY_DELAY = timedelta(milliseconds=50)

# A claim never asks for more than is started within an acceptable wait. With half of that, the worker ran dry while the database wrote.
_LARGEST_WINDOW = 2_000
_ACCEPTABLE_WAIT_SECONDS = 0.08

# How long the first peer in line waits before it checks, the second, and all others. A claim takes two milliseconds on a quiet
# machine: an elected worker should have claimed by then.
_BACKSTOP_DELAYS = (0.025, 0.1, 0.4)

# An execution that became ready later than this may still be on its way to the elected worker.
UNCLAIMED_FOR = timedelta(milliseconds=10)

# Timers of an event loop fire up to this much early.
_EARLY_SECONDS = 0.002

LaneGroup = tuple[str | None, dict[Lane, LanePosition]]


class LaneTable:
    """Where to go on reading in each lane, so that no claim reads again what is known to be gone."""

    def __init__(self) -> None:
        self._positions: dict[Lane, LanePosition] = {}
        self._limited: frozenset[str] = frozenset()
        # Lanes that were announced since the last sweep began.
        self._fresh: set[Lane] = set()
        # Where claims began that skipped rows which another worker was just claiming.
        self._passed: dict[Lane, LanePosition] = {}

    def __bool__(self) -> bool:
        return bool(self._positions)

    def position(self, lane: Lane) -> LanePosition | None:
        """From where this lane is read next."""
        return self._positions.get(lane)

    @property
    def has_passed_rows(self) -> bool:
        """Whether rows were skipped that have not been looked at again."""
        return bool(self._passed)

    def is_limited(self, queue: str) -> bool:
        """Whether the queue has a limit on its running executions."""
        return queue in self._limited

    def note(self, lane: Lane, position: LanePosition) -> None:
        """There is something in this lane, from *position* on."""
        self._fresh.add(lane)
        current = self._positions.get(lane)
        self._positions[lane] = position if current is None else min(current, position)

    def apply_sweep(self, lanes: Mapping[Lane, tuple[LanePosition, bool]]) -> None:
        """A sweep found exactly these lanes: forget all others, unless they were announced while it ran."""
        self._limited = frozenset(queue for (queue, _), (_, is_limited) in lanes.items() if is_limited)
        self._positions = {lane: at for lane, at in self._positions.items() if lane in lanes or lane in self._fresh}
        self._passed = {lane: at for lane, at in self._passed.items() if lane in self._positions}
        self._fresh.clear()

    def groups(self, first: set[str | None]) -> list[LaneGroup]:
        """The lanes to claim from: those of each limited queue by themselves, all others together.

        The groups in *first* come first: they got no slot the last time, and must not starve.
        """
        if not self._limited:
            return [(None, dict(self._positions))]
        unlimited = {lane: at for lane, at in self._positions.items() if lane[0] not in self._limited}
        groups: list[LaneGroup] = [(None, unlimited)] if unlimited else []
        for queue in sorted(self._limited):
            lanes = {lane: at for lane, at in self._positions.items() if lane[0] == queue}
            if lanes:
                groups.append((queue, lanes))
        return sorted(groups, key=lambda group: group[0] not in first)

    def advance(self, lanes: dict[Lane, LanePosition], claims: ClaimResult, slots: int, asked_at: datetime) -> bool:
        """Move the lanes to where a claim for so many *slots* ended; True if it took all that it asked for."""
        due = [claimed for claimed in claims.executions if claimed.run_at <= asked_at]
        is_full = len(due) >= slots
        if not is_full and not claims.is_contended and not claims.is_at_limit:
            for lane, asked_from in lanes.items():
                self._move(lane, asked_from, LanePosition(asked_at - _VISIBILITY_DELAY))
        # Those of a lane come in its order: the last one is where the claim ended.
        ends = {(claimed.queue, claimed.priority): claimed for claimed in due}
        for lane, last in ends.items():
            end = LanePosition(last.run_at, last.id)
            self._move(lane, lanes.get(lane, end), end)
        return is_full

    def _move(self, lane: Lane, asked_from: LanePosition, position: LanePosition) -> None:
        """Move forward, unless a wake-up has moved the lane back while the claim was under way."""
        current = self._positions.get(lane)
        if current is not None and current >= asked_from:
            self._positions[lane] = max(current, position)

    def note_passed(self, lanes: Mapping[Lane, LanePosition]) -> None:
        """A claim skipped rows of these lanes that another worker was just claiming."""
        for lane, asked_from in lanes.items():
            self._passed[lane] = min(self._passed.get(lane, asked_from), asked_from)

    def return_to_passed(self, lanes: Iterable[Lane]) -> bool:
        """Go back to skipped rows, now that no other worker is in the way: it may have given them back. False if there are none."""
        passed = {lane: self._passed.pop(lane) for lane in lanes if lane in self._passed}
        for lane, position in passed.items():
            if lane in self._positions:
                self._positions[lane] = min(self._positions[lane], position)
        return bool(passed)

    def forget(self, lanes: Iterable[Lane]) -> None:
        """Read these lanes again only when they are noted again."""
        for lane in lanes:
            self._positions.pop(lane, None)

    def forget_all(self) -> None:
        """Read no lane until it is noted again."""
        self._positions.clear()


class PrefetchWindow:
    """How much a claim asks for: the free slots, what can be held, and a number more that grows and shrinks with the pace of starts."""

    def __init__(self, executor: Executor, hold_limit: int) -> None:
        self._executor = executor
        self._hold_limit = hold_limit
        self._size = 0
        self._widened_at = 0

    @property
    def slots(self) -> int:
        """How many due executions to ask for."""
        return self._executor.free_slots + max(self._size - self._executor.waiting, 0)

    @property
    def holds(self) -> int:
        """How many executions that are not due yet to ask for."""
        return max(self._hold_limit - self._executor.held, 0)

    @property
    def is_worth_a_claim(self) -> bool:
        """Whether there is room for a good part of the window: then slots need not gather first."""
        return self._size > 0 and self._executor.waiting <= self._size // 2

    def adjust(self) -> None:
        """Ask for less when an execution waited too long for its slot: another worker might have had one."""
        if self._executor.take_longest_wait() > _ACCEPTABLE_WAIT_SECONDS:
            self._size //= 2

    def widen(self, slots: int) -> None:
        """Ask for more than these *slots*, if most of the last claim has been started: slow handlers would only give it back."""
        started = self._executor.started
        if 2 * (started - self._widened_at) >= self._size:
            self._size = min(max(2 * self._size, slots), _LARGEST_WINDOW)
            self._widened_at = started


class ClaimRound:
    """One pass over all groups of lanes."""

    __slots__ = ("claimed", "is_contended", "is_full", "passed_over", "takes_over", "was_told")

    def __init__(self, *, was_told: bool, takes_over: bool) -> None:
        self.was_told = was_told
        self.takes_over = takes_over
        self.claimed = 0
        self.is_full = False
        self.is_contended = False
        self.passed_over: set[str | None] = set()

    def add(self, queue: str | None, request: ClaimRequest, claims: ClaimResult, *, has_passed_rows: bool) -> None:
        """A claim of this round has returned."""
        self.claimed += len(claims.executions)
        self.is_contended |= claims.is_contended or has_passed_rows
        self.is_full |= len(claims.executions) >= request.slots
        if request.slots <= 0:
            self.passed_over.add(queue)


class ClaimReasons:
    """Why the claimer claims again, and whether it may rest.

    ::

        event                                      remembered                           the claimer then
        -----                                      ----------                           ----------------
        a wake-up is for this worker               expects_more, may_hold, was_told     claims at once
        a sweep found ready executions             expects_more, may_hold               claims at once
        a wake-up is for a peer                    was_told; without a slot             goes on resting; without a slot it
                                                   also expects_more                    claims when one comes free
        the peer did not come                      as for its own, and takes_over       claims at once
        a slot comes free                          -                                    claims if it expects_more, or could
                                                                                        hold no more before and now can
        outcomes are recorded                      -                                    claims if is_at_limit

        round begins    may_hold, was_told, takes_over and is_at_limit are cleared
        round ends      took all it asked for, met competitors, met a limit,
                        or took something unannounced ........ expects_more ........... claims again at once
                        no slot for a group of lanes ......... expects_more,            rests until a slot comes free
                                                               passed_over
                        met competitors, took nothing ............. may_hold ............... claims again in a moment
                        anything else ........................ nothing ................ rests: new work will be announced

    A partial claim means that the lanes are empty, and the next execution is announced if this one was. An execution that was enqueued in
    the transaction of another program is not announced; so after such a find the claimer looks again.
    """

    def __init__(self, window: PrefetchWindow) -> None:
        self._window = window
        # Ready executions may be left, for which the next free slot is a reason to claim.
        self._expects_more = False
        # Executions may have been promoted since the last claim: worth asking for even without a free slot.
        self.may_hold = False
        # A wake-up brought the claimer here, not a sweep alone.
        self._was_told = False
        # A peer did not answer a wake-up that was its turn.
        self._takes_over = False
        # At the last claim no more could be held. What was left was announced, and will not be again at its instant.
        self._held_to_the_limit = False
        # A queue had no place left at the last claim.
        self.is_at_limit = False
        # The groups of lanes for which no slot was left at the last claim.
        self.passed_over: set[str | None] = set()
        # The last claim met rows that another worker was just claiming.
        self.has_competitors = False

    @property
    def has_reason(self) -> bool:
        """Whether a free slot is a reason to claim."""
        return self._expects_more or (self._held_to_the_limit and self._window.holds > 0)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is known that would have to be claimed first."""
        return not self.may_hold and not self.has_reason

    def on_ready(self) -> None:
        """Something is ready, or will be soon."""
        self._expects_more = True
        self.may_hold = True

    def on_wakeup(self) -> None:
        """A wake-up has come, for this worker or for a peer."""
        self._was_told = True

    def on_deferred(self) -> None:
        """A wake-up is for a peer. Without a slot the peer may be first; the next slot that comes free asks again."""
        self._was_told = True
        self._expects_more |= self._window.slots <= 0

    def on_leftovers(self) -> None:
        """A peer did not answer its wake-up."""
        self._takes_over = True

    def on_slot_free(self) -> None:
        """Claim at the next free slot, whatever the lanes hold."""
        self._expects_more = True

    def on_claim(self, claims: ClaimResult) -> None:
        """A claim has returned."""
        self.has_competitors = claims.is_contended
        self.is_at_limit |= claims.is_at_limit

    def begin_round(self) -> ClaimRound:
        """All lanes are about to be claimed from."""
        claim_round = ClaimRound(was_told=self._was_told, takes_over=self._takes_over)
        self.may_hold = self._was_told = self._takes_over = self.is_at_limit = False
        return claim_round

    def end_round(self, claim_round: ClaimRound) -> bool:
        """All lanes have been claimed from; True if there may be more to claim at once."""
        self.passed_over = claim_round.passed_over
        # What a competitor did not take of the promoted executions is ours to hold.
        self.may_hold |= claim_round.is_contended
        may_be_more = claim_round.claimed > 0 and (
            claim_round.is_full or claim_round.is_contended or self.is_at_limit or not claim_round.was_told
        )
        # Without a free slot nothing due was asked for; it may be there all the same.
        self._expects_more = may_be_more or bool(claim_round.passed_over)
        self._held_to_the_limit = self._window.holds <= 0
        return may_be_more


class ClaimInFlight:
    """The claim whose reply is under way, or was lost and has not been read back yet."""

    def __init__(self) -> None:
        self.claim_id: ClaimId | None = None
        self.has_lost_a_reply = False

    def begin(self, claim_id: ClaimId) -> ClaimId:
        """This claim is about to be sent."""
        self.claim_id = claim_id
        return claim_id

    def end(self) -> None:
        """Its reply is here, or has been read back."""
        self.claim_id = None

    def lose_reply(self) -> ClaimId:
        """Its reply did not come; returns the claim to read back."""
        assert self.claim_id is not None
        self.has_lost_a_reply = True
        return self.claim_id


class _PendingWakeup(NamedTuple):
    """A wake-up of a lane that peers answer: when it came, and when to check whether they did."""

    at: float
    checks_at: float
    lane: Lane
    run_at: datetime


class DeferredWakeups:
    """Wake-ups that are a peer's turn, kept until it is time to check whether the peer came. One check serves all that came meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: list[_PendingWakeup] = []
        self._checks_at = float("inf")
        self._claimed_at = float("-inf")
        # Sent when it is time to check.
        self.due = Signal()

    def add(self, lanes: Mapping[Lane, datetime], turn: int) -> None:
        """These lanes are for peers; check them when it is our turn."""
        now = self._clock.monotonic()
        checks_at = now + _BACKSTOP_DELAYS[min(turn, len(_BACKSTOP_DELAYS)) - 1]
        self._pending.extend(_PendingWakeup(now, checks_at, lane, run_at) for lane, run_at in lanes.items())
        self._plan(now, checks_at)

    def note_claim(self) -> None:
        """All lanes are claimed from now: what was deferred before needs no check."""
        self._claimed_at = self._clock.monotonic()

    def take_due(self) -> dict[Lane, datetime]:
        """The lanes to check now, from which instants on."""
        now = self._clock.monotonic()
        if now < self._checks_at - _EARLY_SECONDS:
            return {}
        self._checks_at = float("inf")
        open_ = [pending for pending in self._pending if pending.at >= self._claimed_at]
        # The youngest may still be on their way to the peer: they are checked once more.
        self._pending = [pending for pending in open_ if pending.at > now - UNCLAIMED_FOR.total_seconds()]
        for pending in self._pending:
            self._plan(now, pending.checks_at)
        lanes: dict[Lane, datetime] = {}
        for pending in open_:
            lanes[pending.lane] = min(lanes.get(pending.lane, pending.run_at), pending.run_at)
        return lanes

    def _plan(self, now: float, checks_at: float) -> None:
        if checks_at < self._checks_at:
            self._checks_at = checks_at
            # A later timer that was planned before wakes the backstop for nothing. That is cheaper than to keep and cancel it.
            asyncio.get_running_loop().call_later(checks_at - now, self.due.send)
