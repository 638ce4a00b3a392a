"""Holding and dropping: never early, a slot only at the drop, and what finds none goes back uncounted."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.engine.support import (
    PATIENCE_SECONDS,
    HaltingRunner,
    ManualRunner,
    held_lease,
    make_executor,
    no_cause,
    no_schedule,
    registry,
    until,
)
from tests.support.factories import FAILURE, HANDLER
from timeball.current import AttemptContext, StopReason
from timeball.domain.execution import (
    CancelOutcome,
    ClaimedExecution,
    Failed,
    FinishedAttempt,
    NotStarted,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
)
from timeball.domain.handler import Handler, HandlerOptions, RunStyle
from timeball.domain.values.ids import ClaimId, ExecutionId, JobId
from timeball.engine.node import Signal
from timeball.engine.worker.attempts import Slots, StartQueue
from timeball.engine.worker.executor import Executor
from timeball.env import Env, SystemClock
from timeball.handlers.registry import Registry, make_handler
from timeball.testing import VirtualClock
from timeball.testing.environment import START


def claim(run_at: datetime = START, number: int = 1, **columns: Any) -> ClaimedExecution:
    claimed = ClaimedExecution(
        id=ExecutionId(UUID(int=number)),
        job_id=JobId(UUID(int=number)),
        fence=1,
        attempt=1,
        lost=0,
        handler=HANDLER,
        payload="{}",
        run_at=run_at,
        scheduled_for=run_at,
        timeout_ms=None,
        queue="default",
        priority=50,
        origin="schedule",
        version=1,
        job_name=None,
        expires_at=None,
        meta=None,
        claim_id=ClaimId(UUID(int=99)),
        stop=None,
    )
    return claimed._replace(**columns)


class Findings(list[FinishedAttempt]):
    """What was handed over."""

    @property
    def outcomes(self) -> dict[int, Outcome]:
        return {finding.claimed.id.int: finding.outcome for finding in self}


@pytest.fixture
def findings() -> Findings:
    return Findings()


@pytest.fixture
def runner() -> ManualRunner:
    return ManualRunner()


@pytest.fixture
async def executor(env: Env, runner: ManualRunner, findings: Findings) -> AsyncIterator[Executor]:
    """Two slots, under the virtual clock."""
    made = make_executor(env, runner, slots=2, hand_over=findings.append)
    yield made
    made.abandon()


@pytest.fixture
async def real(findings: Findings) -> AsyncIterator[Callable[..., Executor]]:
    """Executors under the clock of this machine."""
    made: list[Executor] = []

    def make(runner: Any, slots: int = 2, clock: SystemClock | None = None) -> Executor:
        env = Env(clock or SystemClock(), random.Random(7))
        made.append(make_executor(env, runner, slots, hand_over=findings.append))
        return made[-1]

    yield make
    for executor in made:
        executor.abandon()


async def turn(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


# the drop


async def test_what_is_due_starts_at_once(executor: Executor, runner: ManualRunner) -> None:
    executor.accept([claim()])
    await turn()

    assert len(runner.started) == 1
    assert (executor.busy, executor.held, executor.waiting, executor.free_slots) == (1, 0, 0, 1)


@pytest.mark.parametrize("is_over", [False, True])
async def test_what_has_expired_is_not_started(
    executor: Executor, runner: ManualRunner, findings: Findings, clock: VirtualClock, is_over: bool
) -> None:
    expires_at = START + timedelta(seconds=5)
    clock.advance(timedelta(seconds=5) if is_over else timedelta(seconds=5) - timedelta(microseconds=1))

    executor.accept([claim(expires_at=expires_at)])
    await turn()

    assert len(runner.started) == (not is_over)
    assert [(finding.outcome, finding.started_at) for finding in findings] == (
        [(NotStarted("expired"), None)] if is_over else []
    )
    assert executor.busy == (not is_over)


async def test_what_expires_while_it_waits_for_a_slot_is_not_started(
    executor: Executor, runner: ManualRunner, findings: Findings, clock: VirtualClock
) -> None:
    executor.accept([claim(number=number) for number in (1, 2)])
    executor.accept([claim(number=3, expires_at=START + timedelta(milliseconds=5))])
    await turn()
    clock.advance("5ms")

    runner.end(runner.started[0].claimed)
    await turn()

    assert findings.outcomes[3] == NotStarted("expired")
    assert [context.claimed.id.int for context in runner.started] == [1, 2]


async def test_what_is_held_takes_no_slot(executor: Executor, runner: ManualRunner) -> None:
    executor.accept([claim(START + timedelta(seconds=1), number) for number in range(1, 11)])
    await turn()

    assert runner.started == []
    assert (executor.busy, executor.held, executor.waiting, executor.free_slots) == (0, 10, 0, 2)


async def test_held_executions_are_starting_until_the_last_one_has_a_slot(
    executor: Executor, runner: ManualRunner, clock: VirtualClock
) -> None:
    executor.accept([claim(START + timedelta(seconds=1), number) for number in (1, 2, 3)])
    assert not executor._queue.is_starting

    clock.advance("1s")
    executor._start_due()
    await turn()
    assert (executor.busy, executor.waiting, executor._queue.is_starting) == (2, 1, True)

    runner.end(runner.started[0].claimed)
    await turn()
    assert (executor.busy, executor.waiting, executor._queue.is_starting) == (2, 0, False)


async def test_executions_due_at_their_claim_do_not_count_as_starting(executor: Executor) -> None:
    executor.accept([claim(number=number) for number in (1, 2, 3)])
    await turn()

    assert (executor.waiting, executor._queue.is_starting) == (1, False)


class UnsureClock(SystemClock):
    """Reads the database's clock to within 60 ms only."""

    def __init__(self) -> None:
        super().__init__()
        self._uncertainty = 0.06


class TimedRunner(ManualRunner):
    """Notes when each attempt began."""

    def __init__(self) -> None:
        super().__init__(Succeeded())
        self.began: dict[int, float] = {}

    async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
        self.began[context.claimed.id.int] = time.monotonic()
        return await super().run(handler, context)


async def test_nothing_starts_before_its_instant_has_surely_come(
    real: Callable[..., Executor], findings: Findings
) -> None:
    clock, runner = UnsureClock(), TimedRunner()
    executor = real(runner, clock=clock)
    claims = [claim(clock.now() + timedelta(milliseconds=20 * number), number) for number in range(4)]
    earliest = {claimed.id.int: clock.earliest(claimed.run_at) for claimed in claims}

    executor.accept(reversed(claims))
    await until(lambda: len(findings) == 4)

    assert all(runner.began[number] >= earliest[number] for number in range(4))
    assert [finding.claimed.id.int for finding in findings] == [0, 1, 2, 3]


async def test_a_timer_that_fires_early_starts_nothing(
    executor: Executor, runner: ManualRunner, clock: VirtualClock
) -> None:
    """The loop's timers run on real time; by the clock that counts, the instant has not come."""
    executor.accept([claim(START + timedelta(milliseconds=5))])
    fired = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.03, fired.set_result, None)

    await fired
    assert (runner.started, executor.held) == ([], 1)

    clock.advance("5ms")
    await until(lambda: runner.started)


async def test_an_earlier_start_that_is_accepted_later_is_not_missed(
    executor: Executor, runner: ManualRunner, clock: VirtualClock
) -> None:
    executor.accept([claim(START + timedelta(seconds=60), 1)])
    executor.accept([claim(START + timedelta(milliseconds=1), 2)])
    clock.advance("1ms")

    await until(lambda: runner.started)

    assert [id_.int for id_ in runner.ids] == [2]


async def test_an_attempt_never_seems_to_have_begun_before_its_time(env: Env, findings: Findings) -> None:
    """The database said the instant had come; our own reading of its clock may lag behind."""
    executor = make_executor(env, ManualRunner(Succeeded()), hand_over=findings.append)
    env.clock.earliest = lambda _instant: 0.0  # type: ignore[method-assign]

    executor.accept([claim(START + timedelta(milliseconds=3))])
    await until(lambda: findings)

    assert findings[0].started_at == findings[0].finished_at == START + timedelta(milliseconds=3)


# slots


async def test_what_is_due_waits_for_a_slot_in_the_order_it_came(
    executor: Executor, runner: ManualRunner, findings: Findings
) -> None:
    claims = [claim(number=number) for number in range(1, 6)]
    executor.accept(claims)
    await turn()
    assert (executor.busy, executor.waiting, executor.free_slots) == (2, 3, 0)

    runner.end(claims[0])
    await turn()

    assert [id_.int for id_ in runner.ids] == [1, 2, 3]
    assert findings.outcomes == {1: Succeeded()}


async def test_a_slot_that_something_waits_for_is_not_free(executor: Executor) -> None:
    """One attempt after the other is begun; what comes next has its slot already."""
    executor.accept([claim(number=1), claim(number=2)])

    assert (executor.busy, executor.waiting, executor.free_slots) == (1, 1, 0)


async def test_a_free_slot_is_told(executor: Executor, runner: ManualRunner) -> None:
    told = []
    executor.slots.freed.subscribe(lambda: told.append(executor.free_slots))
    executor.accept([claim()])
    await turn()

    runner.end(claim())
    await turn()

    assert told == [2]


async def test_what_finds_no_slot_is_given_back_uncounted(real: Callable[..., Executor], findings: Findings) -> None:
    runner = ManualRunner()
    executor = real(runner)

    executor.accept([claim(number=number) for number in range(1, 6)])
    await until(lambda: len(findings) == 3)

    assert findings.outcomes == dict.fromkeys([3, 4, 5], Released(has_started=False))
    assert {finding.started_at for finding in findings} == {None}
    assert [id_.int for id_ in runner.ids] == [1, 2]
    assert executor.waiting == 0
    assert executor.take_longest_wait() >= 0.25, "so that less is asked for"


async def test_what_waits_is_kept_while_slots_come_free(
    executor: Executor, runner: ManualRunner, findings: Findings, clock: VirtualClock
) -> None:
    claims = [claim(number=number) for number in range(1, 10)]
    executor.accept(claims)
    for number in range(5):
        clock.advance("15ms")
        await turn()
        runner.end(claims[number])
        executor._on_waited_too_long()

    assert Released() not in findings.outcomes.values()


async def test_even_then_nothing_waits_for_ever(
    executor: Executor, runner: ManualRunner, findings: Findings, clock: VirtualClock
) -> None:
    claims = [claim(number=number) for number in range(1, 60)]
    executor.accept(claims)
    for number in range(17):
        clock.advance("15ms")
        await turn()
        runner.end(claims[number])
        executor._on_waited_too_long()

    assert Released() in findings.outcomes.values()
    assert executor.waiting == 0


async def test_a_loop_that_comes_late_gives_nothing_back_at_once(
    executor: Executor, runner: ManualRunner, findings: Findings, clock: VirtualClock
) -> None:
    """Handlers had no time to end either. What has waited long by then does not wait any longer."""
    claims = [claim(number=number) for number in range(1, 6)]
    executor.accept(claims)
    await turn()
    clock.advance("45ms")
    executor._on_waited_too_long()
    assert executor.waiting == 3

    clock.advance("25ms")
    executor._on_waited_too_long()
    assert findings.outcomes == dict.fromkeys([3, 4, 5], Released())


async def test_how_late_the_loop_comes_is_counted_from_what_has_waited_longest(
    executor: Executor, findings: Findings, clock: VirtualClock
) -> None:
    executor.accept([claim(number=number) for number in (1, 2, 3)])
    await turn()
    clock.advance("15ms")
    executor.accept([claim(number=4)])
    clock.advance("30ms")

    executor._on_waited_too_long()

    assert (executor.waiting, findings.outcomes) == (2, {})


async def test_nothing_is_given_back_while_a_slot_is_free(
    executor: Executor, findings: Findings, clock: VirtualClock
) -> None:
    """One attempt after the other is begun, and the loop turns in between: whatever waits has its turn."""
    executor.accept([claim(number=number) for number in range(1, 6)])
    clock.advance("1s")

    executor._on_waited_too_long()

    assert (executor.waiting, findings.outcomes) == (4, {})


async def test_the_longest_wait_for_a_slot_is_told_once(
    executor: Executor, runner: ManualRunner, clock: VirtualClock
) -> None:
    claims = [claim(number=number) for number in range(1, 4)]
    executor.accept(claims)
    await turn()
    clock.advance("12ms")
    runner.end(claims[0])
    await turn()

    assert executor.take_longest_wait() == pytest.approx(0.012)
    assert executor.take_longest_wait() == 0


class StubbornRunner(ManualRunner):
    """Has attempts that cannot be ended, and keep their slots."""

    def __init__(self) -> None:
        super().__init__()
        self.overrunning: list[object] = []
        self.freed = Signal()


async def test_what_cannot_be_ended_keeps_its_slot(env: Env, findings: Findings) -> None:
    runner = StubbornRunner()
    executor = make_executor(env, runner, slots=2, hand_over=findings.append)
    runner.overrunning = [object(), object()]
    executions = []
    executor.slots.freed.subscribe(lambda: executions.append(1))

    executor.accept([claim()])
    await turn()
    assert (runner.started, executor.busy, executor.free_slots) == ([], 2, 0)

    runner.overrunning = [object()]
    runner.freed.send()
    await turn()
    assert (len(runner.started), executor.busy, executions) == (1, 2, [1])
    executor.abandon()


# outcomes


@pytest.mark.parametrize(
    "outcome",
    [Succeeded("1"), Failed(FAILURE), TimeoutOutcome(FAILURE), Snoozed(timedelta(1)), CancelOutcome("enough")],
)
async def test_what_the_runner_says_is_handed_over(
    executor: Executor, runner: ManualRunner, findings: Findings, clock: VirtualClock, outcome: Outcome
) -> None:
    executor.accept([claim()])
    await turn()
    clock.advance("3s")

    runner.end(claim(), outcome)
    await turn()

    assert findings == [FinishedAttempt(claim(), outcome, START, START + timedelta(seconds=3))]
    assert executor.busy == 0


class Words:
    """Takes what an attempt says, and forgets it."""

    def emit_log(self, _at: datetime, _level: str, _message: str) -> None: ...

    def report_progress(self, _fraction: float, _note: str | None) -> None: ...


async def test_the_words_of_one_that_has_spoken_are_closed_with_it(env: Env, findings: Findings) -> None:
    runner, closed = ManualRunner(), list[ClaimedExecution]()
    executor = Executor(
        env,
        registry(),
        {RunStyle.COROUTINE: runner},
        Slots(2),
        StartQueue(env.clock),
        held_lease(env),
        findings.append,
        lambda _context: Words(),
        no_schedule,
        no_cause,
        closed.append,
    )
    claims = [claim(number=1), claim(number=2)]
    executor.accept(claims)
    await turn()

    runner.started[0].emit_log("info", "good morning")
    for claimed in claims:
        runner.end(claimed)
    await until(lambda: len(findings) == 2)

    assert closed == [claims[0]]
    executor.abandon()


async def test_what_was_begun_and_given_back_says_so(
    executor: Executor, runner: ManualRunner, findings: Findings
) -> None:
    executor.accept([claim()])
    await turn()

    runner.end(claim(), Released())
    await turn()

    assert findings.outcomes == {1: Released(has_started=True)}


async def test_a_handler_this_worker_does_not_have_is_not_tried_again(executor: Executor, findings: Findings) -> None:
    executor.accept([claim(handler="app:gone")])

    (finding,) = findings
    assert isinstance(finding.outcome, Failed)
    assert not finding.outcome.is_retryable
    assert "app:gone" in finding.outcome.error.message


# stops


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("enough", CancelOutcome("enough")),
        ("skip:paused", NotStarted("paused")),
        ("skip:deleted", NotStarted("deleted")),
    ],
)
async def test_a_held_execution_is_cancelled_before_its_start(
    executor: Executor, runner: ManualRunner, findings: Findings, clock: VirtualClock, reason: str, outcome: Outcome
) -> None:
    executor.accept([claim(START + timedelta(milliseconds=1), 1), claim(START + timedelta(milliseconds=1), 2)])

    executor.stop_executions({ExecutionId(UUID(int=1)): reason})
    assert findings.outcomes == {1: outcome}
    assert executor.held == 1

    clock.advance("1ms")
    await until(lambda: runner.started)
    assert [id_.int for id_ in runner.ids] == [2]


async def test_an_execution_held_behind_a_cancelled_one_starts_in_time(
    executor: Executor, runner: ManualRunner, clock: VirtualClock
) -> None:
    executor.accept([claim(START + timedelta(seconds=number), number) for number in (1, 5, 2)])

    executor.stop_executions({claim(number=1).id: "enough"})
    clock.advance("2s")
    executor._start_due()
    await turn()

    assert [id_.int for id_ in runner.ids] == [2]


async def test_a_stop_goes_back_with_what_it_was_for(
    executor: Executor, runner: ManualRunner, findings: Findings, clock: VirtualClock
) -> None:
    """When it is claimed again, the claim says whether it is still to be stopped."""
    executor.accept([claim(number=1), claim(number=2), claim(number=3, stop="enough")])
    await turn()
    clock.advance("25ms")
    executor._on_waited_too_long()
    assert findings.outcomes == {3: Released()}
    runner.end(claim(number=1))
    await turn()

    executor.accept([claim(number=3)])
    await turn()

    assert [id_.int for id_ in runner.ids] == [1, 2, 3]


async def test_what_waits_for_a_slot_is_called_off_when_it_would_start(
    executor: Executor, runner: ManualRunner, findings: Findings
) -> None:
    claims = [claim(number=number) for number in range(1, 4)]
    executor.accept(claims)
    await turn()

    executor.stop_executions({claims[2].id: "enough"})
    runner.end(claims[0])
    await turn()

    assert findings.outcomes == {1: Succeeded(), 3: CancelOutcome("enough")}
    assert len(runner.started) == 2


async def test_a_claim_that_comes_with_a_stop_is_not_started(
    executor: Executor, runner: ManualRunner, findings: Findings
) -> None:
    executor.accept([claim(stop="enough")])
    await turn()

    assert findings.outcomes == {1: CancelOutcome("enough")}
    assert runner.started == []


async def test_what_runs_is_told_to_stop(executor: Executor, runner: ManualRunner, findings: Findings) -> None:
    executor.accept([claim()])
    await turn()

    executor.stop_executions({claim().id: "enough"})

    context = runner.started[0]
    assert (context.halted, context.halt_reason) == (StopReason.CANCEL, "enough")
    assert findings == []


async def test_a_running_execution_is_not_stopped_by_a_pause(executor: Executor, runner: ManualRunner) -> None:
    executor.accept([claim()])
    await turn()

    executor.stop_executions({claim().id: "skip:paused"})

    assert runner.started[0].halted is None


async def test_a_stop_for_something_else_is_forgotten(
    executor: Executor, runner: ManualRunner, findings: Findings
) -> None:
    executor.stop_executions({claim().id: "an earlier claim of it was meant"})

    executor.accept([claim()])
    await turn()

    assert len(runner.started) == 1


# timeouts


async def test_an_attempt_is_halted_when_its_time_is_up_and_not_before(
    real: Callable[..., Executor], findings: Findings
) -> None:
    executor = real(HaltingRunner(), slots=3)
    begun = time.monotonic()

    executor.accept([claim(number=1, timeout_ms=200), claim(number=2, timeout_ms=60), claim(number=3)])
    await until(lambda: 2 in findings.outcomes)
    assert time.monotonic() - begun >= 0.06
    assert isinstance(findings.outcomes[2], TimeoutOutcome)

    # On a busy machine at the same time perhaps, and not before.
    await until(lambda: 1 in findings.outcomes)
    assert time.monotonic() - begun >= 0.2
    assert isinstance(findings.outcomes[1], TimeoutOutcome)
    assert executor.busy == 1, "what has no timeout goes on"


async def test_an_attempt_that_has_ended_is_not_halted(
    executor: Executor, runner: ManualRunner, clock: VirtualClock
) -> None:
    executor.accept([claim(timeout_ms=10), claim(number=2, timeout_ms=10)])
    await turn()
    runner.end(claim())
    await turn()

    clock.advance("1s")
    await until(lambda: runner.started[1].halted is StopReason.TIMEOUT)

    assert runner.started[0].halted is None


async def test_the_halt_says_how_long_it_was(executor: Executor, runner: ManualRunner, clock: VirtualClock) -> None:
    executor.accept([claim(timeout_ms=1_500)])
    await turn()

    clock.advance("2s")
    await until(lambda: runner.started[0].is_halted)

    assert "1.5 s" in runner.started[0].halt_reason


# leaving


async def test_everything_that_has_not_begun_can_be_given_back(
    executor: Executor, runner: ManualRunner, findings: Findings
) -> None:
    executor.accept([claim(number=number) for number in range(1, 5)])
    executor.accept([claim(START + timedelta(seconds=1), 5)])
    await turn()

    given_back = executor.give_back_all()

    assert given_back == 3
    assert findings.outcomes == dict.fromkeys([3, 4, 5], Released())
    assert (executor.busy, executor.held, executor.waiting) == (2, 0, 0)
    assert [claimed.id.int for claimed in executor.unfinished()] == [1, 2]


async def test_what_runs_can_be_halted_and_goes_back_as_begun(
    real: Callable[..., Executor], findings: Findings
) -> None:
    runner = HaltingRunner()
    executor = real(runner)
    executor.accept([claim(number=1), claim(number=2)])
    await until(lambda: len(runner.started) == 2)

    executor.halt_all()
    assert await executor.wait_idle(PATIENCE_SECONDS)

    assert {context.halted for context in runner.started} == {StopReason.SHUTDOWN}
    assert findings.outcomes == dict.fromkeys([1, 2], Released(has_started=True))


async def test_it_is_not_idle_before_the_last_one_has_ended(executor: Executor, runner: ManualRunner) -> None:
    executor.accept([claim(number=1), claim(number=2)])
    await turn()

    runner.end(claim(number=1))
    await turn()
    assert not await executor.wait_idle(0)

    runner.end(claim(number=2))
    assert await executor.wait_idle(PATIENCE_SECONDS)


async def test_waiting_for_what_runs_has_an_end(executor: Executor, runner: ManualRunner) -> None:
    assert await executor.wait_idle(0)
    executor.accept([claim()])
    await turn()

    assert not await executor.wait_idle(0)
    runner.end(claim())
    assert await executor.wait_idle(PATIENCE_SECONDS)


async def test_what_was_abandoned_is_cut_off_and_hands_nothing_over(
    executor: Executor, runner: ManualRunner, findings: Findings, clock: VirtualClock
) -> None:
    executor.accept([claim(number=number) for number in range(1, 4)])
    executor.accept([claim(START + timedelta(milliseconds=1), 4)])
    await turn()
    contexts = list(runner.started)

    executor.abandon()
    clock.advance("1m")
    await turn(20)

    assert findings == []
    assert {context.halted for context in contexts} == {StopReason.SHUTDOWN}
    assert len(runner.started) == 2, "nothing was started any more"
    assert await executor.wait_idle(0)
    assert all(context.task is not None and context.task.done() for context in contexts)


async def test_what_was_abandoned_begins_nothing_when_a_place_comes_free(env: Env) -> None:
    runner, told = StubbornRunner(), []
    executor = make_executor(env, runner, slots=1)
    executor.slots.freed.subscribe(lambda: told.append("room"))
    executor.accept([claim(number=1), claim(number=2)])
    await turn()

    executor.abandon()
    await turn()
    assert told == []
    runner.freed.send()
    await turn()

    assert [id_.int for id_ in runner.ids] == [1]


async def test_an_outcome_that_comes_after_the_end_is_not_handed_over(
    executor: Executor, runner: ManualRunner, findings: Findings
) -> None:
    """A handler that returns in the very moment in which the lease is lost."""
    executor.accept([claim()])
    await turn()

    runner.end(claim())
    executor.abandon()
    await turn(20)

    assert findings == []


class DeafRunner(ManualRunner):
    """Ignores its cancellation and reports success."""

    async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
        try:
            return await super().run(handler, context)
        except asyncio.CancelledError:
            return Succeeded("all went well")


async def test_what_is_said_after_the_end_is_not_heard(env: Env, findings: Findings) -> None:
    runner, told = DeafRunner(), []
    executor = make_executor(env, runner, hand_over=findings.append)
    executor.slots.freed.subscribe(lambda: told.append("room"))
    executor.accept([claim()])
    await turn()

    executor.abandon()
    await turn(20)

    assert (findings, told) == ([], [])


async def test_without_a_lease_nothing_is_started(executor: Executor, runner: ManualRunner) -> None:
    """A machine that slept wakes to the timers of work that others have by now."""
    executor.lease.lose()

    executor.accept([claim()])
    await turn()

    assert runner.started == []


# the end of a time


@pytest.mark.parametrize(
    ("isolate", "options", "extensions"),
    [
        (True, {}, [timedelta(seconds=20)]),
        (True, {"grace": timedelta(minutes=2)}, [timedelta(seconds=130)]),
        (True, {"grace": timedelta(0)}, []),
        (False, {"interrupt": True}, [timedelta(seconds=20)]),
        (False, {}, []),
    ],
)
async def test_the_reaper_leaves_an_attempt_alone_while_it_has_its_grace(
    env: Env, isolate: bool, options: dict[str, Any], extensions: list[timedelta]
) -> None:
    handler = make_handler(lambda: None, name=HANDLER, isolate=isolate, options=HandlerOptions(**options))
    asked: list[timedelta] = []

    async def extend(_claimed: ClaimedExecution, span: timedelta) -> None:
        asked.append(span)

    executor = Executor(
        env,
        Registry([handler]),
        {},
        Slots(2),
        StartQueue(env.clock),
        held_lease(env),
        lambda _: None,
        lambda _context: Words(),
        no_schedule,
        no_cause,
        extend_deadline=extend,
    )

    executor.note_timeout(AttemptContext(claim(), env.clock, lambda _: Words()))
    await turn()

    assert asked == extensions
