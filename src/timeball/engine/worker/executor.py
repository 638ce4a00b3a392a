"""Holds claimed executions until their instant, starts them in free slots, hands over their outcomes, and stops those that are to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from timeball.current import AttemptContext, AttemptSink, StopReason
from timeball.domain.execution import (
    SKIP_STOP,
    ClaimedExecution,
    ClaimKey,
    ErrorInfo,
    Failed,
    FinishedAttempt,
    NotStarted,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
    outcome_of_stop,
)
from timeball.domain.handler import Handler, HandlerSource, RunStyle
from timeball.domain.payload_references import (
    CauseRecord,
    ReferenceValues,
    VersionSchedule,
    needs_cause,
    needs_schedule,
    resolve_references,
)
from timeball.domain.policies import SkipReason
from timeball.domain.values.ids import ExecutionId, Incarnation, JobId
from timeball.domain.wakeup import Wakeup
from timeball.engine.lease import HeldLease
from timeball.engine.node import Service
from timeball.engine.runners.outcome import judge_timeout
from timeball.engine.worker.admission import RetryGate
from timeball.engine.worker.attempts import LONGEST_WAIT_SECONDS, AttemptPool, ReadyAttempt, Runner, Slots, StartQueue
from timeball.env import Env
from timeball.errors import InvalidInput, StoreError, StoreUnavailable
from timeball.store.executions import ExecutionStore
from timeball.telemetry.events import Emit

# How long an execution waits whose references need a schedule that cannot be read.
_SCHEDULE_PAUSE = timedelta(seconds=1)
# The deadline in the database is so far behind the timeout that these graces end before it; and what ending takes after a grace.
_GRACE_WITHIN_DEADLINE = timedelta(seconds=2)
_TIME_TO_END = timedelta(seconds=10)
# How long a due execution may wait here while no slot becomes free.
_PATIENCE_SECONDS = 0.02


class Executor:
    """Runs executions in the worker's slots, and hands over every outcome.

    *retry_gate* decides about each start; without one every attempt is made. *open_sink* opens the log of an attempt that writes one,
    and *close_sink* is called when such an attempt has ended. *read_schedule* tells when a job ran by one of its versions, and
    *read_cause* which run that of a one-off follows.
    *extend_deadline* puts off the deadline of an attempt whose time is over, so that it can clean up.
    """

    def __init__(
        self,
        env: Env,
        handlers: HandlerSource,
        runners: Mapping[RunStyle, Runner],
        slots: Slots,
        queue: StartQueue,
        lease: HeldLease,
        hand_over: Callable[[FinishedAttempt], None],
        open_sink: Callable[[AttemptContext], AttemptSink],
        read_schedule: Callable[[JobId, int], Awaitable[VersionSchedule]],
        read_cause: Callable[[JobId], Awaitable[CauseRecord | None]],
        close_sink: Callable[[ClaimedExecution], None] = lambda _: None,
        retry_gate: RetryGate | None = None,
        extend_deadline: Callable[[ClaimedExecution, timedelta], Awaitable[None]] | None = None,
    ) -> None:
        self._env = env
        self._handlers = handlers
        self.slots = slots
        self._queue = queue
        self.lease = lease
        self._hand_over = hand_over
        self._open_sink = open_sink
        self._close_sink = close_sink
        self._retry_gate = retry_gate
        self._read_schedule = read_schedule
        self._read_cause = read_cause
        self._extend_deadline = extend_deadline
        self._extensions: set[asyncio.Task[None]] = set()
        self._attempts = AttemptPool(env, runners, slots, self)
        self._start_timer: asyncio.TimerHandle | None = None
        self._patience_timer: asyncio.TimerHandle | None = None
        self._patience_ends = 0.0
        # How many attempts succeeded here so far.
        self.succeeded = 0
        # First of all subscribers: what waits here takes a free slot before the claimer asks for more.
        slots.freed.subscribe(self._fill)

    @property
    def busy(self) -> int:
        """How many slots are taken."""
        return self.slots.busy

    @property
    def running(self) -> int:
        """How many attempts run, also those that wait for other runs and have lent their slots."""
        return self.slots.running

    @property
    def free_slots(self) -> int:
        """How many more executions could run now."""
        return max(self.slots.total - self.slots.busy - self._queue.waiting, 0)

    @property
    def waiting(self) -> int:
        """How many executions are due here and have no slot yet."""
        return self._queue.waiting

    @property
    def held(self) -> int:
        """How many executions wait here for their instant."""
        return self._queue.held

    @property
    def started(self) -> int:
        """How many executions left the queue for a slot so far."""
        return self._queue.started

    def take_longest_wait(self) -> float:
        """The longest time in seconds that a due execution waited for its slot since the last call."""
        return self._queue.take_longest_wait()

    def accept(self, claims: Iterable[ClaimedExecution]) -> None:
        """Take executions: the due ones wait for a slot, the others for their instant."""
        self._queue.add(claims)
        self._plan_start()
        self._fill()

    # starting

    def _plan_start(self) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        at = self._queue.next_instant
        if at is not None:
            delay = max(at - self._env.clock.monotonic(), 0)
            self._start_timer = asyncio.get_running_loop().call_later(delay, self._start_due)

    def _start_due(self) -> None:
        """The instant of held executions has come."""
        self._start_timer = None
        self._queue.release_due()
        self._plan_start()
        self._fill()

    def _fill(self) -> None:
        """Start what waits while there are slots; look again soon at what found none."""
        self._attempts.begin()
        if self._queue.waiting and self._patience_timer is None:
            self._patience_ends = self._env.clock.monotonic() + _PATIENCE_SECONDS
            self._patience_timer = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._on_waited_too_long)

    def _on_waited_too_long(self) -> None:
        self._patience_timer = None
        if self.slots.busy >= self.slots.total:
            self._release_waiting()
        self._fill()

    def _release_waiting(self) -> None:
        """Give back what has waited too long: at once if no slot comes free, later if slots do or if this loop was late itself."""
        now = self._env.clock.monotonic()
        is_late = now - self._patience_ends >= _PATIENCE_SECONDS
        is_stuck = now - self._queue.last_start >= _PATIENCE_SECONDS and not is_late
        for claimed in self._queue.take_overdue(_PATIENCE_SECONDS if is_stuck else LONGEST_WAIT_SECONDS):
            self._conclude(claimed, Released(), None)

    # running

    def next_attempt(self) -> ReadyAttempt | None:
        """The next attempt to make, if there is a slot for it. Executions that must not start are concluded on the way."""
        slots = self.slots
        while slots.busy < slots.total and (first := self._queue.pop()) is not None:
            claimed, stop = first
            handler = self._admit(claimed, stop)
            if handler is not None:
                return handler, AttemptContext(claimed, self._env.clock, self._open_sink)
        return None

    def _admit(self, claimed: ClaimedExecution, stop: str | None) -> Handler | None:
        # A machine that slept wakes to the timers of executions that other workers have claimed by now.
        if not self.lease.is_held_at(self._queue.last_start):
            return None
        if stop is not None:
            self._conclude(claimed, outcome_of_stop(stop), None)
            return None
        if claimed.expires_at is not None and claimed.expires_at <= self._env.clock.now():
            self._conclude(claimed, NotStarted(SkipReason.EXPIRED), None)
            return None
        handler = self._handlers.find(claimed.handler)
        if handler is None:
            self._conclude(claimed, Failed(_unknown_handler(claimed), is_retryable=False), None)
        elif self._retry_gate is not None and (delay := self._retry_gate.admit(handler, claimed)) is not None:
            self._conclude(claimed, Snoozed(delay), None)
            return None
        return handler

    async def resolve_payload(self, context: AttemptContext) -> Outcome | None:
        """Put the values of this attempt into its payload; an outcome if they cannot be read now, or a reference is wrong."""
        claimed = context.claimed
        values = ReferenceValues(
            scheduled_for=claimed.scheduled_for, execution_id=claimed.id, attempt=claimed.attempt, fence=claimed.fence
        )
        try:
            if needs_schedule(claimed.payload):
                values = values.with_schedule(await self._read_schedule(claimed.job_id, claimed.version))
            if needs_cause(claimed.payload):
                values = replace(values, cause=await self._read_cause(claimed.job_id))
            context.replace_payload(resolve_references(claimed.payload, values))
        except StoreUnavailable as error:
            return Snoozed(_SCHEDULE_PAUSE, f"what its payload refers to could not be read: {error}")
        except InvalidInput as error:
            info = ErrorInfo(type="InvalidInput", message=str(error), fingerprint="wrong-reference")
            return Failed(info, is_retryable=False)
        return None

    def note_timeout(self, context: AttemptContext) -> None:
        """Put off the deadline by which the reaper ends the attempt, if its handler has a grace that is longer than that."""
        handler = self._handlers.find(context.claimed.handler)
        if self._extend_deadline is None or handler is None or handler.style is RunStyle.COROUTINE:
            return
        if handler.grace > _GRACE_WITHIN_DEADLINE:
            work = self._put_off(self._extend_deadline(context.claimed, handler.grace + _TIME_TO_END))
            task = asyncio.get_running_loop().create_task(work)
            self._extensions.add(task)
            task.add_done_callback(self._extensions.discard)

    async def _put_off(self, extension: Awaitable[None]) -> None:
        # If it cannot be put off, the reaper may call the attempt off before its grace is over: its outcome is the same.
        with suppress(StoreError):
            await extension

    def finish_attempt(self, handler: Handler, context: AttemptContext, outcome: Outcome, started_at: datetime) -> None:
        """An attempt has ended."""
        claimed = context.claimed
        if isinstance(outcome, Succeeded):
            self.succeeded += 1
            if self._retry_gate is not None:
                self._retry_gate.note_success(handler, claimed)
        elif isinstance(outcome, TimeoutOutcome):
            outcome = judge_timeout(outcome, handler.options)
        elif isinstance(outcome, Released):
            outcome = Released(has_started=True)
        if context.has_spoken:
            context.end_print()
            self._close_sink(claimed)
        self._conclude(claimed, outcome, started_at)

    def _conclude(self, claimed: ClaimedExecution, outcome: Outcome, started_at: datetime | None) -> None:
        finished_at = self._env.clock.now()
        if started_at is not None and started_at > finished_at:
            finished_at = started_at
        self._hand_over(FinishedAttempt(claimed, outcome, started_at, finished_at))

    # stopping

    def stop_executions(self, stops: Mapping[ExecutionId, str]) -> None:
        """Follow requests to stop: running attempts are told, held and waiting executions are not started."""
        not_started = {}
        for execution_id, reason in stops.items():
            running = self.slots.attempts.get(execution_id)
            if running is None:
                not_started[execution_id] = reason
            elif not reason.startswith(SKIP_STOP):
                running.halt(StopReason.CANCEL, reason)
        for claimed, reason in self._queue.stop(not_started):
            self._conclude(claimed, outcome_of_stop(reason), None)

    def give_back_all(self) -> int:
        """Give back everything that has not been started; returns how many executions that were."""
        not_started = self._queue.take_all()
        for claimed in not_started:
            self._conclude(claimed, Released(), None)
        return len(not_started)

    async def wait_idle(self, seconds: float) -> bool:
        """Wait until nothing runs; False if something still does after that time."""
        return await self._attempts.wait_idle(seconds)

    def halt_all(self) -> None:
        """Ask everything that runs to stop because this worker leaves; it is given back uncounted."""
        self._attempts.halt_all(StopReason.SHUTDOWN, "the worker is leaving")

    def claim_keys(self) -> set[ClaimKey]:
        """The claims that were accepted and have no outcome yet."""
        return {(claimed.id, claimed.claim_id) for claimed in (*self.unfinished(), *self._queue.executions())}

    def unfinished(self) -> Sequence[ClaimedExecution]:
        """The executions that still run."""
        return [context.claimed for context in self.slots.attempts.values()]

    def abandon(self) -> None:
        """Cut everything off and hand over nothing any more: without its lease, this node has no claim to it."""
        self._queue.take_all()
        self._attempts.abandon("the lease was lost")


def _unknown_handler(claimed: ClaimedExecution) -> ErrorInfo:
    message = f"this worker has no handler {claimed.handler}"
    return ErrorInfo(type="UnknownHandler", message=message, fingerprint="unknown-handler")


_STOP_POLL = timedelta(seconds=1)
# A node that gets no wake-ups polls often: an execution that is held for half a second would start before the next look.
_STOP_POLL_WITHOUT_LISTENER = timedelta(milliseconds=100)


class CancellationPoller(Service):
    """Learns which executions are to stop: when woken, and by a poll every second; more often while no wake-ups arrive."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        incarnation: Incarnation,
        executor: Executor,
        is_listening: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._incarnation = incarnation
        self._executor = executor
        self._is_listening = is_listening

    def on_wakeup(self, wakeup: Wakeup) -> None:
        if self._incarnation in wakeup.holders:
            self.wake()

    async def tick(self) -> timedelta:
        if self._executor.running or self._executor.held or self._executor.waiting:
            stops = await self._executions.stops(self._incarnation)
            if stops:
                self._executor.stop_executions(stops)
        return _STOP_POLL if self._is_listening() else _STOP_POLL_WITHOUT_LISTENER
