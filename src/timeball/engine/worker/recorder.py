"""Writes what attempts leave behind, in batches: outcomes (Recorder), log lines and progress (LogWriter)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from timeball.current import AttemptContext, AttemptSink
from timeball.domain import execution
from timeball.domain.execution import (
    ClaimedExecution,
    ClaimKey,
    ExecutionState,
    Failed,
    FinishedAttempt,
    LogBuffer,
    NotStarted,
    Released,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
    outcome_word,
)
from timeball.domain.lifecycle import (
    AttemptFacts,
    Decision,
    Finish,
    Transition,
    decide,
    next_state,
    replacement_outcomes,
)
from timeball.domain.policies import SkipReason
from timeball.domain.values.ids import ExecutionId
from timeball.domain.values.redaction import redact
from timeball.domain.values.text import clean_text
from timeball.engine.node import AT_ONCE, LONGEST_REST, Service, Signal
from timeball.engine.runners.failure_log import AttemptFailure, FailureLog, failure_of
from timeball.engine.worker.admission import ContractGate, is_payload_mismatch
from timeball.engine.worker.attempts import StartQueue
from timeball.env import Env
from timeball.errors import StoreError, UnstorableValue
from timeball.store.executions import ExecutionStore
from timeball.store.history import HistoryStore
from timeball.store.types import LogRecord
from timeball.telemetry.events import (
    AttemptFailed,
    AttemptFailedAsExpected,
    Emit,
    ExecutionsExpired,
    ExecutionsSucceeded,
    OutcomeRefused,
    OutcomeUnwritable,
)

_BATCH = 1_000

# Under load a batch is worth waiting a moment for: a statement for a thousand outcomes costs little more than one for a hundred.
_WORTHWHILE = 500
_BUSY = 100
_GATHER_SECONDS = 0.004

# Encoding a batch takes the event loop milliseconds in which nothing can start. Executions whose instant has come go first, for so long.
_GIVES_WAY_SECONDS = 0.01
_SHORT_REST = timedelta(milliseconds=1)
_REPORT_SECONDS = 1.0
_ASIDE_SECONDS = 30.0
_ZERO = timedelta(0)
_EXPIRED = NotStarted(SkipReason.EXPIRED)


class Recorder(Service):
    """Writes the outcomes it is handed, in batches, and reports those that were refused.

    While one batch is written the next one gathers, so batches grow with the load by themselves. An outcome leaves memory only when
    the database has accepted or refused it. When the reply to a commit is lost, the same batch is written again: every write is
    keyed by its claim, so the second write finds nothing to do, and what it calls stale is looked up before it is believed.
    Each further try is of half as many, because what follows so many ends may be more than one statement can write in its time.

    A batch that is refused because of its content is taken apart, so that one outcome that cannot be written costs its neighbours
    nothing. An outcome that says why is written in its place. If that is refused too, the fault is in the row: the outcome is kept
    aside and tried again now and then, and no other worker gets the execution while this one is alive.

    Writing gives way to the *queue* while held executions start. *contract_gate* decides about payloads that did not fit; without
    one those attempts have failed. *recorded* is sent after each batch.
    """

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        queue: StartQueue | None = None,
        contract_gate: ContractGate | None = None,
        recorded: Signal | None = None,
    ) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._queue = queue
        self._contract_gate = contract_gate
        self._recorded = recorded or Signal()
        # By claim, the traces that attempts have begun.
        self._traces: dict[ClaimKey, dict[str, str]] = {}
        self.failure_log = FailureLog(emit)
        self._waiting: list[FinishedAttempt] = []
        self._in_doubt: list[FinishedAttempt] = []
        # How many of those in doubt are written at once.
        self._portion = _BATCH
        # Outcomes for which nothing could be written, not even a replacement.
        self._aside: list[FinishedAttempt] = []
        self._next_try_aside = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_size = 0
        self._succeeded = 0
        self._worst = _ZERO
        self._next_report = 0.0
        self._gives_way_since: float | None = None

    def hand_over(self, attempt: FinishedAttempt) -> None:
        """Take an outcome; it will be written soon."""
        if not self._waiting:
            # If the list is not empty, the recorder is awake or looks again before it rests.
            self._idle.clear()
            self.wake()
        self._waiting.append(attempt)

    def keep_trace(self, claimed: ClaimedExecution, words: dict[str, str]) -> None:
        """Write this trace with the outcome of the claim, which is handed over later."""
        self._traces[claimed.id, claimed.claim_id] = words

    def unrecorded(self) -> set[ClaimKey]:
        """The claims whose outcomes are not known to be written yet."""
        unwritten = (*self._in_doubt, *self._waiting, *self._aside)
        return {(attempt.claimed.id, attempt.claimed.claim_id) for attempt in unwritten}

    def forget_all(self) -> None:
        """Forget what has not been written: the lease is lost, and none of it would be accepted."""
        self._waiting.clear()
        self._traces.clear()
        self._in_doubt.clear()
        self._aside.clear()
        self._idle.set()

    async def flush(self) -> None:
        """Wait until everything handed over has been written."""
        await self._idle.wait()

    async def tick(self) -> timedelta:
        was_tried = bool(self._in_doubt)
        batch = self._in_doubt[: self._portion] if was_tried else self._waiting[:_BATCH]
        if not batch:
            self._idle.set()
            if self.is_time(self._next_report):
                self._report_successes()
            if self._aside and self.is_time(self._next_try_aside):
                await self._try_aside_again()
            return LONGEST_REST
        if not was_tried:
            if self._gives_way():
                return _SHORT_REST
            if self._last_size >= _BUSY and len(self._waiting) < _WORTHWHILE:
                await self.env.clock.sleep(_GATHER_SECONDS)
                batch = self._waiting[:_BATCH]
            del self._waiting[:_BATCH]
            self._last_size = len(batch)
            self._in_doubt = list(batch)
        try:
            await self.write(batch, was_tried=was_tried)
        except Exception:
            self._portion = max(len(batch) // 2, 1)
            raise
        self._portion = min(2 * self._portion, _BATCH)
        del self._in_doubt[: len(batch)]
        self._recorded.send()
        return AT_ONCE

    def _gives_way(self) -> bool:
        if self._queue is None or not self._queue.is_starting:
            self._gives_way_since = None
            return False
        now = self.env.clock.monotonic()
        if self._gives_way_since is None:
            self._gives_way_since = now
        return now - self._gives_way_since < _GIVES_WAY_SECONDS

    async def write(self, batch: Sequence[FinishedAttempt], *, was_tried: bool) -> None:
        """Write outcomes; those that cannot be written are singled out."""
        try:
            await self._record(batch, was_tried=was_tried)
        except UnstorableValue as error:
            if len(batch) == 1:
                await self._write_instead(batch[0], str(error))
                return
            middle = len(batch) // 2
            # Part of the batch may have been written before the rest was refused.
            await self.write(batch[:middle], was_tried=True)
            await self.write(batch[middle:], was_tried=True)

    async def _write_instead(self, attempt: FinishedAttempt, why: str) -> None:
        others = [attempt._replace(outcome=outcome) for outcome in replacement_outcomes(attempt.outcome, why)]
        last_error = why
        for instead in others:
            try:
                await self._record([instead], was_tried=True)
            except UnstorableValue as error:
                last_error = str(error)
            else:
                self.emit(OutcomeUnwritable(attempt.claimed.id, attempt.claimed.handler, why, is_replaced=True))
                return
        self._aside.append(others[0])
        self._next_try_aside = self.env.clock.monotonic() + _ASIDE_SECONDS
        self.emit(OutcomeUnwritable(attempt.claimed.id, attempt.claimed.handler, last_error, is_replaced=False))

    async def _try_aside_again(self) -> None:
        self._next_try_aside = self.env.clock.monotonic() + _ASIDE_SECONDS
        for attempt in list(self._aside):
            try:
                await self._record([attempt], was_tried=True)
            except UnstorableValue:
                continue
            self._aside.remove(attempt)

    async def _record(self, batch: Sequence[FinishedAttempt], *, was_tried: bool) -> None:
        if self._traces:
            await self._write_traces(batch)
        others = [attempt for attempt in batch if not isinstance(attempt.outcome, Succeeded)]
        succeeded = [attempt for attempt in batch if isinstance(attempt.outcome, Succeeded)] if others else batch
        refused = await self._executions.finish_succeeded(succeeded) if succeeded else []
        if others:
            if self._contract_gate is not None and any(map(is_payload_mismatch, others)):
                others = await self._contract_gate.judge(others)
            refused = refused + await self._record_others(others)
        if refused and was_tried:
            refused = await self._executions.find_stale(refused)
        for attempt in refused:
            claimed = attempt.claimed
            self.emit(OutcomeRefused(claimed.id, claimed.handler, claimed.fence))
        self._count_successes([attempt for attempt in succeeded if attempt not in refused] if refused else succeeded)

    async def _write_traces(self, batch: Sequence[FinishedAttempt]) -> None:
        """Before their outcomes: a trace is carried on with what follows."""
        traces = {
            attempt.claimed: self._traces[key]
            for attempt in batch
            if (key := (attempt.claimed.id, attempt.claimed.claim_id)) in self._traces
        }
        if traces:
            await self._executions.write_traces(traces)
        for claimed in traces:
            self._traces.pop((claimed.id, claimed.claim_id), None)

    async def _record_others(self, attempts: Sequence[FinishedAttempt]) -> list[FinishedAttempt]:
        """Write what follows each outcome; decide again about rows that changed between the read and the write."""
        refused: list[FinishedAttempt] = []
        while attempts:
            facts = await self._executions.attempt_facts([attempt.claimed for attempt in attempts])
            refused += [attempt for attempt in attempts if attempt.claimed.id not in facts]
            decisions = [self._decide(f, facts[f.claimed.id]) for f in attempts if f.claimed.id in facts]
            attempts = await self._executions.record_transitions(decisions) if decisions else []
            self._report([decision for decision in decisions if decision.attempt not in attempts])
        return refused

    def _decide(self, attempt: FinishedAttempt, facts: AttemptFacts) -> Decision:
        chance = self.env.random.random()
        try:
            transition = decide(facts, attempt.outcome, attempt.finished_at, chance)
        except (TypeError, ArithmeticError) as error:  # an instant that no calendar has
            raise UnstorableValue(f"what follows the outcome cannot be told: {error}") from error
        return Decision(attempt, facts, transition)

    def _report(self, decisions: Sequence[Decision]) -> None:
        expired = sum(attempt.outcome == _EXPIRED for attempt, _, _ in decisions)
        if expired:
            self.emit(ExecutionsExpired(expired))
        for attempt, _, transition in decisions:
            failure = failure_of(attempt.claimed, attempt.outcome, transition)
            if failure is not None:
                self.failure_log.add(failure)
            # An attempt that was given back or held back before it began says nothing about its handler.
            if (
                not isinstance(attempt.outcome, Released)
                and attempt.outcome != _EXPIRED
                and not _was_held_back(attempt)
            ):
                self.emit(_failure(attempt, transition))

    def _count_successes(self, attempts: Sequence[FinishedAttempt]) -> None:
        self._succeeded += len(attempts)
        worst = self._worst
        for claimed, _, started_at, _ in attempts:
            if started_at is not None and started_at - claimed.scheduled_for > worst:
                worst = started_at - claimed.scheduled_for
        self._worst = worst
        if self.env.clock.monotonic() >= self._next_report:
            self._report_successes()

    def _report_successes(self) -> None:
        if self._succeeded:
            self.emit(ExecutionsSucceeded(self._succeeded, self._worst))
            self._succeeded, self._worst = 0, _ZERO
            self._next_report = self.env.clock.monotonic() + _REPORT_SECONDS


def _was_held_back(attempt: FinishedAttempt) -> bool:
    return isinstance(attempt.outcome, Snoozed) and attempt.started_at is None


def _failure(attempt: FinishedAttempt, transition: Transition) -> AttemptFailed:
    claimed = attempt.claimed
    error = transition.error
    reason = attempt.outcome.reason if isinstance(attempt.outcome, Snoozed) else None
    is_expected = isinstance(attempt.outcome, Failed | TimeoutOutcome) and attempt.outcome.is_expected
    return (AttemptFailedAsExpected if is_expected else AttemptFailed)(
        claimed.id,
        claimed.handler,
        claimed.attempt,
        outcome_word(attempt.outcome),
        next_state(transition),
        reason if error is None else f"{error.type}: {error.message}",
    )


async def record_now(env: Env, emit: Emit, executions: ExecutionStore, attempts: Sequence[FinishedAttempt]) -> None:
    """Write outcomes outside of any loop; StoreError if some of them may not have been written."""
    await Recorder(env, emit, executions).write(attempts, was_tried=False)


async def foresee_failure(
    env: Env, executions: ExecutionStore, claimed: ClaimedExecution, outcome: Failed | TimeoutOutcome
) -> AttemptFailure:
    """What is to be logged of an attempt whose outcome is not recorded yet, for the child that has its error.

    If the database cannot be asked, it is taken for the last one: an error that is retried after all is better than one that nobody hears.
    """
    transition: Transition = Finish(ExecutionState.DEAD, claimed.attempt, claimed.lost, error=outcome.error)
    with suppress(StoreError, TypeError, ArithmeticError):
        facts = (await executions.attempt_facts([claimed])).get(claimed.id)
        if facts is not None:
            transition = decide(facts, outcome, env.clock.now(), 0.0)
    failure = failure_of(claimed, outcome, transition)
    assert failure is not None
    return failure


_LOG_BATCH = 500
_MAX_PENDING_LINES = 100_000
_LOG_GATHER = timedelta(milliseconds=200)


class LogWriter(Service):
    """Writes the log lines and progress of running handlers, in batches. A handler never waits for it, and never fails because of it."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        history: HistoryStore,
        keep_trace: Callable[[ClaimedExecution, dict[str, str]], None] = lambda _claimed, _words: None,
        is_running: Callable[[AttemptContext], bool] = lambda _context: True,
    ) -> None:
        super().__init__(env, emit)
        self._is_running = is_running
        self._executions = executions
        self._history = history
        self._keep_trace = keep_trace
        self._loop = asyncio.get_running_loop()
        self._open: dict[tuple[ExecutionId, int], _BufferedSink] = {}
        # Bounded: while the database is away, old lines are worth less than the memory they take.
        self._lines: deque[LogRecord] = deque(maxlen=_MAX_PENDING_LINES)
        self._progress: dict[ExecutionId, tuple[ClaimedExecution, float, str | None]] = {}
        # The last flush may come while the service is writing: each would remove what the other has written.
        self._writing = asyncio.Lock()

    def open_sink(self, context: AttemptContext) -> AttemptSink:
        """A sink for the log lines and progress of one attempt; may be called from any thread.

        What an attempt has left behind, such as a task that prints, may say its first word when the attempt has ended.
        """
        if not self._is_running(context):
            return _ClosedSink()
        self._loop.call_soon_threadsafe(self.wake)
        claimed = context.claimed
        sink = self._open[claimed.id, claimed.fence] = _BufferedSink(self, claimed)
        return sink

    def close_sink(self, claimed: ClaimedExecution) -> None:
        """The attempt has ended: its last lines are complete."""
        sink = self._open.pop((claimed.id, claimed.fence), None)
        if sink is not None:
            self.wake()
            self._lines.extend(sink.last_lines())

    def add_progress(self, claimed: ClaimedExecution, fraction: float, note: str | None) -> None:
        """Keep the last report of an attempt; may be called from any thread."""
        self._progress[claimed.id] = (claimed, fraction, redact(note))

    def keep_trace(self, claimed: ClaimedExecution, words: dict[str, str]) -> None:
        """Have a trace recorded with the outcome of its attempt; may be called from any thread."""
        self._keep_trace(claimed, words)

    async def tick(self) -> timedelta:
        for sink in list(self._open.values()):
            self._lines.extend(sink.new_lines())
        async with self._writing:
            await self._write_lines()
        progress, self._progress = self._progress, {}
        for claimed, fraction, note in progress.values():
            # One report that cannot be stored must not cost the others.
            with suppress(UnstorableValue):
                await self._executions.report_progress(claimed, fraction, note)
        if self._lines:
            return AT_ONCE
        return _LOG_GATHER if self._open else LONGEST_REST

    async def _write_lines(self) -> None:
        batch = [self._lines[number] for number in range(min(_LOG_BATCH, len(self._lines)))]
        if batch:
            await self._write_sound(batch)
            for _ in batch:
                self._lines.popleft()

    async def _write_sound(self, lines: Sequence[LogRecord]) -> None:
        """Write lines. If the database cannot store one of them, the others are written, and in its place a line that says so."""
        try:
            await self._history.write_log(lines)
        except UnstorableValue as error:
            if len(lines) > 1:
                middle = len(lines) // 2
                await self._write_sound(lines[:middle])
                await self._write_sound(lines[middle:])
                return
            note = f"a line of the log could not be kept: {clean_text(error)}"
            with suppress(UnstorableValue):
                await self._history.write_log([replace(lines[0], level="warning", message=note)])

    async def flush(self) -> None:
        """Write what is left."""
        while self._lines:
            await self.tick()


class _ClosedSink:
    """Keeps nothing: the attempt has ended, and nothing would close its log."""

    def emit_log(self, at: datetime, level: str, message: str) -> None:
        """Too late."""

    def report_progress(self, fraction: float, note: str | None) -> None:
        """Too late."""

    def keep_trace(self, words: dict[str, str]) -> None:
        """Too late."""


class _BufferedSink:
    """The log lines of one attempt, numbered; the first and the last ones are kept."""

    def __init__(self, log_writer: LogWriter, claimed: ClaimedExecution) -> None:
        self._log_writer = log_writer
        self._claimed = claimed
        self._buffer = LogBuffer()
        self._number = 0

    def emit_log(self, at: datetime, level: str, message: str) -> None:
        self._buffer.add(at, level, message)

    def report_progress(self, fraction: float, note: str | None) -> None:
        self._log_writer.add_progress(self._claimed, fraction, note)

    def keep_trace(self, words: dict[str, str]) -> None:
        self._log_writer.keep_trace(self._claimed, words)

    def new_lines(self) -> list[LogRecord]:
        """The lines since the last call that are sure to be kept."""
        return self._numbered(self._buffer.drain())

    def last_lines(self) -> list[LogRecord]:
        """All lines that are left when the attempt has ended."""
        return self._numbered(self._buffer.close())

    def _numbered(self, lines: Iterable[execution.BufferedLogLine]) -> list[LogRecord]:
        numbered = []
        for line in lines:
            self._number += 1
            numbered.append(
                LogRecord(self._claimed.id, self._claimed.fence, self._number, line.at, line.level, line.message)
            )
        return numbered
